"""Cases of the probe ``prefill`` in a process of their own."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path
from typing import Any

import torch

from probing import Listener, measure
from topobench.errors import ProbeError
from topobench.probes.prefill import Prefill

ROOM_BYTES = 300_000_000


def limited(results: Any) -> None:
    """Measure a case too large for the memory it may take, then a small one; tells both ends."""
    case: dict[str, Any] = {"shape": "tiny", "dtype": "fp32", "attention": "flash"}
    torch.set_num_threads(1)
    listener = Listener()
    measure(Prefill(**case, sequence=32), listener.context())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES,) * 2)
    outcomes = []
    later = dataclasses.replace(listener.context(), cells_before=1)
    for sequence in (1 << 19, 64):
        try:
            outcomes.append(measure(Prefill(**case, sequence=sequence), later)[0].metric)
        except ProbeError as error:
            outcomes.append(f"{type(error).__name__} {error}")
    results.put(outcomes)
