"""Measures one case of the probe ``decode``: steps over a full cache, and what they read."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from topobench.probes import attention, datasheets, device_memory, reference
from topobench.probes import decode_metrics as metrics
from topobench.probes import prefill_metrics as common
from topobench.probes.accelerator import Accelerator
from topobench.probes.bench import BENCH, CHECKED_TOKENS, distance, require_close
from topobench.probes.decode_step import SPLIT, Decoder, Held
from topobench.probes.decode_work import flop, kept_bytes, read_bytes, token_bytes
from topobench.probes.device_work import Figures
from topobench.probes.driver import Driver
from topobench.probes.footprint import Footprint
from topobench.probes.forward import Forward
from topobench.probes.metrics import FLOP
from topobench.probes.passes import Passes, Timing
from topobench.reading import Reading

MEMORY_SECONDS = 0.2
MEMORY_BYTES = device_memory.GIB
BOUND_SHARE = 0.5
"""What memory or arithmetic must take of a step's time to be what bounds it."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """
    What this process measured of the device; None where it could not.

    Args:
        flop: FLOP a second of matrix products, of all GPUs measured.
        memory: Bytes a second read and written by copies, of all GPUs measured.
    """

    flop: float | None
    memory: float | None


@dataclass
class Case(Passes[Decoder]):
    """A step of so many sequences in front of a model."""

    def readings(self, mode: str, expected: Footprint, roofs: Roofs) -> Iterator[Reading]:
        """All readings, once a step is known to be right."""
        error = checked(self.device, self.model)
        self.device.forget()
        self.begin(Forward(self.device, self.model, self.batch, 1))
        self.model.fill(self.forward.cache.layers)
        self.device.forget()
        yield from self.first()
        timing = self.timed(mode, metrics.TPOT.name, metrics.WALL_TIME.name)
        self._note(timing.how, expected)
        yield from self._speeds(timing)
        yield from self._bounds(timing.figures, roofs)
        yield from self._kept()
        yield from self.memory(expected, timing)
        yield common.single(common.ERROR, error)
        yield from self.compiled()
        yield from self.whole(timing.figures)
        yield from self.launching()
        yield from common.staged(self.stages(mode))
        yield from self.kernels()

    def _note(self, how: str, expected: Footprint) -> None:
        note, shape = self.context.note, self.model.whole
        note("device_timing", how)
        note("weights_seconds", BENCH.make_seconds)
        note("weights_bytes", expected.weights)
        note("layers", f"{shape.layers} of {shape.whole_layers}")
        note("arithmetic_intensity", self._flop() / self._read())

    def _flop(self) -> float:
        return flop(self.model.whole, self.model.context, self.batch)

    def _read(self) -> float:
        model = self.model
        precision = model.products.precision
        return read_bytes(model.whole, precision, model.kept, model.context, self.batch)

    def _speeds(self, timing: Timing) -> Iterator[Reading]:
        figures = timing.figures
        yield from figures.durations(metrics.TPOT.name)
        yield from timing.walls.durations(metrics.WALL_TIME.name)
        yield from figures.rates(metrics.TOKENS.name, float(self.batch))
        yield from figures.rates(metrics.READ_RATE.name, self._read())
        yield from figures.rates(FLOP.name, self._flop())
        yield common.single(common.WORK, self._flop())
        yield common.single(metrics.READ, self._read())
        yield from self.host_share(timing)

    def _bounds(self, figures: Figures, roofs: Roofs) -> Iterator[Reading]:
        """What a step takes of the memory's bandwidth and of the products' rate."""
        gpus = max(1, len(figures.by_rank))
        work, read = self._flop(), self._read()
        shares: dict[str, float] = {}
        if (peak := memory_peak(self.device)) is not None:
            yield figures.total.rates(metrics.MBU.name, read / peak / gpus)
        if roofs.memory is not None:
            yield common.single(metrics.MEMORY, roofs.memory)
            reading = figures.total.rates(metrics.MBU_MEASURED.name, read / roofs.memory)
            shares["memory"] = reading.summary.median
            yield reading
        product = self.model.products.precision.product
        if (sheet := datasheets.peak(self.device.model, product)) is not None:
            yield figures.total.rates(common.MFU.name, work / sheet / gpus)
        if roofs.flop is not None:
            yield common.single(common.CEILING, roofs.flop)
            reading = figures.total.rates(common.MFU_MEASURED.name, work / roofs.flop)
            shares["arithmetic"] = reading.summary.median
            yield reading
        if len(shares) == 2:
            self.context.note("bound_by", bound_by(shares))

    def _kept(self) -> Iterator[Reading]:
        model = self.model
        held = kept_bytes(model.whole, model.kept, model.context, self.batch)
        yield common.single(metrics.KV, held)
        yield common.single(common.KV_TOKEN, token_bytes(model.whole, model.kept))


@dataclass
class Known:
    """
    What this worker process found out before.

    Args:
        errors: Of a step against float32, by model, attention and type of the cache.
        memory: Bandwidth by device.
    """

    errors: dict[Any, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)


KNOWN = Known()


def roofs_of(device: Accelerator, product: str) -> Roofs:
    """Measured once in a process, before a model takes the memory."""
    with BENCH.aside():
        memory = memory_speed(device)
    return Roofs(BENCH.ceiling(device, product), memory)


def memory_speed(device: Accelerator) -> float | None:
    """
    Bytes a second that copies within a GPU's memory read and write.

    None of CPUs, whose caches hold the models that suit them, and where two arrays do not fit.
    """
    if device.device == "cpu":
        return None
    if device.device not in KNOWN.memory:
        if device.free_bytes() < 3 * MEMORY_BYTES:
            return None
        arrays = device_memory.Arrays(device.torch, "copy", MEMORY_BYTES)
        figures, _ = device.times(lambda: arrays.enqueue(1), MEMORY_SECONDS)
        seconds = statistics.median(figures.total.samples[figures.total.warmups :])
        KNOWN.memory[device.device] = 2 * MEMORY_BYTES / seconds
        del arrays
        device.forget()
    return KNOWN.memory[device.device]


def memory_peak(device: Accelerator) -> float | None:
    """What clock and width of a GPU's memory allow; None of CPUs, and where it is not told."""
    if device.device == "cpu":
        return None
    return Driver().memory_peak(device.torch.cuda.current_device())


def bound_by(shares: dict[str, float]) -> str:
    """``memory`` or ``arithmetic``, whichever takes more of the time; ``neither`` below half."""
    first = max(shares, key=lambda name: shares[name])
    return first if shares[first] >= BOUND_SHARE else "neither"


def checked(device: Accelerator, model: Decoder) -> float:
    """
    Hold a step against float32, once for a model, attention and type of the cache.

    Raises:
        ResultInvalid: ``wrong_data``: it is farther off than its types explain.
    """
    key = (BENCH.key, model.backend, model.kept)
    if key not in KNOWN.errors:
        with BENCH.aside():
            KNOWN.errors[key] = step_error(device.torch, model)
        device.forget()
    found, precision = KNOWN.errors[key], model.products.precision
    allowed = dataclasses.replace(precision, tolerance=precision.tolerance + model.kept.tolerance)
    device.on_all(lambda: require_close(found, allowed, "its float32 reference"))
    return found


def step_error(torch: Any, model: Decoder) -> float:
    """
    How far the logits of a prompt's last token are from float32, all others being in the cache.

    Their keys and values are those of a prefill; the last token's place is left empty. Types
    that do not multiply a single row get the same prompt as often as they must.
    """
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(model.whole.vocabulary, (1, CHECKED_TOKENS), generator=generator)
    ids = ids.to(model.place.device)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        wanted = reference.Reference(torch, model.whole, model.place.device).logits(ids)
    finally:
        torch.set_float32_matmul_precision(before)
    short, cache = Decoder(model, model.kept, CHECKED_TOKENS), prefilled(torch, model, ids)
    rows = model.products.precision.least_rows
    kept = short.cache(rows, 1)
    short.take(kept, cache)
    found = short.forward(ids[:, -1:].expand(rows, 1), kept)
    return distance(found, wanted.expand_as(found))


def check_attention(query: Any, keys: Held, values: Held, found: Any) -> None:
    """
    Compare attention of the first and the last sequence with the formula in float32.

    A step's logits are checked after a short prompt alone; a long context takes other ways.

    Args:
        query: As of ``Decoder.read``, with the keys and values; ``found`` is what it gave.

    Raises:
        ResultInvalid: ``wrong_data``.
    """
    error = spread = 0.0
    for row in {0, len(query) - 1}:
        for head in range(query.shape[1]):
            key, value = (_numbers(held, row, head) for held in (keys, values))
            scores = query[row, head].float() @ key.T / query.shape[-1] ** 0.5
            wanted = scores.softmax(-1) @ value
            error += float((found[row, head].float() - wanted).square().sum())
            spread += float(wanted.square().sum())
    attention.require_near(error, spread, keys[0].shape[2])


def _numbers(held: Held, row: int, head: int) -> Any:
    """Of one head (tokens, width) in float32."""
    numbers = held[0][row, head].float()
    return numbers * held[1][row, head].unsqueeze(-1) if len(held) > 1 else numbers


def prefilled(torch: Any, model: Decoder, ids: Any) -> Any:
    """The cache of a prompt, by the plain model with the plainest attention."""
    plain = model.plain
    cache = plain.cache(*ids.shape)
    backend, plain.backend = plain.backend, "math"
    try:
        with attention.only(torch, "math"):
            plain.forward(ids, cache)
    finally:
        plain.backend = backend
    return cache


def told(backend: str, model: Decoder) -> str:
    """The attention that ran, in words."""
    if model.shape.latent:
        return "latent, folded into the queries"
    unpacked = model.kept.narrow and backend != SPLIT
    return f"{backend}, keys and values widened first" if unpacked else backend
