-- title: Effect of a driver
-- answers: Did a new driver change the speed, against hosts that kept theirs?
-- param driver text = %: new drivers whose version matches this LIKE pattern
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = host_to_device: probes whose name matches this LIKE pattern
-- param metric text = bandwidth_bytes_per_second: metrics whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- Changed hosts: median of the nights on the new driver by that of the nights before it. Kept:
-- hosts with one driver all the time, nights after by nights before the first host changed.
-- What hosts measured together is of several drivers, and not among it.
-- net_ratio: changed minus kept; -0.03 = 3 % worse. NULL without a host that kept its driver.
WITH asked AS (
    SELECT s.id AS series_id, s.host_id, h.cluster_id
    FROM probe_case pc
    JOIN series s ON s.case_id = pc.id
    JOIN host h ON h.id = s.host_id
    JOIN cluster cl ON cl.id = h.cluster_id
    WHERE pc.probe LIKE :probe AND cl.name LIKE :cluster AND s.source LIKE :source
        AND s.n_hosts = 1
), ran AS (
    SELECT
        x.series_id, x.host_id, x.cluster_id, r.id AS run_id, e.driver,
        r.started_unix_seconds AS moment
    FROM asked x
    JOIN run r
        ON r.series_id = x.series_id
        AND r.sweep_id >= (SELECT min(id) FROM sweep WHERE started_at >= :since)
    JOIN environment e ON e.id = r.environment_id
    WHERE r.started_at >= :since AND r.status IN ('ok', 'partial') AND e.driver IS NOT NULL
), arrived AS (
    SELECT
        cluster_id, host_id, driver, min(moment) AS begins,
        row_number() OVER (PARTITION BY host_id ORDER BY min(moment), driver) AS place
    FROM ran
    GROUP BY cluster_id, host_id, driver
), rollout AS (
    SELECT cluster_id, driver, min(begins) AS begins
    FROM arrived
    WHERE place > 1 AND driver LIKE :driver
    GROUP BY cluster_id, driver
), kept AS (
    SELECT host_id FROM arrived GROUP BY host_id HAVING count(*) = 1
), night AS (
    SELECT
        ran.series_id, ran.host_id, ran.cluster_id, d.metric_id, d.point, ran.driver, ran.moment,
        d.median, d.n
    FROM (SELECT DISTINCT cluster_id FROM rollout) o
    CROSS JOIN ran
    CROSS JOIN reading d
    JOIN metric m ON m.id = d.metric_id
    WHERE ran.cluster_id = o.cluster_id AND d.run_id = ran.run_id AND m.name LIKE :metric
        AND m.better <> 0 AND d.rank IS NULL AND d.median > 0
), sided AS (
    SELECT
        o.driver AS new_driver, 1 AS changed, n.series_id, n.metric_id, n.point, n.moment,
        n.median, n.n, CASE WHEN n.driver = o.driver THEN 1 ELSE 0 END AS after
    FROM rollout o
    JOIN arrived x ON x.cluster_id = o.cluster_id AND x.driver = o.driver AND x.place > 1
    JOIN night n ON n.host_id = x.host_id AND (n.driver = o.driver OR n.moment < x.begins)
    UNION ALL
    SELECT
        o.driver, 0, n.series_id, n.metric_id, n.point, n.moment, n.median, n.n,
        CASE WHEN n.moment >= o.begins THEN 1 ELSE 0 END
    FROM rollout o
    JOIN night n ON n.cluster_id = o.cluster_id
    JOIN kept c ON c.host_id = n.host_id
    WHERE n.driver <> o.driver
), placed AS (
    SELECT
        sided.*,
        row_number() OVER (
            PARTITION BY new_driver, series_id, metric_id, point, after ORDER BY median
        ) AS place,
        count(*) OVER (PARTITION BY new_driver, series_id, metric_id, point, after) AS nights
    FROM sided
), middles AS (
    SELECT
        new_driver, changed, series_id, metric_id, point, sum(n) AS n, max(moment) AS newest,
        avg(CASE WHEN after = 0 AND 2 * place BETWEEN nights AND nights + 2 THEN median END)
            AS before_median,
        avg(CASE WHEN after = 1 AND 2 * place BETWEEN nights AND nights + 2 THEN median END)
            AS after_median
    FROM placed
    GROUP BY new_driver, changed, series_id, metric_id, point
), named AS (
    SELECT
        y.new_driver, y.changed, cl.name AS cluster, k.name AS sku, s.host_id, s.case_id,
        a.name AS arm, y.metric_id, y.point, s.source, s.synthetic, y.n, y.newest,
        m.better * (y.after_median / y.before_median - 1) AS effect
    FROM middles y
    JOIN series s ON s.id = y.series_id
    JOIN host h ON h.id = s.host_id
    JOIN cluster cl ON cl.id = h.cluster_id
    LEFT JOIN sku k ON k.id = h.sku_id
    JOIN arm a ON a.id = s.arm_id
    JOIN metric m ON m.id = y.metric_id
    WHERE y.before_median IS NOT NULL AND y.after_median IS NOT NULL
), per_host AS (
    SELECT
        new_driver, changed, cluster, sku, host_id, case_id, arm, metric_id, point, source,
        synthetic, sum(n) AS n, max(newest) AS newest,
        avg(effect) AS effect
    FROM named
    GROUP BY
        new_driver, changed, cluster, sku, host_id, case_id, arm, metric_id, point, source,
        synthetic
), ranked AS (
    SELECT
        per_host.*,
        row_number() OVER (
            PARTITION BY
                new_driver, changed, cluster, sku, case_id, arm, metric_id, point, source,
                synthetic
            ORDER BY effect, host_id
        ) AS place,
        count(*) OVER (
            PARTITION BY
                new_driver, changed, cluster, sku, case_id, arm, metric_id, point, source,
                synthetic
        ) AS n_all
    FROM per_host
), pooled AS (
    SELECT
        new_driver, changed, cluster, sku, case_id, arm, metric_id, point, source, synthetic,
        n_all, sum(n) AS n, max(newest) AS newest,
        avg(CASE WHEN 2 * place BETWEEN n_all AND n_all + 2 THEN effect END) AS effect,
        max(CASE WHEN 2 * place <= n_all
            AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
            THEN effect END) AS lo,
        min(CASE WHEN 2 * place > n_all
            AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
            THEN effect END) AS hi
    FROM ranked
    GROUP BY
        new_driver, changed, cluster, sku, case_id, arm, metric_id, point, source, synthetic,
        n_all
)
SELECT
    c.new_driver AS driver, c.cluster, c.sku, pc.probe, pc.params, c.arm, m.name AS metric,
    c.point, c.n_all AS n_changed_hosts, c.n + coalesce(u.n, 0) AS n,
    c.effect AS changed_ratio, c.lo AS ci_lo, c.hi AS ci_hi,
    CASE WHEN c.n_all >= 6 THEN 'between' END AS ci_level,
    coalesce(u.n_all, 0) AS n_kept_hosts, u.effect AS kept_ratio, u.lo AS kept_lo,
    u.hi AS kept_hi, c.effect - u.effect AS net_ratio, c.lo - u.hi AS net_lo,
    c.hi - u.lo AS net_hi, :now - c.newest AS age_seconds, c.source, c.synthetic
FROM pooled c
LEFT JOIN pooled u
    ON u.new_driver = c.new_driver AND u.changed = 0 AND u.cluster = c.cluster
    AND coalesce(u.sku, '') = coalesce(c.sku, '') AND u.case_id = c.case_id AND u.arm = c.arm
    AND u.metric_id = c.metric_id AND u.point = c.point AND u.source = c.source
    AND u.synthetic = c.synthetic
JOIN probe_case pc ON pc.id = c.case_id
JOIN metric m ON m.id = c.metric_id
WHERE c.changed = 1
ORDER BY net_ratio, c.new_driver, c.cluster, c.sku, m.name, pc.params, c.arm, c.point
