"""
A stand-in for NCCL, by NCCL's own rules, where there are no GPUs: it runs in real workers.

It takes the settings that NCCL takes, dumps its graphs, reads a graph file, repeats channels
and logs as NCCL does. Only the sum is not done.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nccl_logs import made
from topobench import nccl_graph
from topobench.errors import ProbeError
from topobench.probes import so_far
from topobench.probes.metrics import LATENCY
from topobench.probes.protocol import Arms, WorkerContext, parameter
from topobench.probes.timing import Sampler
from topobench.reading import Metric, Reading, ReasonCode, Summary
from topobench.rings import Order

GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="12" speedinter="12" \
latencyinter="0" typeintra="SYS" typeinter="PIX" samechannels="1">
    {channels}
  </graph>
  <graph id="1" pattern="1" crossnic="0" nchannels="2" speedintra="12" speedinter="12" \
latencyinter="0" typeintra="SYS" typeinter="PIX" samechannels="1">
    {channels}
  </graph>
  <graph id="3" pattern="5" crossnic="0" nchannels="0" speedintra="0" speedinter="0" \
latencyinter="0" typeintra="LOC" typeinter="LOC" samechannels="0"/>
</graphs>
"""


@dataclass(frozen=True)
class MadeNccl:
    """
    One all-reduce of NCCL, without GPUs.

    Rank r is on the GPU of NVML index ``first`` + r.
    """

    name: ClassVar[str] = "madenccl"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "a stand-in for NCCL on hosts without GPUs"
    needs: ClassVar[frozenset[str]] = frozenset()
    metrics: ClassVar[tuple[Metric, ...]] = (LATENCY,)
    arms: ClassVar[Arms] = Arms.GANG

    bytes: int = parameter(8, help="payload")
    first: int = parameter(0, help="NVML index of rank 0's GPU")
    fault: str = parameter("", help="what goes wrong: ignored, tree, sockets, silent, conf, error")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        devices = [self.first + rank for rank in range(context.ranks)]
        file = os.environ.get("NCCL_GRAPH_DUMP_FILE")
        if file and os.environ.get("NCCL_GRAPH_DUMP_FILE_RANK", "0") == str(context.rank):
            Path(file).write_text(_graphs(devices))
        rings, loaded = self._rings(os.environ, devices)
        given = loaded is not None
        text = made(
            _repeated(rings, os.environ.get("NCCL_MAX_CTAS")),
            loaded=loaded,
            devices=devices,
            algorithm="TREE" if self.fault == "tree" and given else "RING",
            via="NET/Socket/0" if self.fault == "sockets" else "P2P/CUMEM",
            size=self.bytes,
        )[context.rank]
        if os.environ.get("NCCL_DEBUG") == "INFO" and not (self.fault == "silent" and given):
            name = os.environ["NCCL_DEBUG_FILE"].replace("%h", socket.gethostname())
            with Path(name.replace("%p", str(os.getpid()))).open("a") as log:
                log.write(text)
                if self.fault == "error":
                    log.write("\nhere:1:1 [0] init.cc:9 NCCL WARN ring 0 does not loop back\n")
        if self.fault == "error":
            with so_far.durations(LATENCY.name):
                Sampler(0.0, 1.0).add(1.0)
            raise ProbeError(ReasonCode.CUDA_ERROR, "NCCL error")
        yield Reading(LATENCY.name, Summary(1, 1.0, 1.0, 1.0, 0.0), (1.0,))

    def _rings(
        self, environment: Mapping[str, str], devices: list[int]
    ) -> tuple[list[Order], int | None]:
        """The rings before channels are repeated, and how many a file gave."""
        file = environment.get("NCCL_GRAPH_FILE")
        if not file:
            return [tuple(range(len(devices)))] * 2, 2 if self.fault == "conf" else None
        found = nccl_graph.rings(nccl_graph.parse(Path(file).read_text()))
        rings = [tuple(devices.index(dev) for dev in ring) for ring in found]
        if self.fault == "ignored":
            rings = [tuple(range(len(devices)))] * len(rings)
        return rings, len(rings)


def _graphs(devices: list[int]) -> str:
    gpus = "".join(f'<gpu dev="{dev:#x}" rank="{r}"/>' for r, dev in enumerate(devices))
    return GRAPHS.format(channels=f"<channel>{gpus}</channel>" * 2)


def _repeated(rings: list[Order], pinned: str | None) -> list[Order]:
    """Twice each, as NCCL does, or as many as it is pinned to."""
    count = int(pinned) if pinned else 2 * len(rings)
    return [rings[channel % len(rings)] for channel in range(count)]
