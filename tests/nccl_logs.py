"""Logs as NCCL's own print statements would write them, for machines that are not here."""

from __future__ import annotations

from collections.abc import Sequence

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
) -> list[str]:
    """
    The logs of all ranks, one text each, as NCCL's own print statements would write them.

    Args:
        orders: Ring of every channel.
        loaded: Channels taken from a file; None without one.
        devices: NVML index of each rank; default: the rank.
        size: Payload of the all-reduce, in bytes.
    """
    ranks, count = len(orders[0]), len(orders)
    texts = []
    for rank in range(ranks):
        device = devices[rank] if devices else rank
        prefix = f"node1:{100 + rank}:{100 + rank} [{rank}] NCCL INFO "
        head = f"ncclCommInitRankConfig comm 0x1 rank {rank} nranks {ranks} cudaDev {rank} "
        lines = [f"NCCL version {version}+cuda13.0"] if rank == 0 else []
        lines += [f"{head}nvmlDev {device} busId {16 + rank:x}0 commId 0x2 - Init START"]
        lines += ["NCCL_NVLS_ENABLE set by environment to 0."]
        if loaded is not None:
            lines += [f"Search {g} : {loaded} channels loaded from XML graph" for g in (0, 1)]
        if rank == 0:
            told = (" ".join(map(str, order)) for order in orders)
            lines += [f"Channel {c:02d}/{count:02d} : {t}"[:128] for c, t in enumerate(told)]
        places = [(c, order, order.index(rank)) for c, order in enumerate(orders)]
        lines += [
            f"Ring {c:02d} : {order[at - 1]} -> {rank} -> {order[(at + 1) % ranks]}"
            for c, order, at in places
        ]
        lines += [
            f"Channel {c:02d}/0 : {rank}[{device}] -> {order[(at + 1) % ranks]}[7] via {via}"
            for c, order, at in places
        ]
        if rank == 0:
            tuned = f"Algo {algorithm} proto SIMPLE channel{{Lo..Hi}}={{0..{count - 1}}}"
            lines += [f"AllReduce: {size} Bytes -> {tuned}"] * 3
        texts.append("".join(f"{prefix}{line}\n" for line in lines))
    return texts
