-- title: Energy of tokens
-- answers: How many watts does a token rate take, and what is a million tokens' electricity?
-- param probe text = %: probes whose name matches this LIKE pattern
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param at time = now: prices valid at this moment
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- Both figures are of the same runs; of a served model, answer tokens, at the load in params. The
-- ends of tokens_per_joule take both intervals at once.
-- The price is power_kwh alone, of the cluster's own or of everywhere, at the watts measured.
WITH power AS (
    SELECT * FROM v_latest WHERE metric = 'power_watts' AND coalesce(rank, -1) < 0 AND median > 0
), kwh AS (
    SELECT
        cl.name AS cluster, k.name AS sku, p.currency, p.amount,
        row_number() OVER (
            PARTITION BY cl.name, k.name, p.currency
            ORDER BY CASE WHEN p.cluster_id IS NULL THEN 1 ELSE 0 END, p.id
        ) AS choice
    FROM price p
    JOIN sku k ON k.id = p.sku_id
    JOIN cluster cl ON p.cluster_id IS NULL OR p.cluster_id = cl.id
    WHERE p.kind = 'power_kwh' AND p.valid_from <= :at
        AND (p.valid_to IS NULL OR p.valid_to > :at)
)
SELECT
    t.cluster, t.sku, t.host, t.devices, t.probe, t.params, t.dtype, t.arm, t.point,
    t.median AS tokens_per_second, t.ci_lo AS tokens_per_second_lo,
    t.ci_hi AS tokens_per_second_hi, w.median AS power_watts, w.ci_lo AS power_watts_lo,
    w.ci_hi AS power_watts_hi, t.median / w.median AS tokens_per_joule,
    CASE WHEN w.ci_hi > 0 THEN t.ci_lo / w.ci_hi END AS tokens_per_joule_lo,
    CASE WHEN w.ci_lo > 0 THEN t.ci_hi / w.ci_lo END AS tokens_per_joule_hi,
    t.ci_level, k.currency, w.median / t.median / 3.6 * k.amount AS amount_per_million_tokens,
    CASE WHEN t.ci_hi > 0 THEN w.ci_lo / t.ci_hi / 3.6 * k.amount END
        AS amount_per_million_tokens_lo,
    CASE WHEN t.ci_lo > 0 THEN w.ci_hi / t.ci_lo / 3.6 * k.amount END
        AS amount_per_million_tokens_hi,
    t.n_processes, t.n, :now - t.measured_unix_seconds AS age_seconds, t.sweep, t.source,
    t.synthetic
FROM v_latest t
JOIN power w ON w.series_id = t.series_id AND w.sweep = t.sweep AND w.point = t.point
LEFT JOIN kwh k ON k.cluster = t.cluster AND k.sku = t.sku AND k.choice = 1
WHERE t.metric IN ('tokens_per_second', 'output_tokens_per_second')
    AND coalesce(t.rank, -1) < 0 AND t.median > 0 AND t.probe LIKE :probe
    AND t.cluster LIKE :cluster AND t.source LIKE :source
    AND t.measured_at >= :since
ORDER BY t.cluster, t.host, t.devices, t.probe, t.params, t.arm, t.point, k.currency
