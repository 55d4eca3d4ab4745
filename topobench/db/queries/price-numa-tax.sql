-- title: Price of the NUMA tax
-- answers: What does an hour lose to a binding that is not local, by cluster and SKU?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param at time = now: prices valid at this moment
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- tax_ratio: 0.1 = 10 % worse than local, by pairs of processes as in query numa-tax. hour_loss:
-- the share of the time lost so, of what the devices cost an hour, were all their time spent on this
-- case. Arms that compare an environment are none of these: query env-gain.
-- hosts: those that measured it together; host is that of rank 0.
WITH taxed AS (
    SELECT
        v.*,
        CASE WHEN better = 1 THEN tax_ratio ELSE tax_ratio / (1 + tax_ratio) END AS lost,
        CASE WHEN better = 1 THEN tax_lo ELSE tax_lo / (1 + tax_lo) END AS lost_lo,
        CASE WHEN better = 1 THEN tax_hi ELSE tax_hi / (1 + tax_hi) END AS lost_hi
    FROM v_numa_tax v
    WHERE cluster LIKE :cluster AND probe LIKE :probe AND measured_at >= :since AND median > 0
), priced AS (
    SELECT
        x.*, p.basis, p.currency, p.kinds,
        CASE
            WHEN x.n_devices > 0 THEN p.gpu_hour_amount * x.n_devices
            ELSE p.host_hour_amount * x.n_hosts
        END AS hour_amount
    FROM taxed x
    JOIN v_price p ON p.cluster = x.cluster AND p.sku = x.sku
    WHERE p.price_from <= :at AND (p.price_to IS NULL OR p.price_to > :at)
        AND (x.n_hosts = 1 OR x.series_id NOT IN (
            SELECT series_id FROM v_together GROUP BY series_id HAVING count(*) > count(sku)
                OR min(sku) <> max(sku)
        ))
)
SELECT
    cluster, sku, host, devices, n_hosts, hosts, probe, params, metric, unit, point, binding, ring,
    local_median, local_ci_lo, local_ci_hi, median, ci_lo, ci_hi, ci_level, n_pairs,
    tax_ratio, tax_lo AS tax_lo_ratio, tax_hi AS tax_hi_ratio,
    basis, currency, kinds, hour_amount, lost * hour_amount AS hour_loss,
    lost_lo * hour_amount AS hour_loss_lo, lost_hi * hour_amount AS hour_loss_hi,
    local_n, n, :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM priced
LEFT JOIN (SELECT series_id AS gang_id, hosts FROM v_together WHERE host_no = 1) gang
    ON gang_id = series_id
ORDER BY
    currency, basis, hour_loss DESC, cluster, host, devices, probe, params, metric, binding, point
