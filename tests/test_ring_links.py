"""Byte counters of NVLinks beside the rings of NCCL's log: made counters, and real workers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from launching import TESTS, Lab
from test_launch_rings import FIRST, GPUS, in_ring, quad
from topobench import ring_links
from topobench.agents.launch import Launcher, Limits
from topobench.reading import Cell, ReasonCode, Status
from topobench.topology import Gpu, Known, NvLink, NvLinks, Topology

GB = 10**9
RING = (0, 1, 2, 3)
Pairs = Mapping[tuple[int, int], int]
"""Bytes from one GPU to another."""


def meshed(links_to_each: int = 2) -> Topology:
    """The four GPUs of the tests' host, each joined to each other by its own NVLinks."""
    gpus = []
    for rank, key in enumerate(GPUS):
        others = [r for r in range(4) if r != rank for _ in range(links_to_each)]
        links = tuple(
            NvLink(i, "active", "gpu", f"0000:{16 + other:02x}:00.0")
            for i, other in enumerate(others)
        )
        gpus.append(
            Gpu(
                FIRST + rank, key, f"0000:{16 + rank:02x}:00.0", "GPU", 1 << 30, Known(0, "test"),
                nvlink=NvLinks(len(links), len(links), "4.0", 25e9, links),
            )
        )  # fmt: skip
    return dataclasses.replace(quad().topology, gpus=tuple(gpus))


def switched() -> Topology:
    gpus = (
        dataclasses.replace(
            gpu,
            nvlink=NvLinks(
                4, 4, "4.0", 25e9, tuple(NvLink(i, "active", "nvswitch") for i in range(4))
            ),
        )
        for gpu in meshed().gpus
    )
    return dataclasses.replace(meshed(), gpus=tuple(gpus))


def conditions(sent: Pairs, *, links_to_each: int = 2) -> dict[str, Any]:
    """What the monitor would have counted on meshed GPUs, shared evenly by a pair's links."""
    gpus: dict[str, Any] = {}
    for rank, key in enumerate(GPUS):
        others = [r for r in range(4) if r != rank for _ in range(links_to_each)]
        gpus[key] = {
            "nvlinks": {
                str(i): {
                    "sent_bytes": sent.get((rank, other), 0) // links_to_each,
                    "received_bytes": sent.get((other, rank), 0) // links_to_each,
                }
                for i, other in enumerate(others)
            }
        }
    return {"gpus": gpus}


def along(ring: Sequence[int], size: int = GB) -> dict[tuple[int, int], int]:
    return dict.fromkeys(zip(ring, (*ring[1:], ring[0]), strict=True), size)


def test_bytes_along_the_ring_agree_with_the_log() -> None:
    """Flags on other links do not count."""
    found = ring_links.counted(conditions(along(RING) | {(0, 2): 10**7}), meshed(), GPUS, [RING])
    assert found.contradiction is None
    assert found.warnings == ()
    assert found.document == {
        "counted": 24,
        "sent_bytes": 4 * GB + 10**7,
        "known_peers": 24,
        "outside_bytes": 10**7,
        "imbalance_ratio": 0.0,
        "least": {"device": GPUS[0], "link": 0},
    }


def test_bytes_on_another_path_contradict_the_log() -> None:
    sent = along((0, 2, 1, 3))
    found = ring_links.counted(conditions(sent), meshed(), GPUS, [RING])
    assert found.contradiction is not None
    assert found.contradiction.code is ReasonCode.RING_MISMATCH
    assert "which is not beside it in the ring 0-1-2-3 that NCCL's log tells of" in str(
        found.contradiction
    )
    both = ring_links.counted(conditions(sent), meshed(), GPUS, [RING, (0, 2, 1, 3)])
    assert both.contradiction is None, "it is another channel's ring"
    free = ring_links.counted(conditions(sent), meshed(), GPUS, [])
    assert free.contradiction is None, "nothing was asked for"


def test_a_few_bytes_prove_nothing() -> None:
    few = conditions(along((0, 2, 1, 3), size=1 << 20))
    assert ring_links.counted(few, meshed(), GPUS, [RING]).contradiction is None


def test_a_link_that_carries_less_than_those_beside_it_is_named() -> None:
    counted = conditions(along(RING, 8 * GB), links_to_each=4)
    counted["gpus"][GPUS[1]]["nvlinks"]["5"]["sent_bytes"] = GB  # to GPU 2, else 2 GB
    found = ring_links.counted(counted, meshed(4), GPUS, [RING])
    assert found.contradiction is None
    assert found.document["imbalance_ratio"] == pytest.approx(0.5)
    assert found.document["least"] == {"device": GPUS[1], "link": 5}
    (warning,) = found.warnings
    assert (
        warning
        == f"nvlink_uneven: link 5 of {GPUS[1]} carried 50.0 % less than the links beside it"
    )


def test_small_messages_lie_in_few_buffers_and_tell_nothing_of_links() -> None:
    gpus = {key: {"nvlinks": {str(i): {"sent_bytes": 8 << 20} for i in range(18)}} for key in GPUS}
    gpus[GPUS[3]]["nvlinks"]["0"]["sent_bytes"] = 5 << 20
    assert ring_links.counted({"gpus": gpus}, switched(), GPUS, [RING]).warnings == ()


def test_links_into_a_switch_tell_no_peer_but_their_own_balance() -> None:
    gpus = {key: {"nvlinks": {str(i): {"sent_bytes": GB} for i in range(4)}} for key in GPUS}
    gpus[GPUS[3]]["nvlinks"]["0"]["sent_bytes"] = GB // 4
    found = ring_links.counted({"gpus": gpus}, switched(), GPUS, [RING])
    assert found.document["known_peers"] == 0
    assert found.document["least"] == {"device": GPUS[3], "link": 0}
    assert found.contradiction is None


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        ({"unavailable": {"nvlink_bytes": "this GPU does not count them"}}, "does not count them"),
        ({"unavailable": {"nvml": "the driver is gone"}}, "nvml: the driver is gone"),
        ({"nvlinks": {"0": {"replay_count": 0}}}, "were not read"),
    ],
)
def test_counters_that_are_not_there_are_told_not_taken_for_zero(
    gpu: dict[str, Any], why: str
) -> None:
    found = ring_links.counted({"gpus": {GPUS[0]: gpu}}, meshed(), GPUS, [RING])
    assert list(found.document) == ["unavailable"]
    assert why in found.document["unavailable"]
    none = ring_links.counted({}, quad().topology, GPUS, [RING])
    assert none.document["unavailable"].startswith("these GPUs have no NVLinks")


def test_a_run_whose_bytes_contradict_its_log_is_failed_without_numbers(lab: Lab) -> None:
    """Real workers over the stand-in for NCCL; the monitor's counters are made."""
    seen = {"worst": conditions(along((0, 2, 1, 3))), "best": conditions(along((0, 2, 1, 3)))}

    @contextlib.contextmanager
    def watch(cell: Cell) -> Iterator[Mapping[str, Any]]:
        yield seen[str(cell.arm.ring)]

    host = dataclasses.replace(
        quad(), topology=dataclasses.replace(meshed(), paths=quad().topology.paths)
    )
    launcher = Launcher(
        sweep=lab.sweep, host=host, env={"PYTHONPATH": str(TESTS)}, log_dir=lab.logs,
        limits=Limits(least=20.0, factor=1.0, start=20.0, start_gpu=20.0),
        targets={"madenccl": "nccl_probe:MadeNccl"}, watch=watch,
    )  # fmt: skip
    (worst,) = launcher.run([in_ring("worst")], stop=lab.stop)
    assert (worst.status, worst.conditions["nccl"]["links"]["outside_bytes"]) == (Status.OK, 0)
    (best,) = launcher.run([in_ring("best")], stop=lab.stop)
    assert best.status is Status.FAILED
    assert best.reason is not None
    assert best.reason.code is ReasonCode.RING_MISMATCH
    assert best.readings == ()
