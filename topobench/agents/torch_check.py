"""Which GPUs torch can really use, asked of a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from topobench.topology import Topology

_SECONDS = 60
_PROGRAM = """
import json, sys
answer = {"gpus": [], "errors": []}
try:
    import torch
    answer["cuda"] = torch.version.cuda
    torch.cuda.init()
    for index in range(torch.cuda.device_count()):
        try:
            torch.ones(1, device=f"cuda:{index}").add_(1).item()
            answer["gpus"].append(str(torch.cuda.get_device_properties(index).uuid))
        except Exception as error:
            answer["errors"].append(f"{type(error).__name__}: {error}")
except Exception as error:
    answer["errors"].append(f"{type(error).__name__}: {error}")
print("\\n" + json.dumps(answer))
"""


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """
    What torch is and can do here.

    Args:
        gpus: UUIDs of the GPUs that ran a kernel; None when not asked.
        error: Why torch cannot use some of the driver's GPUs.
    """

    version: str | None = None
    gpus: tuple[str, ...] | None = None
    error: str | None = None


def torch_facts(topology: Topology) -> TorchFacts:
    """
    Ask torch, where the driver shows GPUs; it is not imported into this process.

    Takes seconds: each GPU gets a CUDA context and runs one small kernel.
    """
    version = torch_version()
    if version is None:
        return TorchFacts(error="torch is not installed for this interpreter")
    if not any(g.state == "ok" and g.uuid for g in topology.gpus):
        return TorchFacts(version)
    answer = _ask()
    gpus = tuple(g if g.startswith(("GPU-", "MIG-")) else f"GPU-{g}" for g in answer["gpus"])
    error = answer["errors"][0].strip().splitlines()[0] if answer["errors"] else None
    return TorchFacts(version, gpus, _explained(error, version, answer.get("cuda"), topology))


def torch_version() -> str | None:
    """Version of the installed torch, without importing it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _ask() -> dict[str, Any]:
    """What the program says; an agent's own hiding of GPUs is not passed to it."""
    hidden = {"CUDA_VISIBLE_DEVICES"}
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"gpus": [], "errors": [f"torch did not answer within {_SECONDS} s"]}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"gpus": [], "errors": [f"its process ended with {done.returncode}: {last}"]}
    return answer


def _explained(error: str | None, version: str, cuda: str | None, topology: Topology) -> str | None:
    """The error with both versions and what to install."""
    if error is None:
        return None
    driver = f"driver {topology.machine.driver} (CUDA {topology.machine.cuda})"
    built = f"torch {version} (CUDA {cuda})" if cuda else f"torch {version} (no CUDA in it)"
    hint = f"install a torch built for CUDA {topology.machine.cuda} or older, or a newer driver"
    return f"{built} on {driver}: {error}; {hint}"
