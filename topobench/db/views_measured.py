"""Views of what was measured: every reading, the newest of each series, and who has any."""

from __future__ import annotations

from topobench.db.clocks import newest_of
from topobench.db.views_parts import CASE, HOST, SOFTWARE, WHERE, names

V_READING = f"""
CREATE VIEW v_reading AS
SELECT
    sw.uuid AS sweep, r.uuid AS run, {WHERE},
    {CASE}, pc.cpu_node, pc.memory_node, pc.backend,
    s.id AS series_id, s.n_ranks, s.n_hosts, a.name AS arm, a.binding, a.ring, c.path_class,
    c.process_no, c.block, c.order_in_block,
    {SOFTWARE},
    m.name AS metric, m.unit, m.better, d.rank, d.point,
    d.n, d.median, d.ci_lo, d.ci_hi, d.ci_level, d.mad, d.minimum, d.maximum, d.p90, d.p99,
    d.stop_reason, d.ceiling, d.ceiling_source, r.status, r.day, r.started_at AS measured_at,
    r.started_unix_seconds AS measured_unix_seconds, r.duration_seconds,
    s.source, s.synthetic
FROM reading d
JOIN run r ON r.id = d.run_id
JOIN cell c ON c.id = r.cell_id
JOIN sweep sw ON sw.id = r.sweep_id
JOIN series s ON s.id = r.series_id
{names("d", topology="r")}
JOIN environment e ON e.id = r.environment_id
WHERE r.status IN ('ok', 'partial') AND d.median IS NOT NULL
"""

# One process gives its own interval (ci_level within); from six processes on, the smallest
# and the largest of their medians are an interval of 97 % or more (between); two to five
# give none. `2 * place BETWEEN processes AND processes + 2` picks the middle one or two
# without a division, which engines round differently. CROSS JOIN with the conditions in WHERE
# means the same as JOIN, but SQLite keeps the order: few series before many readings.
# MATERIALIZED lets PostgreSQL plan what follows by itself: beside the cost of these rows it takes
# all ways to look up their names for equal, nested loops over whole tables, too.
_OF_LATEST = """\
    FROM counted k
    CROSS JOIN series s
    CROSS JOIN run r
    CROSS JOIN cell c
    CROSS JOIN reading d
    WHERE k.processes {compared} 1 AND s.id = k.series_id
        AND r.series_id = s.id AND r.sweep_id = s.latest_sweep_id AND c.id = r.cell_id
        AND d.run_id = r.id AND r.status IN ('ok', 'partial') AND d.median IS NOT NULL"""

# Most series of a nightly fleet have one process, whose reading stands as it is; only the others
# are sorted and grouped.
LATEST = f"""
WITH counted AS (
    SELECT s.id AS series_id, count(*) AS processes
    FROM series s
    CROSS JOIN run r
    WHERE r.series_id = s.id AND r.sweep_id = s.latest_sweep_id
    GROUP BY s.id
), process AS (
    SELECT
        s.id AS series_id, s.latest_sweep_id AS sweep_id, d.metric_id, d.rank, d.point,
        d.n, d.median, d.ci_lo, d.ci_hi, d.ceiling, d.ceiling_source, r.topology_id,
        r.environment_id, c.path_class,
        r.started_at, r.started_unix_seconds,
        row_number() OVER (
            PARTITION BY s.id, d.metric_id, d.point ORDER BY d.median, d.run_id
        ) AS place,
        count(*) OVER (PARTITION BY s.id, d.metric_id, d.point) AS processes
{_OF_LATEST.format(compared=">")}
), latest AS MATERIALIZED (
    SELECT
        s.id AS series_id, s.latest_sweep_id AS sweep_id, d.metric_id, d.point, d.rank,
        1 AS n_processes, d.n, r.topology_id, r.environment_id, c.path_class, d.median,
        d.median AS lowest, d.median AS highest, d.ci_lo, d.ci_hi, d.ceiling, d.ceiling_source,
        r.started_at AS measured_at, r.started_unix_seconds AS measured_unix_seconds
{_OF_LATEST.format(compared="=")}
    UNION ALL
    SELECT
        series_id, sweep_id, metric_id, point, max(rank), max(processes), sum(n),
        max(topology_id), max(environment_id), max(path_class),
        avg(CASE WHEN 2 * place BETWEEN processes AND processes + 2 THEN median END),
        min(median), max(median), max(ci_lo), max(ci_hi), max(ceiling), max(ceiling_source),
        max(started_at), max(started_unix_seconds)
    FROM process
    GROUP BY series_id, sweep_id, metric_id, point
)"""
"""What v_latest begins with: ``latest`` has ids and numbers alone, so that windows stay quick."""

CI = """\
CASE WHEN l.n_processes = 1 THEN l.ci_lo WHEN l.n_processes >= 6 THEN l.lowest END AS ci_lo,
    CASE WHEN l.n_processes = 1 THEN l.ci_hi WHEN l.n_processes >= 6 THEN l.highest END AS ci_hi,
    CASE WHEN l.n_processes = 1 THEN 'within' WHEN l.n_processes >= 6 THEN 'between' END
        AS ci_level"""
"""The interval of a median, over the columns of ``latest`` as ``l``."""

# Every reading has an environment; LEFT JOIN says so to PostgreSQL, which would else expect a
# match for one in 200.
V_LATEST = f"""
CREATE VIEW v_latest AS
{LATEST.strip()}
SELECT
    sw.uuid AS sweep, {WHERE},
    {CASE}, pc.cpu_node, pc.memory_node, pc.backend,
    s.id AS series_id, s.n_ranks, s.n_hosts, a.name AS arm, a.binding, a.ring, l.path_class,
    {SOFTWARE},
    m.name AS metric, m.unit, m.better, l.rank, l.point,
    l.n_processes, l.n, l.median,
    {CI},
    l.lowest, l.highest, l.ceiling, l.ceiling_source, l.measured_at, l.measured_unix_seconds,
    s.source, s.synthetic
FROM latest l
JOIN series s ON s.id = l.series_id
JOIN sweep sw ON sw.id = l.sweep_id
{names("l")}
LEFT JOIN environment e ON e.id = l.environment_id
"""

_OF_PREFILL = (
    ("prefill_device_seconds", "device_seconds"),
    ("prefill_wall_seconds", "wall_seconds"),
    ("host_share_ratio", "host_share_ratio"),
    ("mfu_measured_ratio", "mfu_measured_ratio"),
    ("relative_error_ratio", "relative_error_ratio"),
    ("kernel_launch_count", "kernel_launches"),
    ("peak_allocated_bytes", "peak_allocated_bytes"),
)
"""Metrics of prefill and their columns in v_prefill, beside the tokens per second."""


def _picked(metric: str, column: str, of: str = "median") -> str:
    return f"max(CASE WHEN metric = '{metric}' THEN {of} END) AS {column}"


_RATE = "tokens_per_second"
_PREFILL_KEY = """\
sweep, cluster, host, host_key, sku, devices, n_devices, case_id, params, model, seq_len,
    batch, dtype, tp, series_id, arm, binding"""

# The parameters of a case are one text; without the length it names a curve. A reading of the
# whole case has no key in its point; asked for as equal to {}, PostgreSQL would expect few.
V_PREFILL = f"""
CREATE VIEW v_prefill AS
SELECT
    {_PREFILL_KEY},
    replace(params, '"sequence":' || CAST(seq_len AS text), '"sequence":*') AS curve,
    replace(params, '"dtype":"' || dtype || '"', '"dtype":*') AS beside,
    {_picked(_RATE, "n_processes", "n_processes")},
    {_picked(_RATE, "n", "n")},
    {_picked(_RATE, _RATE)},
    {_picked(_RATE, f"{_RATE}_ci_lo", "ci_lo")},
    {_picked(_RATE, f"{_RATE}_ci_hi", "ci_hi")},
    {_picked(_RATE, "ci_level", "ci_level")},
    {f",{chr(10)}    ".join(_picked(metric, column) for metric, column in _OF_PREFILL)},
    max(measured_at) AS measured_at, max(measured_unix_seconds) AS measured_unix_seconds,
    source, synthetic
FROM v_latest
WHERE probe = 'prefill' AND coalesce(rank, -1) < 0 AND point NOT LIKE '{{"%'
GROUP BY
    {_PREFILL_KEY},
    source, synthetic
"""

# No function joins texts on every engine; hosts beyond the eighth are counted.
_NAMED_HOSTS = 8
_HOSTS = " || ".join(
    f"coalesce(max(CASE WHEN host_no = {n} THEN {repr(', ') + ' || ' if n > 1 else ''}host END)"
    " OVER (PARTITION BY series_id), '')"
    for n in range(1, _NAMED_HOSTS + 1)
)
V_TOGETHER = f"""
CREATE VIEW v_together AS
WITH member AS (
    SELECT
        s.id AS series_id, s.n_hosts, d.host_id, min(dm.position) AS position,
        sum(CASE WHEN d.kind = 'host' THEN 0 ELSE 1 END) AS n_devices
    FROM series s
    JOIN device_set_member dm ON dm.device_set_id = s.device_set_id
    JOIN device d ON d.id = dm.device_id
    WHERE s.n_hosts > 1
    GROUP BY s.id, s.n_hosts, d.host_id
), placed AS (
    SELECT
        m.series_id, m.n_hosts, m.host_id, m.n_devices, cl.name AS cluster, h.name AS host,
        h.key AS host_key, k.name AS sku,
        row_number() OVER (PARTITION BY m.series_id ORDER BY m.position) AS host_no
    FROM member m
    JOIN host h ON h.id = m.host_id
    JOIN cluster cl ON cl.id = h.cluster_id
    LEFT JOIN sku k ON k.id = h.sku_id
)
SELECT
    series_id, n_hosts, host_no, cluster, host, host_key, sku, n_devices, host_id,
    {_HOSTS}
        || CASE WHEN n_hosts > {_NAMED_HOSTS}
            THEN ' and ' || CAST(n_hosts - {_NAMED_HOSTS} AS text) || ' more' ELSE '' END AS hosts
FROM placed
"""


V_COVERAGE = f"""
CREATE VIEW v_coverage AS
WITH taken AS (
    SELECT id AS series_id, host_id FROM series
    UNION
    SELECT series_id, host_id FROM v_together
), measured AS (
    SELECT
        t.host_id, count(*) AS n_series,
        {newest_of("s.latest_at", "s.latest_at")} AS latest_at,
        {newest_of("s.latest_unix_seconds", "s.latest_at")} AS latest_unix_seconds,
        CASE WHEN min(s.source) < max(s.source) THEN 'several' ELSE max(s.source) END AS source,
        max(s.synthetic) AS synthetic
    FROM taken t
    JOIN series s ON s.id = t.series_id
    WHERE s.latest_at IS NOT NULL
    GROUP BY t.host_id
)
SELECT
    {HOST},
    h.rack, h.leaf, h.batch, h.first_seen_at, h.last_seen_at, h.retired_on,
    coalesce(m.n_series, 0) AS n_series_measured,
    m.latest_at AS measured_at, m.latest_unix_seconds AS measured_unix_seconds,
    m.source, m.synthetic
FROM host h
JOIN cluster cl ON cl.id = h.cluster_id
LEFT JOIN sku k ON k.id = h.sku_id
LEFT JOIN measured m ON m.host_id = h.id
"""

VIEWS = {
    "v_reading": V_READING,
    "v_latest": V_LATEST,
    "v_prefill": V_PREFILL,
    "v_together": V_TOGETHER,
    "v_coverage": V_COVERAGE,
}
