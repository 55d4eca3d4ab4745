"""A probe with more metrics than fit beside each other."""

from __future__ import annotations

from golden import printed
from topobench.report.probe_tables import ProbeTables
from topobench.report.records import Basis, Figure, Record

SAMPLED = (
    *("prefill_device_seconds", "prefill_wall_seconds", "tokens_per_second", "flop_per_second"),
    *("mfu_ratio", "mfu_measured_ratio"),
)
SINGLE = ("kernel_launch_count", "work_flop_count")


def records() -> list[Record]:
    found = []
    for place, dtype in enumerate(("bf16", "fp8"), start=1):
        for metric in SAMPLED:
            value = place * 1e13 / 8 if "flop" in metric else place / 8
            figure = Figure(value, 0.01, 20, Basis.SPREAD)
            found.append(Record(metric, {"dtype": dtype}, figure))
        for metric in SINGLE:
            figure = Figure(place * 3.5e12 if "flop" in metric else 549.0, None, 1, Basis.SPREAD)
            found.append(Record(metric, {"dtype": dtype}, figure))
    return found


def test_metrics_stand_beside_each_other_as_far_as_they_fit() -> None:
    """What has no samples stands apart, so that its 1 is not taken for the others' number."""
    lines = printed(ProbeTables("prefill", records(), "GPU"), width=56).splitlines()
    text = "\n".join(lines)
    heads = [line.split() for line in lines if line.lstrip().startswith("dtype")]
    assert len(heads) == 3
    assert max(map(len, lines)) <= 56
    rows = [line.split() for line in lines if line.lstrip().startswith("fp8")]
    assert rows[0] == ["fp8", "250.0", "250.0", "0.250", "2.500", "1.0", "%", "20"]
    assert rows[-1] == ["fp8", "549", "7.000", "1"]
    assert "TFLOP" in text
    assert all("spread" not in head for head in heads[-1:])
