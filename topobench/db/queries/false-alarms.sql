-- title: False alarms
-- answers: Which verdicts were good again at the next test, and was anything changed in between?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param check text = overall: checks whose name matches this LIKE pattern; overall sums them up
-- param since time = 30d: only verdicts since
-- param now moment = now: ages are counted up to here
-- outcome: false alarm (good at the next test, nothing recorded in between), repaired (good after
-- a recorded change). n: verdicts of this check and policy that were watch, degraded or fail;
-- false_alarm_ratio: the false alarms among them. Judged again, a sweep counts once.
WITH following AS (
    SELECT
        v.id, v.host_id, v.device_id, v.sweep_id, v.check_name, v.policy_version, v.as_of,
        v.level,
        lead(v.level) OVER subject AS later_level,
        lead(v.value) OVER subject AS later_value,
        lead(v.as_of) OVER subject AS later_as_of
    FROM verdict v
    WHERE v.superseded_by IS NULL AND v.as_of >= :since AND v.check_name LIKE :check
    WINDOW subject AS (
        PARTITION BY v.host_id, coalesce(v.device_id, 0), v.check_name ORDER BY v.as_of, v.id
    )
), flagged AS (
    SELECT
        f.*, sw.uuid AS sweep, sw.started_unix_seconds, sw.source, sw.synthetic,
        cl.name AS cluster, h.name AS host,
        (
            SELECT count(*) FROM change_event e
            WHERE e.host_id = f.host_id AND e.at > f.as_of AND e.at <= f.later_as_of
        ) AS n_changes
    FROM following f
    JOIN sweep sw ON sw.id = f.sweep_id
    JOIN host h ON h.id = f.host_id
    JOIN cluster cl ON cl.id = h.cluster_id
    WHERE f.level IN ('watch', 'degraded', 'fail') AND cl.name LIKE :cluster
        AND h.name LIKE :host
), judged AS (
    SELECT
        flagged.*,
        CASE
            WHEN later_level = 'ok' AND n_changes = 0 THEN 'false alarm'
            WHEN later_level = 'ok' THEN 'repaired'
        END AS outcome
    FROM flagged
), counted AS (
    SELECT
        judged.*, count(*) OVER (PARTITION BY check_name, policy_version) AS n,
        avg(CASE WHEN outcome = 'false alarm' THEN 1.0 ELSE 0.0 END)
            OVER (PARTITION BY check_name, policy_version) AS false_alarm_ratio
    FROM judged
)
SELECT
    c.cluster, c.host, d.key AS device, c.check_name, c.level, v.value, v.reference,
    v.effect_ratio, v.ci_lo, v.ci_hi, v.mde_ratio, v.confirmed_count, v.reason, c.as_of,
    c.outcome, c.later_value, c.later_as_of, c.n_changes, n.ticket, n.author AS noted_by,
    n.text AS note, c.policy_version, c.n, c.false_alarm_ratio,
    :now - c.started_unix_seconds AS age_seconds, c.sweep, c.source, c.synthetic
FROM counted c
JOIN verdict v ON v.id = c.id
LEFT JOIN device d ON d.id = c.device_id
LEFT JOIN annotation n
    ON n.entity = 'host' AND n.entity_id = c.host_id AND n.created_at >= c.as_of
    AND n.created_at <= c.later_as_of
WHERE c.outcome IS NOT NULL
ORDER BY c.as_of DESC, c.cluster, c.host, c.check_name, d.key, c.id, n.id
