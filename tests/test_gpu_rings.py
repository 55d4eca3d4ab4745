"""Ring arms on real GPUs: NCCL takes the file it is given, and its log proves it."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from topobench import nccl_graph, rings
from topobench.agents import nccl_run
from topobench.agents.service import HostRequest, HostService
from topobench.env_arms import PRESETS
from topobench.host import Host
from topobench.nccl_graph import Graph
from topobench.probes.all_reduce import AllReduce
from topobench.probes.metrics import BUSBW
from topobench.reading import Arm, Binding, Case, Cell, Reason, Run, Status

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.untouched_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostService]:
    monkeypatch.setenv("TOPOBENCH_RUN_DIR", str(tmp_path))
    found = HostService(HostRequest(sweep=str(uuid.uuid4())))
    yield found
    found.close()


def run(service: HostService, host: Host, arm: Arm, *, ranks: int = 2, **more: Any) -> list[Run]:
    """A small and a large all-reduce of some GPUs in one gang."""
    devices = tuple(g.key for g in host.topology.gpus if g.state == "ok" and not g.is_slice)
    cells = [
        Cell(
            id=str(uuid.uuid4()),
            case=Case("all_reduce", AllReduce.version, {**params(size, ranks), **more}),
            host=host.key,
            arm=arm,
            devices=devices[:ranks],
            ranks=ranks,
            estimated_seconds=5.0,
        )
        for size in (8 * KIB, 128 * MIB)
    ]
    return list(service.run(cells, {c.id: 1 for c in cells}))


def ring_arm(ring: str) -> Arm:
    return Arm(Binding("none"), ring, {} if ring == rings.AUTO else rings.RING_ONLY)


def env_arm(name: str) -> Arm:
    return Arm(Binding("none"), rings.AUTO, PRESETS[name], env_name=name)


def params(size: int, ranks: int) -> dict[str, Any]:
    return {"bytes": size, "ranks": ranks, "backend": "nccl"}


def busbw(run: Run) -> float:
    """Bytes per second of the whole, not of a rank."""
    (found,) = (r for r in run.readings if r.metric == BUSBW.name and not r.point)
    return found.summary.median


def states(runs: Sequence[Run]) -> list[tuple[Status, Reason | None]]:
    return [(r.status, r.reason) for r in runs]


OK = [(Status.OK, None)] * 2


def test_every_ring_arm_does_what_it_asks_for(service: HostService) -> None:
    """Two GPUs have one ring; read from a file, it keeps the channels of NCCL's own search."""
    host = service.describe()
    proofs: dict[str, Any] = {}
    speeds: dict[str, float] = {}
    for ring in ("auto", "auto_ring", "identity", "0-1", "1-0", "0-1:1-0"):
        runs = run(service, host, ring_arm(ring))
        assert states(runs) == OK
        proofs[ring], speeds[ring] = runs[-1].conditions["nccl"], busbw(runs[-1])
        links = proofs[ring]["links"]
        assert links.get("unavailable") or links["counted"] > 0, "bytes are counted or it is told"
    channels = proofs["auto_ring"]["channels"]
    assert channels >= 2
    for ring in ("identity", "0-1", "1-0", "0-1:1-0"):
        assert speeds[ring] == pytest.approx(speeds["auto_ring"], rel=0.05)
        assert proofs[ring]["channels"] == channels
        assert proofs[ring]["rings"] == {"0-1": channels}
        assert set(proofs[ring]["loaded"]) == {"0", "1"}
        assert all(a.startswith("RING/") for a in proofs[ring]["algorithms"].values())
    assert proofs["auto_ring"]["loaded"] == {}


def test_out_of_place_takes_the_same_proven_rings(service: HostService) -> None:
    """NCCL's own call on torch's communicator: its log names each size, as a ring."""
    host = service.describe()
    there, here = (
        run(service, host, ring_arm("auto_ring"), place=place) for place in ("out_of", "in")
    )
    assert states(there) == states(here) == OK
    proof, known = (runs[-1].conditions["nccl"] for runs in (there, here))
    assert (proof["rings"], proof["channels"]) == (known["rings"], known["channels"])
    for size in (8 * KIB, 128 * MIB):
        assert proof["algorithms"][str(size)].startswith("RING/")
    assert busbw(there[-1]) == pytest.approx(busbw(here[-1]), rel=0.1)


def test_a_file_of_two_channels_is_taken_proven_and_much_slower(
    service: HostService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file made by hand would cost: the channels, not the order."""
    host = service.describe()
    own = busbw(run(service, host, ring_arm("auto_ring"))[-1])

    def narrowed(dump: nccl_run.Dump, *_: object) -> tuple[Graph, ...]:
        return tuple(
            dataclasses.replace(
                graph,
                settings={**graph.settings, "nchannels": "2"},
                channels=graph.channels[:2],
                nets=graph.nets[:2],
            )
            for graph in nccl_graph.reinjected(dump.graphs)
        )

    read_dump = nccl_run.read_dump
    monkeypatch.setattr(nccl_run, "_graphs", narrowed)
    monkeypatch.setattr(
        nccl_run, "read_dump", lambda folder: dataclasses.replace(read_dump(folder), channels=2)
    )
    runs = run(service, host, ring_arm("identity"))
    assert states(runs) == OK
    proof = runs[-1].conditions["nccl"]
    assert (proof["channels"], proof["rings"]) == (2, {"0-1": 2})
    assert busbw(runs[-1]) < 0.7 * own


def test_environments_are_in_force_and_proven(service: HostService) -> None:
    """P2P off goes through the host's memory; few channels are few channels."""
    host = service.describe()
    plain, off, four = (
        run(service, host, arm) for arm in (ring_arm("auto"), env_arm("p2p_off"), env_arm("ctas_4"))
    )
    assert states([*plain, *off, *four]) == OK * 3
    assert plain[-1].conditions["env"].get("NCCL_P2P_DISABLE") is None
    found = off[-1].conditions
    assert found["env"]["NCCL_P2P_DISABLE"] == found["nccl"]["env"]["NCCL_P2P_DISABLE"] == "1"
    assert not any(kind.startswith("P2P") for kind in found["nccl"]["transports"])
    assert busbw(off[-1]) < 0.5 * busbw(plain[-1])
    assert four[-1].conditions["nccl"]["channels"] == 4
    assert busbw(four[-1]) < busbw(plain[-1])


def test_nvls_is_not_switched_on_where_it_is_forbidden(
    service: HostService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    runs = run(service, service.describe(), env_arm("nvls_on"))
    assert [r.status for r in runs] == [Status.NOT_APPLICABLE] * 2
    off = run(service, service.describe(), env_arm("nvls_off"))
    assert states(off) == OK
    assert off[-1].conditions["nccl"]["env"]["NCCL_NVLS_ENABLE"] == "0"


def test_one_rank_runs_over_nccl_and_its_log_is_read(service: HostService) -> None:
    runs = run(service, service.describe(), Arm(Binding("none")), ranks=1)
    assert states(runs) == OK
    assert {r.metric for r in runs[0].readings} == {"latency_seconds"}
    assert runs[-1].conditions["env"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    found = runs[-1].conditions.get("nccl")
    told = [w for w in runs[-1].warnings if w.startswith("nccl_log")]
    assert found or told, "what NCCL logged is kept, or why it could not be read"
