-- title: History by night
-- answers: How did a metric of the same case and devices go, night by night, from the start?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param metric text = %: metrics whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param limit integer = 1000: rows to show, the newest first
-- param now moment = now: ages are counted up to here
-- Reads night_rollup alone, so that it stays quick over years and after results are gone.
-- n: readings of that night; lowest and highest are not kept, mad is of those readings.
-- hosts: those that measured it together; host is that of rank 0.
WITH wanted AS (
    SELECT
        s.id, cl.name AS cluster, h.name AS host, ds.label AS devices, pc.probe, pc.params,
        a.name AS arm, s.latest_unix_seconds, s.source, s.synthetic
    FROM series s
    JOIN host h ON h.id = s.host_id
    JOIN cluster cl ON cl.id = h.cluster_id
    JOIN probe_case pc ON pc.id = s.case_id
    JOIN arm a ON a.id = s.arm_id
    JOIN device_set ds ON ds.id = s.device_set_id
    WHERE pc.probe LIKE :probe AND s.source LIKE :source AND (h.name LIKE :host OR s.id IN (
        SELECT series_id FROM v_together WHERE host LIKE :host
    ))
), newest_of_few AS (
    -- All their nights are read and put in order; LIMIT 0 reads nothing.
    SELECT
        w.*, u.series_id, u.metric_id, m.name AS metric, m.unit, u.point, u.day, u.n, u.median,
        u.mad
    FROM wanted w
    CROSS JOIN night_rollup u
    CROSS JOIN metric m
    WHERE u.series_id = w.id AND m.id = u.metric_id AND m.name LIKE :metric AND u.median > 0
    ORDER BY u.day DESC, w.cluster, w.host, w.probe, w.devices, w.params, w.arm, m.name, u.point
    LIMIT CASE WHEN (SELECT count(*) FROM wanted) <= 1000 THEN :limit ELSE 0 END
), newest_of_many AS (
    -- The newest night comes first, by an index on days.
    SELECT
        s.id, cl.name AS cluster, h.name AS host, ds.label AS devices, pc.probe, pc.params,
        a.name AS arm, s.latest_unix_seconds, s.source, s.synthetic, u.series_id, u.metric_id,
        m.name AS metric, m.unit, u.point, u.day, u.n, u.median, u.mad
    FROM night_rollup u
    CROSS JOIN series s
    JOIN host h ON h.id = s.host_id
    JOIN cluster cl ON cl.id = h.cluster_id
    JOIN probe_case pc ON pc.id = s.case_id
    JOIN arm a ON a.id = s.arm_id
    JOIN device_set ds ON ds.id = s.device_set_id
    JOIN metric m ON m.id = u.metric_id
    WHERE s.id = u.series_id AND u.day > '1970-01-01'
        AND (h.name LIKE :host OR s.id IN (SELECT series_id FROM v_together WHERE host LIKE :host))
        AND pc.probe LIKE :probe AND m.name LIKE :metric AND s.source LIKE :source
        AND u.median > 0
    ORDER BY u.day DESC, cl.name, h.name, pc.probe, ds.label, pc.params, a.name, m.name, u.point
    LIMIT :limit
), newest AS (
    SELECT * FROM newest_of_few
    UNION ALL
    SELECT * FROM (
        SELECT * FROM newest_of_many
        LIMIT CASE WHEN (SELECT count(*) FROM wanted) > 1000 THEN :limit ELSE 0 END
    ) of_many
)
SELECT
    cluster, host, devices, hosts, probe, params, arm, metric, unit, point, day, n, median, mad,
    median / (
        SELECT max(b.median)
        FROM night_rollup b
        WHERE b.series_id = newest.series_id AND b.metric_id = newest.metric_id
            AND b.point = newest.point
    ) AS of_highest_ratio,
    :now - latest_unix_seconds AS age_seconds, source, synthetic
FROM newest
LEFT JOIN (SELECT series_id AS gang_id, hosts FROM v_together WHERE host_no = 1) gang
    ON gang_id = series_id
ORDER BY day DESC, cluster, host, probe, devices, params, arm, metric, point
