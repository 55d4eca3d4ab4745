-- title: Largest load under the limit
-- answers: How much load does a server take with its P99 under the limit?
-- param cluster text = %: clusters whose name matches this LIKE pattern
-- param host text = %: hosts whose name matches this LIKE pattern
-- param windows integer = 3: windows in a row that must meet it
-- param source text = probe: of whom; import:% for imported results, % for all
-- param since time = 30d: only what was measured since
-- param now moment = now: ages are counted up to here
-- Of the newest run of each case. concurrency: requests in flight; offered_per_second: of an open
-- loop. first_over: smallest load above with a window that broke the limit, NULL if there is none:
-- then the server may take more. n, errors, p99_seconds (the worst), tokens_per_joule: of its
-- windows. A load that broke the limit when a search confirmed it did not hold, whatever it did
-- before.
WITH newest AS (
    SELECT
        v.*, CASE WHEN concurrency IS NULL THEN offered_per_second END AS rate,
        coalesce(concurrency, offered_per_second) AS held,
        first_value(measured_unix_seconds) OVER (
            PARTITION BY cluster, host_key, devices, case_id, arm, source, synthetic
            ORDER BY
                CASE WHEN measured_unix_seconds > :now + 3600 THEN 1 ELSE 0 END,
                measured_unix_seconds DESC
        ) AS newest
    FROM v_slo v
    WHERE measured_at >= :since AND cluster LIKE :cluster AND host LIKE :host
        AND source LIKE :source
), loads AS (
    SELECT
        cluster, host, host_key, sku, devices, n_devices, probe, params, model, dtype, backend,
        arm, case_id, run, sweep, source, synthetic, measured_unix_seconds, concurrency, rate,
        held, max(limit_on) AS limit_on, max(limit_seconds) AS limit_seconds,
        max(CASE WHEN purpose = 'confirm' AND (100 * n_over > n OR 1000 * errors > n)
            THEN 1 ELSE 0 END) AS given_up,
        max(CASE WHEN (100 * n_over > n OR 1000 * errors > n)
            AND (coalesce(valid, 1) = 1 OR purpose = 'bracket') THEN 1 ELSE 0 END) AS broke,
        max(meets_in_a_row) AS in_a_row, count(*) AS n_windows,
        sum(n) AS n, sum(n_over) AS n_over, sum(errors) AS errors,
        max(p99_seconds) AS p99_seconds, avg(answered_per_second) AS answered_per_second,
        avg(output_tokens_per_second) AS output_tokens_per_second, avg(power_watts) AS power_watts
    FROM newest
    WHERE measured_unix_seconds = newest
    GROUP BY
        cluster, host, host_key, sku, devices, n_devices, probe, params, model, dtype, backend,
        arm, case_id, run, sweep, source, synthetic, measured_unix_seconds, concurrency, rate,
        held
), judged AS (
    SELECT
        loads.*,
        max(CASE WHEN in_a_row >= :windows AND given_up = 0 THEN held END)
            OVER (PARTITION BY run) AS best
    FROM loads
), bracketed AS (
    SELECT
        judged.*,
        min(CASE WHEN broke = 1 AND (best IS NULL OR held > best) THEN held END)
            OVER (PARTITION BY run) AS above,
        row_number() OVER (
            PARTITION BY run ORDER BY CASE WHEN held = best THEN 0 ELSE 1 END, held
        ) AS place
    FROM judged
)
SELECT
    cluster, host, sku, devices, n_devices, probe, params, model, dtype, backend, arm,
    limit_on, limit_seconds,
    CASE WHEN rate IS NULL THEN best END AS concurrency,
    CASE WHEN rate IS NULL THEN above END AS first_over,
    CASE WHEN rate IS NOT NULL THEN best END AS offered_per_second,
    CASE WHEN rate IS NOT NULL THEN above END AS first_over_per_second,
    n_windows, n, n_over, errors, p99_seconds, answered_per_second, output_tokens_per_second,
    power_watts,
    CASE WHEN power_watts > 0 THEN output_tokens_per_second / power_watts END AS tokens_per_joule,
    :now - measured_unix_seconds AS age_seconds, sweep, run, source, synthetic
FROM bracketed
WHERE place = 1
ORDER BY cluster, host, devices, probe, params, arm
