-- title: Samples of a run
-- answers: What are the single samples of a run, in the order in which they were measured?
-- param run run = latest: UUID, unique beginning, or latest
-- param metric text = %: metrics whose name matches this LIKE pattern
-- param now moment = now: ages are counted up to here
-- topobench gives one row a sample: position from 0, warmup 1 for those left out of the median,
-- and value. Elsewhere data holds them as 32-bit floats, little-endian (codec 1), warm-ups first.
SELECT
    cl.name AS cluster, h.name AS host, pc.probe, pc.params, c.arm, ds.label AS devices,
    m.name AS metric, m.unit, d.point, d.n, d.median, d.ci_lo, d.ci_hi, d.ci_level, d.warmups,
    sa.codec, sa.data, r.started_at AS measured_at,
    :now - r.started_unix_seconds AS age_seconds, r.uuid AS run, sw.uuid AS sweep, s.source,
    s.synthetic
FROM run r
JOIN cell c ON c.id = r.cell_id
JOIN sweep sw ON sw.id = r.sweep_id
JOIN series s ON s.id = r.series_id
JOIN host h ON h.id = s.host_id
JOIN cluster cl ON cl.id = h.cluster_id
JOIN probe_case pc ON pc.id = s.case_id
JOIN device_set ds ON ds.id = s.device_set_id
JOIN reading d ON d.run_id = r.id
JOIN metric m ON m.id = d.metric_id
JOIN sample sa ON sa.run_id = d.run_id AND sa.seq = d.seq
WHERE r.uuid = :run AND m.name LIKE :metric
ORDER BY d.seq
