-- title: PCIe against SXM
-- answers: Which form factor gives more of a case per GPU, and per unit of money?
-- param probe text = prefill: probes whose name matches this LIKE pattern
-- param metric text = tokens_per_second: metrics whose name matches this LIKE pattern
-- param seq_len integer = 8192: only prompts of this many tokens; 0 for all cases
-- param source text = probe: of whom; import:% for imported results, % for all
-- param at time = now: prices valid at this moment
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- Medians of the hosts of a form factor; lowest and highest of them are its interval from six
-- on. per_amount: of the metric, by what its GPUs cost an hour. Between hosts: price-all-reduce.
WITH placed AS (
    SELECT
        v.*, median / n_devices AS per_gpu, median / hour_amount AS per_amount,
        row_number() OVER (
            PARTITION BY
                form_factor, gpu_model, case_id, n_ranks, arm, metric, point, basis, currency,
                source, synthetic
            ORDER BY median / n_devices, host_key, devices
        ) AS place,
        row_number() OVER (
            PARTITION BY
                form_factor, gpu_model, case_id, n_ranks, arm, metric, point, basis, currency,
                source, synthetic
            ORDER BY median / hour_amount, host_key, devices
        ) AS price_place,
        count(*) OVER (
            PARTITION BY
                form_factor, gpu_model, case_id, n_ranks, arm, metric, point, basis, currency,
                source, synthetic
        ) AS n_groups
    FROM v_price_performance v
    WHERE unit LIKE '%/s' AND n_devices > 0 AND n_hosts = 1 AND hour_amount > 0
        AND coalesce(rank, -1) < 0 AND probe LIKE :probe AND metric LIKE :metric
        AND source LIKE :source
        AND (:seq_len = 0 OR seq_len = :seq_len)
        AND price_from <= :at AND (price_to IS NULL OR price_to > :at) AND measured_at >= :since
)
SELECT
    form_factor, gpu_model, probe, params, arm, n_ranks, metric, point, basis, currency,
    avg(CASE WHEN 2 * place BETWEEN n_groups AND n_groups + 2 THEN per_gpu END) AS per_gpu,
    CASE
        WHEN n_groups = 1 THEN max(ci_lo / n_devices) WHEN n_groups >= 6 THEN min(per_gpu)
    END AS per_gpu_lo,
    CASE
        WHEN n_groups = 1 THEN max(ci_hi / n_devices) WHEN n_groups >= 6 THEN max(per_gpu)
    END AS per_gpu_hi,
    avg(CASE WHEN 2 * price_place BETWEEN n_groups AND n_groups + 2 THEN per_amount END)
        AS per_amount,
    CASE
        WHEN n_groups = 1 THEN max(ci_lo / hour_amount) WHEN n_groups >= 6 THEN min(per_amount)
    END AS per_amount_lo,
    CASE
        WHEN n_groups = 1 THEN max(ci_hi / hour_amount) WHEN n_groups >= 6 THEN max(per_amount)
    END AS per_amount_hi,
    CASE WHEN n_groups = 1 THEN max(ci_level) WHEN n_groups >= 6 THEN 'between' END AS ci_level,
    count(DISTINCT host_key) AS n_hosts, sum(n) AS n,
    :now - min(measured_unix_seconds) AS age_seconds, source, synthetic
FROM placed
GROUP BY
    form_factor, gpu_model, probe, case_id, params, arm, n_ranks, metric, point, basis, currency,
    n_groups, source, synthetic
ORDER BY probe, params, arm, n_ranks, metric, point, currency, basis, per_amount DESC, gpu_model
