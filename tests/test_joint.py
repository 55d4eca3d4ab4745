"""One run from what each host of a joint cell saw of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from nccl_logs import made
from storing import cell, reading, run
from topobench import nccl_log
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


def of_nccl(number: int, **changes: Any) -> Run:
    """What a host of four ranks says of two rings over both hosts."""
    texts = made(RINGS, hosts=["a"] * 4 + ["b"] * 4)[4 * number : 4 * number + 4]
    told = {**nccl_log.summary(nccl_log.parse(texts), whole=False), **changes}
    return dataclasses.replace(part(Status.OK), conditions={"nccl": told})


RINGS = [(0, 1, 2, 3, 4, 5, 6, 7), (0, 3, 2, 1, 6, 5, 4, 7)]
EIGHT = dataclasses.replace(CELL, ranks=8, hosts=("a",) * 4 + ("b",) * 4)


def test_rings_over_hosts_are_made_of_what_each_host_tells_of_its_ranks() -> None:
    found = merged(EIGHT, {"a": of_nccl(0), "b": of_nccl(1)}, NAMES)
    first, other = found.conditions["nccl"], found.conditions["hosts"]["b"]["nccl"]
    assert first["rings"] == {"0-1-2-3-4-5-6-7": 1, "0-3-2-1-6-5-4-7": 1}
    assert (first["channels"], first["transports"]) == (2, {"P2P/CUMEM": 6, "NET/IB": 4})
    assert "neighbours" not in {**first, **other}
    assert (found.status, found.warnings) == (Status.OK, ())


def test_rings_that_a_host_does_not_tell_are_a_warning() -> None:
    found = merged(EIGHT, {"a": of_nccl(0), "b": of_nccl(1, neighbours={})}, NAMES)
    assert "rings" not in found.conditions["nccl"]
    assert found.warnings == (
        "nccl_log: NCCL log: ring 00 has no line of rank 4; 8 ranks take part",
    )


def test_rings_are_not_told_where_a_host_has_no_log() -> None:
    """Why is its own to say: it failed, or its log cannot be read. Neighbours are never stored."""
    silent = dataclasses.replace(part(Status.OK), conditions={})
    first = merged(EIGHT, {"a": of_nccl(0), "b": silent}, NAMES)
    other = merged(EIGHT, {"a": silent, "b": of_nccl(1)}, NAMES)
    assert (first.warnings, other.warnings) == ((), ())
    told = first.conditions["nccl"], other.conditions["hosts"]["b"]["nccl"]
    assert not {"rings", "neighbours"} & {*told[0], *told[1]}
    assert told[0]["channels"] == told[1]["channels"] == 2
    assert merged(EIGHT, {"a": silent, "b": silent}, NAMES).conditions == {}
