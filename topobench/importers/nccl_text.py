"""
The text that nccl-tests prints, versions 1.0 to 2.20.

The columns are read from the table's own header, because they moved with versions and flags:
no redop or root before 2.13, ``error`` before ``#wrong``, ``cputime`` with -C 1, four more
figures a half with -I 1, date and time with -S 1. A table without its header is read by the
number of its columns, where that leaves no doubt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from topobench.importers.collectives import OPS, Half, Line
from topobench.importers.document import check_rows, clean, figure, tagged_lines, whole

MICROSECONDS, MILLISECONDS = -6, -3
GIGABYTES = 9


@dataclass(frozen=True, slots=True)
class Rank:
    """A participant, as the tool lists it; ``host`` is None where it printed no name."""

    rank: int
    group: int | None
    pid: int | None
    host: str | None
    device: int | None
    pci: str
    name: str


@dataclass(slots=True)
class Output:
    """
    What an output of nccl-tests says, before it is judged.

    Args:
        rank_count: Ranks of one communicator.
        malformed: Rows that could not be read.
        wrong: The tool's verdict on the data: ``OK``, ``FAILED``; None where it is missing.
        jobs: Times that rank 0 or the verdict appears; more than one is no single run.
        started: Local time without a zone, as printed.
    """

    version: str | None = None
    format: str = "text"
    op: str | None = None
    requested: dict[str, Any] = field(default_factory=dict)
    ranks: list[Rank] = field(default_factory=list)
    rank_count: int | None = None
    lines: list[Line] = field(default_factory=list)
    malformed: int = 0
    wrong: str | None = None
    below_minimum: bool = False
    jobs: int = 1
    nccl: str | None = None
    started: str | None = None
    errors: list[str] = field(default_factory=list)
    recognised: bool = False


@dataclass(frozen=True, slots=True)
class _Layout:
    """The columns of a table: names before the figures, then one or two halves."""

    leading: tuple[str, ...]
    halves: int = 2
    power: int = MICROSECONDS
    cpu: bool = False
    counted: bool = True
    per_iteration: bool = False
    timestamp: bool = False

    @property
    def half_tokens(self) -> int:
        return 8 if self.per_iteration else 4

    @property
    def tokens(self) -> int:
        return len(self.leading) + self.halves * self.half_tokens + 2 * self.timestamp

    @property
    def seams(self) -> tuple[int, int]:
        """Tokens after which the tool pauses, so that other text may come between."""
        return len(self.leading), len(self.leading) + self.half_tokens


_NEWEST = ("size", "count", "type", "redop", "root")
_BY_TOKENS = {
    13: _Layout(_NEWEST),
    15: _Layout(_NEWEST, timestamp=True),
    21: _Layout(_NEWEST, per_iteration=True),
    23: _Layout(_NEWEST, per_iteration=True, timestamp=True),
    11: _Layout(("size", "count", "type"), counted=False),
}
"""For a table without a header; 12 columns have two meanings."""

_OPTIONS = re.compile(
    r"nThread (?P<threads>\d+) nGpus (?P<gpus_per_thread>\d+) minBytes (?P<minimum_bytes>\d+) "
    r"maxBytes (?P<maximum_bytes>\d+) step: (?P<step>\d+)\((?P<kind>bytes|factor)\) "
    r"warmup iters: (?P<warmups>\d+) iters: (?P<iterations>\d+)"
    r"(?: agg iters: (?P<aggregated_iterations>\d+))?"
    r"(?: validation: (?P<validation>\d+))?(?: graph: (?P<graph>\d+))?"
)
_RANK = re.compile(
    r"Rank +(?P<rank>\d{1,6}) +(?:Group +(?P<group>\d{1,6}) +)?(?:Pid +(?P<pid>\d{1,9}) +)?"
    r"on ++(?:(?P<host>(?!device )[^ ]++) ++)?device +(?P<device>\d{1,4}) \[(?P<pci>[^\]]*)\] *"
    r"(?P<name>.*)"
)
_VERSION = re.compile(r"(?:nccl|rccl)-tests version (\S+)(?:.* nccl-library=(\d{4,6}))?")
_NAMED = re.compile(r"Collective test starting: (\w+)_perf")
_REDUCED = re.compile(r"Reducing maxBytes to (\d{1,19}) ")
_BOUNDS = re.compile(r"Out of bounds values *: *(\d+) +(OK|FAILED)")
_AVERAGE = re.compile(r"Avg bus bandwidth *: *\S+ *(OK|FAILED)?")
_ERROR = re.compile(r"Test (?:\w+ )?failure|Invalid number of GPUs|Test timeout|# error:|NCCL WARN")
_NOISE = re.compile(r"(?:[A-Za-z_][\w.-]*)?:\d+:\d+ \[-?\d+\]$")
_LONGEST_NOISE = 120
"""Of ``host:pid:tid [device]``."""
_DAY, _CLOCK = re.compile(r"\d{4}-\d\d-\d\d"), re.compile(r"\d\d:\d\d:\d\d")


def read_text(text: str) -> Output:
    """What a printed output says; nothing in it is an error of its own."""
    reader = _Reader()
    for tag, line in tagged_lines(text):
        reader.read(tag, line)
    return reader.finish()


class _Reader:
    """Reads line by line; a row that other text cut in two waits for its rest."""

    def __init__(self) -> None:
        self.output = Output()
        self._layout: _Layout | None = None
        self._verdicts = 0
        self._waiting: tuple[str, list[str]] | None = None

    def read(self, tag: str, line: str) -> None:
        noise = _log_start(line)
        tokens = line[:noise].split()
        if noise is not None:
            self._note_error(line[noise:])
            if len(tokens) >= 2 and _starts_row(tokens):
                self._cut(tag, tokens, glued=not line[noise - 1].isspace())
        elif line.lstrip().startswith("#"):
            self._comment(line.lstrip()[1:].strip())
            self._note_error(line)
        elif line.startswith("nThread "):  # version 1 prints neither this
            self._comment(line)
        elif self._verdict(line):  # nor this with a #
            pass
        elif len(tokens) >= 2 and _starts_row(tokens):
            self._drop_waiting()
            self._row(tokens)
        elif self._waiting and tokens and tokens[0][0].isdigit():
            self._rest(tag, tokens)
        else:
            self._note_error(line)

    def finish(self) -> Output:
        """What was read in all."""
        self._drop_waiting()
        out = self.output
        if out.ranks:
            numbers = Counter(r.rank for r in out.ranks)
            first = next((r.group for r in out.ranks if r.rank == 0), out.ranks[0].group)
            out.rank_count = len({r.rank for r in out.ranks if r.group == first})
            out.jobs = max(numbers.values())
        out.jobs = max(out.jobs, self._verdicts, 1)
        out.recognised |= bool(out.ranks or out.lines or self._verdicts or self._layout)
        return out

    def _comment(self, text: str) -> None:
        out = self.output
        if found := _VERSION.search(text):
            out.version, out.nccl = clean(found[1]), nccl_version(found[2])
        elif found := _NAMED.search(text):
            out.op = OPS.get(found[1])
        elif found := _OPTIONS.search(text):
            out.requested.update(_options(found.groupdict()))
        elif found := _REDUCED.search(text):
            out.requested["effective_maximum_bytes"] = whole(found[1])
            return
        elif found := _RANK.match(text):
            out.ranks.append(_rank(found.groupdict()))
            check_rows(len(out.ranks))
            return
        elif not self._verdict(text):
            self._layout = _from_header(text.split()) or self._layout
            return
        out.recognised = True

    def _verdict(self, text: str) -> bool:
        """Whether a line is one of the two that end a run."""
        if found := _BOUNDS.search(text):
            self._verdicts += 1
            self.output.wrong = "FAILED" if "FAILED" in (found[2], self.output.wrong) else "OK"
            return True
        if found := _AVERAGE.search(text):
            self.output.below_minimum |= found[1] == "FAILED"
            return True
        return False

    def _note_error(self, line: str) -> None:
        if _ERROR.search(line) and len(self.output.errors) < 10:
            self.output.errors.append(clean(line.strip("# .")))

    def _layout_of(self, tokens: Sequence[str]) -> _Layout | None:
        return self._layout or _BY_TOKENS.get(len(tokens))

    def _row(self, tokens: list[str]) -> None:
        layout = self._layout_of(tokens)
        line = _line(tokens, layout) if layout else None
        if line is None:
            self.output.malformed += 1
        else:
            self.output.lines.append(line)
            check_rows(len(self.output.lines))

    def _cut(self, tag: str, tokens: list[str], *, glued: bool) -> None:
        """A row that ends in a line of NCCL's log: whole, to be continued, or lost."""
        self._drop_waiting()
        layout = self._layout or _BY_TOKENS[13]
        if len(tokens) == layout.tokens and not glued:
            self._row(tokens)
        elif len(tokens) in layout.seams and re.fullmatch(r"-1|0|[1-9]\d*", tokens[-1]):
            self._waiting = tag, tokens
        else:
            self.output.malformed += 1

    def _rest(self, tag: str, tokens: list[str]) -> None:
        """The rest of a waiting row, if it comes from the same process and fits exactly."""
        assert self._waiting is not None
        head_tag, head = self._waiting
        self._waiting = None
        layout = self._layout or _BY_TOKENS[13]
        if tag == head_tag and len(head) + len(tokens) == layout.tokens:
            self._row([*head, *tokens])
        else:
            self.output.malformed += 1

    def _drop_waiting(self) -> None:
        self.output.malformed += self._waiting is not None
        self._waiting = None


def _log_start(line: str) -> int | None:
    """Where a line of NCCL's own log begins in a line, ``host:pid:tid [device] NCCL``."""
    end = line.find("] NCCL ") + 1
    if not end:
        return None
    start = max(0, end - _LONGEST_NOISE)
    found = _NOISE.search(line[start:end])
    return start + found.start() if found else None


def nccl_version(number: object) -> str | None:
    """``2.28.9`` of NCCL's 22809, ``2.8.3`` of its older 2803."""
    code = whole(number)
    if not code:
        return None
    major, rest = divmod(code, 10_000 if code >= 10_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _starts_row(tokens: Sequence[str]) -> bool:
    return tokens[0].isdecimal() and tokens[1].isdecimal()


def _from_header(words: Sequence[str]) -> _Layout | None:
    """The columns a header names; None if the words are no header."""
    if len(words) < 6 or tuple(words[:3]) not in (
        ("size", "count", "type"),
        ("bytes", "N", "type"),
    ):
        return None
    times = [i for i, w in enumerate(words) if w in ("time", "cputime")]
    names = {"bytes": "size", "N": "count", "op": "redop"}
    leading = tuple(names.get(w, w) for w in words[: times[0]]) if times else ()
    if len(times) not in (1, 2) or leading not in _LEADING:
        return None
    return _Layout(
        leading=leading,
        halves=len(times),
        power=MILLISECONDS if words[0] == "bytes" else MICROSECONDS,
        cpu="cputime" in words,
        counted="#wrong" in words,
        per_iteration="i_min" in words,
        timestamp="timestamp" in words,
    )


_LEADING = {
    ("size", "count", "type"),
    ("size", "count", "type", "redop"),
    ("size", "count", "type", "root"),
    ("size", "count", "type", "redop", "root"),
}


def _line(tokens: Sequence[str], layout: _Layout) -> Line | None:
    """A row; None if a token is not what its column holds."""
    if len(tokens) != layout.tokens:
        return None
    head = dict(zip(layout.leading, tokens, strict=False))
    size, count = whole(head["size"]), whole(head["count"])
    root = head.get("root", "-1")
    figures = tokens[len(layout.leading) :]
    n = layout.half_tokens
    halves = [_half(figures[i * n : (i + 1) * n], layout) for i in range(layout.halves)]
    stamp = figures[layout.halves * n :]
    if stamp and not (_DAY.fullmatch(stamp[0]) and _CLOCK.fullmatch(stamp[1])):
        return None
    if size is None or count is None or None in halves or not re.fullmatch(r"-1|\d{1,6}", root):
        return None
    redop = clean(head.get("redop", "none"))
    first, *second = [h for h in halves if h is not None]
    return Line(
        size_bytes=size,
        count=count,
        dtype=clean(head["type"]),
        redop=None if redop == "none" else redop,
        root=None if root == "-1" else int(root),
        out_of_place=first,
        in_place=second[0] if second else None,
        timestamp=" ".join(stamp) or None,
        dated=not layout.counted,
    )


def _half(tokens: Sequence[str], layout: _Layout) -> Half | None:
    time = figure(tokens[0], layout.power)
    algbw, busbw = figure(tokens[1], GIGABYTES), figure(tokens[2], GIGABYTES)
    wrong = figure(tokens[3])
    if time is None or algbw is None or busbw is None or (wrong is None and tokens[3] != "N/A"):
        return None
    return Half(
        time=None if layout.cpu else time,
        cpu_time=time if layout.cpu else None,
        algbw=algbw,
        busbw=busbw,
        wrong_count=whole(tokens[3]) if layout.counted else None,
        relative_error=wrong.value if wrong and not layout.counted else None,
        per_iteration=_per_iteration(tokens[4:]) if layout.per_iteration else None,
    )


def _per_iteration(tokens: Sequence[str]) -> dict[str, object]:
    least, most, p99 = (figure(t, MICROSECONDS) for t in tokens[:3])
    # The last number of a line has two decimals, or is the half of one that was cut off.
    spread = figure(tokens[3], -2) if re.fullmatch(r"\d+\.\d\d", tokens[3]) else None
    named = {
        "minimum_seconds": least,
        "maximum_seconds": most,
        "p99_seconds": p99,
        "cv_ratio": spread,
    }
    return {k: f.value if f else None for k, f in named.items()}


def _options(found: dict[str, Any]) -> dict[str, int | None]:
    kind, step = found.pop("kind"), found.pop("step")
    options = {k: whole(v) for k, v in found.items()}
    return {
        **options,
        "step_factor": whole(step) if kind == "factor" else None,
        "step_bytes": whole(step) if kind == "bytes" else None,
    }


def _rank(found: dict[str, Any]) -> Rank:
    return Rank(
        rank=int(found["rank"]),
        group=whole(found["group"]),
        pid=whole(found["pid"]),
        host=clean(found["host"]) or None,
        device=whole(found["device"]),
        pci=clean(found["pci"]),
        name=clean(found["name"]),
    )
