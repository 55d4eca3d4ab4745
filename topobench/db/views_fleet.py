"""
Views across hosts: a series against its peers, what slow hosts cost a job, hop classes.

What several hosts measured together is left out of the first two: it stands under the host of
rank 0, and whose fault it is that it was slow it does not say.

A group holds what was measured in the 30 days before its own newest value, so that a host
measured long ago is no peer. Medians are the middle one or two places. The interval of a
median over n values is of order statistics at 95 %: its lower end has the largest place p
with n + 1 - 2 p >= 1.96 sqrt(n), squared here because not every engine has roots; below 6
values there is none.
"""

from __future__ import annotations

from topobench.db.clocks import newest_of
from topobench.db.views_measured import CI, LATEST
from topobench.db.views_parts import CASE, HOST, WHERE, names

_FRESH_SECONDS = 30 * 86400

# Groups are numbered before anything is sorted, and names are looked up after: windows over
# numbers alone are several times as quick as over whole rows. PostgreSQL takes IS NULL of a
# maximum for one row in 200, and then joins tens of thousands in nested loops.
_MEMBERS = """{latest}
, member AS (
    SELECT
        l.*, s.host_id, m.better,
        dense_rank() OVER (
            ORDER BY
                {first}t.topology_class_id, s.case_id, a.name, ds.n_devices, s.n_ranks, s.n_hosts,
                coalesce(l.path_class, ''), l.metric_id, l.point, s.source, s.synthetic
        ) AS peers
    FROM latest l
    JOIN series s ON s.id = l.series_id
    JOIN host h ON h.id = s.host_id
    JOIN device_set ds ON ds.id = s.device_set_id
    JOIN arm a ON a.id = s.arm_id
    JOIN topology t ON t.id = l.topology_id
    JOIN metric m ON m.id = l.metric_id
    WHERE m.better <> 0 AND m.name <> 'locality_ratio' AND coalesce(l.rank, -1) < 0
        AND s.case_id NOT IN (SELECT id FROM probe_case WHERE probe IN ('command', 'serving'))
        AND t.topology_class_id IS NOT NULL AND l.median > 0 AND s.n_hosts = 1
), aged AS (
    SELECT member.*, {newest} AS newest FROM member
), fresh AS (
    SELECT * FROM aged WHERE measured_unix_seconds >= newest - {seconds}
)"""
_NAMES = f"""
JOIN series s ON s.id = l.series_id
{names("l", wired=True)}"""


def _newest(group: str) -> str:
    """When the newest of each group was measured, beside every row."""
    over = f" OVER (PARTITION BY {group})"
    return newest_of("measured_unix_seconds", "measured_at", over=over)


def _members(first: str = "") -> str:
    return _MEMBERS.format(
        latest=LATEST.strip(), first=first, newest=_newest("peers"), seconds=_FRESH_SECONDS
    )


V_PEER = f"""
CREATE VIEW v_peer AS
{_members()}, placed AS (
    SELECT
        fresh.*,
        count(*) OVER (PARTITION BY peers) AS n_peers,
        row_number() OVER (PARTITION BY peers ORDER BY median, series_id) AS place,
        CASE WHEN row_number() OVER (PARTITION BY peers, host_id ORDER BY series_id) = 1
            THEN 1 ELSE 0 END AS first_of_host
    FROM fresh
), centred AS (
    SELECT
        placed.*,
        sum(first_of_host) OVER (PARTITION BY peers) AS n_peer_hosts,
        avg(CASE WHEN 2 * place BETWEEN n_peers AND n_peers + 2 THEN median END)
            OVER (PARTITION BY peers) AS peer_median
    FROM placed
), deviating AS (
    SELECT
        centred.*, abs(median - peer_median) AS deviation,
        row_number() OVER (PARTITION BY peers ORDER BY abs(median - peer_median), series_id)
            AS deviation_place
    FROM centred
), judged AS (
    SELECT
        deviating.*,
        avg(CASE WHEN 2 * deviation_place BETWEEN n_peers AND n_peers + 2 THEN deviation END)
            OVER (PARTITION BY peers) AS peer_mad
    FROM deviating
)
SELECT
    sw.uuid AS sweep, {WHERE},
    {CASE}, pc.backend,
    s.id AS series_id, s.n_ranks, s.n_hosts, a.name AS arm, a.binding, a.ring, l.path_class,
    e.driver, m.name AS metric, m.unit, m.better, l.point, l.n_processes, l.n, l.median,
    {CI},
    l.n_peers, l.n_peer_hosts, l.peer_median, l.peer_mad,
    l.better * (l.median - l.peer_median) / l.peer_median AS effect_ratio,
    l.better * (l.median - l.peer_median) / (1.4826 * CASE
        WHEN l.peer_mad >= 0.005 * l.peer_median THEN l.peer_mad
        ELSE 0.005 * l.peer_median END) AS z,
    l.measured_at, l.measured_unix_seconds, s.source, s.synthetic
FROM judged l{_NAMES}
JOIN sweep sw ON sw.id = l.sweep_id
LEFT JOIN environment e ON e.id = l.environment_id
"""

V_STRAGGLER = f"""
CREATE VIEW v_straggler AS
{_members("h.cluster_id, ")}, per_host AS (
    SELECT
        peers AS fleet, host_id, better, metric_id, point, max(path_class) AS path_class,
        max(series_id) AS series_id, max(topology_id) AS topology_id, count(*) AS n_series,
        sum(n) AS n, CASE WHEN better = 1 THEN min(median) ELSE max(median) END AS median,
        max(measured_at) AS measured_at, max(measured_unix_seconds) AS measured_unix_seconds
    FROM fresh
    GROUP BY peers, host_id, better, metric_id, point
), placed AS (
    SELECT
        per_host.*,
        count(*) OVER (PARTITION BY fleet) AS n_fleet,
        row_number() OVER (PARTITION BY fleet ORDER BY median, host_id) AS by_value,
        row_number() OVER (PARTITION BY fleet ORDER BY better * median, host_id) AS place
    FROM per_host
), centred AS (
    SELECT
        placed.*,
        sum(n) OVER (PARTITION BY fleet) AS fleet_n,
        avg(CASE WHEN 2 * by_value BETWEEN n_fleet AND n_fleet + 2 THEN median END)
            OVER (PARTITION BY fleet) AS fleet_median,
        max(CASE WHEN 2 * by_value <= n_fleet
            AND (n_fleet + 1 - 2 * by_value) * (n_fleet + 1 - 2 * by_value) >= 3.8416 * n_fleet
            THEN median END) OVER (PARTITION BY fleet) AS fleet_ci_lo,
        min(CASE WHEN 2 * by_value > n_fleet
            AND (n_fleet + 1 - 2 * by_value) * (n_fleet + 1 - 2 * by_value) >= 3.8416 * n_fleet
            THEN median END) OVER (PARTITION BY fleet) AS fleet_ci_hi
    FROM placed
), rated AS (
    SELECT
        centred.*,
        CASE WHEN better = 1 THEN median / fleet_median ELSE fleet_median / median END
            AS speed_ratio
    FROM centred
), followed AS (
    SELECT
        rated.*, lead(speed_ratio) OVER (PARTITION BY fleet ORDER BY place) AS without_ratio
    FROM rated
)
SELECT
    {HOST},
    tc.name AS topology_class, tc.id AS topology_class_id, ds.n_devices,
    {CASE}, pc.backend,
    s.n_ranks, s.n_hosts, a.name AS arm, l.path_class, m.name AS metric, m.unit, m.better,
    l.point, l.n_series, l.n, l.median, l.fleet, l.n_fleet AS n_fleet_hosts, l.place, l.fleet_n,
    l.fleet_median, l.fleet_ci_lo, l.fleet_ci_hi,
    CASE WHEN l.n_fleet >= 6 THEN 'between' END AS ci_level,
    l.speed_ratio, l.without_ratio,
    l.measured_at, l.measured_unix_seconds, s.source, s.synthetic
FROM followed l{_NAMES}
"""

# What GPUs do by themselves at the same time passes no path between them.
V_HOP_CLASS = f"""
CREATE VIEW v_hop_class AS
WITH member AS (
    SELECT
        v.*,
        CASE
            WHEN n_hosts > 1 THEN 'network'
            WHEN substr(path_class, 1, 2) = 'NV' THEN 'nvlink'
            WHEN path_class = 'PIX' THEN 'pcie_switch'
            WHEN path_class = 'PXB' THEN 'pcie_switches'
            WHEN path_class = 'PHB' THEN 'host_bridge'
            WHEN path_class = 'NODE' THEN 'numa_node'
            WHEN path_class = 'SYS' THEN 'system'
        END AS hop_class,
        dense_rank() OVER (
            ORDER BY
                cluster, coalesce(sku, ''), topology_class_id, path_class, case_id, arm,
                n_devices, n_ranks, n_hosts, metric, point, source, synthetic
        ) AS class
    FROM v_latest v
    WHERE (path_class IS NOT NULL OR n_hosts > 1) AND better <> 0 AND metric <> 'locality_ratio'
        AND coalesce(rank, -1) < 0 AND topology_class_id IS NOT NULL
        AND params NOT LIKE '%"at_once":"all"%'
), aged AS (
    SELECT member.*, {_newest("class")} AS newest FROM member
), placed AS (
    SELECT
        aged.*,
        count(*) OVER (PARTITION BY class) AS n_class,
        row_number() OVER (PARTITION BY class ORDER BY median, series_id) AS place
    FROM aged
    WHERE measured_unix_seconds >= newest - {_FRESH_SECONDS}
), counted AS (
    SELECT
        p.class AS of_class, p.n_hosts AS n_of_each, p.n_class AS n_values,
        count(DISTINCT coalesce(t.host_key, p.host_key)) AS n_measured
    FROM placed p
    LEFT JOIN v_together t ON t.series_id = p.series_id
    GROUP BY p.class, p.n_hosts, p.n_class
), told AS (
    SELECT
        of_class, n_measured,
        CASE WHEN n_of_each = 1 OR n_measured = n_of_each * n_values THEN n_values END
            AS n_independent
    FROM counted
)
SELECT
    cluster, sku, topology_class, topology_class_id, hop_class, path_class, n_devices,
    probe, probe_version, case_id, params, bytes, dtype, op, direction, backend,
    n_ranks, n_hosts, arm, binding, ring, metric, unit, better, point,
    n_class AS n_series, n_measured AS n_hosts_measured, sum(n) AS n,
    avg(CASE WHEN 2 * place BETWEEN n_class AND n_class + 2 THEN median END) AS median,
    max(CASE WHEN 2 * place <= n_independent
        AND (n_independent + 1 - 2 * place) * (n_independent + 1 - 2 * place)
            >= 3.8416 * n_independent
        THEN median END) AS ci_lo,
    min(CASE WHEN 2 * place > n_independent
        AND (n_independent + 1 - 2 * place) * (n_independent + 1 - 2 * place)
            >= 3.8416 * n_independent
        THEN median END) AS ci_hi,
    CASE WHEN n_independent >= 6 THEN 'between' END AS ci_level,
    min(median) AS lowest, max(median) AS highest,
    max(measured_at) AS measured_at, max(measured_unix_seconds) AS measured_unix_seconds,
    source, synthetic
FROM placed
JOIN told ON of_class = class
GROUP BY
    cluster, sku, topology_class, topology_class_id, hop_class, path_class, n_devices,
    probe, probe_version, case_id, params, bytes, dtype, op, direction, backend,
    n_ranks, n_hosts, arm, binding, ring, metric, unit, better, point, class, n_class, n_measured,
    n_independent, source, synthetic
"""

VIEWS = {"v_peer": V_PEER, "v_straggler": V_STRAGGLER, "v_hop_class": V_HOP_CLASS}
"""Name -> statement that makes it."""
