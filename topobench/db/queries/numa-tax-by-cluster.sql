-- title: NUMA tax by cluster
-- answers: Which cluster's and SKU's NUMA wiring costs most?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param binding text = %: bindings whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- median: of tax_ratio over the hosts, each by its median device; 0.1 = 10 % worse than local.
-- What hosts measured together is not among it.
-- loss: local minus the other binding, in the metric's unit, turned so that more is worse.
WITH placed AS (
    SELECT
        v.*, better * (local_median - median) AS loss,
        row_number() OVER (
            PARTITION BY
                cluster, sku, host_key, case_id, n_ranks, ring, binding, metric, point, source,
                synthetic
            ORDER BY tax_ratio, devices
        ) AS place,
        count(*) OVER (
            PARTITION BY
                cluster, sku, host_key, case_id, n_ranks, ring, binding, metric, point, source,
                synthetic
        ) AS n_here
    FROM v_numa_tax v
    WHERE measured_at >= :since AND cluster LIKE :cluster AND probe LIKE :probe
        AND binding LIKE :binding AND source LIKE :source AND n_hosts = 1
), per_host AS (
    SELECT
        cluster, sku, host_key, case_id, probe, params, n_ranks, ring, binding, metric, unit,
        point, source, synthetic,
        avg(CASE WHEN 2 * place BETWEEN n_here AND n_here + 2 THEN tax_ratio END) AS tax_ratio,
        avg(CASE WHEN 2 * place BETWEEN n_here AND n_here + 2 THEN loss END) AS loss,
        sum(n + local_n) AS n, min(measured_unix_seconds) AS oldest
    FROM placed
    GROUP BY
        cluster, sku, host_key, case_id, probe, params, n_ranks, ring, binding, metric, unit,
        point, source, synthetic
), ranked AS (
    SELECT
        per_host.*,
        row_number() OVER (
            PARTITION BY
                cluster, sku, case_id, n_ranks, ring, binding, metric, point, source, synthetic
            ORDER BY tax_ratio, host_key
        ) AS place,
        row_number() OVER (
            PARTITION BY
                cluster, sku, case_id, n_ranks, ring, binding, metric, point, source, synthetic
            ORDER BY loss, host_key
        ) AS loss_place,
        count(*) OVER (
            PARTITION BY
                cluster, sku, case_id, n_ranks, ring, binding, metric, point, source, synthetic
        ) AS n_all
    FROM per_host
)
SELECT
    cluster, sku, probe, params, n_ranks, ring, binding, metric, unit, point,
    n_all AS n_hosts, sum(n) AS n,
    avg(CASE WHEN 2 * place BETWEEN n_all AND n_all + 2 THEN tax_ratio END) AS tax_ratio,
    max(CASE WHEN 2 * place <= n_all
        AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
        THEN tax_ratio END) AS ci_lo,
    min(CASE WHEN 2 * place > n_all
        AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
        THEN tax_ratio END) AS ci_hi,
    CASE WHEN n_all >= 6 THEN 'between' END AS ci_level,
    avg(CASE WHEN 2 * loss_place BETWEEN n_all AND n_all + 2 THEN loss END) AS loss,
    :now - min(oldest) AS age_seconds, source, synthetic
FROM ranked
GROUP BY
    cluster, sku, case_id, probe, params, n_ranks, ring, binding, metric, unit, point, n_all,
    source, synthetic
ORDER BY tax_ratio DESC, cluster, sku, params, n_ranks, ring, binding, metric, point
