"""Measures one case of the probe ``prefill``: the passes, their parts, and what they cost."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from topobench import stats
from topobench.probes import datasheets, so_far
from topobench.probes import prefill_metrics as metrics
from topobench.probes.bench import BENCH, Errors
from topobench.probes.footprint import Footprint, moved_bytes
from topobench.probes.forward import Forward
from topobench.probes.metrics import FLOP
from topobench.probes.passes import Passes, Timing
from topobench.probes.precisions import summed_bytes
from topobench.probes.shapes import attention_share, flop, kv_bytes_per_token
from topobench.probes.timing import collect, wall
from topobench.probes.transformer import Transformer
from topobench.reading import Reading

PART_SECONDS = 0.1
SUM_STAGE = "all_reduce"
"""The stage in which ranks add up their parts; on an early rank it waits for the others."""


@dataclass
class Case(Passes[Transformer]):
    """A prompt of so many sequences and tokens in front of a model."""

    sequence: int

    def readings(self, mode: str, expected: Footprint, ceiling: float | None) -> Iterator[Reading]:
        """
        All readings, once the model is known to be right.

        Args:
            ceiling: FLOP a second of matrix products on all GPUs measured; None if unknown.
        """
        errors = BENCH.check(self.device, self.model)
        self.device.forget()
        self.begin(Forward(self.device, self.model, self.batch, self.sequence))
        yield from self.first()
        timing = self.timed(mode, metrics.DEVICE_TIME.name, metrics.WALL_TIME.name)
        self._note(timing.how, expected)
        yield from self._speeds(timing, ceiling)
        each = self.model.products.precision.activation_bytes
        yield metrics.single(metrics.KV_TOKEN, kv_bytes_per_token(self.model.whole, each))
        yield from self.memory(expected, timing)
        yield from self._errors(errors)
        yield from self.compiled()
        yield from self.whole(timing.figures)
        yield from self._host_parts()
        yield from self._stages(mode)
        yield from self.kernels()
        if self.model.place.ranks > 1:
            yield from self._communication(mode, timing)

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

    def _speeds(self, timing: Timing, ceiling: float | None) -> Iterator[Reading]:
        figures = timing.figures
        work = flop(self.model.whole, self.sequence, self.batch)
        yield from figures.durations(metrics.DEVICE_TIME.name)
        yield from timing.walls.durations(metrics.WALL_TIME.name)
        yield from figures.rates(metrics.TOKENS.name, float(self.batch * self.sequence))
        yield from figures.rates(FLOP.name, work)
        yield metrics.single(metrics.WORK, work)
        yield from self.host_share(timing)
        product = self.model.products.precision.product
        if (peak := datasheets.peak(self.device.model, product)) is not None:
            gpus = max(1, len(figures.by_rank))
            yield figures.total.rates(metrics.MFU.name, work / peak / gpus)
        if ceiling is not None:
            yield metrics.single(metrics.CEILING, ceiling)
            yield figures.total.rates(metrics.MFU_MEASURED.name, work / ceiling)

    def _errors(self, errors: Errors) -> Iterator[Reading]:
        yield metrics.single(metrics.ERROR, errors.logits)
        for module, error in errors.modules.items():
            yield metrics.single(metrics.ERROR, error, module=module)

    def _host_parts(self) -> Iterator[Reading]:
        """What the host does alone, each part by itself: here binding acts."""
        yield self._part("tokenise", tokeniser(self.model.whole.vocabulary, self.forward.prompt))
        if self.device.device == "cpu":
            return

        def copy() -> None:
            self.forward.copy_in()
            self.device.wait()

        yield self._part("input_copy", copy)
        yield from self.launching()

    def _part(self, name: str, call: Callable[[], Any]) -> Reading:
        with so_far.durations(metrics.PART.name, point={"part": name}):
            timed = collect(
                lambda: wall(call), tolerance=stats.LATENCY_TOLERANCE, budget_seconds=PART_SECONDS
            )
        return timed.durations(metrics.PART.name, point={"part": name})

    def _stages(self, mode: str) -> Iterator[Reading]:
        """Of a pass, and what all ranks spend in adding up."""
        found = self.stages(mode)
        yield from metrics.staged(found)
        if SUM_STAGE in found:
            passes = zip(*found.values(), strict=True)
            totals = [sum(stages) for stages in passes]
            own = [s / total for s, total in zip(found[SUM_STAGE], totals, strict=True)]
            shares = tuple(statistics.fmean(self.device.gather(share)) for share in own)
            yield metrics.several(metrics.COMMUNICATION, shares, method="events")

    def _communication(self, mode: str, timing: Timing) -> Iterator[Reading]:
        """What adding up costs: the same pass without it, and the sizes that predict it."""
        model = self.model
        yield metrics.single(metrics.MESSAGES, 2 * model.shape.layers)
        tokens = self.batch * self.sequence
        size = summed_bytes(model.products.precision, model.shape.width, tokens)
        yield metrics.single(metrics.MESSAGE, size)
        with so_far.durations(metrics.APART.name):
            apart, _ = self.device.times(self.forward.apart(mode), timing.budget)
        yield from apart.durations(metrics.APART.name)
        without, total = (
            statistics.median(f.total.samples[f.total.warmups :]) for f in (apart, timing.figures)
        )
        yield metrics.single(metrics.COMMUNICATION, saved(without, total), method="twin")


def saved(without: float, total: float) -> float:
    """Share of the time that leaving something out saves; noise makes it no less than 0."""
    return max(0.0, 1 - without / total)


@functools.lru_cache(maxsize=1)
def words(vocabulary: int) -> dict[str, int]:
    """Every word of a vocabulary, with its number; 128,000 take 50 ms to write."""
    return {f"w{number:x}": number for number in range(vocabulary)}


def tokeniser(vocabulary: int, prompt: Any) -> Callable[[], list[int]]:
    """
    A stand-in for a tokenizer: looks up each word of a text in a table of all words.

    Args:
        prompt: Token numbers, whose words are the text.
    """
    table = words(vocabulary)
    text = " ".join(f"w{number:x}" for number in prompt.flatten().tolist())
    return lambda: [table[word] for word in text.split()]
