-- title: Bindings side by side
-- answers: What do no binding, one NUMA node and spread memory give: mean, spread, variance?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param probe text = prefill: probes whose name matches this LIKE pattern
-- param metric text = %: metrics whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- Work measured under several bindings, over the processes of one sweep: mean, median with its
-- interval, std (standard deviation; from two on), of workers that chose one kernel of attention.
-- effect_ratio: median against that of binding
-- none, below 0 = worse. variance_ratio: variance by that of binding none; both are NULL of none
-- itself. What could have been seen at all: query numa-tax, mde_ratio.
-- hosts: those that measured it together; host is that of rank 0.
WITH RECURSIVE process AS (
    SELECT
        s.id AS series_id, s.latest_sweep_id AS sweep_id, d.metric_id, d.point, d.n, d.median,
        d.ci_lo, d.ci_hi, r.started_unix_seconds, coalesce(r.attention, '') AS attention,
        row_number() OVER (same ORDER BY d.median, d.run_id) AS place,
        count(*) OVER same AS processes, avg(d.median) OVER same AS mean
    FROM probe_case pc
    CROSS JOIN series s
    CROSS JOIN run r
    CROSS JOIN reading d
    WHERE s.case_id = pc.id AND r.series_id = s.id AND r.sweep_id = s.latest_sweep_id
        AND d.run_id = r.id AND r.status IN ('ok', 'partial') AND d.median IS NOT NULL
        AND d.rank IS NULL AND pc.probe LIKE :probe AND s.latest_at >= :since
        AND s.source LIKE :source
    WINDOW same AS (PARTITION BY s.id, d.metric_id, d.point, coalesce(r.attention, ''))
), pooled AS (
    SELECT
        series_id, sweep_id, metric_id, point, attention, processes, mean, sum(n) AS n,
        avg(CASE WHEN 2 * place BETWEEN processes AND processes + 2 THEN median END) AS median,
        min(median) AS lowest, max(median) AS highest,
        CASE WHEN processes = 1 THEN max(ci_lo) WHEN processes >= 6 THEN min(median) END AS ci_lo,
        CASE WHEN processes = 1 THEN max(ci_hi) WHEN processes >= 6 THEN max(median) END AS ci_hi,
        CASE WHEN processes > 1
            THEN sum((median - mean) * (median - mean)) / (processes - 1) END AS variance,
        min(started_unix_seconds) AS oldest
    FROM process
    GROUP BY series_id, sweep_id, metric_id, point, attention, processes, mean
), root AS (
    SELECT
        series_id, metric_id, point, attention, variance, highest - lowest AS std, 0 AS step
    FROM pooled
    WHERE variance > 0 AND highest > lowest
    UNION ALL
    SELECT
        series_id, metric_id, point, attention, variance, (std + variance / std) / 2, step + 1
    FROM root
    WHERE step < 16
), placed AS (
    SELECT
        p.*, s.host_id, s.case_id, s.device_set_id, s.n_ranks, s.n_hosts, s.source, s.synthetic,
        a.binding, coalesce(a.ring, '') AS ring, min(a.id) OVER beside AS first_arm,
        max(a.id) OVER beside AS last_arm,
        CASE WHEN p.variance = 0 THEN 0.0 ELSE root.std END AS std,
        max(CASE WHEN a.binding = 'none' THEN p.median END) OVER alike AS free_median,
        max(CASE WHEN a.binding = 'none' THEN p.variance END) OVER alike AS free_variance
    FROM pooled p
    JOIN series s ON s.id = p.series_id
    JOIN arm a ON a.id = s.arm_id
    LEFT JOIN root ON root.series_id = p.series_id AND root.metric_id = p.metric_id
        AND root.point = p.point AND root.attention = p.attention AND root.step = 16
    WINDOW beside AS (
        PARTITION BY
            p.sweep_id, s.host_id, s.case_id, s.device_set_id, s.n_ranks, s.n_hosts, s.source,
            s.synthetic, coalesce(a.ring, ''), a.env, p.metric_id, p.point
    ), alike AS (
        PARTITION BY
            p.sweep_id, s.host_id, s.case_id, s.device_set_id, s.n_ranks, s.n_hosts, s.source,
            s.synthetic, coalesce(a.ring, ''), a.env, p.metric_id, p.point, p.attention
    )
)
SELECT
    cl.name AS cluster, h.name AS host, ds.label AS devices, pc.probe, pc.model, pc.seq_len,
    pc.batch, pc.dtype, pc.tp, pc.params, p.ring, m.name AS metric, m.unit, p.point, p.binding,
    nullif(p.attention, '') AS attention, p.n_hosts, t.hosts, p.processes AS n_processes,
    p.n, p.mean, p.median, p.ci_lo, p.ci_hi,
    CASE WHEN p.processes = 1 THEN 'within' WHEN p.processes >= 6 THEN 'between' END AS ci_level,
    p.std,
    CASE WHEN p.binding <> 'none' THEN p.variance / nullif(p.free_variance, 0) END
        AS variance_ratio,
    CASE WHEN p.binding <> 'none' AND m.better <> 0
        THEN m.better * (p.median - p.free_median) / nullif(p.free_median, 0) END
        AS effect_ratio,
    p.lowest, p.highest, :now - p.oldest AS age_seconds, sw.uuid AS sweep, p.source, p.synthetic
FROM placed p
JOIN sweep sw ON sw.id = p.sweep_id
JOIN host h ON h.id = p.host_id
JOIN cluster cl ON cl.id = h.cluster_id
JOIN probe_case pc ON pc.id = p.case_id
JOIN device_set ds ON ds.id = p.device_set_id
JOIN metric m ON m.id = p.metric_id
LEFT JOIN v_together t ON t.series_id = p.series_id AND t.host_no = 1
WHERE p.first_arm <> p.last_arm AND m.name LIKE :metric
    AND (h.name LIKE :host OR p.series_id IN (
        SELECT series_id FROM v_together WHERE host LIKE :host
    ))
ORDER BY
    cl.name, h.name, pc.probe, ds.label, pc.model, pc.batch, pc.dtype, pc.seq_len, pc.params,
    p.ring, m.name, p.point, p.binding, p.attention
