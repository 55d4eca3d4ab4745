-- title: Price of the NUMA tax
-- answers: What does an hour lose to a binding that is not local, by cluster and SKU?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param at time = now: prices valid at this moment
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- tax_ratio: 0.1 = 10 % worse than local; its ends take both intervals at once, the widest that
-- they allow. hour_loss: that share of what the devices cost an hour, were all their time spent
-- on this case. Arms that compare an environment are none of these: query env-gain.
WITH priced AS (
    SELECT * FROM v_price_performance
    WHERE better <> 0 AND metric <> 'locality_ratio' AND coalesce(rank, -1) < 0 AND median > 0
        AND arm NOT LIKE '%+%'
        AND cluster LIKE :cluster AND probe LIKE :probe
        AND price_from <= :at AND (price_to IS NULL OR price_to > :at)
        AND measured_at >= :since
), beside AS (
    SELECT
        priced.*,
        max(CASE WHEN binding = 'local' THEN median END) OVER alike AS local_median,
        max(CASE WHEN binding = 'local' THEN ci_lo END) OVER alike AS local_ci_lo,
        max(CASE WHEN binding = 'local' THEN ci_hi END) OVER alike AS local_ci_hi,
        max(CASE WHEN binding = 'local' THEN n END) OVER alike AS local_n
    FROM priced
    WINDOW alike AS (
        PARTITION BY
            cluster, host_key, devices, case_id, n_ranks, metric, point, sweep, source, synthetic,
            basis, currency, price_from, coalesce(ring, '')
    )
), compared AS (
    SELECT
        beside.*,
        CASE WHEN better = 1 THEN median / local_median ELSE local_median / median END AS kept,
        CASE
            WHEN better = 1 AND local_ci_hi > 0 THEN ci_lo / local_ci_hi
            WHEN better = -1 AND ci_hi > 0 THEN local_ci_lo / ci_hi
        END AS kept_lo,
        CASE
            WHEN better = 1 AND local_ci_lo > 0 THEN ci_hi / local_ci_lo
            WHEN better = -1 AND ci_lo > 0 THEN local_ci_hi / ci_lo
        END AS kept_hi
    FROM beside
    WHERE binding <> 'local' AND local_median IS NOT NULL
)
SELECT
    cluster, sku, host, devices, probe, params, metric, unit, point, binding, ring,
    local_median, local_ci_lo, local_ci_hi, median, ci_lo, ci_hi, ci_level,
    1 - kept AS tax_ratio, 1 - kept_hi AS tax_lo_ratio, 1 - kept_lo AS tax_hi_ratio,
    basis, currency, kinds, hour_amount, (1 - kept) * hour_amount AS hour_loss,
    (1 - kept_hi) * hour_amount AS hour_loss_lo, (1 - kept_lo) * hour_amount AS hour_loss_hi,
    local_n, n, :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM compared
ORDER BY
    currency, basis, hour_loss DESC, cluster, host, devices, probe, params, metric, binding, point
