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
WITH measured AS (
    SELECT v.*, replace(params, '"dtype":"' || dtype || '"', '"dtype":*') AS rest
    FROM v_latest v
    WHERE probe = 'prefill' AND rank IS NULL AND point = '{}' AND dtype IS NOT NULL
        AND measured_at >= :since AND host LIKE :host AND model LIKE :model
        AND source LIKE :source
), precisions AS (
    SELECT
        cluster, host, host_key, devices, series_id, model, seq_len, batch, dtype, tp, arm, params,
        rest, sweep, source, synthetic,
        max(CASE WHEN metric = 'tokens_per_second' THEN n_processes END) AS n_processes,
        max(CASE WHEN metric = 'tokens_per_second' THEN n END) AS n,
        max(CASE WHEN metric = 'tokens_per_second' THEN median END) AS median,
        max(CASE WHEN metric = 'tokens_per_second' THEN ci_lo END) AS ci_lo,
        max(CASE WHEN metric = 'tokens_per_second' THEN ci_hi END) AS ci_hi,
        max(CASE WHEN metric = 'tokens_per_second' THEN ci_level END) AS ci_level,
        max(CASE WHEN metric = 'prefill_device_seconds' THEN median END) AS device_seconds,
        max(CASE WHEN metric = 'relative_error_ratio' THEN median END) AS relative_error_ratio,
        max(CASE WHEN metric = 'peak_allocated_bytes' THEN median END) AS peak_allocated_bytes,
        min(measured_unix_seconds) AS oldest
    FROM measured
    GROUP BY
        cluster, host, host_key, devices, series_id, model, seq_len, batch, dtype, tp, arm, params,
        rest, sweep, source, synthetic
)
SELECT
    p.cluster, p.host, p.devices, p.model, p.seq_len, p.batch, p.tp, p.arm, p.dtype,
    p.n_processes, p.n, p.median AS tokens_per_second, p.ci_lo AS tokens_per_second_ci_lo,
    p.ci_hi AS tokens_per_second_ci_hi, p.ci_level, p.median / other.median AS speed_ratio,
    p.relative_error_ratio, p.device_seconds, p.peak_allocated_bytes, p.params,
    :now - p.oldest AS age_seconds, p.sweep, p.source, p.synthetic
FROM precisions p
LEFT JOIN precisions other
    ON other.dtype = :reference AND other.rest = p.rest AND other.host_key = p.host_key
    AND other.cluster = p.cluster AND other.devices = p.devices AND other.arm = p.arm
    AND other.sweep = p.sweep AND other.source = p.source AND other.synthetic = p.synthetic
    AND other.median > 0
WHERE p.median > 0
ORDER BY
    p.cluster, p.host, p.devices, p.model, p.seq_len, p.batch, p.tp, p.rest, p.arm,
    p.median DESC, p.dtype
