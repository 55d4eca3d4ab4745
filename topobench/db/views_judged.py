"""Views of what was concluded: changes, knees, windows of load against a limit, verdicts."""

from __future__ import annotations

from topobench.db.clocks import AHEAD
from topobench.db.views_parts import HOST

# A synthetic or imported host says so also where a change was recorded, not measured. Ends
# of a changed result are days: at_lo that of the last night before, at_hi that of the first after.
# What a sweep found on the day of at_lo was there before that night; what people noted, perhaps
# after it.
V_CHANGES = f"""
CREATE VIEW v_changes AS
WITH origin AS (
    SELECT
        host_id, max(synthetic) AS synthetic,
        CASE WHEN min(source) = max(source) THEN max(source) ELSE 'several' END AS source
    FROM series
    GROUP BY host_id
)
SELECT
    'recorded' AS what, {HOST},
    e.kind, e.key, e.old, e.new, e.source AS recorded_by,
    NULL AS series_id, NULL AS devices, NULL AS probe, NULL AS params, NULL AS arm,
    NULL AS metric, NULL AS effect_ratio, NULL AS p, NULL AS method, NULL AS n_recorded,
    e.at AS at_lo, e.at AS at_hi, e.at_unix_seconds AS at_hi_unix_seconds,
    coalesce(o.source, 'probe') AS source, coalesce(o.synthetic, 0) AS synthetic
FROM change_event e
JOIN host h ON h.id = e.host_id
JOIN cluster cl ON cl.id = h.cluster_id
LEFT JOIN sku k ON k.id = h.sku_id
LEFT JOIN origin o ON o.host_id = h.id
UNION ALL
SELECT
    'result', cl.name, h.name, h.key, k.name, NULL, NULL, NULL, NULL, NULL,
    s.id, ds.label, pc.probe, pc.params, a.name,
    m.name, c.effect_ratio, c.p, c.method,
    (
        SELECT count(*) FROM change_event e
        WHERE e.host_id = s.host_id AND e.at_unix_seconds < c.at_hi_unix_seconds + 86400
            AND e.at_unix_seconds >= c.at_lo_unix_seconds
                + CASE WHEN e.source = 'auto' THEN 86400 ELSE 0 END
    ),
    c.at_lo, c.at_hi, c.at_hi_unix_seconds, s.source, s.synthetic
FROM changepoint c
JOIN series s ON s.id = c.series_id
JOIN host h ON h.id = s.host_id
JOIN cluster cl ON cl.id = h.cluster_id
LEFT JOIN sku k ON k.id = h.sku_id
JOIN device_set ds ON ds.id = s.device_set_id
JOIN probe_case pc ON pc.id = s.case_id
JOIN arm a ON a.id = s.arm_id
JOIN metric m ON m.id = c.metric_id
"""

_AHEAD = AHEAD.format(at="sw.started_at")
_NEWEST = f"""\
WITH placed AS (
    SELECT
        f.id,
        row_number() OVER (
            PARTITION BY sw.cluster_id, f.host_id, f.subject, f.x_metric, sw.source, sw.synthetic
            ORDER BY
                CASE WHEN {_AHEAD} THEN 1 ELSE 0 END, sw.started_unix_seconds DESC, f.id DESC
        ) AS place
    FROM fit f
    JOIN sweep sw ON sw.id = f.sweep_id
    WHERE f.kind = '{{kind}}'
)"""
"""The newest fit of each curve, by ids: names are looked up after."""

V_KNEE = f"""
CREATE VIEW v_knee AS
{_NEWEST.format(kind="knee")}
SELECT
    sw.uuid AS sweep, {HOST},
    f.subject, f.x_metric, f.n, f.knee, f.knee_lo, f.knee_hi, f.ci_level, f.reason,
    f.launch_until, f.memory_until, f.attention_from, f.params,
    sw.started_at AS measured_at, sw.started_unix_seconds AS measured_unix_seconds,
    sw.source, sw.synthetic
FROM placed p
JOIN fit f ON f.id = p.id
JOIN sweep sw ON sw.id = f.sweep_id
JOIN cluster cl ON cl.id = sw.cluster_id
LEFT JOIN host h ON h.id = f.host_id
LEFT JOIN sku k ON k.id = h.sku_id
WHERE p.place = 1
"""

V_FIT = f"""
CREATE VIEW v_fit AS
{_NEWEST.format(kind="alpha_beta")}
SELECT
    sw.uuid AS sweep, {HOST},
    ds.label AS devices, ds.n_devices, pc.probe, pc.probe_version, pc.op, pc.dtype, pc.backend,
    f.params, s.n_ranks, s.n_hosts, a.name AS arm, a.binding, a.ring, a.env,
    f.subject, f.alpha_seconds, f.alpha_lo, f.alpha_hi,
    f.beta_bytes_per_second, f.beta_lo, f.beta_hi, f.n_half_bytes, f.ci_level, f.n,
    f.residual_ratio, f.worst_bytes, f.worst_ratio, f.smallest_bytes, f.largest_bytes,
    sw.started_at AS measured_at, sw.started_unix_seconds AS measured_unix_seconds,
    sw.source, sw.synthetic
FROM placed p
JOIN fit f ON f.id = p.id
JOIN sweep sw ON sw.id = f.sweep_id
JOIN cluster cl ON cl.id = sw.cluster_id
JOIN series s ON s.id = f.series_id
JOIN probe_case pc ON pc.id = s.case_id
JOIN arm a ON a.id = s.arm_id
JOIN device_set ds ON ds.id = s.device_set_id
LEFT JOIN host h ON h.id = f.host_id
LEFT JOIN sku k ON k.id = h.sku_id
WHERE p.place = 1
"""

# A window counts if it is long and full enough to see a P99: of 300 requests without one
# over the limit, 99 % are under it with 95 % confidence.
V_SLO = f"""
CREATE VIEW v_slo AS
WITH judged AS (
    SELECT
        w.*,
        CASE WHEN w.duration_seconds >= 60 AND w.n >= 300 AND 100 * w.n_over <= w.n
            AND 1000 * w.errors <= w.n AND coalesce(w.valid, 1) = 1 THEN 1 ELSE 0 END AS meets
    FROM slo_window w
), streaks AS (
    SELECT
        judged.*,
        row_number() OVER (
            PARTITION BY run_id, concurrency, offered_per_second ORDER BY window_no
        ) - row_number() OVER (
            PARTITION BY run_id, concurrency, offered_per_second, meets ORDER BY window_no
        ) AS streak
    FROM judged
)
SELECT
    sw.uuid AS sweep, r.uuid AS run, {HOST},
    ds.label AS devices, ds.n_devices, pc.probe, pc.probe_version,
    pc.id AS case_id, pc.params, pc.seq_len, pc.batch, pc.dtype, pc.model, pc.tp, pc.backend,
    a.name AS arm, w.window_no, w.concurrency, w.offered_per_second, w.duration_seconds,
    w.n, w.n_over, w.errors, w.p50_seconds, w.p99_seconds, w.limit_on, w.limit_seconds,
    w.purpose, w.in_flight, w.answered_per_second, w.output_tokens_per_second, w.power_watts,
    w.valid, w.meets,
    CASE WHEN w.meets = 1 THEN row_number() OVER (
        PARTITION BY w.run_id, w.concurrency, w.offered_per_second, w.meets, w.streak
        ORDER BY w.window_no
    ) ELSE 0 END AS meets_in_a_row,
    w.started_at AS measured_at, r.started_unix_seconds AS measured_unix_seconds,
    s.source, s.synthetic
FROM streaks w
JOIN run r ON r.id = w.run_id
JOIN sweep sw ON sw.id = r.sweep_id
JOIN series s ON s.id = r.series_id
JOIN host h ON h.id = s.host_id
JOIN cluster cl ON cl.id = h.cluster_id
LEFT JOIN sku k ON k.id = h.sku_id
JOIN device_set ds ON ds.id = s.device_set_id
JOIN probe_case pc ON pc.id = s.case_id
JOIN arm a ON a.id = s.arm_id
WHERE r.status IN ('ok', 'partial')
"""

V_VERDICT = f"""
CREATE VIEW v_verdict AS
SELECT
    sw.uuid AS sweep, {HOST},
    d.key AS device, v.check_name, v.level, v.value, v.reference, v.effect_ratio, v.mde_ratio,
    v.confirmed_count, v.action, v.reason, v.policy_version, v.as_of,
    sw.started_at AS measured_at, sw.started_unix_seconds AS measured_unix_seconds,
    sw.source, sw.synthetic
FROM verdict v
JOIN sweep sw ON sw.id = v.sweep_id
JOIN host h ON h.id = v.host_id
JOIN cluster cl ON cl.id = h.cluster_id
LEFT JOIN sku k ON k.id = h.sku_id
LEFT JOIN device d ON d.id = v.device_id
WHERE v.superseded_by IS NULL
"""

VIEWS = {
    "v_changes": V_CHANGES,
    "v_knee": V_KNEE,
    "v_fit": V_FIT,
    "v_slo": V_SLO,
    "v_verdict": V_VERDICT,
}
"""Name -> statement that makes it."""
