-- title: Prefill over several GPUs
-- answers: What do more GPUs gain a prompt, what do all-reduces cost, and was that to be expected?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param model text = %: shapes whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- alone_seconds: the same case on one GPU of these in the same sweep, bound alike if it was (median
-- over GPUs and processes; alone_at_once = all: each did it while the others did, and of a process
-- the slowest of these GPUs counts). Shares of the all-reduces: by events between stages, and by a
-- pass without them. predicted_seconds = alone_seconds / tp + n_all_reduces x (alpha + bytes /
-- beta), by the line between the same GPUs in the same sweep; reason says why there is none.
WITH alike AS (
    SELECT
        id, tp,
        replace(
            replace(
                replace(params, '"tensor_parallel":' || CAST(tp AS text), '"tensor_parallel":*'),
                '"at_once":"one"', '"at_once":*'
            ),
            '"at_once":"all"', '"at_once":*'
        ) AS rest,
        CASE WHEN params LIKE '%"at_once":"all"%' THEN 'all' ELSE 'one' END AS at_once
    FROM probe_case
    WHERE probe = 'prefill'
), prompts AS (
    SELECT v.*, alike.rest
    FROM v_prefill v
    JOIN alike ON alike.id = v.case_id
    WHERE v.tp > 1 AND v.measured_at >= :since AND v.host LIKE :host AND v.model LIKE :model
        AND v.source LIKE :source AND v.device_seconds > 0
), details AS (
    SELECT
        series_id, sweep,
        max(CASE WHEN metric = 'communication_share_ratio' AND point LIKE '%events%'
            THEN median END) AS events_share_ratio,
        max(CASE WHEN metric = 'communication_share_ratio' AND point LIKE '%twin%'
            THEN median END) AS twin_share_ratio,
        max(CASE WHEN metric = 'all_reduce_bytes' THEN median END) AS message_bytes,
        max(CASE WHEN metric = 'all_reduce_count' THEN median END) AS n_all_reduces
    FROM v_latest
    WHERE probe = 'prefill' AND metric IN (
        'communication_share_ratio', 'all_reduce_bytes', 'all_reduce_count'
    )
    GROUP BY series_id, sweep
), alone AS (
    SELECT
        p.series_id, p.sweep, one.at_once, max(d.median) AS seconds, d.run_id,
        rank() OVER (
            PARTITION BY p.series_id, p.sweep
            ORDER BY
                CASE WHEN one.at_once = 'one' THEN 0 ELSE 1 END,
                CASE WHEN a.name = p.binding THEN 0 ELSE 1 END,
                a.name
        ) AS choice
    FROM prompts p
    CROSS JOIN series s
    CROSS JOIN series o
    CROSS JOIN alike one
    CROSS JOIN arm a
    CROSS JOIN run r
    CROSS JOIN reading d
    CROSS JOIN metric m
    WHERE s.id = p.series_id AND o.host_id = s.host_id AND o.source = s.source
        AND o.synthetic = s.synthetic AND one.id = o.case_id AND one.tp = 1
        AND one.rest = p.rest AND a.id = o.arm_id AND r.series_id = o.id
        AND r.sweep_id = s.latest_sweep_id AND r.status IN ('ok', 'partial')
        AND d.run_id = r.id AND d.median > 0
        AND m.id = d.metric_id AND m.name = 'prefill_device_seconds'
        AND (
            p.n_devices = 0
            OR EXISTS (
                SELECT 1
                FROM device_set_member mine
                JOIN device_set_member its ON its.device_id = mine.device_id
                WHERE mine.device_set_id = s.device_set_id AND its.device_set_id = o.device_set_id
            )
        )
        AND CASE WHEN EXISTS (
            SELECT 1
            FROM device_set_member its
            WHERE its.device_set_id = o.device_set_id AND its.device_id NOT IN (
                SELECT device_id FROM device_set_member WHERE device_set_id = s.device_set_id
            )
        ) THEN EXISTS (
            SELECT 1
            FROM device_set_member mine
            JOIN device_set_member its ON its.device_id = mine.device_id
            WHERE mine.device_set_id = s.device_set_id AND its.device_set_id = o.device_set_id
                AND its.position = d.rank
        ) ELSE d.point = '{}' END
    GROUP BY p.series_id, p.sweep, p.binding, one.at_once, a.name, d.run_id
), placed AS (
    SELECT
        alone.*,
        row_number() OVER (PARTITION BY series_id, sweep ORDER BY seconds, run_id) AS place,
        count(*) OVER (PARTITION BY series_id, sweep) AS n_all
    FROM alone
    WHERE choice = 1
), single AS (
    SELECT
        series_id, sweep, max(at_once) AS alone_at_once,
        avg(CASE WHEN 2 * place BETWEEN n_all AND n_all + 2 THEN seconds END) AS alone_seconds
    FROM placed
    GROUP BY series_id, sweep
), lines AS (
    SELECT
        p.series_id, p.sweep, f.alpha_seconds, f.beta_bytes_per_second, f.smallest_bytes,
        f.largest_bytes,
        row_number() OVER (
            PARTITION BY p.series_id, p.sweep
            ORDER BY
                CASE WHEN f.params LIKE '%"mode":%' AND f.params NOT LIKE '%"mode":"queued"%'
                    THEN 1 ELSE 0 END,
                CASE WHEN f.params LIKE '%"pool":"warm"%' THEN 1 ELSE 0 END,
                CASE WHEN f.params LIKE '%"place":"out_of"%' THEN 1 ELSE 0 END,
                f.subject
        ) AS place
    FROM prompts p
    JOIN series mine ON mine.id = p.series_id
    JOIN fit f ON f.sweep_id = mine.latest_sweep_id AND f.host_id = mine.host_id
        AND f.kind = 'alpha_beta'
    JOIN series s ON s.id = f.series_id AND s.n_ranks = p.tp
    JOIN device_set ds ON ds.id = s.device_set_id AND ds.label = p.devices
    JOIN probe_case pc ON pc.id = s.case_id AND pc.op = 'all_reduce'
    JOIN arm a ON a.id = s.arm_id AND a.name = p.arm
), expected AS (
    SELECT
        p.*, d.events_share_ratio, d.twin_share_ratio, d.message_bytes, d.n_all_reduces,
        s.alone_seconds, s.alone_at_once,
        CASE WHEN d.message_bytes BETWEEN l.smallest_bytes AND l.largest_bytes THEN
            s.alone_seconds / p.tp
            + d.n_all_reduces * (l.alpha_seconds + d.message_bytes / l.beta_bytes_per_second)
        END AS predicted_seconds,
        CASE
            WHEN s.alone_seconds IS NULL THEN 'one GPU was not measured in this sweep'
            WHEN d.message_bytes IS NULL OR d.n_all_reduces IS NULL
                THEN 'its run did not tell how many all-reduces it made, and of which size'
            WHEN l.series_id IS NULL THEN 'this sweep has no line of all_reduce between these GPUs '
                || 'under ' || p.arm || '; topobench report says what it lacks'
            WHEN d.message_bytes NOT BETWEEN l.smallest_bytes AND l.largest_bytes THEN
                CAST(CAST(d.message_bytes AS bigint) AS text) || ' bytes lie outside the sizes of '
                || 'that line'
        END AS reason
    FROM prompts p
    LEFT JOIN details d ON d.series_id = p.series_id AND d.sweep = p.sweep
    LEFT JOIN single s ON s.series_id = p.series_id AND s.sweep = p.sweep
    LEFT JOIN lines l ON l.series_id = p.series_id AND l.sweep = p.sweep AND l.place = 1
)
SELECT
    cluster, host, devices, model, batch, seq_len, dtype, tp, arm, n_processes, n,
    device_seconds, alone_seconds, alone_at_once,
    alone_seconds / device_seconds AS speed_up_ratio,
    alone_seconds / device_seconds / tp AS efficiency_ratio,
    events_share_ratio, twin_share_ratio, message_bytes, n_all_reduces, predicted_seconds,
    predicted_seconds / device_seconds - 1 AS error_ratio, reason,
    tokens_per_second, tokens_per_second_ci_lo, tokens_per_second_ci_hi, ci_level, params,
    :now - measured_unix_seconds AS age_seconds, sweep, source, synthetic
FROM expected
ORDER BY cluster, host, model, dtype, batch, seq_len, params, tp, devices, arm
