-- title: Price of all-reduce bandwidth
-- answers: What does an hour of 1 GB/s of bus bandwidth of a collective cost, by SKU?
-- param op text = all_reduce: the collective
-- param bytes bytes = 128M: message size
-- param arm text = %: arms whose name matches this LIKE pattern
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param at time = now: prices valid at this moment
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- Each row is the median of its hosts, for the class of the slowest path between their GPUs. One
-- host has its own interval; from six hosts on, the lowest and the highest host are one of 97 %;
-- two to five give none. n_groups: so many groups of GPUs, or of hosts; groups of hosts that share
-- some are not independent and have no interval.
WITH placed AS (
    SELECT
        v.*,
        row_number() OVER (
            PARTITION BY
                cluster, sku, case_id, n_ranks, n_hosts, path_class, arm, basis, currency,
                source, synthetic
            ORDER BY median, host_key, devices
        ) AS place,
        count(*) OVER (
            PARTITION BY
                cluster, sku, case_id, n_ranks, n_hosts, path_class, arm, basis, currency,
                source, synthetic
        ) AS n_groups,
        dense_rank() OVER (
            ORDER BY
                cluster, sku, case_id, n_ranks, n_hosts, path_class, arm, basis, currency,
                source, synthetic
        ) AS fleet
    FROM v_price_performance v
    WHERE op = :op AND bytes = :bytes AND metric = 'busbw_bytes_per_second'
        AND coalesce(rank, -1) < 0 AND arm LIKE :arm AND cluster LIKE :cluster
        AND source LIKE :source
        AND price_from <= :at AND (price_to IS NULL OR price_to > :at) AND measured_at >= :since
), counted AS (
    SELECT p.fleet AS of_fleet, count(DISTINCT coalesce(t.host_key, p.host_key)) AS n_measured
    FROM placed p
    LEFT JOIN v_together t ON t.series_id = p.series_id
    GROUP BY p.fleet
), hosts AS (
    SELECT
        cluster, sku, n_ranks, n_hosts, path_class, backend, dtype, arm, bytes, basis, currency,
        kinds, case_id, n_groups, n_measured AS n_measured_hosts, sum(n) AS n,
        avg(CASE WHEN 2 * place BETWEEN n_groups AND n_groups + 2 THEN median END) AS median,
        min(median) AS lowest, max(median) AS highest, max(ci_lo) AS ci_lo, max(ci_hi) AS ci_hi,
        max(ci_level) AS ci_level, max(hour_amount) AS hour_amount,
        min(measured_unix_seconds) AS oldest, max(params) AS params, source, synthetic
    FROM placed
    JOIN counted ON of_fleet = fleet
    GROUP BY
        cluster, sku, n_ranks, n_hosts, path_class, backend, dtype, arm, bytes, basis, currency,
        kinds, case_id, n_groups, n_measured, source, synthetic
), told AS (
    SELECT
        h.*,
        CASE WHEN n_groups >= 6 AND (n_hosts = 1 OR n_measured_hosts = n_hosts * n_groups)
            THEN 1 ELSE 0 END AS enough
    FROM hosts h
), bounded AS (
    SELECT
        told.*,
        CASE WHEN n_groups = 1 THEN ci_lo WHEN enough = 1 THEN lowest END AS lo,
        CASE WHEN n_groups = 1 THEN ci_hi WHEN enough = 1 THEN highest END AS hi,
        CASE WHEN n_groups = 1 THEN ci_level WHEN enough = 1 THEN 'between' END AS level
    FROM told
)
SELECT
    cluster, sku, n_ranks, n_hosts, path_class, backend, dtype, arm, bytes, basis, currency,
    kinds, hour_amount, median AS busbw_bytes_per_second,
    hour_amount / median * 1e9 AS hour_amount_per_gbps,
    hour_amount / hi * 1e9 AS hour_amount_per_gbps_lo,
    hour_amount / lo * 1e9 AS hour_amount_per_gbps_hi,
    level AS ci_level, n_groups, n_measured_hosts, n, :now - oldest AS age_seconds, params,
    source, synthetic
FROM bounded
WHERE median > 0 AND (lo IS NULL OR lo > 0)
ORDER BY
    currency, basis, hour_amount_per_gbps, cluster, sku, n_ranks, path_class, dtype, arm, params
