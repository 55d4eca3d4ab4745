-- title: Prefill by length
-- answers: How long does a prompt take, and where do longer ones stop gaining?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param model text = %: shapes whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- median: tokens per second of device time, with its interval. of_best_ratio: by the best length
-- of the curve (one model, batch, precision, way of running and arm). Knees: query knee.
WITH measured AS (
    SELECT
        v.*, replace(params, '"sequence":' || CAST(seq_len AS text), '"sequence":*') AS curve
    FROM v_latest v
    WHERE probe = 'prefill' AND rank IS NULL AND point = '{}' AND seq_len IS NOT NULL
        AND measured_at >= :since AND host LIKE :host AND model LIKE :model
        AND source LIKE :source
), lengths AS (
    SELECT
        cluster, host, host_key, devices, series_id, model, batch, dtype, tp, arm, params, curve,
        seq_len, sweep, source, synthetic,
        max(CASE WHEN metric = 'tokens_per_second' THEN n_processes END) AS n_processes,
        max(CASE WHEN metric = 'tokens_per_second' THEN n END) AS n,
        max(CASE WHEN metric = 'tokens_per_second' THEN median END) AS median,
        max(CASE WHEN metric = 'tokens_per_second' THEN ci_lo END) AS ci_lo,
        max(CASE WHEN metric = 'tokens_per_second' THEN ci_hi END) AS ci_hi,
        max(CASE WHEN metric = 'tokens_per_second' THEN ci_level END) AS ci_level,
        max(CASE WHEN metric = 'prefill_device_seconds' THEN median END) AS device_seconds,
        max(CASE WHEN metric = 'prefill_wall_seconds' THEN median END) AS wall_seconds,
        max(CASE WHEN metric = 'host_share_ratio' THEN median END) AS host_share_ratio,
        max(CASE WHEN metric = 'mfu_measured_ratio' THEN median END) AS mfu_measured_ratio,
        max(CASE WHEN metric = 'kernel_launch_count' THEN median END) AS kernel_launches,
        min(measured_unix_seconds) AS oldest
    FROM measured
    GROUP BY
        cluster, host, host_key, devices, series_id, model, batch, dtype, tp, arm, params, curve,
        seq_len, sweep, source, synthetic
)
SELECT
    cluster, host, devices, model, batch, dtype, tp, arm, seq_len, n_processes, n,
    median AS tokens_per_second, ci_lo AS tokens_per_second_ci_lo,
    ci_hi AS tokens_per_second_ci_hi, ci_level, device_seconds, wall_seconds,
    host_share_ratio, mfu_measured_ratio, kernel_launches,
    median / max(median) OVER (
        PARTITION BY cluster, host_key, devices, curve, arm, source, synthetic
    ) AS of_best_ratio,
    params, :now - oldest AS age_seconds, sweep, source, synthetic
FROM lengths
WHERE median > 0
ORDER BY cluster, host, devices, model, batch, dtype, tp, curve, arm, seq_len
