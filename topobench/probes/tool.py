"""What the wrappers of NVIDIA's own benchmarks share: finding them, asking for their options."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from topobench import stats
from topobench.errors import ProbeUnavailable
from topobench.probes import foreign
from topobench.probes.protocol import WorkerContext
from topobench.reading import Reading, ReasonCode, Scalar

HELP_SECONDS = 20.0
END_SECONDS = 5.0
"""Left to end a tool and read its output before the launcher ends the worker."""
LARGEST_OUTPUT = 16 << 20
_TAIL_LINES = 40


@dataclass(frozen=True, slots=True)
class Ran:
    """
    A run of a tool to its end or limit.

    Args:
        text: Its standard output.
    """

    text: str
    ended: foreign.Ended
    limit_seconds: float


def require_gpus(context: WorkerContext) -> None:
    """
    Refuse a cell without GPUs.

    Raises:
        ProbeUnavailable: ``no_gpu``.
    """
    if not context.devices:
        raise ProbeUnavailable(ReasonCode.NO_GPU, "this cell has no GPU")


def find(program: str | None, name: str, env: Mapping[str, str]) -> str:
    """
    The path of a tool: the user's, or the one on PATH.

    Raises:
        ProbeUnavailable: ``no_binary``.
    """
    found = shutil.which(program or name, path=env.get("PATH"))
    if found is None:
        where = f"{program} is no program" if program else f"{name} is not on PATH"
        text = f"{where} on this host; install it, or give its path as program"
        raise ProbeUnavailable(ReasonCode.NO_BINARY, text)
    return found


def takes(program: str, option: str, env: Mapping[str, str]) -> bool:
    """Whether the help of a tool names an option; old versions lack some."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "help"
        foreign.run_foreign(
            [program, "--help"], env=env, timeout_seconds=HELP_SECONDS, stdout_path=output
        )
        return option in foreign.output_text(output, LARGEST_OUTPUT)


def run(
    argv: Sequence[str], *, env: Mapping[str, str], context: WorkerContext, folder: Path
) -> Ran:
    """
    Run a tool; the end of its output goes to the worker's log.

    Raises:
        ProbeUnavailable: ``no_binary``: it cannot be started.
        ProbeError: ``parse``: too much output.
    """
    limit = max(1.0, context.deadline_seconds - END_SECONDS)
    output = folder / "stdout"
    ended = foreign.run_foreign(
        argv, env=env, timeout_seconds=limit, stdout_path=output, folder=folder
    )
    text = foreign.output_text(output, LARGEST_OUTPUT)
    foreign.show_tail(text, _TAIL_LINES)
    return Ran(text, ended, limit)


def reading(metric: str, value: float, point: Mapping[str, Scalar]) -> Reading:
    """One number, of which only the tool knows how many samples stand behind it."""
    return Reading(metric, stats.summarise([value]), (value,), point)
