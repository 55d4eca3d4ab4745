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
), local AS (
    SELECT * FROM priced WHERE binding = 'local'
), compared AS (
    SELECT
        v.*, l.median AS local_median, l.ci_lo AS local_ci_lo, l.ci_hi AS local_ci_hi,
        l.n AS local_n,
        CASE WHEN v.better = 1 THEN v.median / l.median ELSE l.median / v.median END AS kept,
        CASE
            WHEN v.better = 1 AND l.ci_hi > 0 THEN v.ci_lo / l.ci_hi
            WHEN v.better = -1 AND v.ci_hi > 0 THEN l.ci_lo / v.ci_hi
        END AS kept_lo,
        CASE
            WHEN v.better = 1 AND l.ci_lo > 0 THEN v.ci_hi / l.ci_lo
            WHEN v.better = -1 AND v.ci_lo > 0 THEN l.ci_hi / v.ci_lo
        END AS kept_hi
    FROM priced v
    JOIN local l
        ON l.cluster = v.cluster AND l.host_key = v.host_key AND l.devices = v.devices
        AND l.case_id = v.case_id AND l.n_ranks = v.n_ranks AND l.metric = v.metric
        AND l.point = v.point AND l.sweep = v.sweep AND l.source = v.source
        AND l.synthetic = v.synthetic AND l.basis = v.basis AND l.currency = v.currency
        AND l.price_from = v.price_from AND coalesce(l.ring, '') = coalesce(v.ring, '')
    WHERE v.binding <> 'local'
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
