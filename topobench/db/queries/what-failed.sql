-- title: What failed
-- answers: Which cells gave no usable number though they were to, and why?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only sweeps begun since
-- param now moment = now: ages are counted up to here
-- n: cells of that probe and host that failed for the same reason.
SELECT
    cl.name AS cluster, h.name AS host, pc.probe, pc.params, c.arm, ds.label AS devices,
    c.status, c.reason_code, c.reason, c.attempt, r.duration_seconds,
    count(*) OVER (PARTITION BY h.id, pc.probe, c.reason_code) AS n, sw.uuid AS sweep,
    sw.started_at, :now - sw.started_unix_seconds AS age_seconds, s.source, s.synthetic
FROM sweep sw
CROSS JOIN cell c
CROSS JOIN series s
CROSS JOIN host h
CROSS JOIN cluster cl
CROSS JOIN probe_case pc
CROSS JOIN device_set ds
LEFT JOIN run r ON r.cell_id = c.id AND r.attempt = c.attempt
WHERE c.sweep_id = sw.id AND s.id = c.series_id AND h.id = s.host_id AND cl.id = h.cluster_id
    AND pc.id = s.case_id AND ds.id = s.device_set_id AND sw.started_at >= :since
    AND c.status IN ('failed', 'timeout', 'aborted', 'invalid')
    AND cl.name LIKE :cluster AND h.name LIKE :host AND s.source LIKE :source
ORDER BY sw.started_at DESC, sw.id DESC, c.position, r.id
