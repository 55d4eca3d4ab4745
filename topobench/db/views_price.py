"""
The views of money: what an hour costs, and what a unit of speed or of work costs then.

A price is never mixed into another currency, nor rent (``cloud``) with the costs of owning
(``owned``: capex, with colo_month and power_kwh where they are given).
"""

from __future__ import annotations

# A period begins where any price of the SKU begins or ends; inside it one price a kind is
# valid: the cluster's own, else the general one.
V_PRICE = """
CREATE VIEW v_price AS
WITH place AS (
    SELECT DISTINCT sku_id, cluster_id FROM host WHERE sku_id IS NOT NULL
), applied AS (
    SELECT
        pl.sku_id, pl.cluster_id, p.id, p.kind, p.currency, p.valid_from, p.valid_to,
        CASE WHEN p.cluster_id IS NULL THEN 0 ELSE 1 END AS own,
        CASE
            WHEN p.per = 'host' THEN p.hour_amount
            WHEN k.gpu_count > 0 THEN p.hour_amount * k.gpu_count
        END AS host_hour_amount
    FROM place pl
    JOIN sku k ON k.id = pl.sku_id
    JOIN price p
        ON p.sku_id = pl.sku_id AND (p.cluster_id IS NULL OR p.cluster_id = pl.cluster_id)
), edge AS (
    SELECT sku_id, cluster_id, currency, valid_from AS begins FROM applied
    UNION
    SELECT sku_id, cluster_id, currency, valid_to FROM applied WHERE valid_to IS NOT NULL
), period AS (
    SELECT
        edge.*,
        lead(begins) OVER (PARTITION BY sku_id, cluster_id, currency ORDER BY begins) AS ends
    FROM edge
), chosen AS (
    SELECT
        e.sku_id, e.cluster_id, e.currency, e.begins, e.ends, a.kind, a.host_hour_amount,
        row_number() OVER (
            PARTITION BY e.sku_id, e.cluster_id, e.currency, e.begins, a.kind
            ORDER BY a.own DESC, a.id DESC
        ) AS choice
    FROM period e
    JOIN applied a
        ON a.sku_id = e.sku_id AND a.cluster_id = e.cluster_id AND a.currency = e.currency
        AND a.valid_from <= e.begins AND (a.valid_to IS NULL OR a.valid_to > e.begins)
), total AS (
    SELECT
        sku_id, cluster_id, currency, begins, ends,
        CASE WHEN kind = 'cloud_hour' THEN 'cloud' ELSE 'owned' END AS basis,
        count(CASE WHEN kind = 'capex' THEN 1 END) AS n_capex,
        count(CASE WHEN kind = 'colo_month' THEN 1 END) AS n_colo,
        count(CASE WHEN kind = 'power_kwh' THEN 1 END) AS n_power,
        CASE WHEN count(*) = count(host_hour_amount) THEN sum(host_hour_amount) END
            AS host_hour_amount
    FROM chosen
    WHERE choice = 1
    GROUP BY
        sku_id, cluster_id, currency, begins, ends,
        CASE WHEN kind = 'cloud_hour' THEN 'cloud' ELSE 'owned' END
)
SELECT
    cl.name AS cluster, k.name AS sku, k.gpu_model, k.form_factor, k.gpu_count, k.cpu_model,
    k.nic_model, t.basis, t.currency,
    CASE
        WHEN t.basis = 'cloud' THEN 'cloud_hour'
        ELSE 'capex' || CASE WHEN t.n_colo > 0 THEN '+colo_month' ELSE '' END
            || CASE WHEN t.n_power > 0 THEN '+power_kwh' ELSE '' END
    END AS kinds,
    t.host_hour_amount,
    CASE WHEN k.gpu_count > 0 THEN t.host_hour_amount / k.gpu_count END AS gpu_hour_amount,
    t.begins AS price_from, t.ends AS price_to
FROM total t
JOIN cluster cl ON cl.id = t.cluster_id
JOIN sku k ON k.id = t.sku_id
WHERE t.basis = 'cloud' OR t.n_capex > 0
"""

# Hosts of several SKUs that measured together have no one price. GPUs that were measured at once
# have readings of their own, each of which took one of them; ranks of a gang took all.
# Dividing a fixed price by a speed swaps the ends of the interval; a time keeps them.
V_PRICE_PERFORMANCE = """
CREATE VIEW v_price_performance AS
WITH priced AS (
    SELECT
        v.sweep, v.cluster, v.host, v.host_key, v.sku, p.gpu_model, p.form_factor, p.gpu_count,
        v.topology_class, v.devices, v.n_devices, v.probe, v.probe_version, v.case_id, v.params,
        v.bytes, v.seq_len, v.batch, v.dtype, v.model, v.op, v.tp, v.direction, v.memory,
        v.backend, v.series_id, v.n_ranks, v.n_hosts, v.arm, v.binding, v.ring, v.path_class,
        v.metric, v.unit, v.better, v.rank, v.point, v.n_processes, v.n, v.median, v.ci_lo,
        v.ci_hi, v.ci_level, p.basis, p.currency, p.kinds, p.host_hour_amount,
        CASE
            WHEN v.n_devices > 0 AND v.point LIKE '%"device":%' THEN p.gpu_hour_amount
            WHEN v.n_devices > 0 THEN p.gpu_hour_amount * v.n_devices
            ELSE p.host_hour_amount * v.n_hosts
        END AS hour_amount,
        p.price_from, p.price_to, v.measured_at, v.measured_unix_seconds, v.source, v.synthetic
    FROM v_latest v
    JOIN v_price p ON p.cluster = v.cluster AND p.sku = v.sku
    WHERE v.n_hosts = 1 OR v.series_id NOT IN (
        SELECT series_id FROM v_together GROUP BY series_id HAVING count(*) > count(sku)
            OR min(sku) <> max(sku)
    )
)
SELECT
    sweep, cluster, host, host_key, sku, gpu_model, form_factor, gpu_count, topology_class,
    devices, n_devices, probe, probe_version, case_id, params, bytes, seq_len, batch, dtype,
    model, op, tp, direction, memory, backend, series_id, n_ranks, n_hosts, arm, binding, ring,
    path_class, metric, unit, better, rank, point, n_processes, n, median, ci_lo, ci_hi,
    ci_level, basis, currency, kinds, host_hour_amount, hour_amount,
    CASE WHEN better = 1 AND median > 0 THEN hour_amount / median END AS hour_amount_per_unit,
    CASE WHEN better = 1 AND ci_hi > 0 THEN hour_amount / ci_hi END AS hour_amount_per_unit_lo,
    CASE WHEN better = 1 AND ci_lo > 0 THEN hour_amount / ci_lo END AS hour_amount_per_unit_hi,
    CASE
        WHEN unit LIKE '%/s' AND median > 0 THEN hour_amount / 3600 / median
        WHEN unit = 's' THEN hour_amount / 3600 * median
    END AS work_amount,
    CASE
        WHEN unit LIKE '%/s' AND ci_hi > 0 THEN hour_amount / 3600 / ci_hi
        WHEN unit = 's' THEN hour_amount / 3600 * ci_lo
    END AS work_amount_lo,
    CASE
        WHEN unit LIKE '%/s' AND ci_lo > 0 THEN hour_amount / 3600 / ci_lo
        WHEN unit = 's' THEN hour_amount / 3600 * ci_hi
    END AS work_amount_hi,
    price_from, price_to, measured_at, measured_unix_seconds, source, synthetic
FROM priced
"""

VIEWS = {"v_price": V_PRICE, "v_price_performance": V_PRICE_PERFORMANCE}
"""Name -> statement that makes it; each may use those before it."""
