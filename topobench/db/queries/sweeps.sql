-- title: Sweeps
-- answers: Which sweeps ran, how did they end, how much did they measure?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param limit integer = 50: newest sweeps to show
-- param since time = 30d: only sweeps begun since
-- param now moment = now: ages are counted up to here
SELECT
    s.uuid AS sweep, cl.name AS cluster, s.profile, s.trigger, s.status,
    s.started_at, s.ended_at, :now - s.started_unix_seconds AS age_seconds,
    count(c.id) AS n_cells,
    sum(CASE WHEN c.status IN ('ok', 'partial') THEN 1 ELSE 0 END) AS n_measured,
    sum(CASE WHEN c.status IN ('skipped', 'not_applicable') THEN 1 ELSE 0 END) AS n_skipped,
    sum(CASE WHEN c.status IN ('failed', 'timeout', 'aborted', 'invalid') THEN 1 ELSE 0 END)
        AS n_failed,
    sum(CASE WHEN c.status = 'planned' THEN 1 ELSE 0 END) AS n_not_run,
    s.tool_version, s.source, s.synthetic
FROM sweep s
JOIN cluster cl ON cl.id = s.cluster_id
LEFT JOIN cell c ON c.sweep_id = s.id
WHERE s.started_at >= :since AND cl.name LIKE :cluster
GROUP BY
    s.id, s.uuid, cl.name, s.profile, s.trigger, s.status, s.started_at, s.ended_at,
    s.started_unix_seconds, s.tool_version, s.source, s.synthetic
ORDER BY s.started_at DESC, s.id DESC
LIMIT :limit
