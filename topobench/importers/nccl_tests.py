"""Outputs of NVIDIA's nccl-tests, text and JSON, as documents ``topobench.import/1``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from topobench.errors import ImportFailed
from topobench.importers.collectives import Half, Line, infer_op, missing_sizes, settle
from topobench.importers.document import Document, DocumentStatus, check_size
from topobench.importers.nccl_json import read_json
from topobench.importers.nccl_text import Output, read_text
from topobench.units import format_bytes

TOOL = "nccl-tests"


@dataclass(frozen=True, slots=True)
class Placement:
    """
    One half of a row, in base units.

    Args:
        time_seconds: None where the tool printed the time to launch instead.
        busbw_bytes_per_second: None for one rank: nothing travelled.
        wrong_count: None where nothing was checked.
        relative_error: Only versions before 2.13.
        per_iteration: Single iterations, timed by events on the GPU (-I 1).
    """

    time_seconds: float | None
    cpu_time_seconds: float | None
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float | None
    wrong_count: int | None
    relative_error: float | None
    per_iteration: dict[str, object] | None


@dataclass(frozen=True, slots=True)
class Row:
    """One message size; ``redop`` and ``root`` are None where the collective has none."""

    size_bytes: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: Placement
    in_place: Placement | None
    timestamp: str | None


def parse(text: str) -> Document:
    """
    Read one run of nccl-tests.

    Args:
        text: What it printed, or the file it wrote with -J.

    Raises:
        ImportFailed: It is neither.
    """
    check_size(len(text))
    text = text.removeprefix("\ufeff")
    out = read_json(text) if text.lstrip().startswith("{") else read_text(text)
    if not out.recognised:
        raise ImportFailed(
            "no output of nccl-tests: no header, row or result line of it was found; give the "
            "text one run printed, or the file it wrote with -J"
        )
    return _judged(out)


def _judged(out: Output) -> Document:
    """Keep the rows that agree with themselves, and say what the whole is worth."""
    op = out.op or infer_op(out.lines, out.rank_count)
    settled = [settle(x, op, out.rank_count) for x in out.lines]
    sound = [x for x in settled if x is not None]
    out.malformed += len(out.lines) - len(sound)
    restated = any(
        new is not None and new is not old for new, old in zip(settled, out.lines, strict=True)
    )
    missing = _missing(out, sound)
    invalid = list(_why_invalid(out, sound))
    partial = list(_why_partial(out, sound, missing, op))
    status = DocumentStatus.OK
    if invalid or partial:
        status = DocumentStatus.INVALID if invalid else DocumentStatus.PARTIAL
    return Document(
        tool=TOOL,
        version=out.version,
        status=status,
        reasons=(*invalid, *partial, *_notes(out, op, sound, restated), *out.errors),
        malformed_rows=out.malformed,
        requested={**_UNSAID, **out.requested, "missing_bytes": list(missing)},
        rows=tuple(_row(x, out.rank_count) for x in sound),
        facts=_facts(out, op),
    )


_UNSAID: dict[str, int | None] = dict.fromkeys(
    (
        *("threads", "gpus_per_thread", "minimum_bytes", "maximum_bytes"),
        *("effective_maximum_bytes", "step_factor", "step_bytes", "warmups", "iterations"),
        *("aggregated_iterations", "validation", "graph"),
    )
)


def _facts(out: Output, op: str | None) -> dict[str, Any]:
    return {
        "format": out.format,
        "op": op,
        "op_inferred": out.op is None and op is not None,
        "nccl_version": out.nccl,
        "local_start_time": out.started,
        "rank_count": out.rank_count,
        "ranks": out.ranks,
    }


def _why_invalid(out: Output, sound: list[Line]) -> Iterator[str]:
    if out.jobs > 1:
        yield (
            f"duplicate rank ids: {out.jobs} independent jobs, not one run (built without MPI, "
            "or several runs in one file); run them as one, or give one file a run"
        )
    wrong = sum(h.wrong_count or 0 for x in sound for h in x.halves)
    if wrong or out.wrong == "FAILED":
        yield f"wrong data: {wrong or 'some'} elements were wrong"
    if not sound:
        yield "no row with a result"


def _why_partial(
    out: Output, sound: list[Line], missing: tuple[int, ...], op: str | None
) -> Iterator[str]:
    if out.malformed:
        yield f"rows that could not be read, or contradict themselves: {out.malformed}"
    asked, given = (out.requested.get(f"{p}maximum_bytes") for p in ("", "effective_"))
    if given is not None:
        wanted = "an unknown size" if asked is None else format_bytes(asked)
        yield f"asked for up to {wanted}; the tool reduced that to {format_bytes(given)} (memory)"
    if missing:
        yield f"no row for {len(missing)} of the sizes asked for, from {format_bytes(missing[0])}"
    if out.wrong is None:
        yield "cut off: the lines that end a run are missing"
    if sound and op is None:
        yield "the text does not say which collective ran, and several could look so"


def _notes(out: Output, op: str | None, sound: list[Line], restated: bool) -> Iterator[str]:
    if out.rank_count == 1:
        yield "one rank: nothing travelled, so that there is no bus bandwidth"
    if out.below_minimum:
        yield "below the average bus bandwidth the run itself asked for"
    if op is not None and out.op is None:
        yield f"the collective is not named; its columns fit {op} alone"
    if sound and not any(h.checked for x in sound for h in x.halves):
        yield "the data was not checked"
    if restated:
        yield "algbw is given as size by time; this version printed it without a rank's own share"


def _missing(out: Output, sound: list[Line]) -> tuple[int, ...]:
    """Sizes that some group of rows (one type, reduction and root) does not have."""
    low, high = out.requested.get("minimum_bytes"), out.requested.get("maximum_bytes")
    if low is None or high is None or not sound:
        return ()
    groups: dict[tuple[str, str | None, int | None], set[int]] = {}
    for line in sound:
        groups.setdefault((line.dtype, line.redop, line.root), set()).add(line.size_bytes)
    lacking: set[int] = set()
    for sizes in groups.values():
        lacking.update(
            missing_sizes(
                sizes,
                minimum=low,
                maximum=high,
                factor=out.requested.get("step_factor"),
                step=out.requested.get("step_bytes"),
            )
        )
    return tuple(sorted(lacking))


def _row(line: Line, ranks: int | None) -> Row:
    return Row(
        size_bytes=line.size_bytes,
        count=line.count,
        dtype=line.dtype,
        redop=line.redop,
        root=line.root,
        out_of_place=_placement(line.out_of_place, ranks),
        in_place=_placement(line.in_place, ranks) if line.in_place else None,
        timestamp=line.timestamp,
    )


def _placement(half: Half, ranks: int | None) -> Placement:
    return Placement(
        time_seconds=half.time.value if half.time else None,
        cpu_time_seconds=half.cpu_time.value if half.cpu_time else None,
        algbw_bytes_per_second=half.algbw.value,
        busbw_bytes_per_second=None if ranks == 1 else half.busbw.value,
        wrong_count=half.wrong_count,
        relative_error=half.relative_error,
        per_iteration=half.per_iteration,
    )
