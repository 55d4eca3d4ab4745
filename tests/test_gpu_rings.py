"""Ring arms on real GPUs: NCCL takes the file it is given, and its log proves it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from topobench import rings
from topobench.agents.service import HostRequest, HostService
from topobench.host import Host
from topobench.probes.all_reduce import AllReduce
from topobench.reading import Arm, Binding, Case, Cell, Run, Status

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostService]:
    monkeypatch.setenv("TOPOBENCH_RUN_DIR", str(tmp_path))
    found = HostService(HostRequest(sweep=str(uuid.uuid4())))
    yield found
    found.close()


def run(service: HostService, host: Host, ring: str) -> list[Run]:
    """A small and a large all-reduce of two GPUs in one gang."""
    devices = tuple(g.key for g in host.topology.gpus if g.state == "ok" and not g.is_slice)[:2]
    env = {} if ring == rings.AUTO else rings.RING_ONLY
    cells = [
        Cell(
            id=str(uuid.uuid4()),
            case=Case("all_reduce", AllReduce.version, params(size)),
            host=host.key,
            arm=Arm(Binding("none"), ring, env),
            devices=devices,
            ranks=2,
            estimated_seconds=5.0,
        )
        for size in (8 * KIB, 128 * MIB)
    ]
    return list(service.run(cells, {c.id: 1 for c in cells}))


def params(size: int) -> dict[str, Any]:
    return {"bytes": size, "ranks": 2, "backend": "nccl"}


def test_every_ring_arm_does_what_it_asks_for(service: HostService) -> None:
    """Two GPUs have one ring; read from a file, it keeps the channels of NCCL's own search."""
    host = service.describe()
    proofs: dict[str, Any] = {}
    for ring in ("auto", "auto_ring", "identity", "1-0"):
        runs = run(service, host, ring)
        assert [(r.status, r.reason) for r in runs] == [(Status.OK, None)] * 2
        proofs[ring] = runs[-1].conditions["nccl"]
    channels = proofs["auto_ring"]["channels"]
    assert channels >= 2
    for ring in ("identity", "1-0"):
        assert proofs[ring]["channels"] == channels
        assert proofs[ring]["rings"] == {"0-1": channels}
        assert set(proofs[ring]["loaded"]) == {"0", "1"}
        assert all(a.startswith("RING/") for a in proofs[ring]["algorithms"].values())
    assert proofs["auto_ring"]["loaded"] == {}
