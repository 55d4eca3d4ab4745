-- title: Straggler bill
-- answers: What does a job of N hosts lose by waiting for its slowest one, and without the worst?
-- param hosts integer = 8: hosts of the job
-- param hours number = 730: how long it runs
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param metric text = %: metrics whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param at time = now: prices valid at this moment
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- The job's hosts are drawn at random from those measured, without repetition; expected_ratio is
-- the mean speed of the slowest of them by that of the median host (exact, from the ranks), and
-- 95 % of the draws lie between range_lo and range_hi. n_left_out: so many of the slowest hosts
-- do not take part. The noise of the measurements counts as spread between hosts, so that the
-- bill is rather too high where hosts were measured once. bill: (1 - expected_ratio) of what the
-- N hosts cost in that time.
WITH RECURSIVE per_host AS (
    SELECT
        cluster, sku, host_key, case_id, probe, params, arm, n_devices, n_ranks, metric, point,
        source, synthetic,
        avg(CASE WHEN better = 1 THEN median WHEN median > 0 THEN 1 / median END) AS speed,
        sum(n) AS n, min(measured_unix_seconds) AS oldest
    FROM v_latest
    WHERE better <> 0 AND metric <> 'locality_ratio' AND coalesce(rank, -1) < 0 AND n_hosts = 1
        AND sku IS NOT NULL AND measured_at >= :since AND cluster LIKE :cluster
        AND probe LIKE :probe AND metric LIKE :metric AND source LIKE :source
    GROUP BY
        cluster, sku, host_key, case_id, probe, params, arm, n_devices, n_ranks, metric, point,
        source, synthetic
), placed AS (
    SELECT
        per_host.*,
        dense_rank() OVER (
            ORDER BY
                cluster, sku, case_id, arm, n_devices, n_ranks, metric, point, source, synthetic
        ) AS series_no,
        row_number() OVER (alike ORDER BY speed, host_key) AS place, count(*) OVER alike AS n_all,
        sum(n) OVER alike AS n_of_all, min(oldest) OVER alike AS oldest_of_all
    FROM per_host
    WHERE speed > 0
    WINDOW alike AS (
        PARTITION BY
            cluster, sku, case_id, arm, n_devices, n_ranks, metric, point, source, synthetic
    )
), drawn AS (
    SELECT
        placed.*,
        avg(CASE WHEN 2 * place BETWEEN n_all AND n_all + 2 THEN speed END)
            OVER (PARTITION BY series_no) AS middle
    FROM placed
    WHERE n_all >= :hosts AND :hosts >= 1
), series_drawn AS (
    SELECT * FROM drawn WHERE place = 1
), left_out AS (
    SELECT 0 AS n_left_out
    UNION ALL SELECT 1
    UNION ALL SELECT 2
    UNION ALL SELECT 4
    UNION ALL SELECT 8
), pool AS (
    SELECT DISTINCT n_all - n_left_out AS n_pool
    FROM series_drawn
    CROSS JOIN left_out
    WHERE n_all - n_left_out >= :hosts
), draw AS (
    -- The chance that the slowest of the draw is the host at this place.
    SELECT n_pool, 1 AS place, 1.0 * :hosts / n_pool AS chance, 1.0 * :hosts / n_pool AS up_to
    FROM pool
    UNION ALL
    SELECT
        n_pool, place + 1, chance * (n_pool - place - :hosts + 1) / (n_pool - place),
        up_to + chance * (n_pool - place - :hosts + 1) / (n_pool - place)
    FROM draw
    WHERE place <= n_pool - :hosts
), answer AS (
    SELECT
        h.series_no, o.n_left_out, sum(d.chance * h.speed / h.middle) AS expected_ratio,
        min(CASE WHEN d.up_to >= 0.025 THEN h.speed / h.middle END) AS range_lo_ratio,
        min(CASE WHEN d.up_to >= 0.975 THEN h.speed / h.middle END) AS range_hi_ratio
    FROM draw d
    CROSS JOIN left_out o
    CROSS JOIN drawn h
    WHERE h.n_all = d.n_pool + o.n_left_out AND h.place = d.place + o.n_left_out
    GROUP BY h.series_no, o.n_left_out
)
SELECT
    g.cluster, g.sku, g.probe, g.params, g.arm, g.metric, g.point, g.n_all AS n_measured_hosts,
    a.n_left_out, a.expected_ratio, a.range_lo_ratio, a.range_hi_ratio, v.basis, v.currency,
    v.kinds, v.host_hour_amount,
    (1 - a.expected_ratio) * :hosts * :hours * v.host_hour_amount AS bill,
    (1 - a.range_hi_ratio) * :hosts * :hours * v.host_hour_amount AS bill_lo,
    (1 - a.range_lo_ratio) * :hosts * :hours * v.host_hour_amount AS bill_hi,
    g.n_of_all AS n, :now - g.oldest_of_all AS age_seconds, g.source, g.synthetic
FROM answer a
JOIN series_drawn g ON g.series_no = a.series_no
LEFT JOIN v_price v
    ON v.cluster = g.cluster AND v.sku = g.sku AND v.price_from <= :at
    AND (v.price_to IS NULL OR v.price_to > :at)
ORDER BY
    g.cluster, g.sku, g.probe, g.params, g.arm, g.metric, g.point, g.series_no, v.currency,
    v.basis, a.n_left_out
