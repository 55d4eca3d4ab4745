-- title: Knees
-- answers: At which size does a curve bend, by SKU, and how sure is that?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param subject text = %: curves whose name matches this LIKE pattern
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- n: hosts (or sweeps over several) with a knee, n_none: those without; knee: their median. One
-- host has the interval of its own fit, from six on it is that of the median over hosts. What
-- theory expects, means over hosts: launching kernels takes longer than their arithmetic up to
-- launch_until, memory up to memory_until; attention is a quarter of it attention_from on.
WITH newest AS (
    SELECT
        f.id,
        row_number() OVER (
            PARTITION BY sw.cluster_id, f.host_id, f.subject, f.x_metric, sw.source, sw.synthetic
            ORDER BY
                CASE WHEN sw.started_unix_seconds > :now + 3600 THEN 1 ELSE 0 END,
                sw.started_unix_seconds DESC, f.id DESC
        ) AS place
    FROM sweep sw
    CROSS JOIN fit f
    WHERE f.sweep_id = sw.id AND sw.started_at >= :since AND sw.source LIKE :source
        AND f.kind = 'knee' AND f.subject LIKE :subject
), found AS (
    SELECT
        cl.name AS cluster, k.name AS sku, h.key AS host_key, f.subject, f.x_metric, f.knee,
        f.knee_lo, f.knee_hi, f.launch_until, f.memory_until, f.attention_from,
        sw.started_unix_seconds AS measured_unix_seconds, sw.source, sw.synthetic
    FROM newest n
    JOIN fit f ON f.id = n.id
    JOIN sweep sw ON sw.id = f.sweep_id
    JOIN cluster cl ON cl.id = sw.cluster_id
    LEFT JOIN host h ON h.id = f.host_id
    LEFT JOIN sku k ON k.id = h.sku_id
    WHERE n.place = 1 AND cl.name LIKE :cluster
), placed AS (
    SELECT
        found.*,
        row_number() OVER (
            PARTITION BY cluster, sku, subject, x_metric, source, synthetic
            ORDER BY CASE WHEN knee IS NULL THEN 1 ELSE 0 END, knee, host_key
        ) AS place,
        count(knee) OVER (PARTITION BY cluster, sku, subject, x_metric, source, synthetic)
            AS n_found
    FROM found
)
SELECT
    cluster, sku, subject, x_metric, n_found AS n, count(*) - n_found AS n_none,
    avg(CASE WHEN 2 * place BETWEEN n_found AND n_found + 2 THEN knee END) AS knee,
    CASE WHEN n_found = 1 THEN max(CASE WHEN place = 1 THEN knee_lo END) ELSE
        max(CASE WHEN 2 * place <= n_found
            AND (n_found + 1 - 2 * place) * (n_found + 1 - 2 * place) >= 3.8416 * n_found
            THEN knee END) END AS ci_lo,
    CASE WHEN n_found = 1 THEN max(CASE WHEN place = 1 THEN knee_hi END) ELSE
        min(CASE WHEN 2 * place > n_found
            AND (n_found + 1 - 2 * place) * (n_found + 1 - 2 * place) >= 3.8416 * n_found
            THEN knee END) END AS ci_hi,
    CASE WHEN n_found = 1 THEN 'within' WHEN n_found >= 6 THEN 'between' END AS ci_level,
    min(knee) AS lowest, max(knee) AS highest, avg(launch_until) AS launch_until,
    avg(memory_until) AS memory_until, avg(attention_from) AS attention_from,
    :now - min(measured_unix_seconds) AS age_seconds, source, synthetic
FROM placed
GROUP BY cluster, sku, subject, x_metric, n_found, source, synthetic
ORDER BY cluster, sku, subject, x_metric
