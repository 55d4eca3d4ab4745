-- title: Cost of sweeps
-- answers: What did a sweep cost: GPU-hours, money, cells without a number?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param since time = 30d: only sweeps begun since
-- param now moment = now: ages are counted up to here
-- Time of the runs alone, not of their planning. A host is taken whole while a run of it lasts:
-- amount is its price for that time, at the price valid when the sweep began. What hosts measured
-- together counts for each of them, its cells and runs for the host of rank 0 alone.
WITH told AS (
    SELECT
        c.sweep_id, c.series_id, c.status, r.id AS run_id, r.duration_seconds,
        CASE WHEN r.attempt > 1
                AND EXISTS (SELECT 1 FROM run e WHERE e.cell_id = c.id AND e.id < r.id)
            THEN 0 ELSE 1 END AS of_cell
    FROM sweep w
    CROSS JOIN cell c
    LEFT JOIN run r ON r.cell_id = c.id
    WHERE c.sweep_id = w.id AND w.started_at >= :since
), part AS (
    SELECT
        s.id AS series_id, s.host_id, 1 AS leads, s.n_hosts, ds.n_devices, s.source, s.synthetic
    FROM series s
    JOIN device_set ds ON ds.id = s.device_set_id
    WHERE s.id NOT IN (SELECT series_id FROM v_together)
    UNION ALL
    SELECT
        g.series_id, g.host_id, CASE WHEN g.host_id = s.host_id THEN 1 ELSE 0 END, 1, g.n_devices,
        s.source, s.synthetic
    FROM v_together g
    JOIN series s ON s.id = g.series_id
), per_host AS (
    SELECT
        t.sweep_id, s.host_id, s.source, s.synthetic, sum(t.of_cell * s.leads) AS n_cells,
        sum(CASE WHEN t.status IN ('ok', 'partial') THEN t.of_cell * s.leads ELSE 0 END)
            AS n_measured,
        sum(CASE
            WHEN t.status IN ('skipped', 'not_applicable') THEN t.of_cell * s.leads ELSE 0
        END) AS n_skipped,
        sum(CASE
            WHEN t.status IN ('failed', 'timeout', 'aborted', 'invalid')
            THEN t.of_cell * s.leads ELSE 0
        END) AS n_failed,
        sum(CASE WHEN t.run_id IS NULL THEN 0 ELSE s.leads END) AS n,
        coalesce(sum(t.duration_seconds * s.leads), 0) AS run_seconds,
        coalesce(sum(t.duration_seconds * s.n_hosts), 0) / 3600 AS host_hours,
        coalesce(sum(t.duration_seconds * s.n_devices), 0) / 3600 AS gpu_hours
    FROM told t
    JOIN part s ON s.series_id = t.series_id
    GROUP BY t.sweep_id, s.host_id, s.source, s.synthetic
), spent AS (
    SELECT
        t.sweep_id, h.sku_id, h.cluster_id, t.source, t.synthetic, count(*) AS n_hosts,
        sum(t.n_cells) AS n_cells, sum(t.n_measured) AS n_measured,
        sum(t.n_skipped) AS n_skipped, sum(t.n_failed) AS n_failed, sum(t.n) AS n,
        sum(t.run_seconds) AS run_seconds, sum(t.host_hours) AS host_hours,
        sum(t.gpu_hours) AS gpu_hours
    FROM per_host t
    JOIN host h ON h.id = t.host_id
    GROUP BY t.sweep_id, h.sku_id, h.cluster_id, t.source, t.synthetic
)
SELECT
    sw.uuid AS sweep, cl.name AS cluster, k.name AS sku, sw.profile, sw.trigger, sw.status,
    sw.started_at, t.n_hosts, t.n_cells, t.n_measured, t.n_skipped, t.n_failed, t.n,
    t.run_seconds, t.host_hours, t.gpu_hours, p.basis, p.currency, p.kinds,
    t.host_hours * p.host_hour_amount AS amount,
    :now - sw.started_unix_seconds AS age_seconds, t.source, t.synthetic
FROM spent t
JOIN sweep sw ON sw.id = t.sweep_id
JOIN cluster cl ON cl.id = t.cluster_id
LEFT JOIN sku k ON k.id = t.sku_id
LEFT JOIN v_price p
    ON p.cluster = cl.name AND p.sku = k.name AND p.price_from <= sw.started_at
    AND (p.price_to IS NULL OR p.price_to > sw.started_at)
WHERE sw.started_at >= :since AND cl.name LIKE :cluster
ORDER BY sw.started_at DESC, sw.id DESC, k.name, p.currency, p.basis
