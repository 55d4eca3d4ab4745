"""
Prefill of a transformer with random weights: from token numbers to the first new token.

No weights are downloaded. What is timed is a lean forward pass (``probes.transformer``), held
against float32 before; ``probes.prefill_case`` does the measuring.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from topobench.errors import ProbeUnavailable
from topobench.probes import attention, gemm, precisions, prefill_metrics, sharded
from topobench.probes.accelerator import (
    LEAST_PASSES,
    PASSES_SECONDS,
    QUEUED_GRAPHS,
    SHARED_PASSES_SECONDS,
    SHARED_REST_FROM,
    Accelerator,
    accelerator,
    alike,
    memory_named,
    passes_of,
)
from topobench.probes.bench import BENCH
from topobench.probes.device_work import segments_of
from topobench.probes.footprint import Footprint, footprint
from topobench.probes.forward import compiler
from topobench.probes.metrics import FLOP
from topobench.probes.model_parameters import (
    AUTO,
    ON_CPUS,
    mode_parameter,
    planned_shape,
    precision_parameter,
    shape_parameter,
)
from topobench.probes.passes import DEVICE_SECONDS, WALL_SECONDS
from topobench.probes.precisions import PRECISIONS, Precision, summed_bytes
from topobench.probes.prefill_case import Case
from topobench.probes.protocol import (
    Arms,
    Kind,
    WorkerContext,
    fields_of,
    one_or_all,
    parameter,
    suited,
)
from topobench.probes.shapes import Shape, flop, shape_of
from topobench.probes.timing import (
    N_FLOOR,
    OVERRUN,
    PAUSE_SECONDS,
    SPIN_MAX_SECONDS,
    bursts_seconds,
)
from topobench.probes.transformer import Place, Transformer
from topobench.reading import Metric, Reading, ReasonCode
from topobench.units import format_bytes

TOKENS_ON = (2048, 256)
WIDEST_ON_CPUS = 1024
COMPILE_SECONDS = 20.0
ASSUMED_FLOP_PER_SECOND = {
    "fp32": 4e13, "tf32": 2.5e14, "bf16": 5.5e14, "fp16": 5e14, "fp8": 6.5e14, "int8": 3.5e14,
    "int4": 2.7e14,
}  # fmt: skip
"""Of a whole model on a large GPU, for estimates: bf16, fp8, int8 and int4 as an H200 took."""
ASSUMED_ON_CPUS = 2e10
SET_UP_SECONDS, LARGE_SET_UP_SECONDS = 0.25, 1.2
"""Of a case: choice of attention, graph, checks, parts of the host, stages, count of kernels."""
ALONE_SET_UP_SECONDS = 0.8
"""The same of a GPU alone, where finding out how many passes are a sample counts by itself."""
TWIN_SET_UP_SECONDS = 1.0
"""Where GPUs share a model: graphs with all-reduces in them, and one without."""
FIRST_SECONDS = 3.6
"""Of a worker: matrix products at their best, weights, and the check against float32."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prefill of one shape, precision, length and batch."""

    name: ClassVar[str] = "prefill"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "transformer prefill, random weights, by length and precision"
    needs: ClassVar[frozenset[str]] = frozenset({"torch", "cuda_or_cpu"})
    metrics: ClassVar[tuple[Metric, ...]] = (
        *(value for value in vars(prefill_metrics).values() if isinstance(value, Metric)),
        FLOP,
    )
    arms: ClassVar[Arms] = Arms.BINDINGS

    shape: str = shape_parameter()
    dtype: str = precision_parameter()
    tensor_parallel: int = parameter(
        1, minimum=1, maximum=64, help="GPUs that share each layer, one process each"
    )
    attention: str = parameter(
        "auto",
        kind=Kind.CHOICE,
        choices=attention.CHOICES,
        help="kernel of attention; auto is the fastest that works",
    )
    mode: str = mode_parameter()
    batch: int = parameter(1, minimum=1, maximum=4096, help="sequences of one pass")
    sequence: int | None = parameter(
        None,
        minimum=2,
        maximum=1 << 20,
        auto=TOKENS_ON,
        help="tokens of each sequence's prompt; "
        f"by default {TOKENS_ON[0]} on GPUs, {TOKENS_ON[1]} on CPUs",
    )
    at_once: str = one_or_all()

    def __post_init__(self) -> None:
        """Raise ValueError for a shape that is none, or does not divide by the ranks."""
        if self.shape != AUTO:
            shape_of(self.shape).share(self.tensor_parallel)

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure one case; the model is that of the worker's last case where it is the same.

        Raises:
            ProbeUnavailable: The device lacks the type, mode, attention or memory.
            ProbeError: ``untimeable``, ``cuda_error``, ``torch_cannot_use_gpu``.
            ProbeError: ``rank_lost``: of several GPUs that share a model.
            ResultInvalid: ``wrong_data``: logits are not those of float32, or change.
        """
        shared = self.tensor_parallel > 1
        if shared and context.ranks != self.tensor_parallel:
            raise ProbeUnavailable(
                ReasonCode.UNSUPPORTED,
                f"tensor_parallel {self.tensor_parallel} needs as many workers",
            )
        opened = sharded.accelerator(context) if shared else accelerator(context)
        with opened as device, memory_named(lambda: BENCH.drop(device)):
            yield from self.on(device)._readings(device, context)

    def on(self, device: Accelerator) -> Prefill:
        """The same case with what is left to the device named."""
        on_cpus = device.capability is None
        values = {
            name: suited(declared, getattr(self, name), on_cpus=on_cpus)
            for name, declared in fields_of(Prefill).items()
        }
        return dataclasses.replace(self, **cast(Any, values))

    @property
    def tokens(self) -> int:
        """Of each sequence; on GPUs if it is left to the device."""
        return self.sequence or TOKENS_ON[0]

    def estimated_seconds(self) -> float:
        """As on a large GPU; of narrow models as on CPUs."""
        shape = planned_shape(self.shape)
        large = shape.width > WIDEST_ON_CPUS
        rate = ASSUMED_FLOP_PER_SECOND[self.dtype] if large else ASSUMED_ON_CPUS
        once = 1e-4 + flop(shape, self.tokens, self.batch) / rate / self.tensor_parallel
        together = self.at_once == "all" and self.tensor_parallel == 1
        lap = once * (segments_of(once) if together else 1)
        alone = large and self.tensor_parallel == 1 and not together
        rests = self.tensor_parallel == 1 or once >= SHARED_REST_FROM
        device = device_seconds(lap, once, large, alone, rests)
        walls = sampling(lap, once, WALL_SECONDS, large, rests)
        compiling = COMPILE_SECONDS if self.mode == "compile" else 0.0
        apart = TWIN_SET_UP_SECONDS + device if self.tensor_parallel > 1 else 0.0
        set_up = set_up_seconds(large, alone, self.mode)
        return set_up + device + walls + 20 * once + compiling + apart

    def message_bytes(self) -> int:
        """What each all-reduce of a pass adds up where GPUs share the model; as on GPUs."""
        shape = planned_shape(self.shape)
        return summed_bytes(PRECISIONS[self.dtype], shape.width, self.batch * self.tokens)

    def first_uses(self) -> Mapping[str, float]:
        """The ceiling that a type's passes are held against, and the first model of that type."""
        if planned_shape(self.shape).width <= WIDEST_ON_CPUS:
            return {}
        return {f"products in {PRECISIONS[self.dtype].product}": FIRST_SECONDS}

    def _readings(self, device: Accelerator, context: WorkerContext) -> list[Reading]:
        """All readings: no setting of torch's holds while the worker sends them."""
        torch, precision = device.torch, PRECISIONS[self.dtype]
        shape = shape_of(self.shape)
        self._require(device, shape, precision, context)
        with torch.no_grad(), gemm.float32_products(torch, self.dtype == "tf32"):
            place = self._place(device, context)
            expected = self._memory(device, shape, precision, place)
            ceiling = BENCH.ceiling(device, precision.product)
            model = BENCH.take(device, shape, precision, place)
            with BENCH.aside():
                model.backend = self._backend(device, model, context)
            with attention.only(torch, model.backend), compiler(torch, self.mode):
                case = Case(device, context, model, self.batch, self.tokens)
                return [*case.readings(self.mode, expected, ceiling)]

    def _place(self, device: Accelerator, context: WorkerContext) -> Place:
        if self.tensor_parallel > 1:
            return sharded.place(context, device.device)
        return Place(device.device)

    def _require(
        self, device: Accelerator, shape: Shape, precision: Precision, context: WorkerContext
    ) -> None:
        """Refuse what this device or case cannot be."""
        precisions.require(precision, device.capability, self.batch * self.tokens)
        why = None
        if shape.experts and not precision.plain:
            why = f"torch multiplies no stacks of experts in {precision.name}"
        elif device.capability is None and shape.width > WIDEST_ON_CPUS:
            why = f"{shape.name} is too large for CPUs; {ON_CPUS} is not"
        elif context.ranks > self.tensor_parallel and self.mode == "eager":
            why = "eager passes of all GPUs at once cannot be held back together; take mode graph"
        if why is not None:
            raise ProbeUnavailable(ReasonCode.UNSUPPORTED, why)

    def _memory(
        self, device: Accelerator, shape: Shape, precision: Precision, place: Place
    ) -> Footprint:
        """What the case needs, if there is so much."""
        expected = footprint(
            shape,
            precision,
            self.tokens,
            self.batch,
            attention=self.attention,
            ranks=self.tensor_parallel,
        )
        if BENCH.holds(shape, precision, place):
            device.forget()
        else:
            BENCH.drop(device)
        needed = expected.total - (expected.weights if BENCH.model else 0)
        if self.tensor_parallel > 1:  # the pass without sums may be a graph of its own
            needed += expected.work
        free = device.free_bytes()
        if needed > free:
            raise ProbeUnavailable(
                ReasonCode.NOT_ENOUGH_MEMORY,
                f"{format_bytes(expected.total)} needed ({format_bytes(expected.weights)} weights, "
                f"{format_bytes(expected.kv)} keys and values, {format_bytes(expected.work)} "
                f"activations); {format_bytes(free)} are free for {format_bytes(needed)} of it",
            )
        return expected

    def _backend(self, device: Accelerator, model: Transformer, context: WorkerContext) -> str:
        """The attention backend that will run; what the others took is noted."""

        def timed(backend: str) -> float:
            model.backend = backend
            with attention.only(device.torch, backend):
                return attention.seconds(device, model, self.batch, self.tokens)

        tried: dict[str, Any] = {}

        def choose() -> float:
            chosen, times = attention.choose(device.torch, device.device, self.attention, timed)
            tried.update(times)
            return attention.CHOICES.index(chosen)

        # Ranks may not differ: what one of them is waited for, the others would be charged for.
        chosen = attention.CHOICES[int(alike(device, choose)[0])]
        context.note("attention", chosen)
        context.note("attention_tried", tried)
        return chosen


def set_up_seconds(large: bool, alone: bool, mode: str) -> float:
    """Of a case, by the size of its model, with the pause before stages; ``alone``: one GPU."""
    if not large:
        return SET_UP_SECONDS
    staging = PAUSE_SECONDS if mode != "compile" else 0.0
    return staging + (ALONE_SET_UP_SECONDS if alone else LARGE_SET_UP_SECONDS)


def device_seconds(lap: float, once: float, large: bool, alone: bool, rests: bool = True) -> float:
    """About how long it takes to time passes on the device; arguments as of the others here."""
    if alone:
        return sampling_rows(once, DEVICE_SECONDS)
    row = max(lap, SHARED_PASSES_SECONDS) if large else lap
    return sampling(row, once, DEVICE_SECONDS, large, rests)


def sampling_rows(once: float, budget: float) -> float:
    """
    About how long it takes to sample rows of passes of a GPU alone.

    Each number of passes that is tried runs at least twice before it is known to be too large; the
    one that fits runs six times (``back_to_back.Chain.fit``) before the first sample.

    Args:
        once: Seconds of a pass.
    """
    count, tried = passes_of(PASSES_SECONDS, once), 0.0
    while count > QUEUED_GRAPHS:
        tried += 2 * count * once + SPIN_MAX_SECONDS
        count //= 2
    row = count * once
    return tried + 6 * row + bursts_seconds(row, max(budget, LEAST_PASSES * once))


def sampling(lap: float, once: float, budget: float, on_gpu: bool, rests: bool = True) -> float:
    """
    About how long it takes to sample passes.

    Args:
        lap: Seconds of a sample.
        once: Of a pass.
        rests: Whether a GPU pauses before its first burst, too.
    """
    budget = max(budget, LEAST_PASSES * once, lap if lap > once else 0.0)
    if on_gpu:
        return bursts_seconds(lap, budget, rests)
    return max(min(25 * lap, budget), min((N_FLOOR + 2) * lap, OVERRUN * budget))
