-- title: Efficiency
-- answers: How much of what the hardware could do at most is reached, by cluster?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- The ceiling is the one stored with the reading, else for copies of one direction the PCIe link
-- of their GPU (what its best speed and width give after encoding). median: share of the ceiling,
-- over all devices of the cluster and SKU, the best chunk of each.
WITH measured AS (
    SELECT
        v.cluster, v.sku, v.host_key, v.devices, v.probe, v.direction, v.memory, v.dtype, v.op,
        v.arm, v.n_ranks, v.metric, v.point, v.source, v.synthetic, v.n,
        v.measured_unix_seconds, v.median / l.nominal_bytes_per_second AS share
    FROM v_latest v
    JOIN series s ON s.id = v.series_id
    JOIN device_set ds ON ds.id = s.device_set_id
    JOIN device d ON d.id = ds.device_id
    JOIN sweep_host sh ON sh.sweep_id = s.latest_sweep_id AND sh.host_id = s.host_id
    JOIN link l ON l.topology_id = sh.topology_id AND l.kind = 'pcie' AND l.b = d.pci_address
    WHERE v.probe = 'host_to_device' AND v.direction IN ('h2d', 'd2h')
        AND v.metric = 'bandwidth_bytes_per_second' AND v.rank IS NULL AND v.n_ranks = 1
        AND l.nominal_bytes_per_second > 0 AND v.measured_at >= :since
        AND v.cluster LIKE :cluster AND v.probe LIKE :probe AND v.source LIKE :source
    UNION ALL
    SELECT
        cl.name, k.name, h.key, ds.label, pc.probe, pc.direction, pc.memory, pc.dtype, pc.op,
        a.name, s.n_ranks, m.name, d.point, s.source, s.synthetic, d.n, r.started_unix_seconds,
        CASE WHEN m.better = 1 THEN d.median / d.ceiling ELSE d.ceiling / d.median END
    FROM series s
    JOIN run r ON r.series_id = s.id AND r.sweep_id = s.latest_sweep_id
    JOIN reading d ON d.run_id = r.id
    JOIN metric m ON m.id = d.metric_id
    JOIN host h ON h.id = s.host_id
    JOIN cluster cl ON cl.id = h.cluster_id
    LEFT JOIN sku k ON k.id = h.sku_id
    JOIN device_set ds ON ds.id = s.device_set_id
    JOIN probe_case pc ON pc.id = s.case_id
    JOIN arm a ON a.id = s.arm_id
    WHERE r.status IN ('ok', 'partial') AND d.ceiling > 0 AND d.median > 0 AND m.better <> 0
        AND s.latest_at >= :since AND cl.name LIKE :cluster AND pc.probe LIKE :probe
        AND s.source LIKE :source
), best AS (
    SELECT
        cluster, sku, host_key, devices, probe, direction, memory, dtype, op, arm, n_ranks,
        metric, point, source, synthetic, max(share) AS share, sum(n) AS n,
        min(measured_unix_seconds) AS oldest
    FROM measured
    GROUP BY
        cluster, sku, host_key, devices, probe, direction, memory, dtype, op, arm, n_ranks,
        metric, point, source, synthetic
), placed AS (
    SELECT
        best.*,
        row_number() OVER (
            PARTITION BY
                cluster, sku, probe, direction, memory, dtype, op, arm, n_ranks, metric, point,
                source, synthetic
            ORDER BY share, host_key, devices
        ) AS place,
        count(*) OVER (
            PARTITION BY
                cluster, sku, probe, direction, memory, dtype, op, arm, n_ranks, metric, point,
                source, synthetic
        ) AS n_all
    FROM best
)
SELECT
    cluster, sku, probe, direction, memory, dtype, op, arm, n_ranks, metric, point,
    n_all AS n_series, count(DISTINCT host_key) AS n_hosts, sum(n) AS n,
    avg(CASE WHEN 2 * place BETWEEN n_all AND n_all + 2 THEN share END) AS of_ceiling_ratio,
    max(CASE WHEN 2 * place <= n_all
        AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
        THEN share END) AS ci_lo,
    min(CASE WHEN 2 * place > n_all
        AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
        THEN share END) AS ci_hi,
    CASE WHEN n_all >= 6 THEN 'between' END AS ci_level,
    min(share) AS lowest_ratio, max(share) AS highest_ratio,
    :now - min(oldest) AS age_seconds, source, synthetic
FROM placed
GROUP BY
    cluster, sku, probe, direction, memory, dtype, op, arm, n_ranks, metric, point, n_all,
    source, synthetic
ORDER BY of_ceiling_ratio, cluster, sku, probe, direction, memory, dtype, op, arm, metric, point
