-- title: Prefill by precision
-- answers: How much faster is each precision, and how far off are its results?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param model text = %: shapes whose name matches this LIKE pattern
-- param reference text = bf16: precision that the others are held against
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- speed_ratio: tokens per second by those of the reference with all else equal, in one sweep.
-- relative_error_ratio: distance of the logits from those in float32, root mean square; of single
-- modules: query latest with metric=relative_error_ratio.
SELECT
    p.cluster, p.host, p.devices, p.model, p.seq_len, p.batch, p.tp, p.arm, p.dtype,
    p.n_processes, p.n, p.tokens_per_second, p.tokens_per_second_ci_lo,
    p.tokens_per_second_ci_hi, p.ci_level,
    p.tokens_per_second / other.tokens_per_second AS speed_ratio, p.relative_error_ratio,
    p.device_seconds, p.peak_allocated_bytes, p.params,
    :now - p.measured_unix_seconds AS age_seconds, p.sweep, p.source, p.synthetic
FROM v_prefill p
LEFT JOIN v_prefill other
    ON other.dtype = :reference AND other.beside = p.beside AND other.host_key = p.host_key
    AND other.cluster = p.cluster AND other.devices = p.devices AND other.arm = p.arm
    AND other.sweep = p.sweep AND other.source = p.source AND other.synthetic = p.synthetic
    AND other.tokens_per_second > 0
WHERE p.tokens_per_second > 0 AND p.measured_at >= :since AND p.host LIKE :host
    AND p.model LIKE :model AND p.source LIKE :source
ORDER BY
    p.cluster, p.host, p.devices, p.model, p.seq_len, p.batch, p.tp, p.beside, p.arm,
    p.tokens_per_second DESC, p.dtype
