-- title: Cost of collectives
-- answers: What does a collective cost at any size: fixed time and bandwidth, with intervals?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param op text = %: operations whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- time = alpha_seconds + bytes / beta_bytes_per_second, from smallest_bytes to largest_bytes.
-- hosts: those that measured it together; host is that of rank 0. Where
-- worst_ratio is far beyond residual_ratio, a protocol changes and the line is not the curve.
WITH placed AS (
    SELECT
        f.id,
        row_number() OVER (
            PARTITION BY sw.cluster_id, f.host_id, f.subject, f.x_metric, sw.source, sw.synthetic
            ORDER BY
                CASE WHEN sw.started_unix_seconds > :now + 3600 THEN 1 ELSE 0 END,
                sw.started_unix_seconds DESC, f.id DESC
        ) AS place
    FROM sweep sw
    CROSS JOIN fit f
    WHERE f.sweep_id = sw.id AND sw.started_at >= :since AND sw.source LIKE :source
        AND f.kind = 'alpha_beta'
)
SELECT
    cl.name AS cluster, h.name AS host, ds.label AS devices, s.n_ranks, s.n_hosts, t.hosts, pc.op,
    pc.dtype, pc.backend, a.name AS arm, f.n,
    f.alpha_seconds, f.alpha_lo AS alpha_lo_seconds, f.alpha_hi AS alpha_hi_seconds,
    f.beta_bytes_per_second, f.beta_lo AS beta_lo_bytes_per_second,
    f.beta_hi AS beta_hi_bytes_per_second, f.ci_level, f.n_half_bytes, f.residual_ratio,
    f.worst_bytes, f.worst_ratio, f.smallest_bytes, f.largest_bytes,
    :now - sw.started_unix_seconds AS age_seconds, sw.uuid AS sweep, sw.source, sw.synthetic
FROM placed p
JOIN fit f ON f.id = p.id
JOIN sweep sw ON sw.id = f.sweep_id
JOIN cluster cl ON cl.id = sw.cluster_id
JOIN series s ON s.id = f.series_id
JOIN probe_case pc ON pc.id = s.case_id
JOIN arm a ON a.id = s.arm_id
JOIN device_set ds ON ds.id = s.device_set_id
LEFT JOIN host h ON h.id = f.host_id
LEFT JOIN v_together t ON t.series_id = f.series_id AND t.host_no = 1
WHERE p.place = 1 AND pc.op LIKE :op AND (h.name LIKE :host OR f.series_id IN (
        SELECT series_id FROM v_together WHERE host LIKE :host
    ))
ORDER BY cl.name, h.name, pc.op, pc.dtype, pc.backend, ds.label, s.n_ranks, a.name
