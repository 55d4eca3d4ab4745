"""
A benchmark of the user's own under the arms, the conditions and the limits of every probe.

The worker stays its supervisor: whatever the program leaves behind ends with the cell. One
execution is one run; blocks and processes repeat it. Only standard output is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from topobench import stats
from topobench.errors import ProbeError, ProbeUnavailable
from topobench.probes import foreign
from topobench.probes.metrics import DURATION
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.reading import Metric, Reading, ReasonCode
from topobench.user_command import GPUS, PROBE, Definition, values

VERSION_SECONDS = 20.0
END_SECONDS = 5.0
"""Left to end the program and read its output before the launcher ends the worker."""
LARGEST_OUTPUT = 64 << 20
_TAIL_LINES = 40
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Command:
    """Run a command of ``commands:`` once; its time, and the numbers it prints."""

    name: ClassVar[str] = PROBE
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "your own benchmark: its time and the numbers it prints"
    needs: ClassVar[frozenset[str]] = frozenset()
    metrics: ClassVar[tuple[Metric, ...]] = (DURATION,)
    own_metrics: ClassVar[bool] = True
    arms: ClassVar[Arms] = Arms.BINDINGS

    command: str | None = parameter(
        None, kind=Kind.TEXT, help="names of the section commands:; none: all of them"
    )
    digest: str | None = parameter(None, kind=Kind.TEXT, help="of the definition; set by commands:")
    gpus: str = parameter(
        "none", kind=Kind.CHOICE, choices=GPUS, help="which GPUs it sees; set by commands:"
    )
    definition: str | None = parameter(
        None, kind=Kind.TEXT, help="the whole definition as JSON; set by commands:"
    )

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Run it to its end.

        Raises:
            ProbeUnavailable: ``not_selected``: there is no definition; ``no_binary``.
            ProbeError: ``deadline``, ``crashed`` (its exit code), ``signal``, or ``parse``.
        """
        if self.definition is None:
            text = "no command is described; see the section commands: of the configuration"
            raise ProbeUnavailable(ReasonCode.NOT_SELECTED, text)
        wanted = Definition.from_text(self.definition)
        with _folder(wanted) as folder, tempfile.TemporaryDirectory() as kept:
            own = {k: v for k, v in wanted.env.items() if k not in _compared(wanted)}
            env = foreign.environment({**own, "PWD": str(folder)})
            identity = _identity(wanted, env, folder, Path(kept))
            context.note("command", identity)
            if identity["version"]:
                context.note("version", identity["version"])
            limit = min(wanted.timeout_seconds, max(1.0, context.deadline_seconds - END_SECONDS))
            output = Path(kept) / "stdout"
            ended = foreign.run_foreign(
                wanted.argv, env=env, timeout_seconds=limit, stdout_path=output, folder=folder
            )
            text = foreign.output_text(output, LARGEST_OUTPUT)
        foreign.show_tail(text, _TAIL_LINES)
        foreign.check_end(wanted.argv[0], ended, limit)
        found = _values(wanted, text)
        yield _reading(DURATION, [ended.seconds])
        for metric, numbers in found.items():
            yield _reading(metric, numbers)

    def estimated_seconds(self) -> float:
        """What the definition says."""
        return 1.0 if self.definition is None else Definition.from_text(self.definition).seconds


def _compared(wanted: Definition) -> frozenset[str]:
    """Variables that the arms set: the worker already has this arm's values."""
    return frozenset(name for env in wanted.environments for name in env)


def _values(wanted: Definition, text: str) -> dict[Metric, list[float]]:
    try:
        return {m.metric: numbers for m, numbers in values(wanted, text).items()}
    except ValueError as error:
        raise ProbeError(ReasonCode.PARSE, f"{wanted.name}: {error}") from error


def _reading(metric: Metric, numbers: Sequence[float]) -> Reading:
    return Reading(metric.name, stats.summarise(numbers), tuple(numbers), better=metric.better)


@contextlib.contextmanager
def _folder(wanted: Definition) -> Iterator[Path]:
    """Where it runs."""
    if wanted.folder is None:
        with tempfile.TemporaryDirectory() as made:
            yield Path(made)
        return
    folder = Path(wanted.folder).expanduser()
    if not folder.is_dir():
        text = f"the folder of the command {wanted.name}, {folder}, is not on this host"
        raise ProbeUnavailable(ReasonCode.NO_BINARY, text)
    yield folder


def _identity(wanted: Definition, env: dict[str, str], folder: Path, kept: Path) -> dict[str, Any]:
    """What was run: the digests of the program and of files among its arguments, its version."""
    program = shutil.which(wanted.argv[0], path=env.get("PATH"))
    files = [program] if program else []
    files += [str(folder / a) for a in wanted.argv[1:] if a and (folder / a).is_file()]
    return {
        "name": wanted.name,
        "argv": list(wanted.argv),
        "sha256": {f: _digest(Path(f)) for f in files},
        "version": _version(wanted, env, folder, kept),
    }


def _digest(path: Path) -> str | None:
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    except OSError:
        return None
    return found.hexdigest()


def _version(wanted: Definition, env: dict[str, str], folder: Path, kept: Path) -> str | None:
    """The first line that the version command prints; None if there is none."""
    if not wanted.version:
        return None
    output = kept / "version"
    ended = foreign.run_foreign(
        wanted.version, env=env, timeout_seconds=VERSION_SECONDS, stdout_path=output, folder=folder
    )
    lines = foreign.output_text(output, _BLOCK).split("\n", 1)
    return lines[0].strip()[:200] or None if ended.code == 0 and os.path.exists(output) else None
