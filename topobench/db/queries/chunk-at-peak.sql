-- title: Chunk at the peak
-- answers: Which is the smallest chunk whose copies reach nearly the peak, by SKU and binding?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param direction text = %: directions that match this LIKE pattern
-- param of_peak number = 0.95: share of the peak to reach
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- Chunks are those measured, so the answer is one of them. bytes: median over the GPUs (the lower
-- of two), with its interval. n_sizes: chunks measured; median: the peak, over the GPUs.
WITH rated AS (
    SELECT
        v.cluster, v.sku, v.host_key, v.devices, v.direction, v.memory, v.arm, v.metric, v.unit,
        v.source, v.synthetic, v.bytes, v.n, v.measured_unix_seconds, v.median,
        max(v.median) OVER (
            PARTITION BY
                cluster, host_key, devices, direction, memory, arm, metric, source, synthetic
        ) AS peak
    FROM v_latest v
    WHERE probe = 'host_to_device' AND unit = 'B/s' AND coalesce(rank, -1) < 0 AND n_ranks = 1
        AND measured_at >= :since AND cluster LIKE :cluster AND direction LIKE :direction
        AND source LIKE :source
), reached AS (
    SELECT
        cluster, sku, host_key, devices, direction, memory, arm, metric, unit, source, synthetic,
        peak, min(CASE WHEN median >= :of_peak * peak THEN bytes END) AS bytes,
        count(*) AS n_sizes, sum(n) AS n, min(measured_unix_seconds) AS oldest
    FROM rated
    GROUP BY
        cluster, sku, host_key, devices, direction, memory, arm, metric, unit, source, synthetic,
        peak
), placed AS (
    SELECT
        reached.*,
        row_number() OVER (
            PARTITION BY cluster, sku, direction, memory, arm, metric, source, synthetic
            ORDER BY bytes, host_key, devices
        ) AS place,
        row_number() OVER (
            PARTITION BY cluster, sku, direction, memory, arm, metric, source, synthetic
            ORDER BY peak, host_key, devices
        ) AS peak_place,
        count(*) OVER (
            PARTITION BY cluster, sku, direction, memory, arm, metric, source, synthetic
        ) AS n_all
    FROM reached
)
SELECT
    cluster, sku, direction, memory, arm, metric, unit, n_all AS n_series,
    count(DISTINCT host_key) AS n_hosts, sum(n) AS n, max(n_sizes) AS n_sizes,
    min(CASE WHEN 2 * place BETWEEN n_all AND n_all + 1 THEN bytes END) AS bytes,
    max(CASE WHEN 2 * place <= n_all
        AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
        THEN bytes END) AS ci_lo_bytes,
    min(CASE WHEN 2 * place > n_all
        AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
        THEN bytes END) AS ci_hi_bytes,
    avg(CASE WHEN 2 * peak_place BETWEEN n_all AND n_all + 2 THEN peak END) AS median,
    max(CASE WHEN 2 * peak_place <= n_all
        AND (n_all + 1 - 2 * peak_place) * (n_all + 1 - 2 * peak_place) >= 3.8416 * n_all
        THEN peak END) AS ci_lo,
    min(CASE WHEN 2 * peak_place > n_all
        AND (n_all + 1 - 2 * peak_place) * (n_all + 1 - 2 * peak_place) >= 3.8416 * n_all
        THEN peak END) AS ci_hi,
    CASE WHEN n_all >= 6 THEN 'between' END AS ci_level,
    :now - min(oldest) AS age_seconds, source, synthetic
FROM placed
GROUP BY cluster, sku, direction, memory, arm, metric, unit, n_all, source, synthetic
ORDER BY cluster, sku, direction, memory, metric, arm
