-- title: What failed
-- answers: Which cells gave no usable number though they were to, and why?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only sweeps begun since
-- param now moment = now: ages are counted up to here
-- n: cells of that probe and host that failed for the same reason.
-- hosts: those that measured it together; host is that of rank 0.
SELECT
    cl.name AS cluster, h.name AS host, pc.probe, pc.params, c.arm, ds.label AS devices, s.n_hosts,
    t.hosts, c.status, c.reason_code, c.reason, c.attempt, r.duration_seconds,
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
LEFT JOIN v_together t ON t.series_id = s.id AND t.host_no = 1
WHERE c.sweep_id = sw.id AND s.id = c.series_id AND h.id = s.host_id AND cl.id = h.cluster_id
    AND pc.id = s.case_id AND ds.id = s.device_set_id AND sw.started_at >= :since
    AND c.status IN ('failed', 'timeout', 'aborted', 'invalid')
    AND cl.name LIKE :cluster AND s.source LIKE :source
    AND (h.name LIKE :host OR s.id IN (
        SELECT series_id FROM v_together WHERE host LIKE :host
    ))
ORDER BY sw.started_at DESC, sw.id DESC, c.position, r.id
