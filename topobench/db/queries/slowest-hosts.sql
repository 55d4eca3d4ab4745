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
        AND source LIKE :source AND n_hosts = 1
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
), centred AS (
    SELECT
        placed.*,
        avg(CASE WHEN 2 * place BETWEEN n_hosts AND n_hosts + 2 THEN value END) OVER alike
            AS middle,
        max(CASE WHEN 2 * place <= n_hosts
            AND (n_hosts + 1 - 2 * place) * (n_hosts + 1 - 2 * place) >= 3.8416 * n_hosts
            THEN value END) OVER alike AS ci_lo,
        min(CASE WHEN 2 * place > n_hosts
            AND (n_hosts + 1 - 2 * place) * (n_hosts + 1 - 2 * place) >= 3.8416 * n_hosts
            THEN value END) OVER alike AS ci_hi
    FROM placed
    WINDOW alike AS (
        PARTITION BY
            cluster, sku, case_id, arm, n_devices, n_ranks, metric, point, source, synthetic
    )
)
SELECT
    cluster, sku, host, probe, params, arm, metric, unit, value AS median,
    middle AS sku_median, ci_lo AS sku_ci_lo, ci_hi AS sku_ci_hi,
    CASE WHEN n_hosts >= 6 THEN 'between' END AS ci_level,
    better * (value - middle) / middle AS effect_ratio,
    n_hosts, n_processes, n, :now - oldest AS age_seconds, source, synthetic
FROM centred
WHERE n_hosts >= :min_hosts AND middle > 0
ORDER BY effect_ratio, cluster, sku, host, metric, params
LIMIT :limit
