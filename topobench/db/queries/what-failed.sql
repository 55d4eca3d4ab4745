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
JOIN cell c ON c.sweep_id = sw.id
JOIN series s ON s.id = c.series_id
JOIN host h ON h.id = s.host_id
JOIN cluster cl ON cl.id = h.cluster_id
JOIN probe_case pc ON pc.id = s.case_id
JOIN device_set ds ON ds.id = s.device_set_id
LEFT JOIN run r ON r.cell_id = c.id AND r.attempt = c.attempt
WHERE sw.started_at >= :since AND c.status IN ('failed', 'timeout', 'aborted', 'invalid')
    AND cl.name LIKE :cluster AND h.name LIKE :host AND s.source LIKE :source
ORDER BY sw.started_at DESC, sw.id DESC, c.position, r.id
