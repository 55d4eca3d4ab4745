-- title: Served requests
-- answers: How quick is each server, at each load and under each binding?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param server text = %: servers whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- concurrency: of a closed loop with one load; a ladder names its loads in point. Medians of
-- requests; the P99 of the time to the first token is of one process, NULL below 299 requests.
-- tokens_per_second: of answers. A load that was too much has shares alone.
WITH measured AS (
    SELECT v.*
    FROM v_latest v
    WHERE probe = 'serving' AND coalesce(rank, -1) < 0 AND measured_at >= :since
        AND cluster LIKE :cluster AND host LIKE :host AND backend LIKE :server
        AND source LIKE :source
), tails AS (
    SELECT series_id, sweep, point, max(p99) AS p99
    FROM v_reading
    WHERE probe = 'serving' AND metric = 'ttft_seconds' AND measured_at >= :since
    GROUP BY series_id, sweep, point
), held AS (  -- where the case does not say it, its windows do
    SELECT sweep, host_key, devices, arm, case_id, max(concurrency) AS concurrency
    FROM v_slo
    WHERE purpose = 'measure' AND measured_at >= :since
    GROUP BY sweep, host_key, devices, arm, case_id
    HAVING min(concurrency) = max(concurrency)
)
SELECT
    m.cluster, m.host, m.devices, m.backend AS server, m.arm,
    coalesce(m.batch, max(h.concurrency)) AS concurrency, m.point,
    max(CASE WHEN m.metric = 'in_flight_count' THEN m.median END) AS in_flight,
    max(CASE WHEN m.metric = 'requests_per_second' THEN m.median END) AS requests_per_second,
    max(CASE WHEN m.metric = 'ttft_seconds' THEN m.median END) AS ttft_seconds,
    max(CASE WHEN m.metric = 'ttft_seconds' THEN m.ci_lo END) AS ttft_ci_lo_seconds,
    max(CASE WHEN m.metric = 'ttft_seconds' THEN m.ci_hi END) AS ttft_ci_hi_seconds,
    max(CASE WHEN m.metric = 'ttft_seconds' THEN m.ci_level END) AS ci_level,
    max(t.p99) AS ttft_p99_seconds,
    max(CASE WHEN m.metric = 'tpot_seconds' THEN m.median END) AS tpot_seconds,
    max(CASE WHEN m.metric = 'e2e_seconds' THEN m.median END) AS e2e_seconds,
    max(CASE WHEN m.metric = 'output_tokens_per_second' THEN m.median END) AS tokens_per_second,
    max(CASE WHEN m.metric = 'goodput_ratio' THEN m.median END) AS goodput_ratio,
    max(CASE WHEN m.metric = 'error_ratio' THEN m.median END) AS error_ratio,
    max(CASE WHEN m.metric IN ('ttft_seconds', 'goodput_ratio') THEN m.n_processes END)
        AS n_processes,
    max(CASE WHEN m.metric = 'ttft_seconds' THEN m.n END) AS n,
    m.params, :now - max(m.measured_unix_seconds) AS age_seconds, m.sweep, m.source, m.synthetic
FROM measured m
LEFT JOIN tails t ON t.series_id = m.series_id AND t.sweep = m.sweep AND t.point = m.point
LEFT JOIN held h ON h.sweep = m.sweep AND h.host_key = m.host_key AND h.devices = m.devices
    AND h.arm = m.arm AND h.case_id = m.case_id
GROUP BY
    m.cluster, m.host, m.devices, m.backend, m.arm, m.batch, m.point, m.series_id, m.params,
    m.sweep, m.source, m.synthetic
HAVING max(CASE WHEN m.metric IN ('ttft_seconds', 'goodput_ratio') THEN m.n END) > 0
ORDER BY m.cluster, m.host, m.devices, m.params, m.point, m.arm
