-- title: Where the variance is
-- answers: Does the rack, the leaf switch or the batch of a host explain how fast it is?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param probe text = %: probes whose name matches this LIKE pattern
-- param metric text = %: metrics whose name matches this LIKE pattern
-- param min_hosts integer = 6: a case counts if this many hosts measured it
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- explained_ratio: share of the variance between hosts that the label explains, corrected for
-- chance (epsilon squared): near 0 or below = nothing, 1 = all. median: of the hosts. worst: the
-- label whose hosts are furthest behind on average, by how much of the mean.
WITH per_host AS (
    SELECT
        v.cluster, v.topology_class, v.topology_class_id, h.rack, h.leaf, h.batch, v.host_key,
        v.case_id, v.probe, v.params, v.arm, v.n_devices, v.n_ranks, v.path_class, v.metric,
        v.unit, v.better, v.point, v.source, v.synthetic, avg(v.median) AS value,
        sum(v.n) AS n, min(v.measured_unix_seconds) AS oldest
    FROM v_latest v
    JOIN series s ON s.id = v.series_id
    JOIN host h ON h.id = s.host_id
    WHERE v.better <> 0 AND v.metric <> 'locality_ratio' AND coalesce(v.rank, -1) < 0
        AND v.topology_class_id IS NOT NULL AND v.median > 0 AND v.measured_at >= :since
        AND v.cluster LIKE :cluster AND v.probe LIKE :probe AND v.metric LIKE :metric
        AND v.source LIKE :source AND s.n_hosts = 1
    GROUP BY
        v.cluster, v.topology_class, v.topology_class_id, h.rack, h.leaf, h.batch, v.host_key,
        v.case_id, v.probe, v.params, v.arm, v.n_devices, v.n_ranks, v.path_class, v.metric,
        v.unit, v.better, v.point, v.source, v.synthetic
), numbered AS (
    SELECT
        per_host.*,
        dense_rank() OVER (
            ORDER BY
                cluster, topology_class_id, case_id, arm, n_devices, n_ranks,
                coalesce(path_class, ''), metric, point, source, synthetic
        ) AS fleet
    FROM per_host
), fleets AS (
    SELECT DISTINCT
        fleet, cluster, topology_class, probe, params, arm, n_devices, n_ranks, path_class,
        metric, unit, point, source, synthetic
    FROM numbered
), asked AS (
    SELECT 'rack' AS label
    UNION ALL SELECT 'leaf'
    UNION ALL SELECT 'batch'
), named AS (
    SELECT
        asked.label, CASE asked.label WHEN 'rack' THEN rack WHEN 'leaf' THEN leaf ELSE batch END
            AS name,
        fleet, host_key, better, value, n, oldest
    FROM numbered
    CROSS JOIN asked
), labelled AS (
    SELECT * FROM named WHERE name IS NOT NULL
), centred AS (
    SELECT
        labelled.*,
        count(*) OVER (PARTITION BY label, fleet) AS n_all,
        avg(value) OVER (PARTITION BY label, fleet) AS mean,
        avg(value) OVER (PARTITION BY label, fleet, name) AS label_mean,
        row_number() OVER (PARTITION BY label, fleet ORDER BY value, host_key) AS place,
        row_number() OVER (PARTITION BY label, fleet, name ORDER BY host_key) AS place_in_label
    FROM labelled
), worst AS (
    SELECT
        centred.*,
        row_number() OVER (
            PARTITION BY label, fleet ORDER BY better * label_mean, name, host_key
        ) AS worst_place
    FROM centred
), summed AS (
    SELECT
        label, fleet, n_all,
        sum(CASE WHEN place_in_label = 1 THEN 1 ELSE 0 END) AS n_labels,
        sum((value - mean) * (value - mean)) AS total,
        sum((label_mean - mean) * (label_mean - mean)) AS between_labels,
        sum(n) AS n, min(oldest) AS oldest,
        avg(CASE WHEN 2 * place BETWEEN n_all AND n_all + 2 THEN value END) AS median,
        max(CASE WHEN 2 * place <= n_all
            AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
            THEN value END) AS ci_lo,
        min(CASE WHEN 2 * place > n_all
            AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
            THEN value END) AS ci_hi,
        max(CASE WHEN worst_place = 1 THEN name END) AS worst,
        max(CASE WHEN worst_place = 1 THEN better * (label_mean - mean) / mean END)
            AS worst_ratio
    FROM worst
    GROUP BY label, fleet, n_all
)
SELECT
    f.cluster, f.topology_class, s.label, f.probe, f.params, f.arm, f.n_devices, f.n_ranks,
    f.path_class, f.metric, f.unit, f.point, s.n_labels, s.n_all AS n_hosts, s.n, s.median,
    s.ci_lo, s.ci_hi, CASE WHEN s.n_all >= 6 THEN 'between' END AS ci_level,
    (s.between_labels - (s.n_labels - 1) * (s.total - s.between_labels) / (s.n_all - s.n_labels))
        / s.total AS explained_ratio,
    s.worst, s.worst_ratio, :now - s.oldest AS age_seconds, f.source, f.synthetic
FROM summed s
JOIN fleets f ON f.fleet = s.fleet
WHERE s.n_all >= :min_hosts AND s.n_labels > 1 AND s.n_all > s.n_labels AND s.total > 0
ORDER BY
    explained_ratio DESC, f.cluster, f.topology_class, s.label, f.metric, f.params, f.arm,
    f.n_devices, f.path_class, f.point
