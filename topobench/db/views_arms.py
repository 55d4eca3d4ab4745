"""
Views that compare arms on the same devices: bindings with ``local``, rings with NCCL's own.

Two arms are compared process by process: those with equal number and block ran side by side
in one sweep, so a drift between them cancels. Workers that chose different kernels of attention
are no pair, as in topobench.effects. The same rule as in v_latest gives intervals: of one pair by
the ends of its own intervals (``within``), from six pairs on the smallest and the largest effect
(``between``).

The minimum detectable effect is 1.65 times half that range. An interval of six effects
excludes 0 when all lie on one side; normal effects do so with probability 0.9 if their
middle is 2.1 standard deviations from 0, and half the range of six is 1.27 of them.

CROSS JOIN with the conditions in WHERE means the same as JOIN, but SQLite keeps the order: it
would else begin with every reading there ever was.
"""

from __future__ import annotations

from topobench.db.views_parts import CASE, WHERE, names

_PAIRED = """
WITH arms AS (
    SELECT
        s.id, s.host_id, s.case_id, s.device_set_id, s.n_ranks, s.n_hosts, s.source, s.synthetic,
        s.latest_sweep_id AS sweep_id, a.binding, coalesce(a.ring, '') AS ring, a.env,
        a.name
    FROM series s
    JOIN arm a ON a.id = s.arm_id
    WHERE s.latest_sweep_id IS NOT NULL AND {kept}
), compared AS (
    SELECT t.id AS series_id, ref.id AS reference_id, t.sweep_id
    FROM arms t
    CROSS JOIN arms ref
    WHERE ref.host_id = t.host_id AND ref.case_id = t.case_id
        AND ref.device_set_id = t.device_set_id AND ref.n_ranks = t.n_ranks
        AND ref.n_hosts = t.n_hosts AND ref.source = t.source AND ref.synthetic = t.synthetic
        AND ref.sweep_id = t.sweep_id AND {same}
), paired AS (
    SELECT
        x.series_id, x.reference_id, x.sweep_id, dt.metric_id, dt.point, dt.n, dt.median,
        dt.ci_lo, dt.ci_hi, dr.n AS reference_n, dr.median AS reference_median,
        dr.ci_lo AS reference_ci_lo, dr.ci_hi AS reference_ci_hi, c.path_class,
        rt.topology_id, rt.started_at, rt.started_unix_seconds,
        {effect} AS effect, {first_end} AS first_end, {second_end} AS second_end
    FROM compared x
    CROSS JOIN run rt
    CROSS JOIN cell c
    CROSS JOIN run rr
    CROSS JOIN cell cr
    CROSS JOIN reading dt
    CROSS JOIN reading dr
    CROSS JOIN metric m
    WHERE rt.series_id = x.series_id AND rt.sweep_id = x.sweep_id AND c.id = rt.cell_id
        AND rr.series_id = x.reference_id AND rr.sweep_id = x.sweep_id
        AND cr.id = rr.cell_id AND cr.process_no = c.process_no AND cr.block = c.block
        AND coalesce(rr.attention, '') = coalesce(rt.attention, '')
        AND dt.run_id = rt.id AND dr.run_id = rr.id
        AND dr.metric_id = dt.metric_id AND dr.point = dt.point AND m.id = dt.metric_id
        AND rt.status IN ('ok', 'partial') AND rr.status IN ('ok', 'partial')
        AND dt.median IS NOT NULL AND dr.median > 0 AND dt.rank IS NULL
        AND m.better <> 0 AND m.name <> 'locality_ratio'
), placed AS (
    SELECT
        paired.*,
        row_number() OVER (
            PARTITION BY series_id, reference_id, metric_id, point ORDER BY median
        ) AS place,
        row_number() OVER (
            PARTITION BY series_id, reference_id, metric_id, point ORDER BY reference_median
        ) AS reference_place,
        row_number() OVER (
            PARTITION BY series_id, reference_id, metric_id, point ORDER BY effect
        ) AS effect_place,
        count(*) OVER (PARTITION BY series_id, reference_id, metric_id, point) AS pairs
    FROM paired
), pooled AS (
    SELECT
        series_id, reference_id, sweep_id, metric_id, point, pairs,
        sum(n) AS n, sum(reference_n) AS reference_n,
        avg(CASE WHEN 2 * place BETWEEN pairs AND pairs + 2 THEN median END) AS median,
        min(median) AS lowest, max(median) AS highest, max(ci_lo) AS ci_lo, max(ci_hi) AS ci_hi,
        avg(CASE WHEN 2 * reference_place BETWEEN pairs AND pairs + 2 THEN reference_median END)
            AS reference_median,
        min(reference_median) AS reference_lowest, max(reference_median) AS reference_highest,
        max(reference_ci_lo) AS reference_ci_lo, max(reference_ci_hi) AS reference_ci_hi,
        avg(CASE WHEN 2 * effect_place BETWEEN pairs AND pairs + 2 THEN effect END) AS effect,
        min(effect) AS effect_lowest, max(effect) AS effect_highest,
        max(CASE WHEN first_end < second_end THEN first_end ELSE second_end END) AS effect_lo,
        max(CASE WHEN first_end < second_end THEN second_end ELSE first_end END) AS effect_hi,
        max(path_class) AS path_class, max(topology_id) AS topology_id,
        max(started_at) AS measured_at, max(started_unix_seconds) AS measured_unix_seconds
    FROM placed
    GROUP BY series_id, reference_id, sweep_id, metric_id, point, pairs
)
SELECT
    sw.uuid AS sweep, {where},
    {case}, pc.backend,
    s.id AS series_id, s.n_ranks, s.n_hosts, a.binding, a.ring, p.path_class,
    m.name AS metric, m.unit, m.better, p.point, {reference_arm}
    p.pairs AS n_pairs, p.reference_n AS {reference}_n, p.reference_median AS {reference}_median,
    CASE WHEN p.pairs = 1 THEN p.reference_ci_lo WHEN p.pairs >= 6 THEN p.reference_lowest END
        AS {reference}_ci_lo,
    CASE WHEN p.pairs = 1 THEN p.reference_ci_hi WHEN p.pairs >= 6 THEN p.reference_highest END
        AS {reference}_ci_hi,
    p.n, p.median,
    CASE WHEN p.pairs = 1 THEN p.ci_lo WHEN p.pairs >= 6 THEN p.lowest END AS ci_lo,
    CASE WHEN p.pairs = 1 THEN p.ci_hi WHEN p.pairs >= 6 THEN p.highest END AS ci_hi,
    CASE WHEN p.pairs = 1 THEN 'within' WHEN p.pairs >= 6 THEN 'between' END AS ci_level,
    p.effect AS {name}_ratio,
    CASE WHEN p.pairs = 1 THEN p.effect_lo WHEN p.pairs >= 6 THEN p.effect_lowest END
        AS {name}_lo,
    CASE WHEN p.pairs = 1 THEN p.effect_hi WHEN p.pairs >= 6 THEN p.effect_highest END
        AS {name}_hi,
    CASE WHEN p.pairs >= 6 THEN 0.825 * (p.effect_highest - p.effect_lowest) END AS mde_ratio,
    p.measured_at, p.measured_unix_seconds, s.source, s.synthetic
FROM pooled p
JOIN series s ON s.id = p.series_id
JOIN sweep sw ON sw.id = p.sweep_id
{names}
JOIN series rs ON rs.id = p.reference_id
JOIN arm ra ON ra.id = rs.arm_id
"""

_NAMED = {"where": WHERE, "case": CASE, "names": names("p")}

_PLAIN = "a.name NOT LIKE '%+%'"
"""Arms that compare no environment."""

V_NUMA_TAX = "CREATE VIEW v_numa_tax AS" + _PAIRED.format(
    kept=_PLAIN,
    **_NAMED,
    same="ref.binding = 'local' AND t.binding <> 'local' AND ref.ring = t.ring AND ref.env = t.env",
    effect="m.better * (1 - dt.median / dr.median)",
    first_end="m.better * (1 - dt.ci_lo / dr.ci_hi)",
    second_end="m.better * (1 - dt.ci_hi / dr.ci_lo)",
    reference_arm="",
    reference="local",
    name="tax",
)

V_RING_GAIN = "CREATE VIEW v_ring_gain AS" + _PAIRED.format(
    kept=_PLAIN,
    **_NAMED,
    same=(
        "ref.ring IN ('auto', 'auto_ring') AND t.ring NOT IN ('', 'auto') AND t.ring <> ref.ring "
        "AND ref.binding = t.binding"
    ),
    effect="m.better * (dt.median / dr.median - 1)",
    first_end="m.better * (dt.ci_lo / dr.ci_hi - 1)",
    second_end="m.better * (dt.ci_hi / dr.ci_lo - 1)",
    reference_arm="ra.ring AS reference_ring,",
    reference="reference",
    name="gain",
)

V_ENV_GAIN = "CREATE VIEW v_env_gain AS" + _PAIRED.format(
    kept="1 = 1",
    **_NAMED,
    same=(
        "ref.name NOT LIKE '%+%' AND t.name LIKE '%+%' AND ref.binding = t.binding "
        "AND ref.ring = t.ring"
    ),
    effect="m.better * (dt.median / dr.median - 1)",
    first_end="m.better * (dt.ci_lo / dr.ci_hi - 1)",
    second_end="m.better * (dt.ci_hi / dr.ci_lo - 1)",
    reference_arm="a.name AS arm, a.env, ra.name AS reference_arm,",
    reference="reference",
    name="gain",
)

VIEWS = {"v_numa_tax": V_NUMA_TAX, "v_ring_gain": V_RING_GAIN, "v_env_gain": V_ENV_GAIN}
