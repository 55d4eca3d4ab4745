-- title: Prefill by length
-- answers: How long does a prompt take, and where do longer ones stop gaining?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param model text = %: shapes whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- tokens_per_second: of device time, median with its interval. of_best_ratio: by the best length
-- of the curve (one model, batch, precision, way of running and arm). Knees: query knee.
SELECT
    cluster, host, devices, model, batch, dtype, tp, arm, seq_len, n_processes, n,
    tokens_per_second, tokens_per_second_ci_lo, tokens_per_second_ci_hi, ci_level, device_seconds,
    wall_seconds, host_share_ratio, mfu_measured_ratio, kernel_launches,
    tokens_per_second / max(tokens_per_second) OVER (
        PARTITION BY cluster, host_key, devices, curve, arm, source, synthetic
    ) AS of_best_ratio,
    params, :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM v_prefill
WHERE tokens_per_second > 0 AND measured_at >= :since AND host LIKE :host AND model LIKE :model
    AND source LIKE :source
ORDER BY cluster, host, devices, model, batch, dtype, tp, curve, arm, seq_len
