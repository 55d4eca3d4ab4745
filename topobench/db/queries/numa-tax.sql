-- title: NUMA tax
-- answers: What does another binding cost against local memory, on the same devices?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- tax_ratio: 0.1 = 10 % worse than local, below 0 = better; both arms are of one sweep.
WITH compared AS (
    SELECT
        v.*,
        count(CASE WHEN binding = 'local' THEN 1 END) OVER same AS n_local,
        max(CASE WHEN binding = 'local' THEN median END) OVER same AS local_median,
        max(CASE WHEN binding = 'local' THEN ci_lo END) OVER same AS local_ci_lo,
        max(CASE WHEN binding = 'local' THEN ci_hi END) OVER same AS local_ci_hi,
        max(CASE WHEN binding = 'local' THEN n_processes END) OVER same AS local_n_processes,
        max(CASE WHEN binding = 'local' THEN n END) OVER same AS local_n
    FROM v_latest v
    WHERE better <> 0 AND metric <> 'locality_ratio' AND rank IS NULL
        AND measured_at >= :since AND host LIKE :host AND probe LIKE :probe
    WINDOW same AS (
        PARTITION BY
            cluster, host_key, devices, case_id, n_ranks, coalesce(ring, ''), metric, point,
            sweep, source, synthetic
    )
)
SELECT
    cluster, host, devices, probe, params, metric, unit, binding,
    local_median, median, ci_lo, ci_hi, ci_level, local_ci_lo, local_ci_hi,
    better * (local_median - median) / local_median AS tax_ratio,
    local_n_processes, n_processes, local_n, n,
    :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM compared
WHERE binding <> 'local' AND n_local = 1 AND local_median > 0
ORDER BY tax_ratio DESC, cluster, host, devices, params, metric, binding
