-- title: Cost of collectives
-- answers: What does a collective cost at any size: fixed time and bandwidth, with intervals?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param op text = %: operations whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- time = alpha_seconds + bytes / beta_bytes_per_second, from smallest_bytes to largest_bytes. Where
-- worst_ratio is far beyond residual_ratio, a protocol changes and the line is not the curve.
SELECT
    cluster, host, devices, n_ranks, n_hosts, op, dtype, backend, arm, n,
    alpha_seconds, alpha_lo AS alpha_lo_seconds, alpha_hi AS alpha_hi_seconds,
    beta_bytes_per_second, beta_lo AS beta_lo_bytes_per_second,
    beta_hi AS beta_hi_bytes_per_second, ci_level, n_half_bytes, residual_ratio, worst_bytes,
    worst_ratio, smallest_bytes, largest_bytes,
    :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM v_fit
WHERE measured_at >= :since AND host LIKE :host AND op LIKE :op AND source LIKE :source
ORDER BY cluster, host, op, dtype, backend, devices, n_ranks, arm
