-- title: Pairs slow from both sides
-- answers: Which pairs of GPUs are slow whichever of them begins, and which GPU is in most?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param z number = 3.5: at least so many robust standard deviations below the pairs alike
-- param min_effect number = 0.02: and at least this much worse; twice as much for times
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- a_slow_pairs, b_slow_pairs: pairs slow both ways that this GPU is part of, in the same case; if
-- one GPU is in several, suspect it and not the links.
WITH slow AS (
    SELECT v.*, first.device_id AS a_id, second.device_id AS b_id, s.host_id
    FROM v_peer v
    JOIN series s ON s.id = v.series_id
    JOIN device_set_member first ON first.device_set_id = s.device_set_id AND first.position = 0
    JOIN device_set_member second
        ON second.device_set_id = s.device_set_id AND second.position = 1
    WHERE v.n_devices = 2 AND v.z <= -:z
        AND v.effect_ratio <= -:min_effect * CASE WHEN v.unit = 's' THEN 2 ELSE 1 END
        AND v.cluster LIKE :cluster AND v.host LIKE :host AND v.source LIKE :source
        AND v.measured_at >= :since
), both_ways AS (
    SELECT
        x.cluster, x.host, x.host_id, x.a_id, x.b_id, x.probe, x.params, x.case_id, x.arm,
        x.path_class, x.metric, x.unit, x.point, x.n, x.median, x.ci_lo, x.ci_hi, x.ci_level,
        y.n AS back_n, y.median AS back_median, x.peer_median, x.n_peers,
        x.effect_ratio, y.effect_ratio AS back_effect_ratio, x.z, y.z AS back_z,
        CASE WHEN y.measured_unix_seconds < x.measured_unix_seconds
            THEN y.measured_unix_seconds ELSE x.measured_unix_seconds END AS oldest,
        x.sweep, x.source, x.synthetic
    FROM slow x
    JOIN slow y
        ON y.host_id = x.host_id AND y.a_id = x.b_id AND y.b_id = x.a_id
        AND y.case_id = x.case_id AND y.arm = x.arm AND y.metric = x.metric
        AND y.point = x.point AND y.source = x.source AND y.synthetic = x.synthetic
), counted AS (
    SELECT
        both_ways.*,
        count(*) OVER (
            PARTITION BY host_id, a_id, case_id, arm, metric, point, source, synthetic
        ) AS a_slow_pairs,
        count(*) OVER (
            PARTITION BY host_id, b_id, case_id, arm, metric, point, source, synthetic
        ) AS b_slow_pairs
    FROM both_ways
)
SELECT
    c.cluster, c.host, a.key AS a, b.key AS b, c.probe, c.params, c.arm, c.path_class, c.metric,
    c.unit, c.point, c.n, c.median, c.ci_lo, c.ci_hi, c.ci_level, c.back_n, c.back_median,
    c.peer_median, c.n_peers, c.effect_ratio, c.back_effect_ratio, c.z, c.back_z,
    c.a_slow_pairs, c.b_slow_pairs, :now - c.oldest AS age_seconds, c.sweep, c.source,
    c.synthetic
FROM counted c
JOIN device a ON a.id = c.a_id
JOIN device b ON b.id = c.b_id
WHERE c.a_id < c.b_id
ORDER BY c.effect_ratio, c.cluster, c.host, c.a_id, c.b_id, c.metric, c.params, c.arm, c.point
