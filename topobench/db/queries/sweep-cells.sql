-- title: Cells of a sweep
-- answers: What became of each cell of one sweep, and what did it measure?
-- param sweep sweep = latest: id, unique beginning, or latest
-- param host text = %: hosts whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param now moment = now: ages are counted up to here
-- hosts: those that measured it together; host is that of rank 0.
SELECT
    c.position, h.name AS host, pc.probe, pc.params, c.arm, ds.label AS devices, s.n_hosts, t.hosts,
    c.process_no, c.status, c.reason_code, c.reason, c.attempt, r.duration_seconds,
    m.name AS metric, m.unit, d.point, d.n, d.median, d.ci_lo, d.ci_hi, d.ci_level,
    d.stop_reason, r.started_at AS measured_at, :now - r.started_unix_seconds AS age_seconds,
    s.source, s.synthetic
FROM sweep sw
JOIN cell c ON c.sweep_id = sw.id
JOIN series s ON s.id = c.series_id
JOIN host h ON h.id = s.host_id
JOIN probe_case pc ON pc.id = s.case_id
JOIN device_set ds ON ds.id = s.device_set_id
LEFT JOIN run r ON r.cell_id = c.id AND r.attempt = c.attempt
LEFT JOIN reading d ON d.run_id = r.id
LEFT JOIN metric m ON m.id = d.metric_id
LEFT JOIN v_together t ON t.series_id = s.id AND t.host_no = 1
WHERE sw.uuid = :sweep AND pc.probe LIKE :probe AND (h.name LIKE :host OR s.id IN (
        SELECT series_id FROM v_together WHERE host LIKE :host
    ))
ORDER BY c.position, c.id, r.id, d.seq
