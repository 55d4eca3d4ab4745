-- title: Hop classes
-- answers: How do latency and bandwidth between devices depend on the path between them?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param small bytes = 8K: size at which latency is shown; 0 for all
-- param large bytes = 128M: size at which bandwidth is shown; 0 for all
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
SELECT
    cluster, sku, topology_class, hop_class, path_class, n_devices, probe, op, bytes, dtype,
    backend, arm, metric, unit, point, n_series, n_hosts_measured AS n_hosts, n, median, ci_lo,
    ci_hi, ci_level, lowest, highest,
    :now - measured_unix_seconds AS age_seconds, params, source, synthetic
FROM v_hop_class
WHERE measured_at >= :since AND cluster LIKE :cluster AND probe LIKE :probe
    AND source LIKE :source
    AND ((unit = 's' AND (:small = 0 OR bytes = :small))
        OR (unit = 'B/s' AND (:large = 0 OR bytes = :large)))
ORDER BY
    cluster, sku, topology_class, probe, op, unit, metric, n_devices, arm, bytes, hop_class,
    path_class, params, point
