-- title: Stragglers
-- answers: How much of its speed does a job on all hosts lose to the slowest one?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param metric text = %: metrics whose name matches this LIKE pattern
-- param min_hosts integer = 3: a case counts if this many hosts measured it
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- job_speed_ratio: speed of a job that waits for every host, by that of the median host.
-- slowest: the same host is often the slowest of several cases.
SELECT
    cluster, sku, topology_class, probe, params, arm, n_devices, path_class, metric, unit, point,
    n_fleet_hosts AS n_hosts, host AS slowest, median AS slowest_median,
    fleet_n AS n, fleet_median AS median, fleet_ci_lo AS ci_lo, fleet_ci_hi AS ci_hi, ci_level,
    speed_ratio AS job_speed_ratio, without_ratio AS without_slowest_ratio,
    :now - measured_unix_seconds AS age_seconds, source, synthetic
FROM v_straggler
WHERE place = 1 AND n_fleet_hosts >= :min_hosts AND cluster LIKE :cluster
    AND probe LIKE :probe AND metric LIKE :metric AND source LIKE :source
    AND measured_at >= :since
ORDER BY job_speed_ratio, cluster, topology_class, metric, params, arm, n_devices, point
