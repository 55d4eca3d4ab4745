-- title: Links below what they could do
-- answers: Which PCIe links are slower or narrower than both ends allow, which NVLinks are down?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param since time = 30d: only hosts seen since
-- param now moment = now: ages are counted up to here
-- As the host's last sweep found it. lacks: width (lanes are dead or the seat is bad), lanes (of
-- NVLink), or speed: an idle GPU lowers it to save power, so look at it under load before acting.
-- n: links of that kind on the host.
WITH last_sweep AS (
    SELECT
        sh.host_id, sh.topology_id, sw.uuid AS sweep, sw.started_unix_seconds, sw.source,
        sw.synthetic,
        row_number() OVER (
            PARTITION BY sh.host_id
            ORDER BY
                CASE WHEN sw.started_unix_seconds > :now + 3600 THEN 1 ELSE 0 END,
                sw.started_unix_seconds DESC, sw.id DESC
        ) AS place
    FROM sweep_host sh
    JOIN sweep sw ON sw.id = sh.sweep_id
    WHERE sw.started_at >= :since AND sw.source NOT LIKE 'import:%'
), found AS (
    SELECT
        ls.*, l.kind, l.a, l.b, l.speed_gts, l.max_speed_gts, l.width, l.max_width, l.lanes,
        l.max_lanes, count(*) OVER (PARTITION BY ls.host_id, l.kind) AS n,
        CASE
            WHEN l.width < l.max_width THEN 'width'
            WHEN l.lanes < l.max_lanes THEN 'lanes'
            WHEN l.speed_gts < l.max_speed_gts THEN 'speed'
        END AS lacks
    FROM last_sweep ls
    JOIN link l ON l.topology_id = ls.topology_id
    WHERE ls.place = 1 AND l.kind IN ('pcie', 'nvlink')
)
SELECT
    cl.name AS cluster, h.name AS host, f.kind, f.a, f.b, f.lacks, d.kind AS device_kind,
    d.model, d.uuid AS device_uuid, f.width, f.max_width, f.speed_gts, f.max_speed_gts, f.lanes,
    f.max_lanes, f.n, :now - f.started_unix_seconds AS age_seconds, f.sweep, f.source, f.synthetic
FROM found f
JOIN host h ON h.id = f.host_id
JOIN cluster cl ON cl.id = h.cluster_id
LEFT JOIN device d ON d.host_id = h.id AND d.pci_address = f.b
WHERE f.lacks IS NOT NULL AND cl.name LIKE :cluster AND h.name LIKE :host
ORDER BY
    CASE f.lacks WHEN 'width' THEN 0 WHEN 'lanes' THEN 1 ELSE 2 END, cl.name, h.name, f.kind,
    f.a, f.b
