-- title: Latest readings
-- answers: What was measured last, per host, devices, case and arm?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param metric text = %: metrics whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- hosts: those that measured it together; host is that of rank 0. By pair: query host-pairs.
SELECT
    cluster, host, devices, probe, params, arm, metric, unit, point,
    n_processes, n, median, ci_lo, ci_hi, ci_level, lowest, highest, n_hosts, hosts,
    :now - measured_unix_seconds AS age_seconds, measured_at, sweep, source, synthetic
FROM v_latest
LEFT JOIN (SELECT series_id AS gang_id, hosts FROM v_together WHERE host_no = 1) gang
    ON gang_id = series_id
WHERE measured_at >= :since AND probe LIKE :probe AND metric LIKE :metric
    AND source LIKE :source AND (host LIKE :host OR series_id IN (
        SELECT series_id FROM v_together WHERE host LIKE :host
    ))
ORDER BY cluster, host, probe, devices, metric, bytes, seq_len, params, arm, point
