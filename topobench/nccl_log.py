"""
What NCCL's own log says it did: rings, channels, algorithms, transports; pure.

NCCL's log is no stable interface, so lines are read by version, and what cannot be read is an
error, never a guess. The rings come from the ``Ring NN : prev -> rank -> next`` lines of all
ranks, not from rank 0's summary, which NCCL cuts at 128 characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topobench.errors import ImportFailed
from topobench.reading import Reason, ReasonCode
from topobench.rings import Order, equivalent, name_of

OLDEST = (2, 20)
"""Oldest version whose log is read."""
_NAMES_FROM = (2, 24)
"""From here on TUNING lines name algorithm and protocol; before, they number them."""
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")

_N = r"(\d{1,9})"
_LINE = re.compile(r"\S+:\d+:\d+ \[-?\d+\] (?:\S+:\d+ (?:\(\S*\) )?)?NCCL (INFO|WARN) (.*)")
_VERSION = re.compile(rf"NCCL version {_N}\.{_N}\.{_N}(\S*)")
_ENV = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (.*?)\.?")
_RANK = re.compile(rf"rank {_N} nranks {_N} cudaDev {_N} nvmlDev {_N}\b")
_RING = re.compile(rf"Ring {_N} : {_N} -> {_N} -> {_N}")
_LOADED = re.compile(rf"Search {_N} : {_N} channels loaded from XML graph")
_VIA = re.compile(
    rf"Channel {_N}(?:/{_N})? : {_N}\[\w+\] -> {_N}\[\w+\](?: \[(?:send|receive)\])? via (\S+)"
)
NEIGHBOURS = "neighbours"
_BYTES = r"(\d{1,18})"
_CHOSE = " Bytes -> Algo "
_NAMED = re.compile(
    rf"(\w+): {_BYTES} Bytes -> Algo (\w+) proto (\w+) channel.*=\{{{_N}\.\.{_N}\}}"
)
_NUMBERED = re.compile(rf"(?:(\w+): )?{_BYTES} Bytes -> Algo (\d) proto (\d) time .*")
# The card that a NET or SHM connection goes through, and how, say no more about the kind.
_KIND = re.compile(r"(P2P/[\w-]+|SHM|NET/\w+|COLLNET/\w+|NVLS)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Choice:
    """
    How NCCL ran a collective of one size.

    Args:
        op: As NCCL calls it, ``AllReduce``; None in logs before 2.23.
        bytes: Payload.
        algorithm: ``RING``, ``TREE``, ``NVLS`` ...
        protocol: ``LL``, ``LL128``, ``SIMPLE``.
        channels: How many it took; None where the log does not say.
    """

    op: str | None
    bytes: int
    algorithm: str
    protocol: str
    channels: int | None


@dataclass(slots=True)
class NcclLog:
    """
    What the ranks of one communicator logged.

    Args:
        version: ``2.28.9``.
        ranks: How many ranks the communicator has.
        env: Settings that NCCL says it took from the environment.
        devices: Rank -> NVML index of its GPU.
        links: Channel -> rank -> (previous, next) rank.
        loaded: Graph id -> channels taken from a graph file; every rank's, as a set.
        choices: Every distinct one, in order.
        transports: Kind (``P2P/CUMEM``, ``SHM``, ``NET/Socket`` ...) -> connections.
        warnings: Texts of WARN lines.
    """

    version: str | None = None
    ranks: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    devices: dict[int, int] = field(default_factory=dict)
    links: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    loaded: dict[int, set[int]] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    transports: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """
    What NCCL was told to do.

    Args:
        rings: Ring of each channel of the graph file, as ranks; empty without a file.
        loaded: Channels of graphs 0 and 1 in the file; default: one for each of the rings.
        devices: NVML index of each rank's GPU; empty where they are not known.
        channels: Channels it was pinned to; None where it chose.
        bytes: Payloads of the all-reduces that were run, each of which the log must name.
    """

    rings: tuple[Order, ...] = ()
    devices: tuple[int, ...] = ()
    channels: int | None = None
    bytes: tuple[int, ...] = ()
    loaded: tuple[int, int] | None = None


def parse(texts: Iterable[str]) -> NcclLog:
    """
    Read the logs of all ranks, one file a process or lines of several in one.

    Raises:
        ImportFailed: The version is too old, lines contradict each other, or nothing of NCCL
            is in there.
    """
    log = NcclLog()
    lines = [line for text in texts for line in _lines(text)]
    if not lines:
        raise ImportFailed("NCCL log: no line of NCCL; NCCL_DEBUG=INFO was not in force")
    for _, message in lines:
        if found := _VERSION.search(message):
            _set_version(log, found)
    for level, message in lines:
        if level == "WARN":
            log.warnings.append(message)
        else:
            _take(log, message)
    return log


def rings(log: NcclLog) -> tuple[Order, ...]:
    """
    The ring of every channel as ranks from 0, rebuilt from the lines of all ranks.

    Raises:
        ImportFailed: A rank's or a channel's line is missing, or a ring is none.
    """
    channels = sorted(log.links)
    if not channels:
        raise ImportFailed("NCCL log: no Ring line; NCCL_DEBUG_SUBSYS lacks GRAPH")
    if channels[-1] != len(channels) - 1:
        raise ImportFailed(f"NCCL log: channels {channels} are not all from 0 on")
    size = log.ranks or len({rank for links in log.links.values() for rank in links})
    return tuple(_ring(channel, log.links[channel], size) for channel in channels)


def mismatch(used: Sequence[Order], asked: Sequence[Order]) -> str | None:
    """
    Where the rings used are not those asked for; None if all are.

    NCCL repeats the file's channels in their order, so ring k of the log must be ring
    k mod n of the file, in the same direction.
    """
    if len(used) < len(asked):
        return f"{len(asked)} channels were asked for, NCCL used {len(used)}"
    for channel, ring in enumerate(used):
        wanted = asked[channel % len(asked)]
        if not equivalent(ring, wanted, symmetric=False):
            return f"channel {channel}: asked {name_of(wanted)}, NCCL used {name_of(ring)}"
    return None


def verify(log: NcclLog, asked: Asked) -> Reason | None:
    """
    Hold what NCCL did against what it was told; None if it did that.

    Every all-reduce must have taken the ring algorithm, and the log must say so.

    Raises:
        ImportFailed: The log does not say what it did.
    """
    used = rings(log)
    text = (
        _other_devices(log, asked.devices)
        or _not_loaded(log, asked.loaded or (len(asked.rings),) * 2)
        or (mismatch(used, asked.rings) if asked.rings else None)
        or _other_algorithm(log, asked.bytes)
    )
    if text is None and asked.channels not in (None, len(used)):
        text = f"{asked.channels} channels were asked for, NCCL used {len(used)}"
    return Reason(ReasonCode.RING_MISMATCH, text) if text else None


def wrong_transport(log: NcclLog, *, rdma_active: bool) -> Reason | None:
    """Why the transport forbids the numbers: sockets, although an RDMA port is active."""
    sockets = log.transports.get("NET/Socket", 0)
    if not sockets or not rdma_active:
        return None
    return Reason(
        ReasonCode.WRONG_TRANSPORT,
        f"NCCL used {sockets} socket connections although an RDMA port is active; see its log, "
        "NCCL_IB_HCA and NCCL_NET",
    )


def summary(log: NcclLog, *, whole: bool = True) -> dict[str, Any]:
    """
    What a run's conditions keep of a log, in plain JSON types.

    Args:
        whole: It holds the lines of all ranks. Else it has ``neighbours`` in place of ``rings``:
            channel -> rank -> [previous, next], for :func:`joined`.

    Raises:
        ImportFailed: As :func:`rings`.
    """
    if whole:
        told: dict[str, Any] = {"rings": dict(Counter(map(name_of, rings(log))))}
    else:
        links = sorted(log.links.items())
        told = {NEIGHBOURS: {str(c): {str(k): [*v] for k, v in of.items()} for c, of in links}}
    return {
        "version": log.version,
        "channels": len(log.links),
        **told,
        "algorithms": {str(c.bytes): f"{c.algorithm}/{c.protocol}" for c in _all_reduces(log)},
        "transports": dict(log.transports),
        "env": dict(log.env),
        "loaded": {str(graph): sorted(counts) for graph, counts in sorted(log.loaded.items())},
        "warnings": log.warnings[:10],
    }


def joined(parts: Sequence[Mapping[str, Any]], ranks: int) -> dict[str, int]:
    """
    The ``rings`` of a gang whose hosts each gave a part of :func:`summary`.

    Raises:
        ImportFailed: As :func:`rings`.
    """
    log = NcclLog(ranks=ranks)
    for part in parts:
        for channel, links in part.get(NEIGHBOURS, {}).items():
            for rank, (before, after) in links.items():
                what = f"Ring {int(channel):02d} of rank {rank}"
                own = log.links.setdefault(int(channel), {})
                _put(own, int(rank), (before, after), what)
    return dict(Counter(map(name_of, rings(log))))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Level and message of each line that NCCL wrote; of equal choices the first."""
    chosen = set()
    for line in text.splitlines():
        if _CHOSE in line:  # one of every operation: ten thousands in a log of a gang
            if line in chosen:
                continue
            chosen.add(line)
        if found := _LINE.search(line):
            yield found[1], found[2].rstrip()
        elif _VERSION.fullmatch(line.strip()):  # at level VERSION it stands alone
            yield "INFO", line.strip()


def _set_version(log: NcclLog, found: re.Match[str]) -> None:
    version = ".".join(found.group(1, 2, 3))
    if (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportFailed(f"NCCL log: version {version} writes another log; {oldest} is the first")
    if log.version not in (None, version):
        raise ImportFailed(f"NCCL log: ranks of versions {log.version} and {version}")
    log.version = version


def _take(log: NcclLog, message: str) -> None:
    if found := _RING.fullmatch(message):
        channel, before, rank, after = map(int, found.groups())
        links = log.links.setdefault(channel, {})
        _put(links, rank, (before, after), f"Ring {channel:02d} of rank {rank}")
    elif found := _VIA.match(message):
        kind = _KIND.match(found[5])
        log.transports[kind[1] if kind else found[5]] += 1
    elif found := _LOADED.fullmatch(message):
        log.loaded.setdefault(int(found[1]), set()).add(int(found[2]))
    elif found := _ENV.fullmatch(message):
        log.env[found[1]] = found[2]
    elif found := _RANK.search(message):
        rank, ranks, _, device = map(int, found.groups())
        if log.ranks not in (None, ranks):
            raise ImportFailed(f"NCCL log: communicators of {log.ranks} and of {ranks} ranks")
        log.ranks = ranks
        _put(log.devices, rank, device, f"nvmlDev of rank {rank}")
    elif _CHOSE in message:
        choice = _choice(log, message)
        if choice not in log.choices:
            log.choices.append(choice)


def _put(known: dict[int, Any], key: int, value: Any, what: str) -> None:
    if known.setdefault(key, value) != value:
        raise ImportFailed(f"NCCL log: {what} is said to be {known[key]} and {value}")


def _choice(log: NcclLog, message: str) -> Choice:
    version = tuple(map(int, (log.version or "99.0").split(".")[:2]))
    try:
        if version >= _NAMES_FROM and (found := _NAMED.match(message)):
            op, size, algorithm, protocol, low, high = found.groups()
            return Choice(op, int(size), algorithm, protocol, int(high) - int(low) + 1)
        if version < _NAMES_FROM and (found := _NUMBERED.match(message)):
            op, size, algorithm, protocol = found.groups()
            names = _ALGORITHMS[int(algorithm)], _PROTOCOLS[int(protocol)]
            return Choice(op, int(size), *names, None)
    except IndexError:
        pass
    raise ImportFailed(
        f"NCCL log: version {log.version or 'unknown'} does not write {message[:100]!r}"
    )


def _ring(channel: int, links: Mapping[int, tuple[int, int]], size: int) -> Order:
    where = f"NCCL log: ring {channel:02d}"
    if missing := sorted(set(range(size)) - set(links)) if size <= 65536 else [0]:
        raise ImportFailed(f"{where} has no line of rank {missing[0]}; {size} ranks take part")
    order, rank = [0], links[0][1]
    while rank != 0:
        if rank not in links or len(order) == size:
            raise ImportFailed(f"{where} does not come back to rank 0")
        if links[rank][0] != order[-1]:
            raise ImportFailed(f"{where}: ranks {order[-1]} and {rank} disagree on who is next")
        order.append(rank)
        rank = links[rank][1]
    if len(order) < size or links[0][0] != order[-1]:
        raise ImportFailed(f"{where} does not join all {size} ranks: {name_of(order)}")
    return tuple(order)


def _other_devices(log: NcclLog, devices: Sequence[int]) -> str | None:
    for rank, device in enumerate(devices):
        if log.devices.get(rank, device) != device:
            return (
                f"rank {rank} should be on GPU {device} (NVML index), it is on {log.devices[rank]}"
            )
    return None


def _not_loaded(log: NcclLog, expected: tuple[int, int]) -> str | None:
    """Why a graph file was not used as it stands; without one, that one was used."""
    for graph, channels in enumerate(expected):
        told = log.loaded.get(graph, set())
        wanted = {channels} if channels else set()
        if told != wanted:
            got = ", ".join(map(str, sorted(told))) or "none"
            if not channels:
                return (
                    f"NCCL loaded {got} channels of graph {graph} from a file that a file of its "
                    "own names (/etc/nccl.conf, ~/.nccl.conf or NCCL_CONF_FILE); name it in env: "
                    "as well, NCCL_GRAPH_FILE, and its rings are proven"
                )
            return f"NCCL loaded {got} of {channels} channels of graph {graph} from the file"
    return None


def _all_reduces(log: NcclLog) -> list[Choice]:
    """Logs before 2.23 do not name the operation; in a run of all-reduces few are others."""
    return [choice for choice in log.choices if choice.op in (None, "AllReduce")]


def _other_algorithm(log: NcclLog, sizes: Sequence[int]) -> str | None:
    chosen = _all_reduces(log)
    for choice in chosen:
        if choice.algorithm != "RING":
            return f"an all-reduce of {choice.bytes} bytes took {choice.algorithm}, not RING"
    if missing := set(sizes) - {choice.bytes for choice in chosen}:
        return f"NCCL's log names no algorithm for {min(missing)} bytes"
    return None
