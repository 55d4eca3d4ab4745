-- title: Slowest hosts
-- answers: Which hosts are furthest behind the median of their SKU, on which case?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param metric text = %: metrics whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param min_hosts integer = 3: a case counts if this many hosts measured it
-- param limit integer = 20: rows to show
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- effect_ratio: -0.1 = 10 % worse than the median host of that SKU. A list, no verdict.
WITH per_host AS (
    SELECT
        cluster, sku, host, host_key, case_id, probe, params, arm, n_devices, n_ranks, metric,
        unit, point, better, source, synthetic, avg(median) AS value, sum(n) AS n,
        sum(n_processes) AS n_processes, min(measured_unix_seconds) AS oldest
    FROM v_latest
    WHERE measured_at >= :since AND cluster LIKE :cluster AND probe LIKE :probe
        AND metric LIKE :metric AND metric <> 'locality_ratio' AND better <> 0
        AND coalesce(rank, -1) < 0 AND sku IS NOT NULL
        AND source LIKE :source
    GROUP BY
        cluster, sku, host, host_key, case_id, probe, params, arm, n_devices, n_ranks, metric,
        unit, point, better, source, synthetic
), placed AS (
    SELECT
        per_host.*,
        row_number() OVER (
            PARTITION BY
                cluster, sku, case_id, arm, n_devices, n_ranks, metric, point, source, synthetic
            ORDER BY value, host_key
        ) AS place,
        count(*) OVER (
            PARTITION BY
                cluster, sku, case_id, arm, n_devices, n_ranks, metric, point, source, synthetic
        ) AS n_hosts
    FROM per_host
), middle AS (
    SELECT
        cluster, sku, case_id, arm, n_devices, n_ranks, metric, point, source, synthetic,
        avg(CASE WHEN 2 * place BETWEEN n_hosts AND n_hosts + 2 THEN value END) AS middle,
        max(CASE WHEN 2 * place <= n_hosts
            AND (n_hosts + 1 - 2 * place) * (n_hosts + 1 - 2 * place) >= 3.8416 * n_hosts
            THEN value END) AS ci_lo,
        min(CASE WHEN 2 * place > n_hosts
            AND (n_hosts + 1 - 2 * place) * (n_hosts + 1 - 2 * place) >= 3.8416 * n_hosts
            THEN value END) AS ci_hi
    FROM placed
    GROUP BY cluster, sku, case_id, arm, n_devices, n_ranks, metric, point, source, synthetic
)
SELECT
    p.cluster, p.sku, p.host, p.probe, p.params, p.arm, p.metric, p.unit, p.value AS median,
    m.middle AS sku_median, m.ci_lo AS sku_ci_lo, m.ci_hi AS sku_ci_hi,
    CASE WHEN p.n_hosts >= 6 THEN 'between' END AS ci_level,
    p.better * (p.value - m.middle) / m.middle AS effect_ratio,
    p.n_hosts, p.n_processes, p.n, :now - p.oldest AS age_seconds, p.source, p.synthetic
FROM placed p
JOIN middle m
    ON m.cluster = p.cluster AND m.sku = p.sku AND m.case_id = p.case_id AND m.arm = p.arm
    AND m.n_devices = p.n_devices AND m.n_ranks = p.n_ranks AND m.metric = p.metric
    AND m.point = p.point AND m.source = p.source AND m.synthetic = p.synthetic
WHERE p.n_hosts >= :min_hosts AND m.middle > 0
ORDER BY effect_ratio, p.cluster, p.sku, p.host, p.metric, p.params
LIMIT :limit
