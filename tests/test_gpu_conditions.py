"""Conditions around real runs on a real GPU."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from topobench.agents.conditions.nvml_counters import Session
from topobench.agents.discover import discover
from topobench.agents.service import HostRequest, HostService
from topobench.host import Host
from topobench.reading import Arm, Binding, Case, Cell, ReasonCode, Run, Scalar, Status
from topobench.topology import Gpu

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.untouched_gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no usable GPU"),
]

MIB = 1 << 20
HOLD = """
import sys, time, torch
held = torch.ones(64 << 20, dtype=torch.uint8, device="cuda:0")
torch.cuda.synchronize()
print("holding", flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostService]:
    monkeypatch.setenv("TOPOBENCH_RUN_DIR", str(tmp_path))
    found = HostService(HostRequest(sweep=str(uuid.uuid4())))
    yield found
    found.close()


def first_gpu(host: Host) -> Gpu:
    return next(g for g in host.topology.gpus if g.state == "ok" and not g.is_slice)


def _params(direction: str) -> dict[str, Scalar]:
    return {"bytes": 64 * MIB, "direction": direction, "memory": "pinned"}


def copies(service: HostService, host: Host, count: int = 1) -> list[Run]:
    """Runs of copies to the first GPU, in one worker."""
    cells = [
        Cell(
            id=str(uuid.uuid4()),
            case=Case("host_to_device", 1, _params(("h2d", "d2h")[i % 2])),
            host=host.key,
            arm=Arm(Binding("none")),
            devices=(first_gpu(host).key,),
            estimated_seconds=5.0,
        )
        for i in range(count)
    ]
    return list(service.run(cells, {c.id: 1 for c in cells}))


def test_the_slot_runs_at_its_maximum_and_the_gpu_works_during_copies(service: HostService) -> None:
    host = service.describe()
    key = first_gpu(host).key
    reader = Session().gpu(key)
    idle = reader.glance().power_watts
    runs = copies(service, host, 2)
    for run in runs:
        assert run.status in (Status.OK, Status.PARTIAL), run.reason
        seen = run.conditions["gpus"][key]
        assert seen["readings"] >= 3, seen
        slot, limits = seen["pcie"], seen["limits"]
        if "generation" in slot and "pcie_generation" in limits:
            assert slot["generation"][2] == limits["pcie_generation"]
            assert slot["width"][2] == limits["pcie_width"]
            assert not [w for w in run.warnings if w.startswith("pcie_downtrained")]
        if idle is not None:
            assert seen["power_watts"][2] >= idle
        assert seen["sm_hertz"][2] <= seen["limits"].get("sm_hertz", float("inf"))
        assert all(r.times == () for r in run.readings)


def test_our_own_worker_is_seen_and_is_no_stranger(service: HostService) -> None:
    host = service.describe()
    run = copies(service, host, 2)[1]
    users = run.conditions["gpus"][first_gpu(host).key]["users"]
    assert users["foreign"] == []
    if users["visible"] is None:
        pytest.skip("NVML lists no process here (a container without the host's pids)")
    assert users["visible"] is False or users["own"] == 1


def test_a_second_program_on_the_gpu_makes_the_run_invalid(service: HostService) -> None:
    host = service.describe()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, "120"], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "holding\n"
            run = copies(service, host)[0]
        finally:
            other.kill()
    users = run.conditions["gpus"][first_gpu(host).key]["users"]
    if not users["visible"]:
        pytest.skip(f"NVML lists no process by a pid that is known here: {users}")
    assert run.status in (Status.ABORTED, Status.INVALID)
    assert run.readings == () or run.status is Status.INVALID
    assert run.reason is not None
    assert run.reason.code is ReasonCode.SHARED_GPU
    assert f"pid {other.pid} (" in run.reason.text


def test_counters_of_a_real_gpu_never_go_back() -> None:
    key = next(g.key for g in discover().gpus if g.state == "ok")
    session = Session()
    reader = session.gpu(key)
    before, links = reader.counters(), reader.link_counters()
    time.sleep(0.2)
    after, links_after = reader.counters(), reader.link_counters()
    session.close()
    assert before
    assert all(after[name] >= value for name, value in before.items())
    assert links.keys() == links_after.keys()
    for link, counts in links.items():
        assert all(links_after[link][name] >= value for name, value in counts.items())
