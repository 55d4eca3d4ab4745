-- title: Load time against the slower stage
-- answers: Is a file loaded in about T_min, its bytes by the slower of storage and PCIe?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param tolerance number = 0.1: over T_min by at most this share is near it
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- over_ratio: 0.2 = 20 % longer than T_min. near: 1 if within the tolerance. stage: the slower.
WITH loads AS (
    SELECT
        cluster, host, host_key, devices, arm, params, point, bytes, sweep, source, synthetic,
        max(CASE WHEN metric = 'duration_seconds' THEN median END) AS median,
        max(CASE WHEN metric = 'duration_seconds' THEN ci_lo END) AS ci_lo,
        max(CASE WHEN metric = 'duration_seconds' THEN ci_hi END) AS ci_hi,
        max(CASE WHEN metric = 'duration_seconds' THEN ci_level END) AS ci_level,
        max(CASE WHEN metric = 'duration_seconds' THEN n_processes END) AS n_processes,
        max(CASE WHEN metric = 'duration_seconds' THEN n END) AS n,
        max(CASE WHEN metric = 'storage_bandwidth_bytes_per_second' THEN median END)
            AS storage_bytes_per_second,
        max(CASE WHEN metric = 'transfer_bandwidth_bytes_per_second' THEN median END)
            AS transfer_bytes_per_second,
        min(measured_unix_seconds) AS oldest
    FROM v_latest
    WHERE probe = 'weight_load' AND coalesce(rank, -1) < 0 AND measured_at >= :since
        AND cluster LIKE :cluster AND host LIKE :host AND source LIKE :source
    GROUP BY
        cluster, host, host_key, devices, arm, params, point, bytes, sweep, source, synthetic
), expected AS (
    SELECT
        loads.*,
        CASE WHEN storage_bytes_per_second <= transfer_bytes_per_second
            THEN 'storage' ELSE 'transfer' END AS stage,
        bytes / CASE WHEN storage_bytes_per_second <= transfer_bytes_per_second
            THEN storage_bytes_per_second ELSE transfer_bytes_per_second END AS t_min_seconds
    FROM loads
    WHERE median > 0 AND storage_bytes_per_second > 0 AND transfer_bytes_per_second > 0
)
SELECT
    cluster, host, devices, arm, params, bytes, 'duration_seconds' AS metric, 's' AS unit,
    n_processes, n, median, ci_lo, ci_hi, ci_level, t_min_seconds,
    median / t_min_seconds - 1 AS over_ratio,
    CASE WHEN median <= (1 + :tolerance) * t_min_seconds THEN 1 ELSE 0 END AS near,
    stage, storage_bytes_per_second, transfer_bytes_per_second,
    :now - oldest AS age_seconds, sweep, source, synthetic
FROM expected
ORDER BY over_ratio DESC, cluster, host, devices, params, arm
