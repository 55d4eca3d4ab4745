"""One run from what each host of a joint cell saw of it."""

from __future__ import annotations

import dataclasses

import pytest

from storing import cell, reading, run
from topobench.joint import merged
from topobench.reading import Reason, ReasonCode, Run, Status

CELL = dataclasses.replace(cell(host="a", ranks=2), hosts=("a", "b"))
NAMES = {"a": "alpha", "b": "beta"}
KEPT = "partial: the samples taken until then are kept as raw values (bandwidth: 1)"
LOST = Reason(ReasonCode.RANK_LOST, "rank 1 is gone")
WRONG = Reason(ReasonCode.WRONG_DATA, "3 elements are wrong")
CRASHED = Reason(ReasonCode.CRASHED, "exit code 1")


def part(status: Status, reason: Reason | None = None) -> Run:
    """What a host says of the cell; one that failed has kept a sample."""
    warnings = (KEPT, "clock: slow") if status is Status.FAILED else ()
    return run(CELL, reading(7.0), status=status, reason=reason, warnings=warnings)


@pytest.mark.parametrize(
    ("first", "other", "status", "kept"),
    [
        (part(Status.FAILED, LOST), part(Status.FAILED, CRASHED), Status.FAILED, True),
        (part(Status.FAILED, CRASHED), part(Status.OK), Status.FAILED, True),
        (part(Status.FAILED, LOST), part(Status.INVALID, WRONG), Status.INVALID, False),
        (part(Status.FAILED, CRASHED), part(Status.INVALID, WRONG), Status.FAILED, False),
        (part(Status.INVALID, WRONG), part(Status.FAILED, LOST), Status.INVALID, True),
    ],
)
def test_samples_of_a_failed_part_are_kept_only_where_no_host_had_wrong_data(
    first: Run, other: Run, status: Status, kept: bool
) -> None:
    """Whole readings of a part that was measured are its raw values, whatever the others say."""
    found = merged(CELL, {"a": first, "b": other}, NAMES)
    assert found.status is status
    assert bool(found.readings) is kept
    assert (KEPT in found.warnings) is (kept and first.status is Status.FAILED)
    assert f"host beta: {KEPT}" not in found.warnings
    assert any(w.endswith("clock: slow") for w in found.warnings)


def test_of_hosts_that_failed_alike_the_first_gives_the_reason() -> None:
    """Whichever answers first."""
    parts = {"b": part(Status.FAILED, CRASHED), "a": part(Status.FAILED, CRASHED)}
    assert merged(CELL, parts, NAMES).reason == CRASHED
