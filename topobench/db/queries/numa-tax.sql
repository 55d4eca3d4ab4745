-- title: NUMA tax
-- answers: What does another binding cost against local memory, on the same devices?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- tax_ratio: 0.1 = 10 % worse than local, below 0 = better; pairs of processes of one sweep.
-- mde_ratio: the smallest tax this data would tell from none; reports add a tolerance to theirs.
-- hosts: those that measured it together; host is that of rank 0.
SELECT
    cluster, host, devices, probe, params, ring, metric, unit, point, binding,
    n_pairs, local_n, local_median, local_ci_lo, local_ci_hi, n, median, ci_lo, ci_hi, ci_level,
    tax_ratio, tax_lo, tax_hi, mde_ratio, n_hosts, hosts,
    :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM v_numa_tax
LEFT JOIN (SELECT series_id AS gang_id, hosts FROM v_together WHERE host_no = 1) gang
    ON gang_id = series_id
WHERE measured_at >= :since AND probe LIKE :probe AND source LIKE :source
    AND (host LIKE :host OR series_id IN (
        SELECT series_id FROM v_together WHERE host LIKE :host
    ))
ORDER BY tax_ratio DESC, cluster, host, devices, params, ring, metric, point, binding
