"""
Views across hosts: a series against its peers, what slow hosts cost a job, hop classes.

A group holds what was measured in the 30 days before its own newest value, so that a host
measured long ago is no peer. Medians are the middle one or two places. The interval of a
median over n values is of order statistics at 95 %: its lower end has the largest place p
with n + 1 - 2 p >= 1.96 sqrt(n), squared here because not every engine has roots; below 6
values there is none.
"""

from __future__ import annotations

_FRESH_SECONDS = 30 * 86400

V_PEER = f"""
CREATE VIEW v_peer AS
WITH member AS (
    SELECT
        v.*,
        dense_rank() OVER (
            ORDER BY
                topology_class_id, case_id, arm, n_devices, n_ranks, n_hosts,
                coalesce(path_class, ''), metric, point, source, synthetic
        ) AS peers
    FROM v_latest v
    WHERE better <> 0 AND metric <> 'locality_ratio' AND rank IS NULL
        AND topology_class_id IS NOT NULL
), aged AS (
    SELECT member.*, max(measured_unix_seconds) OVER (PARTITION BY peers) AS newest FROM member
), placed AS (
    SELECT
        aged.*,
        count(*) OVER (PARTITION BY peers) AS n_peers,
        row_number() OVER (PARTITION BY peers ORDER BY median, series_id) AS place,
        CASE WHEN row_number() OVER (PARTITION BY peers, cluster, host_key ORDER BY series_id) = 1
            THEN 1 ELSE 0 END AS first_of_host
    FROM aged
    WHERE measured_unix_seconds >= newest - {_FRESH_SECONDS}
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
    sweep, cluster, host, host_key, sku, topology_class, topology_class_id, devices, n_devices,
    probe, probe_version, case_id, params, bytes, seq_len, batch, dtype, model, op, tp,
    direction, memory, backend, series_id, n_ranks, n_hosts, arm, binding, ring, path_class,
    driver, metric, unit, better, point, n_processes, n, median, ci_lo, ci_hi, ci_level,
    n_peers, n_peer_hosts, peer_median, peer_mad,
    better * (median - peer_median) / abs(nullif(peer_median, 0)) AS effect_ratio,
    better * (median - peer_median) / (1.4826 * CASE
        WHEN peer_mad >= 0.005 * abs(peer_median) THEN peer_mad
        ELSE 0.005 * abs(nullif(peer_median, 0)) END) AS z,
    measured_at, measured_unix_seconds, source, synthetic
FROM judged
"""

V_STRAGGLER = f"""
CREATE VIEW v_straggler AS
WITH per_host AS (
    SELECT
        cluster, host, host_key, sku, topology_class, topology_class_id, n_devices,
        probe, probe_version, case_id, params, bytes, seq_len, batch, dtype, model, op, tp,
        direction, memory, backend, n_ranks, n_hosts, arm, path_class, metric, unit, better,
        point, count(*) AS n_series, sum(n) AS n,
        CASE WHEN better = 1 THEN min(median) ELSE max(median) END AS median,
        max(measured_at) AS measured_at, max(measured_unix_seconds) AS measured_unix_seconds,
        source, synthetic
    FROM v_latest
    WHERE better <> 0 AND metric <> 'locality_ratio' AND rank IS NULL AND median > 0
        AND topology_class_id IS NOT NULL
    GROUP BY
        cluster, host, host_key, sku, topology_class, topology_class_id, n_devices,
        probe, probe_version, case_id, params, bytes, seq_len, batch, dtype, model, op, tp,
        direction, memory, backend, n_ranks, n_hosts, arm, path_class, metric, unit, better,
        point, source, synthetic
), grouped AS (
    SELECT
        per_host.*,
        dense_rank() OVER (
            ORDER BY
                cluster, topology_class_id, case_id, arm, n_devices, n_ranks, n_hosts,
                coalesce(path_class, ''), metric, point, source, synthetic
        ) AS fleet
    FROM per_host
), aged AS (
    SELECT grouped.*, max(measured_unix_seconds) OVER (PARTITION BY fleet) AS newest FROM grouped
), placed AS (
    SELECT
        aged.*,
        count(*) OVER (PARTITION BY fleet) AS n_fleet,
        row_number() OVER (PARTITION BY fleet ORDER BY median, host_key) AS by_value,
        row_number() OVER (PARTITION BY fleet ORDER BY better * median, host_key) AS place
    FROM aged
    WHERE measured_unix_seconds >= newest - {_FRESH_SECONDS}
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
)
SELECT
    cluster, host, host_key, sku, topology_class, topology_class_id, n_devices,
    probe, probe_version, case_id, params, bytes, seq_len, batch, dtype, model, op, tp,
    direction, memory, backend, n_ranks, n_hosts, arm, path_class, metric, unit, better, point,
    n_series, n, median, fleet, n_fleet AS n_fleet_hosts, place, fleet_n, fleet_median,
    fleet_ci_lo, fleet_ci_hi, CASE WHEN n_fleet >= 6 THEN 'between' END AS ci_level,
    speed_ratio,
    lead(speed_ratio) OVER (PARTITION BY fleet ORDER BY place) AS without_ratio,
    measured_at, measured_unix_seconds, source, synthetic
FROM rated
"""

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
    WHERE path_class IS NOT NULL AND better <> 0 AND metric <> 'locality_ratio'
        AND rank IS NULL AND topology_class_id IS NOT NULL
), aged AS (
    SELECT member.*, max(measured_unix_seconds) OVER (PARTITION BY class) AS newest FROM member
), placed AS (
    SELECT
        aged.*,
        count(*) OVER (PARTITION BY class) AS n_class,
        row_number() OVER (PARTITION BY class ORDER BY median, series_id) AS place
    FROM aged
    WHERE measured_unix_seconds >= newest - {_FRESH_SECONDS}
)
SELECT
    cluster, sku, topology_class, topology_class_id, hop_class, path_class, n_devices,
    probe, probe_version, case_id, params, bytes, dtype, op, direction, backend,
    n_ranks, n_hosts, arm, binding, ring, metric, unit, better, point,
    n_class AS n_series, count(DISTINCT host_key) AS n_hosts_measured, sum(n) AS n,
    avg(CASE WHEN 2 * place BETWEEN n_class AND n_class + 2 THEN median END) AS median,
    max(CASE WHEN 2 * place <= n_class
        AND (n_class + 1 - 2 * place) * (n_class + 1 - 2 * place) >= 3.8416 * n_class
        THEN median END) AS ci_lo,
    min(CASE WHEN 2 * place > n_class
        AND (n_class + 1 - 2 * place) * (n_class + 1 - 2 * place) >= 3.8416 * n_class
        THEN median END) AS ci_hi,
    CASE WHEN n_class >= 6 THEN 'between' END AS ci_level,
    min(median) AS lowest, max(median) AS highest,
    max(measured_at) AS measured_at, max(measured_unix_seconds) AS measured_unix_seconds,
    source, synthetic
FROM placed
GROUP BY
    cluster, sku, topology_class, topology_class_id, hop_class, path_class, n_devices,
    probe, probe_version, case_id, params, bytes, dtype, op, direction, backend,
    n_ranks, n_hosts, arm, binding, ring, metric, unit, better, point, class, n_class,
    source, synthetic
"""

VIEWS = {"v_peer": V_PEER, "v_straggler": V_STRAGGLER, "v_hop_class": V_HOP_CLASS}
"""Name -> statement that makes it."""
