"""Logs as NCCL's own print statements would write them, for machines that are not here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topobench.rings import Order


def made(
    orders: Sequence[Order],
    *,
    version: str = "2.28.9",
    loaded: int | None = None,
    algorithm: str = "RING",
    via: str = "P2P/CUMEM",
    devices: Sequence[int] = (),
    size: int = 8192,
    hosts: Sequence[str] = (),
    net: str = "IB/0/GDRDMA",
) -> list[str]:
    """
    The logs of all ranks, one text each, as NCCL's own print statements would write them.

    Args:
        orders: Ring of every channel.
        loaded: Channels taken from a file; None without one.
        devices: NVML index of each rank; default: its place on its host.
        size: Payload of the all-reduce, in bytes.
        hosts: Of each rank; default: one host.
        net: How ranks of different hosts are joined; every second one by another GPU (PXN).
    """
    ranks, count = len(orders[0]), len(orders)
    on = [*hosts] or ["node1"] * ranks
    places = devices or [on[:rank].count(on[rank]) for rank in range(ranks)]
    joins = _Joins(orders, on, places, via, net)
    texts = []
    for rank in range(ranks):
        device = places[rank]
        prefix = f"{on[rank]}:{100 + rank}:{100 + rank} [{device}] NCCL INFO "
        who = f"rank {rank} nranks {ranks} cudaDev {device} nvmlDev {device}"
        head = f"ncclCommInitRankConfig comm 0x1 {who} busId {16 + device:x}0 commId 0x2 - Init"
        lines = [f"NCCL version {version}+cuda13.0", f"{head} START"]
        lines += ["NCCL_NVLS_ENABLE set by environment to 0."]
        if loaded is not None:
            for graph, pattern in ((0, 4), (1, 1)):
                lines += [
                    f"Search {graph} : {loaded} channels loaded from XML graph",
                    f"Pattern {pattern}, crossNic 0, nChannels {loaded}, bw 30.000000/30.000000, "
                    "type NVL/PIX, sameChannels 0",
                    *_searched(orders[:loaded], on, rank, places),
                ]
        local = f"localRanks {on.count(on[rank])} localRank {on[:rank].count(on[rank])} MNNVL 0"
        lines += [f"comm 0x1 rank {rank} nRanks {ranks} nNodes {len(set(on))} {local}"]
        lines += _trees(rank, ranks, count)
        if rank == 0:
            told = (" ".join(map(str, order)) for order in orders)
            lines += [f"Channel {c:02d}/{count:02d} : {t}"[:128] for c, t in enumerate(told)]
        lines += [
            f"Ring {c:02d} : {before} -> {rank} -> {after}"
            for c, (before, after) in enumerate(_beside(order, rank) for order in orders)
        ]
        lines += [
            "P2P Chunksize set to 524288",
            f"{count} coll channels, {count} collnet channels, 0 nvls channels, 32 p2p channels, "
            "32 p2p channels per peer",
            f"{head} COMPLETE",
        ]
        lines += joins.of(rank)
        lines += ["Connected all rings, use ring PXN 0 GDR 1", "Connected all trees"]
        if rank == 0:
            tuned = f"Algo {algorithm} proto SIMPLE channel{{Lo..Hi}}={{0..{count - 1}}}"
            lines += [f"AllReduce: {size} Bytes -> {tuned}"] * 3
        texts.append("".join(f"{prefix}{line}\n" for line in lines))
    return texts


class _Joins:
    """The lines of connections, which both ends write where a network lies between them."""

    def __init__(
        self,
        orders: Sequence[Order],
        on: Sequence[str],
        places: Sequence[int],
        via: str,
        net: str,
    ) -> None:
        self._orders, self._on, self._places, self._via = orders, on, places, via
        name, number, *more = net.split("/")
        gdr = "".join(f"/{word}" for word in more)
        self._net = f"NET/{name}/{number}{gdr}", f"NET/{name}/{number}(1){gdr}"

    def of(self, rank: int) -> Iterator[str]:
        for channel, order in enumerate(self._orders):
            before, after = _beside(order, rank)
            if self._on[rank] == self._on[after]:
                yield f"Channel {channel:02d}/0 : {self._pair(rank, after)} via {self._via}"
            else:
                way = self._net[channel % 2]
                yield f"Channel {channel:02d}/0 : {self._pair(rank, after)} [send] via {way}"
            if self._on[rank] != self._on[before]:
                pair = self._pair(before, rank)
                yield f"Channel {channel:02d}/0 : {pair} [receive] via {self._net[0]}"

    def _pair(self, a: int, b: int) -> str:
        return f"{a}[{self._places[a]}] -> {b}[{self._places[b]}]"


def _beside(order: Order, rank: int) -> tuple[int, int]:
    at = order.index(rank)
    return order[at - 1], order[(at + 1) % len(order)]


def _searched(
    orders: Sequence[Order], on: Sequence[str], rank: int, places: Sequence[int]
) -> Iterator[str]:
    """The host's own part of each channel, as the search for it is told."""
    for channel, order in enumerate(orders):
        own = (f"GPU/0-{16 + places[r]:x}0" for r in order if on[r] == on[rank])
        yield f"{channel:2d} : {' '.join(own)}"


def _trees(rank: int, ranks: int, count: int) -> Iterator[str]:
    """A chain, as inside a host, from 0 on in the first half of the channels and back after it."""
    ends = rank - 1, rank + 1 if rank + 1 < ranks else -1
    ways = [ends if channel < count // 2 else ends[::-1] for channel in range(count)]
    for channel, (up, down) in enumerate(ways):
        yield f"Tree {channel} : {up} -> {rank} -> {down}/-1/-1"
    told = (f"[{c}] {down}/-1/-1->{rank}->{up}" for c, (up, down) in enumerate(ways))
    yield f"Trees {' '.join(told)}"
