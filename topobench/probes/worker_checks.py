"""What a worker checks before a number may count: values, page placement, exceptions."""

from __future__ import annotations

import math
import re
import statistics
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any

from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes import binding as kernel
from topobench.probes.metrics import LOCALITY as LOCALITY
from topobench.reading import (
    Binding,
    MemoryPolicy,
    Reading,
    Reason,
    ReasonCode,
    Status,
    Summary,
)

_ENOUGH_LOCALITY = 0.95  # a few pages of a buffer may be shared with earlier allocations
_ONE_NODE = 0.99
_REASON_LENGTH = 300

_FATAL = frozenset(
    {ReasonCode.CUDA_ERROR, ReasonCode.OOM, ReasonCode.RANK_LOST, ReasonCode.WRONG_BINDING}
)
_CUDA_WORDS = re.compile(
    r"cuda (driver )?error|cublas_status|cudnn_status|cusolver_status|nccl error", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the numbers of a cell must not be used."""

    status: Status
    reason: Reason

    @property
    def fatal(self) -> bool:
        """Whether this process is spoilt for further cells."""
        return self.reason.code in _FATAL


def check_values(reading: Reading) -> Failure | None:
    """Refuse values that no clock or counter can give; the reading itself is kept."""
    summary = reading.summary
    maybe = (summary.ci_lo, summary.ci_hi, summary.p90, summary.p99)
    values = (summary.median, summary.minimum, summary.maximum, summary.mad)
    for value in (*reading.samples, *values, *(v for v in maybe if v is not None)):
        if not math.isfinite(value) or value < 0:
            return _invalid(reading, f"the value {value!r}")
    if (
        reading.metric.endswith("_seconds")
        and min((*reading.samples, summary.median, summary.minimum)) <= 0
    ):
        return _invalid(reading, "a duration that is not positive")
    return None


def explain(error: Exception) -> Failure:
    """
    Turn what a probe raised into a status and a reason.

    The traceback goes to the log, unless the reason says all there is.
    """
    if isinstance(error, ProbeUnavailable):
        return Failure(Status.SKIPPED, Reason.from_text(str(error)))
    if isinstance(error, ResultInvalid):
        return Failure(Status.INVALID, Reason.from_text(str(error)))
    if not isinstance(error, ProbeError) or error.__cause__ is not None:
        traceback.print_exception(error)
    if isinstance(error, ProbeError):
        return Failure(Status.FAILED, Reason.from_text(str(error)))
    text = f"{type(error).__name__}: {error}".split("\n", 1)[0][:_REASON_LENGTH]
    return Failure(Status.FAILED, Reason(_code(error), text))


class Placement:
    """Where the pages of the measured buffers lie, against where they should."""

    def __init__(self, binding: Binding) -> None:
        self._wanted = frozenset(binding.memory_nodes)
        if binding.memory is MemoryPolicy.DEFAULT and binding.cpus and len(binding.cpu_nodes) == 1:
            self._wanted = frozenset(binding.cpu_nodes)  # first touch puts pages beside the CPU
        self._pages: Counter[int] = Counter()
        self._ratios: list[float] = []

    @property
    def node(self) -> int | None:
        """The NUMA node that holds the buffers, if one."""
        total = self._pages.total()
        for node, pages in self._pages.most_common(1):
            return node if pages >= _ONE_NODE * total else None
        return None

    def look(self, address: int, size_bytes: int) -> None:
        """
        Count the pages of a buffer.

        Raises:
            OSError: The kernel refuses to say.
        """
        pages = kernel.page_nodes(address, size_bytes)
        self._pages += pages
        if self._wanted and pages:
            on_wanted = sum(n for node, n in pages.items() if node in self._wanted)
            self._ratios.append(on_wanted / pages.total())

    def proof(self) -> tuple[Reading | None, dict[str, Any]]:
        """The ``locality_ratio`` of the buffers seen, and the share of each NUMA node."""
        total = self._pages.total()
        shares = {str(node): pages / total for node, pages in sorted(self._pages.items())}
        conditions = {"buffer_page_share": shares} if shares else {}
        if not self._ratios:
            return None, conditions
        median = statistics.median(self._ratios)
        summary = Summary(
            n=len(self._ratios),
            median=median,
            minimum=min(self._ratios),
            maximum=max(self._ratios),
            mad=statistics.median(abs(r - median) for r in self._ratios),
        )
        return Reading(LOCALITY.name, summary, tuple(self._ratios)), conditions

    def verify(self) -> None:
        """
        Refuse numbers measured on memory that lies elsewhere.

        Raises:
            ResultInvalid: Pages lie on other NUMA nodes than asked.
        """
        if self._ratios and (worst := min(self._ratios)) < _ENOUGH_LOCALITY:
            raise ResultInvalid(
                ReasonCode.WRONG_BINDING,
                f"only {worst:.1%} of a measured buffer lies on NUMA nodes "
                f"{sorted(self._wanted)}, as asked",
            )


def _invalid(reading: Reading, what: str) -> Failure:
    text = f"{reading.metric} has {what}; kept apart, not used"
    return Failure(Status.INVALID, Reason(ReasonCode.INVALID_VALUE, text))


def _code(error: Exception) -> ReasonCode:
    name, text = type(error).__name__, str(error)
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or "out of memory" in text:
        return ReasonCode.OOM
    if name == "AcceleratorError" or _CUDA_WORDS.search(text):
        return ReasonCode.CUDA_ERROR
    return ReasonCode.INTERNAL
