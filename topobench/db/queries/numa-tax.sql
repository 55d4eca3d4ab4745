-- title: NUMA tax
-- answers: What does another binding cost against local memory, on the same devices?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- tax_ratio: 0.1 = 10 % worse than local, below 0 = better; both arms are of one sweep.
SELECT
    a.cluster, a.host, a.devices, a.probe, a.params, a.metric, a.unit, b.binding,
    a.median AS local_median, b.median, b.ci_lo, b.ci_hi, b.ci_level,
    a.ci_lo AS local_ci_lo, a.ci_hi AS local_ci_hi,
    a.better * (a.median - b.median) / a.median AS tax_ratio,
    a.n_processes AS local_n_processes, b.n_processes, a.n AS local_n, b.n,
    :now - b.measured_unix_seconds AS age_seconds, b.sweep, b.source, b.synthetic
FROM v_latest a
JOIN v_latest b
    ON b.host_key = a.host_key AND b.cluster = a.cluster AND b.devices = a.devices
    AND b.case_id = a.case_id AND b.metric = a.metric AND b.point = a.point
    AND b.sweep = a.sweep AND b.n_ranks = a.n_ranks
    AND coalesce(b.ring, '') = coalesce(a.ring, '')
    AND b.source = a.source AND b.synthetic = a.synthetic
WHERE a.binding = 'local' AND b.binding <> 'local' AND a.better <> 0 AND a.median > 0
    AND a.metric <> 'locality_ratio' AND a.rank IS NULL
    AND a.measured_at >= :since AND a.host LIKE :host AND a.probe LIKE :probe
ORDER BY tax_ratio DESC, a.cluster, a.host, a.devices, a.params, a.metric, b.binding
