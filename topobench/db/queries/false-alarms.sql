-- title: False alarms
-- answers: Which verdicts were taken back by a later test, and was anything changed in between?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param check text = %: checks whose name matches this LIKE pattern
-- param since time = 30d: only verdicts since
-- param now moment = now: ages are counted up to here
-- outcome: false alarm (good again, nothing recorded in between), repaired (good again after a
-- recorded change). n: verdicts of this check and policy that were watch, degraded or fail;
-- false_alarm_ratio: the false alarms among them.
WITH flagged AS (
    SELECT
        v.*, later.level AS later_level, later.value AS later_value, later.as_of AS later_as_of,
        sw.uuid AS sweep, sw.started_unix_seconds, sw.source, sw.synthetic,
        cl.name AS cluster, h.name AS host,
        (
            SELECT count(*) FROM change_event e
            WHERE e.host_id = v.host_id AND e.at > v.as_of AND e.at <= later.as_of
        ) AS n_changes
    FROM verdict v
    JOIN sweep sw ON sw.id = v.sweep_id
    JOIN host h ON h.id = v.host_id
    JOIN cluster cl ON cl.id = h.cluster_id
    LEFT JOIN verdict later ON later.id = v.superseded_by
    WHERE v.level IN ('watch', 'degraded', 'fail') AND v.as_of >= :since
        AND cl.name LIKE :cluster AND h.name LIKE :host AND v.check_name LIKE :check
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
    c.cluster, c.host, d.key AS device, c.check_name, c.level, c.value, c.reference,
    c.effect_ratio, c.ci_lo, c.ci_hi, c.mde_ratio, c.confirmed_count, c.reason, c.as_of,
    c.outcome, c.later_value, c.later_as_of, c.n_changes, n.author AS noted_by, n.text AS note,
    c.policy_version, c.n, c.false_alarm_ratio,
    :now - c.started_unix_seconds AS age_seconds, c.sweep, c.source, c.synthetic
FROM counted c
LEFT JOIN device d ON d.id = c.device_id
LEFT JOIN annotation n ON n.entity = 'verdict' AND n.entity_id = c.id
WHERE c.outcome IS NOT NULL
ORDER BY c.as_of DESC, c.cluster, c.host, c.check_name, d.key, c.id, n.id
