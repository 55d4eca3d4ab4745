-- title: Copies between host and device by chunk
-- answers: How fast are copies by chunk size, and which chunk reaches nearly the peak?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param direction text = %: directions that match this LIKE pattern
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- of_peak_ratio: 1 = the best chunk of the same devices, direction, memory, arm and metric.
-- n_ranks above 1: all GPUs at once; without a point their sum, else one GPU's part.
SELECT
    cluster, host, devices, n_ranks, direction, memory, arm, bytes, metric, unit, point,
    n_processes, n, median, ci_lo, ci_hi, ci_level,
    median / max(median) OVER (
        PARTITION BY
            cluster, host_key, devices, direction, memory, arm, metric, point, source, synthetic
    ) AS of_peak_ratio,
    :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM v_latest
WHERE probe = 'host_to_device' AND unit = 'B/s' AND measured_at >= :since
    AND host LIKE :host AND direction LIKE :direction
ORDER BY cluster, host, devices, direction, memory, arm, metric, point, bytes
