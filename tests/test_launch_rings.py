"""Ring arms in real workers: what NCCL is given, what is proven, what fails. NCCL is a stand-in."""

from __future__ import annotations

import dataclasses
import itertools
import os
import uuid
from pathlib import Path

import pytest

import nccl_probe
from launching import TESTS, Lab, cell, host
from nccl_logs import made
from topobench import nccl_log, rings
from topobench.agents import nccl_run
from topobench.agents.gang import Outcome
from topobench.agents.launch import Launcher, Limits
from topobench.errors import ImportFailed
from topobench.host import Host
from topobench.nccl_log import Asked
from topobench.reading import Arm, Binding, Cell, ReasonCode, Run, Status
from topobench.topology import Gpu, Known, Nic
from topobench.topology import Path as GpuPath

GPUS = tuple(f"GPU-{i}" for i in range(4))
FIRST = 8  # NVML index of the first GPU: above nine, indices are hexadecimal in NCCL's files


def quad(*, rdma: bool = False) -> Host:
    """A host with two pairs of near GPUs: 8-9 and 10-11."""
    made = host()
    gpus = tuple(
        Gpu(FIRST + i, key, None, "GPU", 1 << 30, Known(0, "test")) for i, key in enumerate(GPUS)
    )
    near = {(gpus[0].name, gpus[1].name), (gpus[2].name, gpus[3].name)}
    pairs = itertools.combinations([g.name for g in gpus], 2)
    paths = tuple(GpuPath(*p, nccl_bytes_per_second=24e9 if p in near else 9e9) for p in pairs)
    nics = (Nic("mlx5_0", None, Known(0, "test"), state="active", rdma=True),) if rdma else ()
    topology = dataclasses.replace(made.topology, gpus=gpus, paths=paths, nics=nics)
    return dataclasses.replace(made, topology=topology)


def launcher(lab: Lab, on: Host, **env: str) -> Launcher:
    return Launcher(
        sweep=lab.sweep,
        host=on,
        env={"PYTHONPATH": str(TESTS), **env},
        log_dir=lab.logs,
        limits=Limits(least=20.0, factor=1.0, start=20.0, start_gpu=20.0),
        targets={"madenccl": "nccl_probe:MadeNccl"},
    )


def in_ring(ring: str, *, fault: str = "", size: int = 8192) -> Cell:
    made = cell("madenccl", ranks=4, bytes=size, first=FIRST, fault=fault)
    env = {} if ring == "auto" else rings.RING_ONLY
    arm = Arm(Binding("none"), ring, env)
    return dataclasses.replace(made, id=str(uuid.uuid4()), arm=arm, devices=GPUS)


def run(lab: Lab, *cells: Cell, on: Host | None = None) -> list[Run]:
    return list(launcher(lab, on or quad()).run(cells, stop=lab.stop))


@pytest.mark.parametrize(
    ("ring", "order"),
    [
        ("auto", "0-1-2-3"),
        ("auto_ring", "0-1-2-3"),
        ("identity", "0-1-2-3"),
        ("worst", "0-2-1-3"),
        ("0-3-1-2", "0-3-1-2"),
        ("0-1-3-2", "0-1-3-2"),
    ],
)
def test_the_ring_used_is_the_ring_asked_for_and_proven(lab: Lab, ring: str, order: str) -> None:
    """In every channel: two of NCCL's own graph, repeated to four; both cells of a gang."""
    cells = in_ring(ring), in_ring(ring, size=1 << 20)
    runs = run(lab, *cells)
    assert [(r.status, r.reason) for r in runs] == [(Status.OK, None)] * 2
    first, second = (r.conditions["nccl"] for r in runs)
    assert (first["channels"], first["rings"]) == (4, {order: 4})
    assert first["transports"] == {"P2P/CUMEM": 16}
    given = ring not in ("auto", "auto_ring")
    assert first["loaded"] == ({"0": [2], "1": [2]} if given else {})
    assert second["algorithms"] == {"8192": "RING/SIMPLE", str(1 << 20): "RING/SIMPLE"}
    log = nccl_log.parse([nccl_run.unpack(first["log"])])
    assert {rings.name_of(r) for r in nccl_log.rings(log)} == {order}
    assert "log" not in second, "once a gang"
    assert not list(lab.logs.glob("nccl-*")), "its folders are gone"


def test_channels_take_several_orders_in_turn_and_each_is_proven(lab: Lab) -> None:
    asked = "0-1-2-3:0-2-1-3"
    (found,) = run(lab, in_ring(asked))
    assert (found.status, found.reason) == (Status.OK, None)
    assert found.conditions["nccl"]["rings"] == {"0-1-2-3": 2, "0-2-1-3": 2}
    (ignored,) = run(lab, in_ring(asked, fault="ignored"))
    assert ignored.reason is not None
    assert "channel 1: asked 0-2-1-3, NCCL used 0-1-2-3" in ignored.reason.text


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("ignored", "channel 0: asked 0-2-1-3, NCCL used 0-1-2-3"),
        ("tree", "an all-reduce of 8192 bytes took TREE, not RING"),
        ("silent", "the ring cannot be proven: NCCL log: no line of NCCL"),
    ],
)
def test_another_ring_than_asked_for_is_failed_without_numbers(
    lab: Lab, fault: str, told: str
) -> None:
    (found,) = run(lab, in_ring("worst", fault=fault))
    assert found.reason is not None
    assert (found.status, found.reason.code) == (Status.FAILED, ReasonCode.RING_MISMATCH)
    assert told in found.reason.text
    assert found.readings == ()


def test_what_nccl_warned_of_is_kept_when_it_fails(lab: Lab) -> None:
    (found,) = run(lab, in_ring("auto_ring", fault="error"))
    assert found.status is Status.FAILED
    assert "nccl: ring 0 does not loop back" in found.warnings


def test_sockets_are_the_wrong_transport_where_an_rdma_port_is_active(lab: Lab) -> None:
    (found,) = run(lab, in_ring("auto", fault="sockets"), on=quad(rdma=True))
    assert found.reason is not None
    assert (found.status, found.reason.code) == (Status.INVALID, ReasonCode.WRONG_TRANSPORT)
    (without,) = run(lab, in_ring("auto", fault="sockets"))
    assert without.status is Status.OK


def test_nccls_own_graph_is_asked_for_once_for_the_same_gpus(lab: Lab) -> None:
    """By a gang of its own before the first arm that needs it."""
    launched = launcher(lab, quad())
    counts = []
    for ring in ("auto_ring", "worst", "identity"):
        (found,) = launched.run([in_ring(ring)], stop=lab.stop)
        assert found.status is Status.OK, found.reason
        counts.append(len(launched._dumps))
    assert counts == [0, 1, 1]
    assert launched._dumps[GPUS].channels == 4


def test_nccls_own_graph_is_not_the_file_of_the_user(lab: Lab, tmp_path: Path) -> None:
    """One channel of it would be two; NCCL's own are four."""
    file = tmp_path / "graph.xml"
    gpus = "".join(f'<gpu dev="{FIRST + rank:#x}"/>' for rank in range(4))
    file.write_text(nccl_probe.GRAPHS.format(channels=f"<channel>{gpus}</channel>"))
    log = str(tmp_path / "nccl.log")
    launched = launcher(
        lab, quad(), NCCL_GRAPH_FILE=str(file), NCCL_DEBUG_FILE=log,
        NCCL_GRAPH_DUMP_FILE_RANK="7",
    )  # fmt: skip
    (found,) = launched.run([in_ring("worst")], stop=lab.stop)
    assert (found.status, found.reason) == (Status.OK, None)
    assert found.conditions["nccl"]["rings"] == {"0-2-1-3": 4}
    for setting in (f"NCCL_GRAPH_FILE={file}", f"NCCL_DEBUG_FILE={log}"):
        assert any(w.startswith(f"env_ignored: {setting} of the config") for w in found.warnings)
    assert not (tmp_path / "nccl.log").exists()


def test_a_graph_file_of_the_user_gives_the_rings_that_are_proven(lab: Lab, tmp_path: Path) -> None:
    """Under ``auto_ring``; the same file is refused for two of its four GPUs before a launch."""
    file = tmp_path / "graph.xml"
    gpus = "".join(f'<gpu dev="{FIRST + rank:#x}"/>' for rank in (0, 2, 1, 3))
    ring = f"<channel>{gpus}</channel>" * 2
    graphs = nccl_probe.GRAPHS.format(channels=ring).partition('<graph id="3"')[0]
    file.write_text(f"{graphs}</graphs>")
    asked = in_ring("auto_ring")
    arm = dataclasses.replace(asked.arm, env={**asked.arm.env, "NCCL_GRAPH_FILE": str(file)})
    asked = dataclasses.replace(asked, arm=arm)
    (found,) = run(lab, asked)
    assert (found.status, found.reason) == (Status.OK, None)
    assert found.conditions["nccl"]["rings"] == {"0-2-1-3": 4}
    case = dataclasses.replace(asked.case, params={**asked.case.params, "fault": "ignored"})
    (other,) = run(lab, dataclasses.replace(asked, case=case))
    assert other.reason is not None
    assert "channel 0: asked 0-2-1-3, NCCL used 0-1-2-3" in other.reason.text
    (two,) = run(lab, dataclasses.replace(asked, ranks=2, devices=GPUS[:2]))
    assert two.reason is not None
    assert (two.status, two.reason.code, two.members) == (
        Status.SKIPPED, ReasonCode.UNSUPPORTED, (),
    )  # fmt: skip
    assert "has the GPU 10, which does not take part" in two.reason.text


def test_a_vendors_graph_file_with_more_trees_than_rings_is_taken(tmp_path: Path) -> None:
    """Two rings, one against the other, and four trees, as one for four GPUs in pairs has them."""
    turns = (0, 1, 2, 3), (0, 3, 2, 1)
    rows = ["".join(f'<gpu dev="{FIRST + r:#x}"/>' for r in turn) for turn in turns]
    channels = "".join(f"<channel>{row}</channel>" for row in rows)
    text = nccl_probe.GRAPHS.format(channels=channels)
    start, tree, rest = text.partition('  <graph id="1"')
    file = tmp_path / "graph.xml"
    file.write_text(start + tree + rest.replace('"2"', '"4"', 1).replace(channels, 2 * channels))
    asked, place = in_ring("auto_ring"), quad().topology
    environment = {"NCCL_GRAPH_FILE": str(file)}
    given = nccl_run.prepare(asked, place, tmp_path, dump=None, environment=environment).asked
    assert given == Asked(turns, (8, 9, 10, 11), loaded=(2, 4))
    logs = made(turns * 2, loaded=2, devices=(8, 9, 10, 11))
    logs = [log.replace("Search 1 : 2", "Search 1 : 4") for log in logs]
    assert nccl_log.verify(nccl_log.parse(logs), given) is None


def test_a_graph_that_a_file_of_nccl_names_is_not_nccls_own(lab: Lab) -> None:
    """No variable takes it back, so orders cannot be made of NCCL's rings."""
    (found,) = run(lab, in_ring("worst", fault="conf"))
    assert found.reason is not None
    assert (found.status, found.reason.code) == (Status.SKIPPED, ReasonCode.UNSUPPORTED)
    assert "a file of NCCL sets NCCL_GRAPH_FILE (/etc/nccl.conf" in found.reason.text


def test_a_graph_file_of_the_user_is_for_one_host(tmp_path: Path) -> None:
    here = in_ring("auto")
    asked = dataclasses.replace(here, hosts=(here.host, here.host, "other", "other"))
    with pytest.raises(ImportFailed, match="graph file can be checked within one host only"):
        nccl_run.prepare(
            asked, quad().topology, tmp_path, dump=None,
            environment={"NCCL_GRAPH_FILE": "/graph.xml"},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("rdma", "net", "status"),
    [
        (True, "Socket/0", Status.INVALID),
        (False, "Socket/0", Status.OK),
        (True, "IB/0/GDRDMA", Status.OK),
    ],
)
def test_a_host_of_several_tells_what_its_own_ranks_did(
    tmp_path: Path, rdma: bool, net: str, status: Status
) -> None:
    """Its log lacks the lines of the others, and shows over what it reached them all the same."""
    orders, hosts = [(0, 1, 2, 3, 4, 5, 6, 7)], ["h1"] * 4 + ["h2"] * 4
    for number, text in enumerate(made(orders, hosts=hosts, net=net)[4:]):
        (tmp_path / f"nccl.h2.{number}.log").write_text(text)
    share = dataclasses.replace(in_ring("auto"), host="h2", hosts=tuple(hosts), ranks=8)
    place = quad(rdma=rdma).topology
    given = nccl_run.prepare(share, place, tmp_path, dump=None, environment={})
    found = given.judged(share, Outcome(Status.OK), str)
    assert (found.status, found.warnings) == (status, ())
    kind = f"NET/{net.partition('/')[0]}"
    assert found.conditions["nccl"]["transports"] == {"P2P/CUMEM": 3, kind: 2}
    assert found.conditions["nccl"]["neighbours"]["0"]["4"] == [3, 5]
    assert "log" not in found.conditions["nccl"], "of a gang that of rank 0's host is kept"
    assert (found.reason is None) is (status is Status.OK)
    assert found.reason is None or found.reason.code is ReasonCode.WRONG_TRANSPORT


def test_gpus_that_the_dump_does_not_hold_are_refused_before_the_launch(lab: Lab) -> None:
    made = in_ring("worst")
    other = dataclasses.replace(made.case, params={**made.case.params, "first": 0})
    (found,) = run(lab, dataclasses.replace(made, case=other))
    assert found.reason is not None
    assert (found.status, found.reason.code) == (Status.SKIPPED, ReasonCode.UNSUPPORTED)
    assert "has the GPU 0, which does not take part" in found.reason.text


def test_a_gang_that_cannot_dump_gives_its_reason(lab: Lab) -> None:
    made = in_ring("best")
    case = dataclasses.replace(made.case, probe="nosuch")
    (found,) = run(lab, dataclasses.replace(made, case=case))
    assert found.status is Status.FAILED
    assert found.reason is not None
    assert "nosuch" in found.reason.text


def test_what_a_gang_told_that_cannot_dump_is_not_the_cells(lab: Lab) -> None:
    """Neither its samples nor the words that they were kept."""
    (own,) = run(lab, in_ring("auto_ring", fault="error"))
    assert [r.samples for r in own.readings] == [(1.0,)]
    assert any(w.startswith("partial: ") for w in own.warnings)
    (found,) = run(lab, in_ring("worst", fault="error"))
    assert (found.status, found.readings) == (Status.FAILED, ())
    assert not any(w.startswith("partial: ") for w in found.warnings)


@pytest.mark.parametrize("ring", ["auto", "auto_ring"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "graph.xml: No such file or directory"),
        ("NCCL reads graphs", "graph.xml: NCCL graph: "),
        (
            '<graphs version="1"><graph id="0" pattern="4" nchannels="1"><channel>'
            '<gpu dev="0"/></channel></graph></graphs>',
            "<graph> lacks crossnic, ",
        ),
    ],
)
def test_a_graph_file_of_the_user_is_checked_before_a_worker_starts(
    lab: Lab, tmp_path: Path, text: str | None, told: str, ring: str
) -> None:
    """NCCL would fail with an internal error, or silently search by itself."""
    file = tmp_path / "graph.xml"
    if text is not None:
        file.write_text(text)
    assert told in refused_graph(lab, str(file), ring)


def test_a_graph_that_is_no_file_is_not_read(lab: Lab, tmp_path: Path) -> None:
    """NCCL would wait for a pipe, or read a device for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 33)
    for path, told in (
        *((str(tmp_path), "it is a directory"), ("/dev/zero", "it is a device")),
        *((str(pipe), "it is a pipe"), (str(large), "it is larger than 4 MiB")),
        ("graph.xml", "give the whole path"),
    ):
        assert told in refused_graph(lab, path)


def refused_graph(lab: Lab, path: str, ring: str = "auto") -> str:
    """Why a graph file of the user is refused, before a worker starts."""
    asked = in_ring(ring)
    arm = dataclasses.replace(asked.arm, env={"NCCL_GRAPH_FILE": path})
    (found,) = run(lab, dataclasses.replace(asked, arm=arm))
    assert (found.status, found.readings, found.members) == (Status.SKIPPED, (), ())
    assert found.reason is not None
    assert f"NCCL_GRAPH_FILE={path}: " in found.reason.text
    return found.reason.text
