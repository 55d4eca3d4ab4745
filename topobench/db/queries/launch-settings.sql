-- title: Launch latency by host settings
-- answers: Are slow kernel launches a matter of governor, boost, mitigations or kernel?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param z number = 3.5: an outlier is at least so many robust standard deviations slower
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- effect_ratio: median of the GPUs with that setting by that of all alike, -0.1 = 10 % slower.
-- If nearly all outliers share a value that few others have, it is the setting.
WITH environments AS (
    SELECT r.series_id, max(r.environment_id) AS environment_id
    FROM series s
    JOIN run r ON r.series_id = s.id AND r.sweep_id = s.latest_sweep_id
    WHERE r.status IN ('ok', 'partial')
        AND s.case_id IN (SELECT id FROM probe_case WHERE probe = 'kernel_launch')
    GROUP BY r.series_id
), launches AS (
    SELECT v.*, e.governor, e.boost, e.mitigations, e.kernel
    FROM v_peer v
    JOIN environments x ON x.series_id = v.series_id
    JOIN environment e ON e.id = x.environment_id
    WHERE v.probe = 'kernel_launch' AND v.unit = 's' AND v.measured_at >= :since
        AND v.cluster LIKE :cluster AND v.source LIKE :source
), asked AS (
    SELECT 'governor' AS setting
    UNION ALL SELECT 'boost'
    UNION ALL SELECT 'mitigations'
    UNION ALL SELECT 'kernel'
), labelled AS (
    SELECT
        asked.setting,
        CASE asked.setting
            WHEN 'governor' THEN governor
            WHEN 'boost' THEN boost
            WHEN 'mitigations' THEN mitigations
            ELSE kernel
        END AS value,
        launches.*
    FROM launches
    CROSS JOIN asked
), placed AS (
    SELECT
        labelled.*,
        row_number() OVER (
            PARTITION BY
                setting, value, cluster, topology_class_id, case_id, arm, n_devices, metric,
                point, source, synthetic
            ORDER BY median, series_id
        ) AS place,
        count(*) OVER (
            PARTITION BY
                setting, value, cluster, topology_class_id, case_id, arm, n_devices, metric,
                point, source, synthetic
        ) AS n_all
    FROM labelled
), pooled AS (
    SELECT
        cluster, topology_class, topology_class_id, probe, params, arm, n_devices, metric, unit,
        point, setting, value, n_all AS n_series, count(DISTINCT host_key) AS n_hosts,
        sum(n) AS n, sum(CASE WHEN z <= -:z THEN 1 ELSE 0 END) AS n_outliers,
        avg(CASE WHEN 2 * place BETWEEN n_all AND n_all + 2 THEN median END) AS median,
        max(CASE WHEN 2 * place <= n_all
            AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
            THEN median END) AS ci_lo,
        min(CASE WHEN 2 * place > n_all
            AND (n_all + 1 - 2 * place) * (n_all + 1 - 2 * place) >= 3.8416 * n_all
            THEN median END) AS ci_hi,
        max(peer_median) AS peer_median, min(measured_unix_seconds) AS oldest, source, synthetic
    FROM placed
    GROUP BY
        cluster, topology_class, topology_class_id, probe, params, arm, n_devices, metric, unit,
        point, setting, value, n_all, source, synthetic
)
SELECT
    cluster, topology_class, params, arm, metric, unit, point, setting, value, n_hosts, n_series,
    n_outliers, n, median, ci_lo, ci_hi, CASE WHEN n_series >= 6 THEN 'between' END AS ci_level,
    peer_median, 1 - median / peer_median AS effect_ratio,
    :now - oldest AS age_seconds, source, synthetic
FROM pooled
ORDER BY
    n_outliers DESC, effect_ratio, cluster, topology_class_id, params, arm, n_devices, setting,
    value
