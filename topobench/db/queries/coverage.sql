-- title: Coverage
-- answers: Which hosts were not measured lately, or never?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param since time = 14d: a host measured since then is not due
-- param now moment = now: ages are counted up to here
-- n: hosts of the cluster in service; covered_ratio: those of them that are not due.
SELECT
    cluster, host, host_key, sku, rack, n_series_measured, measured_at,
    :now - measured_unix_seconds AS age_seconds,
    CASE WHEN measured_at >= :since THEN 0 ELSE 1 END AS due,
    count(*) OVER (PARTITION BY cluster) AS n,
    avg(CASE WHEN measured_at >= :since THEN 1.0 ELSE 0.0 END) OVER (PARTITION BY cluster)
        AS covered_ratio,
    first_seen_at, last_seen_at, source, synthetic
FROM v_coverage
WHERE cluster LIKE :cluster AND retired_on IS NULL
    AND host_key NOT LIKE 'import:%'
ORDER BY due DESC, coalesce(measured_unix_seconds, 0), cluster, host
