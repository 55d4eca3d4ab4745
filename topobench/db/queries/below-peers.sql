-- title: Below their peers
-- answers: Which hosts, GPUs and pairs are slower than others of the same wiring?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param z number = 3.5: at least so many robust standard deviations below
-- param min_effect number = 0.02: and at least this much worse; twice as much for times
-- param min_peers integer = 8: a group counts if it has this many members
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- One night's list, no verdict: chance alone puts a few on it. topobench check judges.
SELECT
    cluster, host, devices, topology_class, probe, params, arm, path_class, metric, unit, point,
    median, ci_lo, ci_hi, ci_level, n_processes, n, peer_median, peer_mad, n_peers,
    n_peer_hosts, effect_ratio, z, driver,
    :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM v_peer
WHERE z <= -:z AND effect_ratio <= -:min_effect * CASE WHEN unit = 's' THEN 2 ELSE 1 END
    AND n_peers >= :min_peers AND cluster LIKE :cluster AND host LIKE :host
    AND probe LIKE :probe AND source LIKE :source AND measured_at >= :since
ORDER BY effect_ratio, cluster, host, devices, metric, params, arm, point
