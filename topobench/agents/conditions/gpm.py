"""Average activity of a GPU between two moments, by NVML's performance monitor (Hopper on)."""

from __future__ import annotations

from typing import Any

from topobench.agents.discover import nvml

_METRICS = {2: "sm_ratio", 10: "dram_ratio"}
"""Ids of nvml.h; both are told as per cent."""
_LEAST_SECONDS = 0.1  # the monitor's own resolution


class Meter:
    """
    Measures from :meth:`start` to :meth:`stop`.

    Attributes:
        error: Why there is no answer, or None.
    """

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._first: Any = None
        self.error: str | None = None

    def start(self) -> None:
        """Take the first of two samples."""
        if self._handle is None:
            self.error = "the GPU cannot be asked"
            return
        try:
            support = self._library.nvmlGpmQueryDeviceSupport(self._handle)
            if not support.isSupportedDevice:
                self.error = "not supported"
                return
            self._first = self._sample()
        except (self._library.NVMLError, AttributeError) as error:
            self.error = _why(error)

    def stop(self, seconds: float) -> dict[str, float]:
        """
        Shares of the time between, 0 to 1; empty where there is no answer.

        Args:
            seconds: Since :meth:`start`.
        """
        if self._first is None:
            return {}
        last = None
        try:
            if seconds < _LEAST_SECONDS:
                self.error = f"the run was shorter than {_LEAST_SECONDS} s"
                return {}
            last = self._sample()
            return self._between(last)
        except self._library.NVMLError as error:
            self.error = _why(error)
            return {}
        finally:
            for sample in (self._first, last):
                if sample is not None:
                    self._library.nvmlGpmSampleFree(sample)
            self._first = None

    def _sample(self) -> Any:
        sample = self._library.nvmlGpmSampleAlloc()
        try:
            return self._library.nvmlGpmSampleGet(self._handle, sample)
        except self._library.NVMLError:
            self._library.nvmlGpmSampleFree(sample)
            raise

    def _between(self, last: Any) -> dict[str, float]:
        asked = self._library.c_nvmlGpmMetricsGet_t()
        asked.version = self._library.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(_METRICS)
        asked.sample1, asked.sample2 = self._first, last
        for place, number in enumerate(_METRICS):
            asked.metrics[place].metricId = number
        self._library.nvmlGpmMetricsGet(asked)
        return {
            name: round(asked.metrics[place].value / 100, 4)
            for place, name in enumerate(_METRICS.values())
            if asked.metrics[place].nvmlReturn == 0
        }


def _why(error: Exception) -> str:
    if isinstance(error, AttributeError):
        return "pynvml lacks the function"
    return nvml.reason(error)
