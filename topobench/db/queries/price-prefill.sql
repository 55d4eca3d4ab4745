-- title: Price of prefill
-- answers: What does a million prefill tokens cost, by SKU, model, length and precision?
-- param seq_len integer = 0: only prompts of this many tokens; 0 for all
-- param model text = %: models whose name matches this LIKE pattern
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param at time = now: prices valid at this moment
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- Each row is one host's latest; the device alone, without queue, network or tokenizer.
SELECT
    cluster, sku, host, devices, model, seq_len, batch, dtype, tp, arm, basis, currency, kinds,
    hour_amount, median AS tokens_per_second,
    work_amount * 1e6 AS amount_per_million_tokens,
    work_amount_lo * 1e6 AS amount_per_million_tokens_lo,
    work_amount_hi * 1e6 AS amount_per_million_tokens_hi,
    ci_level, n_processes, n, params, point,
    :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM v_price_performance
WHERE probe = 'prefill' AND metric = 'tokens_per_second' AND coalesce(rank, -1) < 0
    AND (:seq_len = 0 OR seq_len = :seq_len) AND (model IS NULL OR model LIKE :model)
    AND cluster LIKE :cluster AND source LIKE :source
    AND price_from <= :at AND (price_to IS NULL OR price_to > :at) AND measured_at >= :since
ORDER BY
    currency, basis, model, seq_len, batch, amount_per_million_tokens, cluster, host, devices,
    dtype, arm, params, point
