-- title: Collectives by size
-- answers: Bandwidth and latency of a collective by message size, per host, ranks and ring?
-- param op text = all_reduce: the collective
-- param host text = %: hosts whose name matches this LIKE pattern
-- param bytes bytes = 0: only this message size; 0 for all
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
SELECT
    cluster, host, sku, n_ranks, n_hosts, path_class, backend, dtype, arm, ring, bytes,
    metric, unit, n_processes, n, median, ci_lo, ci_hi, ci_level, devices,
    :now - measured_unix_seconds AS age_seconds, params, sweep, source, synthetic
FROM v_latest
WHERE op = :op AND metric <> 'locality_ratio' AND coalesce(rank, -1) < 0
    AND (:bytes = 0 OR bytes = :bytes) AND measured_at >= :since AND host LIKE :host
    AND source LIKE :source
ORDER BY cluster, host, n_ranks, devices, backend, dtype, arm, metric, bytes, params, point
