-- title: Decoding
-- answers: How long does each new token take, by context, batch and type of the cache?
-- param host text = %: hosts whose name matches this LIKE pattern
-- param model text = %: shapes whose name matches this LIKE pattern
-- param reference text = bf16: type of the cache that the others are held against
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- tpot_seconds: device time of a step, in which each sequence gets a token. speed_ratio: tokens per
-- second by those of the reference with all else equal, in one sweep. of_memory_ratio,
-- of_products_ratio: reading and arithmetic by what the same process measured; bound_by names the
-- larger of the two, or neither where that is below one half.
WITH measured AS (
    SELECT
        v.*,
        CASE
            WHEN params LIKE '%"kv_dtype":"bf16"%' THEN 'bf16'
            WHEN params LIKE '%"kv_dtype":"fp16"%' THEN 'fp16'
            WHEN params LIKE '%"kv_dtype":"fp32"%' THEN 'fp32'
            WHEN params LIKE '%"kv_dtype":"fp8"%' THEN 'fp8'
            WHEN params LIKE '%"kv_dtype":"int8"%' THEN 'int8'
        END AS kv_dtype
    FROM v_latest v
    WHERE probe = 'decode' AND coalesce(rank, -1) < 0 AND point NOT LIKE '{"%'
        AND seq_len IS NOT NULL AND measured_at >= :since AND host LIKE :host AND model LIKE :model
        AND source LIKE :source
), steps AS (
    SELECT
        cluster, host, host_key, devices, series_id, model, dtype, kv_dtype, batch, seq_len, arm,
        params, replace(params, '"kv_dtype":"' || kv_dtype || '"', '"kv_dtype":*') AS rest,
        sweep, source, synthetic,
        max(CASE WHEN metric = 'tpot_seconds' THEN n_processes END) AS n_processes,
        max(CASE WHEN metric = 'tpot_seconds' THEN n END) AS n,
        max(CASE WHEN metric = 'tpot_seconds' THEN median END) AS median,
        max(CASE WHEN metric = 'tpot_seconds' THEN ci_lo END) AS ci_lo,
        max(CASE WHEN metric = 'tpot_seconds' THEN ci_hi END) AS ci_hi,
        max(CASE WHEN metric = 'tpot_seconds' THEN ci_level END) AS ci_level,
        max(CASE WHEN metric = 'tpot_wall_seconds' THEN median END) AS wall_seconds,
        max(CASE WHEN metric = 'tokens_per_second' THEN median END) AS tokens_per_second,
        max(CASE WHEN metric = 'read_bytes_per_second' THEN median END) AS read_bytes_per_second,
        max(CASE WHEN metric = 'mbu_measured_ratio' THEN median END) AS of_memory_ratio,
        max(CASE WHEN metric = 'mfu_measured_ratio' THEN median END) AS of_products_ratio,
        max(CASE WHEN metric = 'kv_bytes' THEN median END) AS kv_bytes,
        max(CASE WHEN metric = 'relative_error_ratio' THEN median END) AS relative_error_ratio,
        max(CASE WHEN metric = 'peak_allocated_bytes' THEN median END) AS peak_allocated_bytes,
        max(CASE WHEN metric = 'predicted_peak_bytes' THEN median END) AS predicted_peak_bytes,
        min(measured_unix_seconds) AS oldest
    FROM measured
    GROUP BY
        cluster, host, host_key, devices, series_id, model, dtype, kv_dtype, batch, seq_len, arm,
        params, sweep, source, synthetic
)
SELECT
    s.cluster, s.host, s.devices, s.model, s.dtype, s.kv_dtype, s.batch, s.seq_len, s.arm,
    s.n_processes, s.n, s.median AS tpot_seconds, s.ci_lo AS tpot_seconds_ci_lo,
    s.ci_hi AS tpot_seconds_ci_hi, s.ci_level, s.wall_seconds, s.tokens_per_second,
    s.tokens_per_second / other.tokens_per_second AS speed_ratio, s.relative_error_ratio,
    s.read_bytes_per_second, s.of_memory_ratio, s.of_products_ratio,
    CASE
        WHEN s.of_memory_ratio IS NULL OR s.of_products_ratio IS NULL THEN NULL
        WHEN s.of_memory_ratio < 0.5 AND s.of_products_ratio < 0.5 THEN 'neither'
        WHEN s.of_memory_ratio >= s.of_products_ratio THEN 'memory'
        ELSE 'arithmetic'
    END AS bound_by,
    s.kv_bytes, s.peak_allocated_bytes, s.predicted_peak_bytes, s.params,
    :now - s.oldest AS age_seconds, s.sweep, s.source, s.synthetic
FROM steps s
LEFT JOIN steps other
    ON other.kv_dtype = :reference AND other.rest = s.rest AND other.host_key = s.host_key
    AND other.cluster = s.cluster AND other.devices = s.devices AND other.arm = s.arm
    AND other.sweep = s.sweep AND other.source = s.source AND other.synthetic = s.synthetic
    AND other.tokens_per_second > 0
WHERE s.median > 0
ORDER BY
    s.cluster, s.host, s.devices, s.model, s.dtype, s.rest, s.arm, s.batch, s.seq_len, s.kv_dtype
