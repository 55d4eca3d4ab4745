-- title: Collectives by size
-- answers: Bandwidth and latency of a collective by message size, per host, ranks and ring?
-- param op text = all_reduce: the collective
-- param host text = %: hosts whose name matches this LIKE pattern
-- param bytes bytes = 0: only this message size; 0 for all
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- hosts: those that measured it together; host is that of rank 0.
SELECT
    cluster, host, sku, n_ranks, n_hosts, hosts, path_class, backend, dtype, arm, ring, bytes,
    metric, unit, n_processes, n, median, ci_lo, ci_hi, ci_level, devices,
    :now - measured_unix_seconds AS age_seconds, params, sweep, source, synthetic
FROM v_latest
LEFT JOIN (SELECT series_id AS gang_id, hosts FROM v_together WHERE host_no = 1) gang
    ON gang_id = series_id
WHERE op = :op AND metric <> 'locality_ratio' AND coalesce(rank, -1) < 0
    AND (:bytes = 0 OR bytes = :bytes) AND measured_at >= :since AND source LIKE :source
    AND (host LIKE :host OR series_id IN (
        SELECT series_id FROM v_together WHERE host LIKE :host
    ))
ORDER BY cluster, host, n_ranks, devices, backend, dtype, arm, metric, bytes, params, point
