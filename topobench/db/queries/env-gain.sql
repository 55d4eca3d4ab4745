-- title: Environment gain
-- answers: What is an environment worth (NVLS, P2P, protocol, channels), could this data show it?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param arm text = %: arms whose name matches this LIKE pattern, such as %+p2p_off
-- param tolerance number = 0.03: differences up to this do not matter
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- tolerance: reports take 0.05 for times, so a verdict on them may differ from theirs.
-- above_mde: 1 if the gain is larger than the smallest one this data would tell from none (with no
-- tolerance in it, as the MDE of reports has). verdict needs an interval between processes that
-- lies beyond, or within, the tolerance.
-- hosts: those that measured it together; host is that of rank 0.
SELECT
    cluster, host, devices, n_ranks, n_hosts, hosts, op, bytes, seq_len, dtype, backend,
    arm, reference_arm,
    metric, unit, point, n_pairs, reference_n, reference_median, reference_ci_lo,
    reference_ci_hi, n, median, ci_lo, ci_hi, ci_level, gain_ratio, gain_lo, gain_hi, mde_ratio,
    CASE WHEN mde_ratio IS NOT NULL THEN CASE WHEN gain_ratio > mde_ratio THEN 1 ELSE 0 END END
        AS above_mde,
    CASE
        WHEN mde_ratio IS NULL THEN 'inconclusive'
        WHEN gain_lo > :tolerance THEN 'improved'
        WHEN gain_hi < -:tolerance THEN 'regressed'
        WHEN gain_lo >= -:tolerance AND gain_hi <= :tolerance THEN 'equivalent'
        ELSE 'inconclusive'
    END AS verdict,
    :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM v_env_gain
LEFT JOIN (SELECT series_id AS gang_id, hosts FROM v_together WHERE host_no = 1) gang
    ON gang_id = series_id
WHERE measured_at >= :since AND arm LIKE :arm
    AND (host LIKE :host OR series_id IN (
        SELECT series_id FROM v_together WHERE host LIKE :host
    ))
    AND source LIKE :source
ORDER BY
    cluster, host, devices, op, dtype, backend, metric, bytes, seq_len, gain_ratio DESC,
    arm, point
