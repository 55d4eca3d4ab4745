-- title: Pairs of hosts
-- answers: How fast is the way from each host to each other, and which end of a slow one is slow?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: pairs with a host whose name matches this LIKE pattern
-- param probe text = host_network: probes whose name matches this LIKE pattern
-- param metric text = %: metrics whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- What two hosts measured together. sender: who sends; where both do, the host of rank 0.
-- typical_median: of the n_pairs directions alike. speed_ratio: by the typical, 0.9 = 10 % slower.
-- sender_best_ratio, receiver_best_ratio: the best that host reaches so with any other, in whichever
-- place where both send; where one of them is low, too, suspect that host (its NIC, cable or port),
-- else the path between both.
WITH measured AS (
    SELECT
        v.cluster, v.probe, v.probe_version, v.params, v.arm, v.n_devices, v.n_ranks, v.metric,
        v.unit, v.better, v.point, v.source, v.synthetic, v.series_id, v.devices, v.direction,
        v.bytes, v.backend, v.n_processes, v.n, v.median, v.ci_lo, v.ci_hi, v.ci_level, v.sweep,
        v.measured_unix_seconds,
        replace(
            replace(v.params, '"direction":"out"', '"direction":*'),
            '"direction":"in"', '"direction":*'
        ) AS rest,
        CASE WHEN v.direction IN ('out', 'in') THEN 1 ELSE 0 END AS one_way,
        CASE WHEN v.direction = 'in' THEN b.host ELSE a.host END AS sender,
        CASE WHEN v.direction = 'in' THEN b.host_key ELSE a.host_key END AS sender_key,
        CASE WHEN v.direction = 'in' THEN a.host ELSE b.host END AS receiver,
        CASE WHEN v.direction = 'in' THEN a.host_key ELSE b.host_key END AS receiver_key
    FROM v_latest v
    JOIN v_together a ON a.series_id = v.series_id AND a.host_no = 1
    JOIN v_together b ON b.series_id = v.series_id AND b.host_no = 2
    WHERE v.n_hosts = 2 AND v.better <> 0 AND v.metric <> 'locality_ratio'
        AND coalesce(v.rank, -1) < 0 AND v.median > 0 AND v.measured_at >= :since
        AND v.cluster LIKE :cluster AND v.probe LIKE :probe AND v.metric LIKE :metric
        AND v.source LIKE :source
), numbered AS (
    SELECT
        measured.*,
        dense_rank() OVER (
            ORDER BY
                cluster, probe, probe_version, rest, arm, n_devices, n_ranks, metric, point, source,
                synthetic
        ) AS alike
    FROM measured
), placed AS (
    SELECT
        numbered.*, count(*) OVER (PARTITION BY alike) AS n_pairs,
        row_number() OVER (PARTITION BY alike ORDER BY median, series_id) AS place
    FROM numbered
), centred AS (
    SELECT
        placed.*,
        avg(CASE WHEN 2 * place BETWEEN n_pairs AND n_pairs + 2 THEN median END)
            OVER (PARTITION BY alike) AS typical_median
    FROM placed
), rated AS (
    SELECT
        centred.*,
        CASE WHEN better = 1 THEN median / typical_median ELSE typical_median / median END
            AS speed_ratio
    FROM centred
), reached AS (
    SELECT alike, sender_key AS host_key, one_way AS sends, speed_ratio FROM rated
    UNION ALL
    SELECT alike, receiver_key, 0, speed_ratio FROM rated
), best AS (
    SELECT alike, host_key, sends, max(speed_ratio) AS best_ratio
    FROM reached
    GROUP BY alike, host_key, sends
), compared AS (
    SELECT
        r.*, s.best_ratio AS sender_best_ratio, o.best_ratio AS receiver_best_ratio
    FROM rated r
    JOIN best s ON s.alike = r.alike AND s.host_key = r.sender_key AND s.sends = r.one_way
    JOIN best o ON o.alike = r.alike AND o.host_key = r.receiver_key AND o.sends = 0
)
SELECT
    cluster, sender, receiver, probe, direction, bytes, arm, backend, metric, unit, point,
    n_processes, n, median, ci_lo, ci_hi, ci_level, n_pairs, typical_median, speed_ratio,
    sender_best_ratio, receiver_best_ratio, devices, params,
    :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM compared
WHERE sender LIKE :host OR receiver LIKE :host
ORDER BY speed_ratio, cluster, sender, receiver, probe, metric, params, arm, point, devices
