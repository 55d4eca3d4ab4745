-- title: Changes
-- answers: What changed lately, on which host: settings, parts, and results?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param what text = %: recorded, or result; % for both
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only changes since
-- param now moment = now: ages are counted up to here
-- n_recorded: recorded changes of the host in the time in which a result changed.
SELECT
    cluster, host, what, kind, key, old, new, recorded_by, probe, params, devices, arm, metric,
    effect_ratio, p, method, n_recorded, at_lo, at_hi,
    count(*) OVER (PARTITION BY cluster, host_key, what) AS n,
    :now - at_hi_unix_seconds AS age_seconds, source, synthetic
FROM v_changes
WHERE at_hi >= :since AND cluster LIKE :cluster AND host LIKE :host AND what LIKE :what
    AND source LIKE :source
ORDER BY at_hi DESC, cluster, host, what, kind, key, metric, params, arm, devices
