-- title: Acceptance
-- answers: Is a delivered batch as fast as the sample that was bid?
-- param batch text = %: delivered batches whose label matches this LIKE pattern
-- param reference text = bid: label of the batch that was bid
-- param probe text = %: probes whose name matches this LIKE pattern
-- param margin number = 0.03: worse by less than this is accepted; twice as much for times
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- Hosts of the same wiring, each by the mean of its devices, without what hosts measured together
-- (query host-pairs). effect_ratio: -0.1 = 10 % worse than
-- the sample; its interval takes the far ends of both. verdict: not worse, worse or inconclusive
-- (a batch or sample of fewer than 6 hosts has no interval). topobench accept decides.
WITH per_host AS (
    SELECT
        coalesce(h.batch, '') AS batch, v.topology_class, v.topology_class_id, v.host_key,
        v.case_id, v.probe, v.params, v.arm, v.n_devices, v.n_ranks, v.path_class, v.metric,
        v.unit, v.better, v.point, v.source, v.synthetic, avg(v.median) AS value,
        sum(v.n) AS n, min(v.measured_unix_seconds) AS oldest
    FROM v_latest v
    JOIN series s ON s.id = v.series_id
    JOIN host h ON h.id = s.host_id
    WHERE v.better <> 0 AND v.metric <> 'locality_ratio' AND coalesce(v.rank, -1) < 0
        AND v.topology_class_id IS NOT NULL AND v.median > 0 AND v.measured_at >= :since
        AND v.probe LIKE :probe AND v.source LIKE :source AND v.n_hosts = 1
        AND (h.batch = :reference OR h.batch LIKE :batch)
    GROUP BY
        h.batch, v.topology_class, v.topology_class_id, v.host_key, v.case_id, v.probe, v.params,
        v.arm, v.n_devices, v.n_ranks, v.path_class, v.metric, v.unit, v.better, v.point,
        v.source, v.synthetic
), placed AS (
    SELECT
        per_host.*,
        row_number() OVER (
            PARTITION BY
                batch, topology_class_id, case_id, arm, n_devices, n_ranks, path_class, metric,
                point, source, synthetic
            ORDER BY value, host_key
        ) AS place,
        count(*) OVER (
            PARTITION BY
                batch, topology_class_id, case_id, arm, n_devices, n_ranks, path_class, metric,
                point, source, synthetic
        ) AS n_all
    FROM per_host
), pooled AS (
    SELECT
        batch, topology_class, topology_class_id, case_id, probe, params, arm, n_devices,
        n_ranks, path_class, metric, unit, better, point, source, synthetic, n_all AS n_hosts,
        sum(n) AS n, min(oldest) AS oldest,
        avg(CASE WHEN 2 * place BETWEEN n_all AND n_all + 2 THEN value END) AS median,
        max(CASE WHEN 2 * place <= n_all
            AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
            THEN value END) AS ci_lo,
        min(CASE WHEN 2 * place > n_all
            AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
            THEN value END) AS ci_hi
    FROM placed
    GROUP BY
        batch, topology_class, topology_class_id, case_id, probe, params, arm, n_devices,
        n_ranks, path_class, metric, unit, better, point, source, synthetic, n_all
), compared AS (
    SELECT
        b.*, r.n_hosts AS reference_n_hosts, r.median AS reference_median,
        r.ci_lo AS reference_ci_lo, r.ci_hi AS reference_ci_hi,
        CASE WHEN r.oldest < b.oldest THEN r.oldest ELSE b.oldest END AS oldest_of_both,
        b.better * (b.median / r.median - 1) AS effect_ratio,
        CASE WHEN b.better = 1 THEN b.ci_lo / r.ci_hi - 1 ELSE 1 - b.ci_hi / r.ci_lo END
            AS effect_lo,
        CASE WHEN b.better = 1 THEN b.ci_hi / r.ci_lo - 1 ELSE 1 - b.ci_lo / r.ci_hi END
            AS effect_hi,
        :margin * CASE WHEN b.unit = 's' THEN 2 ELSE 1 END AS allowed
    FROM pooled b
    JOIN pooled r
        ON r.batch = :reference AND b.batch <> r.batch
        AND r.topology_class_id = b.topology_class_id AND r.case_id = b.case_id
        AND r.arm = b.arm AND r.n_devices = b.n_devices AND r.n_ranks = b.n_ranks
        AND coalesce(r.path_class, '') = coalesce(b.path_class, '') AND r.metric = b.metric
        AND r.point = b.point AND r.source = b.source AND r.synthetic = b.synthetic
)
SELECT
    batch, topology_class, probe, params, arm, n_devices, n_ranks, path_class, metric, unit,
    point, n_hosts, n, median, ci_lo, ci_hi, CASE WHEN ci_lo IS NOT NULL THEN 'between' END
        AS ci_level,
    reference_n_hosts, reference_median, reference_ci_lo, reference_ci_hi,
    effect_ratio, effect_lo, effect_hi,
    CASE
        WHEN effect_lo > -allowed THEN 'not worse'
        WHEN effect_hi < -allowed THEN 'worse'
        ELSE 'inconclusive'
    END AS verdict,
    :now - oldest_of_both AS age_seconds, source, synthetic
FROM compared
ORDER BY
    CASE
        WHEN effect_lo > -allowed THEN 2
        WHEN effect_hi < -allowed THEN 0
        ELSE 1
    END,
    effect_ratio, batch, topology_class, metric, params, arm, n_devices, path_class, point
