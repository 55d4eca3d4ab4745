"""Measures one case of the probe ``prefill``: the passes, their parts, and what they cost."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topobench import stats
from topobench.probes import datasheets
from topobench.probes import prefill_metrics as metrics
from topobench.probes.accelerator import Accelerator
from topobench.probes.bench import BENCH, Errors, distance, require_close
from topobench.probes.device_work import Figures
from topobench.probes.footprint import Footprint, moved_bytes
from topobench.probes.forward import Forward
from topobench.probes.metrics import FLOP
from topobench.probes.protocol import WorkerContext
from topobench.probes.shapes import attention_share, flop, kv_bytes_per_token
from topobench.probes.timing import collect, wall
from topobench.probes.transformer import Transformer
from topobench.reading import Reading

DEVICE_SECONDS, WALL_SECONDS, PART_SECONDS = 0.5, 0.25, 0.1
LAUNCHES = 10
SUM_STAGE = "all_reduce"
"""The stage in which ranks add up their parts; on an early rank it waits for the others."""


@dataclass
class Case:
    """A prompt of so many sequences and tokens in front of a model."""

    device: Accelerator
    context: WorkerContext
    model: Transformer
    batch: int
    sequence: int
    forward: Forward = field(init=False)
    wanted: Any = field(init=False)

    def readings(self, mode: str, expected: Footprint, ceiling: float | None) -> Iterator[Reading]:
        """
        All readings, once the model is known to be right.

        Args:
            ceiling: FLOP a second of matrix products on all GPUs measured; None if unknown.
        """
        errors = BENCH.check(self.device, self.model)
        self.device.forget()
        self.forward = Forward(self.device, self.model, self.batch, self.sequence)
        staging = self.forward.staging
        self.context.buffer_ready(staging.data_ptr(), staging.nbytes)
        yield from self._first_pass()
        self.forward.prepare(mode)
        self._check("those of eager mode")
        budget = min(DEVICE_SECONDS, self.context.deadline_seconds / 16)
        figures, how = self.device.times(self.forward.run, budget)
        walls = self.device.walls(self.forward.answer, min(WALL_SECONDS, budget))
        peaks = self.device.peaks()
        self.forward.logits.fill_(float("nan"))
        self._check("those before timing")
        self._note(how, expected)
        yield from self._speeds(figures, walls, ceiling)
        yield from self._memory(expected, peaks)
        yield from self._errors(errors)
        if self.forward.compile_seconds is not None:
            yield metrics.single(metrics.COMPILE, self.forward.compile_seconds)
        yield from self._whole(figures)
        yield from self._host_parts()
        yield from self._stages(mode)
        if (kernels := self.device.launches(self.forward.launched)) is not None:
            yield metrics.single(metrics.LAUNCHES, kernels)
        if self.model.place.ranks > 1:
            yield from self._communication(mode, figures, budget)

    def _first_pass(self) -> Iterator[Reading]:
        """Run eagerly, which is what every mode is held against."""
        self.forward.eagerly()
        self.device.wait()
        self.wanted = self.forward.logits.clone()
        if not BENCH.began:
            BENCH.began = True
            yield metrics.single(metrics.FIRST, process_seconds())

    def _check(self, what: str) -> None:
        """Run once and compare the logits with those of the first pass."""
        self.forward.run()
        self.device.wait()
        error = distance(self.forward.logits, self.wanted)
        precision = self.model.products.precision
        self.device.on_all(lambda: require_close(error, precision, what))

    def _note(self, how: str, expected: Footprint) -> None:
        note, shape = self.context.note, self.model.whole
        note("device_timing", how)
        note("weights_seconds", BENCH.make_seconds)
        note("weights_bytes", expected.weights)
        note("kv_bytes", expected.kv)
        note("layers", f"{shape.layers} of {shape.whole_layers}")
        note("causal_counted", "half of the scores")
        note("attention_share", attention_share(shape, self.sequence))
        moved = moved_bytes(shape, self.model.products.precision, self.sequence, self.batch)
        note("arithmetic_intensity", flop(shape, self.sequence, self.batch) / moved)

    def _speeds(self, figures: Figures, walls: Figures, ceiling: float | None) -> Iterator[Reading]:
        work = flop(self.model.whole, self.sequence, self.batch)
        yield from figures.durations(metrics.DEVICE_TIME.name)
        yield from walls.durations(metrics.WALL_TIME.name)
        yield from figures.rates(metrics.TOKENS.name, float(self.batch * self.sequence))
        yield from figures.rates(FLOP.name, work)
        yield metrics.single(metrics.WORK, work)
        if self.device.device != "cpu":
            share = max(0.0, 1 - slowest(figures) / slowest(walls))
            yield metrics.single(metrics.HOST_SHARE, share)
        product = self.model.products.precision.product
        if (peak := datasheets.peak(self.device.model, product)) is not None:
            gpus = max(1, len(figures.by_rank))
            yield figures.total.rates(metrics.MFU.name, work / peak / gpus)
        if ceiling is not None:
            yield metrics.single(metrics.CEILING, ceiling)
            yield figures.total.rates(metrics.MFU_MEASURED.name, work / ceiling)

    def _memory(self, expected: Footprint, peaks: tuple[int, int] | None) -> Iterator[Reading]:
        each = self.model.products.precision.activation_bytes
        yield metrics.single(metrics.KV_TOKEN, kv_bytes_per_token(self.model.whole, each))
        yield metrics.single(metrics.PREDICTED, expected.total)
        if peaks is not None:
            yield metrics.single(metrics.ALLOCATED, peaks[0])
            yield metrics.single(metrics.RESERVED, peaks[1])

    def _errors(self, errors: Errors) -> Iterator[Reading]:
        yield metrics.single(metrics.ERROR, errors.logits)
        for module, error in errors.modules.items():
            yield metrics.single(metrics.ERROR, error, module=module)

    def _whole(self, figures: Figures) -> Iterator[Reading]:
        """Of a slice: its layers' time as often as the whole model has them, the rest once."""
        shape = self.model.whole
        if shape.layers == shape.whole_layers:
            return
        ends = self.device.once(self._without_layers)
        ends = min(ends, *(self.device.once(self._without_layers) for _ in range(LAUNCHES)))
        layers = slowest(figures) - ends
        yield metrics.single(metrics.WHOLE, ends + layers * shape.whole_layers / shape.layers)

    def _without_layers(self) -> None:
        """Embedding and head alone."""
        self.model.ends(self.forward.ids)

    def _host_parts(self) -> Iterator[Reading]:
        """What the host does alone, each part by itself: here binding acts."""
        yield self._part("tokenise", tokeniser(self.model.whole.vocabulary, self.forward.prompt))
        if self.device.device == "cpu":
            return

        def copy() -> None:
            self.forward.copy_in()
            self.device.wait()

        yield self._part("input_copy", copy)
        launches = []
        for _ in range(LAUNCHES):
            self.device.wait()
            launches.append(wall(self.forward.run))
        self.device.wait()
        yield metrics.several(metrics.PART, tuple(launches), part="launch")

    def _part(self, name: str, call: Callable[[], Any]) -> Reading:
        timed = collect(
            lambda: wall(call), tolerance=stats.LATENCY_TOLERANCE, budget_seconds=PART_SECONDS
        )
        return timed.durations(metrics.PART.name, point={"part": name})

    def _stages(self, mode: str) -> Iterator[Reading]:
        """Of eager kernels, which a graph replays too; compiled ones cross the stages."""
        found = None if mode == "compile" else self.device.stages(self.forward.marked)
        for stage, seconds in (found or {}).items():
            yield metrics.several(metrics.STAGE, tuple(seconds), stage=stage)
        if found and SUM_STAGE in found:
            passes = zip(*found.values(), strict=True)
            totals = [sum(stages) for stages in passes]
            own = [s / total for s, total in zip(found[SUM_STAGE], totals, strict=True)]
            shares = tuple(statistics.fmean(self.device.gather(share)) for share in own)
            yield metrics.several(metrics.COMMUNICATION, shares, method="events")

    def _communication(self, mode: str, whole: Figures, budget: float) -> Iterator[Reading]:
        """What adding up costs: the same pass without it, and the sizes that predict it."""
        model = self.model
        yield metrics.single(metrics.MESSAGES, 2 * model.shape.layers)
        each = model.products.precision.activation_bytes
        size = self.batch * self.sequence * model.shape.width * each
        yield metrics.single(metrics.MESSAGE, size)
        apart, _ = self.device.times(self.forward.apart(mode), budget)
        yield from apart.durations(metrics.APART.name)
        without, total = (
            statistics.median(f.total.samples[f.total.warmups :]) for f in (apart, whole)
        )
        yield metrics.single(metrics.COMMUNICATION, saved(without, total), method="twin")


def saved(without: float, total: float) -> float:
    """Share of the time that leaving something out saves; noise makes it no less than 0."""
    return max(0.0, 1 - without / total)


def slowest(figures: Figures) -> float:
    """Median seconds of the slowest GPU."""
    return max(
        statistics.median(timed.samples[timed.warmups :])
        for timed in figures.by_rank or (figures.total,)
    )


def tokeniser(vocabulary: int, prompt: Any) -> Callable[[], list[int]]:
    """
    A stand-in for a tokenizer: looks up each word of a text in a table of all words.

    Args:
        prompt: Token numbers, whose words are the text.
    """
    table = {f"w{number:x}": number for number in range(vocabulary)}
    text = " ".join(f"w{number:x}" for number in prompt.flatten().tolist())
    return lambda: [table[word] for word in text.split()]


def process_seconds() -> float:
    """Since this process was started, by the kernel's clock."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # starttime, field 22 of proc(5)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
