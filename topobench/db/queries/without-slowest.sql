-- title: Without the slowest hosts
-- answers: How much speed is bought by leaving out the slowest one, two, three ... hosts?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param metric text = %: metrics whose name matches this LIKE pattern
-- param hosts integer = 5: leave out up to this many
-- param min_hosts integer = 3: a case counts if this many hosts measured it
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- gain_ratio: speed of a job on the hosts left by that of a job on all, minus 1. Hosts left out
-- do no work: with all of them to be used, compare left_speed: hosts left times job_speed_ratio.
WITH ranked AS (
    SELECT
        v.*, min(speed_ratio) OVER (PARTITION BY fleet) AS all_ratio,
        min(measured_unix_seconds) OVER (PARTITION BY fleet) AS oldest
    FROM v_straggler v
    WHERE n_fleet_hosts >= :min_hosts AND cluster LIKE :cluster AND probe LIKE :probe
        AND metric LIKE :metric AND source LIKE :source
)
SELECT
    cluster, sku, topology_class, probe, params, arm, n_devices, path_class, metric, unit, point,
    n_fleet_hosts AS n_hosts, place AS n_left_out, host AS last_left_out,
    fleet_median AS median, fleet_ci_lo AS ci_lo, fleet_ci_hi AS ci_hi, ci_level,
    fleet_n AS n, without_ratio AS job_speed_ratio,
    without_ratio / all_ratio - 1 AS gain_ratio,
    (n_fleet_hosts - place) * without_ratio AS left_speed,
    :now - oldest AS age_seconds, source, synthetic
FROM ranked
WHERE place <= :hosts AND without_ratio IS NOT NULL AND measured_at >= :since
ORDER BY cluster, topology_class, metric, params, arm, n_devices, path_class, point, place
