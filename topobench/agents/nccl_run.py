"""
What a gang over NCCL is given, and what NCCL's own log proves of it.

Each gang gets a private folder: NCCL logs into it, one file a process, and ring arms find their
graph file there. A run whose ring is not the one asked for is failed, whatever it measured.
"""

from __future__ import annotations

import base64
import contextlib
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from topobench import env_arms, nccl_graph, nccl_log, ring_links, rings, user_files
from topobench.agents.gang import Outcome
from topobench.errors import AgentError, ImportFailed
from topobench.nccl_graph import Graph
from topobench.nccl_log import Asked, NcclLog
from topobench.reading import MEASURED, Cell, Reason, ReasonCode, Status
from topobench.topology import Topology

MAX_LOG_BYTES = 64 << 20
MAX_STORED_BYTES = 96 << 10
"""Of a log as it is stored: compressed and in base 64."""
_SUBSYSTEMS = "INIT,ENV,GRAPH,TUNING,NET"
_DUMP = "graph-dump.xml"
_LOG_SETTINGS = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
_GRAPH_FILE = "NCCL_GRAPH_FILE"


@dataclass(frozen=True, slots=True)
class Dump:
    """
    What NCCL's own search for rings gave between some GPUs.

    Args:
        channels: How many it used in the end, after repeating those of the graphs.
    """

    graphs: tuple[Graph, ...]
    channels: int


@dataclass(slots=True)
class NcclRun:
    """
    One gang's share of NCCL.

    Args:
        folder: Where its logs are; None for a gang without NCCL.
        variables: Environment on top of everything else.
        asked: What it was told to do; None where NCCL may do as it likes.
        rdma_active: An RDMA port of the host is active.
        topology: Of the host, which says where links end; None where rings are not proven.
        graph: The graph file it was given; empty where NCCL searched by itself.
    """

    folder: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    asked: Asked | None = None
    rdma_active: bool = False
    graph: str = ""
    topology: Topology | None = None
    _stored: bool = False

    def judged(self, cell: Cell, outcome: Outcome, mask: Callable[[str], str]) -> Outcome:
        """The outcome of a cell with what NCCL did, and refused if that was something else."""
        if self.folder is None:
            return in_force(cell, outcome, {})
        if outcome.status not in MEASURED:
            return replace(outcome, warnings=(*outcome.warnings, *_warned(self.folder)))
        try:
            log = nccl_log.parse(_texts(self.folder))
            proof = nccl_log.summary(log, whole=not _is_part(cell))
            wrong = self._mismatch(log, cell)
        except ImportFailed as error:
            if self.asked is None:
                return replace(outcome, warnings=(*outcome.warnings, f"nccl_log: {error}"))
            reason = Reason(ReasonCode.RING_MISMATCH, f"the ring cannot be proven: {error}")
            return replace(outcome, status=Status.FAILED, reason=reason, readings=())
        raw = {} if _is_part(cell) and cell.host != cell.hosts[0] else self._raw(mask)
        conditions = {**outcome.conditions, "nccl": {**proof, **raw}}
        outcome = replace(outcome, conditions=conditions)
        if wrong is not None:
            return replace(outcome, status=Status.FAILED, reason=wrong, readings=())
        outcome = in_force(cell, outcome, log.env)
        if outcome.status not in MEASURED:
            return outcome
        transport = nccl_log.wrong_transport(log, rdma_active=self.rdma_active)
        if transport is not None:
            return replace(outcome, status=Status.INVALID, reason=transport)
        return self._counted(cell, outcome, log)

    def _counted(self, cell: Cell, outcome: Outcome, log: NcclLog) -> Outcome:
        """The outcome with what the links carried, failed if that is not what the log says."""
        if self.topology is None or cell.hosts:
            return outcome
        proven = nccl_log.rings(log) if self.asked is not None else []
        found = ring_links.counted(outcome.conditions, self.topology, cell.devices, proven)
        nccl = {**outcome.conditions["nccl"], "links": found.document}
        outcome = replace(
            outcome,
            conditions={**outcome.conditions, "nccl": nccl},
            warnings=(*outcome.warnings, *found.warnings),
        )
        if found.contradiction is None:
            return outcome
        return replace(outcome, status=Status.FAILED, reason=found.contradiction, readings=())

    def _mismatch(self, log: NcclLog, cell: Cell) -> Reason | None:
        if self.asked is None:
            return None
        size = cell.case.params.get("bytes")
        sizes = (size,) if isinstance(size, int) else ()
        return nccl_log.verify(log, replace(self.asked, bytes=sizes))

    def _raw(self, mask: Callable[[str], str]) -> dict[str, str]:
        """The log itself and the graph file, with the first cell of its gang, if they are small."""
        if self._stored or self.folder is None:
            return {}
        self._stored = True
        texts = {"log": mask("".join(_texts(self.folder))), "graph": self.graph}
        # Lines repeat in a log; in a graph file each of them counts.
        packed = {k: pack(v, whole=k == "graph") for k, v in texts.items() if v}
        return {k: v for k, v in packed.items() if len(v) <= MAX_STORED_BYTES}


def concerns(cell: Cell) -> bool:
    """Whether a cell's ranks are joined by NCCL."""
    rings_of_gpus = cell.ranks > 1 and cell.arm.ring is not None
    return rings_of_gpus or cell.case.params.get("backend") == "nccl"


def _is_part(cell: Cell) -> bool:
    """Whether other ranks of the gang are on other hosts."""
    return bool(set(cell.hosts) - {cell.host})


def needs_dump(cell: Cell) -> bool:
    """Whether NCCL is given a ring, which is made of its own."""
    return concerns(cell) and cell.arm.ring not in (None, rings.AUTO, rings.AUTO_RING)


def own_settings(cell: Cell) -> tuple[str, ...]:
    """Variables that are ours in a cell, whatever config and arm say: the proof needs them."""
    if not concerns(cell):
        return ()
    return (*_LOG_SETTINGS, _GRAPH_FILE) if needs_dump(cell) else _LOG_SETTINGS


def in_force(cell: Cell, outcome: Outcome, logged: Mapping[str, str]) -> Outcome:
    """
    The outcome, failed where a setting of the cell's arm was not in force.

    Args:
        logged: What NCCL says it took from the environment; it does not name all it reads.
    """
    found = outcome.conditions.get("env")
    for key, value in sorted(cell.arm.env.items()):
        if found is not None and env_arms.changes_speed(key) and found.get(key) != value:
            text = f"the worker had {key}={found.get(key, '')}"
        elif not _same(logged.get(key, value), value):
            text = f"NCCL took {key}={logged[key]}"
        else:
            continue
        reason = Reason(ReasonCode.WRONG_ENVIRONMENT, f"the arm sets {key}={value}; {text}")
        return replace(outcome, status=Status.FAILED, reason=reason, readings=())
    return outcome


def _same(told: str, asked: str) -> bool:
    """Whether two texts are one setting: NCCL writes numbers in its own way."""
    try:
        return int(told, 0) == int(asked, 0)
    except ValueError:
        return told.casefold() == asked.casefold()


@contextlib.contextmanager
def private_folder(parent: Path) -> Iterator[Path]:
    """
    A folder that only this user can read, gone at the end.

    Raises:
        AgentError: It cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix="nccl-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise AgentError(f"no folder for NCCL's files: {error}") from error
    with made as name:
        yield Path(name)


def dumping(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """An environment in which NCCL searches by itself and tells what it found."""
    dump = {"NCCL_GRAPH_DUMP_FILE": str(folder / _DUMP), "NCCL_GRAPH_DUMP_FILE_RANK": "0"}
    return {**environment, **_logging(folder), **dump}


def smallest(cell: Cell) -> Cell:
    """The cell with the least payload: enough to see what NCCL found."""
    params = {**cell.case.params, **({"bytes": 8} if "bytes" in cell.case.params else {})}
    return replace(cell, case=replace(cell.case, params=params), estimated_seconds=0.0)


def read_dump(folder: Path) -> Dump:
    """
    What NCCL found in a run with :func:`dumping`.

    Raises:
        ImportFailed: It left no graph or log, or one that cannot be read, or it did not search:
            a file of NCCL's own gave it a graph.
    """
    try:
        text = (folder / _DUMP).read_text(errors="replace")
    except OSError as error:
        raise ImportFailed(f"NCCL wrote no graph: {error.strerror}") from error
    log = nccl_log.parse(_texts(folder))
    if any(count for counts in log.loaded.values() for count in counts):
        raise ImportFailed(
            f"NCCL graph: a file of NCCL sets {_GRAPH_FILE} (/etc/nccl.conf, ~/.nccl.conf or "
            "NCCL_CONF_FILE), so NCCL's own rings are not known; take it out there"
        )
    return Dump(nccl_graph.parse(text), len(nccl_log.rings(log)))


def prepare(
    cell: Cell,
    topology: Topology,
    folder: Path,
    *,
    dump: Dump | None,
    environment: Mapping[str, str],
) -> NcclRun:
    """
    What the gang of a cell is given; its graph file is written.

    Args:
        dump: NCCL's own graph, for the arms that need it.
        environment: What its workers get beside it.

    Raises:
        ImportFailed: NCCL would mishandle the graph file, or the GPUs are not known here.
    """
    variables = _logging(folder)
    active = any(nic.rdma and nic.state == "active" for nic in topology.nics)
    given = environment.get(_GRAPH_FILE)
    free = cell.arm.ring in (None, rings.AUTO)
    if free and not given:
        return NcclRun(folder, variables, None, active, topology=topology)
    if given and _is_part(cell):
        raise ImportFailed(
            f"{_GRAPH_FILE}={given}: a graph file can be checked within one host only, and these "
            "ranks are on several; leave it out of env, or them out of the sweep"
        )
    gpus = {gpu.key: gpu for gpu in topology.gpus}
    devices = tuple(gpus[key].index if key in gpus else None for key in cell.devices)
    known = tuple(device for device in devices if device is not None)
    if len(known) < cell.ranks:
        raise ImportFailed("NCCL graph: the NVML index of a GPU is not known")
    cross_nic = environment.get("NCCL_CROSS_NIC") != "0"
    if dump is None:
        text = _users_graph(given, known, cross_nic=cross_nic) if given else ""
        told = None if free else _asked_by(text, known)
        return NcclRun(folder, variables, told, active, text, topology)
    matrix = rings.bandwidths(topology, [gpus[key] for key in cell.devices])
    orders = rings.orders_of(cell.arm.ring or rings.IDENTITY, matrix)
    graphs = _graphs(dump, known, orders)
    nccl_graph.check(graphs, known, cross_nic=cross_nic)
    file = folder / "graph.xml"
    text = nccl_graph.render(graphs)
    file.write_text(text)
    variables |= {
        _GRAPH_FILE: str(file),
        "NCCL_MIN_CTAS": str(dump.channels),
        "NCCL_MAX_CTAS": str(dump.channels),
    }
    told = Asked(_ranked(graphs, known), known, dump.channels)
    return NcclRun(folder, variables, told, active, text, topology)


def pack(text: str, *, whole: bool = False) -> str:
    """A text as conditions keep it: without repeated lines unless whole, zlib, base 64."""
    lines = text.splitlines(keepends=True)
    kept = lines if whole else dict.fromkeys(lines)
    return base64.b64encode(zlib.compress("".join(kept).encode(), 9)).decode()


def unpack(packed: str) -> str:
    """The log that :func:`pack` packed."""
    return zlib.decompress(base64.b64decode(packed)).decode()


def _asked_by(text: str, devices: tuple[int, ...]) -> Asked:
    """What NCCL is told by a user's graph file, if there is one: the first rings, as trees go."""
    if not text:
        return Asked(devices=devices)
    graphs = nccl_graph.parse(text)
    count = {graph.id: len(graph.channels) for graph in graphs}
    loaded = count[nccl_graph.RING], count[nccl_graph.TREE]
    return Asked(_ranked(graphs, devices)[: min(loaded)], devices, loaded=loaded)


def _users_graph(path: str, devices: Sequence[int], *, cross_nic: bool) -> str:
    """
    The graph file that the user's own environment names.

    Raises:
        ImportFailed: There is none, or NCCL would mishandle it.
    """
    try:
        if not Path(path).is_absolute():
            raise ImportFailed("give the whole path: each host would begin at another folder")
        text = user_files.read_regular(Path(path), nccl_graph.MAX_TEXT).decode(errors="replace")
        nccl_graph.check(nccl_graph.parse(text), devices, cross_nic=cross_nic, own=False)
        nccl_graph.check_ranks(text, devices)
    except OSError as error:
        raise ImportFailed(f"{_GRAPH_FILE}={path}: {error.strerror}") from error
    except ImportFailed as error:
        raise ImportFailed(f"{_GRAPH_FILE}={path}: {error}") from error
    return text


def _ranked(graphs: Sequence[Graph], devices: Sequence[int]) -> tuple[rings.Order, ...]:
    """The ring of each channel, as ranks."""
    ranks = {device: rank for rank, device in enumerate(devices)}
    return tuple(tuple(ranks[dev] for dev in ring) for ring in nccl_graph.rings(graphs))


def _graphs(dump: Dump, devices: Sequence[int], orders: Sequence[rings.Order]) -> tuple[Graph, ...]:
    if not orders:
        return nccl_graph.reinjected(dump.graphs)
    asked = [[devices[position] for position in order] for order in orders]
    return nccl_graph.permuted(dump.graphs, asked)


def _logging(folder: Path) -> dict[str, str]:
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": _SUBSYSTEMS,
        "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p.log",
    }


def _warned(folder: Path) -> list[str]:
    """What NCCL warned of; its log file keeps it from the worker's own log."""
    try:
        return [f"nccl: {text}" for text in nccl_log.parse(_texts(folder)).warnings[:5]]
    except ImportFailed:
        return []


def _texts(folder: Path) -> list[str]:
    """The logs of all processes; the head of one that is too long."""
    texts = []
    for file in sorted(folder.glob("nccl.*.log")):
        try:
            with file.open("rb") as stream:
                texts.append(stream.read(MAX_LOG_BYTES).decode(errors="replace"))
        except OSError as error:
            raise ImportFailed(f"NCCL log: {file.name}: {error.strerror}") from error
    return texts
