-- title: Changed without a reason
-- answers: Which results moved to another level though no change of the host was recorded?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param min_effect number = 0.01: only changes of at least this size, either way
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only changes since
-- param now moment = now: ages are counted up to here
-- n: series of the host that changed so; several at once point to the host, one to a device.
SELECT
    cluster, host, devices, probe, params, arm, metric, effect_ratio, p, method, at_lo, at_hi,
    count(*) OVER (PARTITION BY cluster, host_key) AS n,
    :now - at_hi_unix_seconds AS age_seconds, source, synthetic
FROM v_changes
WHERE what = 'result' AND n_recorded = 0 AND abs(effect_ratio) >= :min_effect
    AND at_hi >= :since AND cluster LIKE :cluster AND host LIKE :host AND source LIKE :source
ORDER BY effect_ratio, cluster, host, devices, metric, params, arm
