-- title: Efficiency
-- answers: How much of what the hardware could do at most is reached, by cluster?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- The ceiling stands beside each reading: what links and memory can do at most, by discovery.
-- of_ceiling_ratio: median over all devices of the cluster and SKU, of each its best chunk and way;
-- n: the samples of these.
WITH measured AS (
    SELECT
        v.*, CASE WHEN better = 1 THEN median / ceiling ELSE ceiling / median END AS share
    FROM v_latest v
    WHERE ceiling > 0 AND median > 0 AND better <> 0 AND coalesce(rank, -1) < 0
        AND measured_at >= :since AND cluster LIKE :cluster AND probe LIKE :probe
        AND source LIKE :source
), rated AS (
    SELECT
        measured.*,
        row_number() OVER (
            PARTITION BY
                cluster, sku, host_key, devices, probe, direction, memory, dtype, op, arm, n_ranks,
                metric, point, source, synthetic
            ORDER BY share DESC, case_id
        ) AS choice
    FROM measured
), best AS (
    SELECT * FROM rated WHERE choice = 1
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
    :now - min(measured_unix_seconds) AS age_seconds, source, synthetic
FROM placed
GROUP BY
    cluster, sku, probe, direction, memory, dtype, op, arm, n_ranks, metric, point, n_all,
    source, synthetic
ORDER BY of_ceiling_ratio, cluster, sku, probe, direction, memory, dtype, op, arm, metric, point
