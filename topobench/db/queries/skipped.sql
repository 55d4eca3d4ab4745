-- title: Skipped cells
-- answers: What was not measured in a sweep, and why?
-- param sweep sweep = latest: id, unique beginning, or latest
-- param now moment = now: ages are counted up to here
SELECT
    pc.probe, c.status, c.reason_code, c.reason, count(DISTINCT c.id) AS n_cells,
    count(DISTINCT coalesce(t.host_id, s.host_id)) AS n_hosts, min(h.name) AS first_host,
    :now - max(sw.started_unix_seconds) AS age_seconds, s.source, s.synthetic
FROM sweep sw
JOIN cell c ON c.sweep_id = sw.id
JOIN series s ON s.id = c.series_id
JOIN host h ON h.id = s.host_id
JOIN probe_case pc ON pc.id = s.case_id
LEFT JOIN v_together t ON t.series_id = s.id
WHERE sw.uuid = :sweep AND c.status IN ('skipped', 'not_applicable')
GROUP BY pc.probe, c.status, c.reason_code, c.reason, s.source, s.synthetic
ORDER BY pc.probe, c.status, c.reason_code, c.reason
