-- title: NUMA tax
-- answers: What does another binding cost against local memory, on the same devices?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- tax_ratio: 0.1 = 10 % worse than local, below 0 = better; pairs of processes of one sweep.
SELECT
    cluster, host, devices, probe, params, ring, metric, unit, point, binding,
    n_pairs, local_n, local_median, local_ci_lo, local_ci_hi, n, median, ci_lo, ci_hi, ci_level,
    tax_ratio, tax_lo, tax_hi, mde_ratio,
    :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM v_numa_tax
WHERE measured_at >= :since AND host LIKE :host AND probe LIKE :probe AND source LIKE :source
ORDER BY tax_ratio DESC, cluster, host, devices, params, ring, metric, point, binding
