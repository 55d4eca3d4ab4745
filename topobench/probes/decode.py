"""
Decoding by a transformer with random weights: the time of one more token for each sequence.

The model is that of the probe ``prefill``; the cache is full of random keys and values, so
that no prompt has to be read. ``probes.decode_case`` does the measuring.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from topobench.errors import ProbeUnavailable
from topobench.probes import attention, decode_metrics, gemm, precisions
from topobench.probes import prefill_metrics as common
from topobench.probes.accelerator import (
    Accelerator,
    accelerator,
    memory_named,
)
from topobench.probes.bench import BENCH
from topobench.probes.decode_case import (
    Case,
    check_attention,
    roofs_of,
    told,
)
from topobench.probes.decode_step import SPLIT, Decoder
from topobench.probes.decode_work import KEPT, Kept, flop, footprint, read_bytes
from topobench.probes.device_work import segments_of
from topobench.probes.footprint import Footprint
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
from topobench.probes.passes import WALL_SECONDS
from topobench.probes.precisions import PRECISIONS, Precision
from topobench.probes.prefill import (
    ASSUMED_FLOP_PER_SECOND,
    ASSUMED_ON_CPUS,
    COMPILE_SECONDS,
    FIRST_SECONDS,
    WIDEST_ON_CPUS,
    device_seconds,
    sampling,
    set_up_seconds,
)
from topobench.probes.protocol import (
    Arms,
    Kind,
    WorkerContext,
    fields_of,
    one_or_all,
    parameter,
    suited,
)
from topobench.probes.shapes import Shape, shape_of
from topobench.probes.transformer import Place
from topobench.reading import Metric, Reading, ReasonCode
from topobench.units import format_bytes

CONTEXT_ON = (2048, 256)
ASSUMED_BYTES_PER_SECOND = 3.6e12
"""Of a large GPU's memory, for estimates."""
LEAST_STEP_SECONDS = 5e-4
COPIES_SECONDS, SHARED_COPIES_SECONDS = 3.0, 1.1
"""Of a worker: how fast memory is copied, on a GPU alone in rows as long as those of passes."""


@dataclass(frozen=True, slots=True)
class Decode:
    """One step of one shape, precision, type of cache, context and batch."""

    name: ClassVar[str] = "decode"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "transformer decoding, random weights, by context, batch and cache"
    needs: ClassVar[frozenset[str]] = frozenset({"torch", "cuda_or_cpu"})
    metrics: ClassVar[tuple[Metric, ...]] = (
        *(value for value in vars(decode_metrics).values() if isinstance(value, Metric)),
        *(common.HOST_SHARE, common.MFU, common.MFU_MEASURED, common.CEILING, common.STAGE),
        *(common.PART, common.COMPILE, common.FIRST, common.ERROR, common.WORK, common.LAUNCHES),
        *(common.ALLOCATED, common.RESERVED, common.PREDICTED, common.KV_TOKEN, common.WHOLE),
        FLOP,
    )
    arms: ClassVar[Arms] = Arms.BINDINGS

    shape: str = shape_parameter()
    dtype: str = precision_parameter()
    kv_dtype: str = parameter(
        "bf16",
        kind=Kind.CHOICE,
        choices=tuple(KEPT),
        help="type of the cache: that of the activations, fp8, or int8 with a scale a token",
    )
    attention: str = parameter(
        AUTO,
        kind=Kind.CHOICE,
        choices=(*attention.CHOICES, SPLIT),
        help=f"kernel of attention; {SPLIT} is ours in Triton, auto the fastest that works",
    )
    mode: str = mode_parameter()
    batch: int = parameter(1, minimum=1, maximum=4096, help="sequences that get a token at once")
    context: int | None = parameter(
        None,
        minimum=2,
        maximum=1 << 20,
        auto=CONTEXT_ON,
        help="tokens of each sequence, the new one included; "
        f"by default {CONTEXT_ON[0]} on GPUs, {CONTEXT_ON[1]} on CPUs",
    )
    at_once: str = one_or_all()

    def __post_init__(self) -> None:
        """Raise ValueError for a shape that is none."""
        if self.shape != AUTO:
            shape_of(self.shape)

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure one case; the model is that of the worker's last case where it is the same.

        Raises:
            ProbeUnavailable: The device lacks the type, mode, attention or memory.
            ProbeError: ``untimeable``, ``cuda_error``, ``torch_cannot_use_gpu``.
            ResultInvalid: ``wrong_data``: logits are not those of float32, or change.
        """
        with accelerator(context) as device, memory_named(lambda: BENCH.drop(device)):
            yield from self.on(device)._readings(device, context)

    def on(self, device: Accelerator) -> Decode:
        """The same case with what is left to the device named."""
        on_cpus = device.capability is None
        values = {
            name: suited(declared, getattr(self, name), on_cpus=on_cpus)
            for name, declared in fields_of(Decode).items()
        }
        return dataclasses.replace(self, **cast(Any, values))

    @property
    def tokens(self) -> int:
        """Of each sequence; on GPUs if it is left to the device."""
        return self.context or CONTEXT_ON[0]

    def estimated_seconds(self) -> float:
        """As on a large GPU; of narrow models as on CPUs."""
        shape = planned_shape(self.shape)
        precision, kept = PRECISIONS[self.dtype], KEPT[self.kv_dtype]
        work = flop(shape, self.tokens, self.batch)
        large = shape.width > WIDEST_ON_CPUS
        if large:
            read = read_bytes(shape, precision, kept, self.tokens, self.batch)
            once = LEAST_STEP_SECONDS + read / ASSUMED_BYTES_PER_SECOND
            once += work / ASSUMED_FLOP_PER_SECOND[self.dtype]
        else:
            once = LEAST_STEP_SECONDS + work / ASSUMED_ON_CPUS
        lap = once * (segments_of(once) if self.at_once == "all" else 1)
        alone = large and self.at_once != "all"
        device = device_seconds(lap, once, large, alone)
        walls = sampling(lap, once, WALL_SECONDS, large)
        compiling = COMPILE_SECONDS if self.mode == "compile" else 0.0
        set_up = set_up_seconds(large, alone, self.mode)
        return set_up + device + walls + 30 * once + compiling

    def first_uses(self) -> Mapping[str, float]:
        """What steps are held against, and the first model of that type."""
        if planned_shape(self.shape).width <= WIDEST_ON_CPUS:
            return {}
        copies = SHARED_COPIES_SECONDS if self.at_once == "all" else COPIES_SECONDS
        products = PRECISIONS[self.dtype].product
        return {f"products in {products}": FIRST_SECONDS, "copies in memory": copies}

    def _readings(self, device: Accelerator, context: WorkerContext) -> list[Reading]:
        """All readings: no setting of torch's holds while the worker sends them."""
        torch, precision, kept = device.torch, PRECISIONS[self.dtype], KEPT[self.kv_dtype]
        shape = shape_of(self.shape)
        self._require(device, shape, precision, kept, context)
        with torch.no_grad(), gemm.float32_products(torch, self.dtype == "tf32"):
            place = Place(device.device)
            expected = self._memory(device, shape, precision, kept, place)
            roofs = roofs_of(device, precision.product)
            plain = BENCH.take(device, shape, precision, place)
            model = Decoder(plain, kept, self.tokens)
            with BENCH.aside():
                chosen = self._backend(device, model, context)
            model.choose(chosen)
            with only(torch, chosen), compiler(torch, self.mode):
                case = Case(device, context, model, self.batch)
                return [*case.readings(self.mode, expected, roofs)]

    def _require(
        self,
        device: Accelerator,
        shape: Shape,
        precision: Precision,
        kept: Kept,
        context: WorkerContext,
    ) -> None:
        """Refuse what this device or case cannot be."""
        precisions.require(precision, device.capability, self.batch)
        why = None
        if shape.latent and kept.narrow:
            why = f"{shape.name} has latent attention, whose cache is not decoded in {kept.name}"
        elif shape.latent and self.attention not in (AUTO, "math"):
            why = f"{shape.name} has latent attention, which no kernel computes folded; take auto"
        elif shape.experts and not precision.plain:
            why = f"torch multiplies no stacks of experts in {precision.name}"
        elif device.capability is None and shape.width > WIDEST_ON_CPUS:
            why = f"{shape.name} is too large for CPUs; {ON_CPUS} is not"
        elif not kept.narrow and kept.torch_name != precision.activations:
            why = f"keys and values of {precision.name} products are {precision.activations}"
        elif kept.name == "fp8" and device.capability and device.capability < (8, 9):
            why = "a cache in fp8 needs compute capability 8.9"
        elif context.ranks > 1 and self.mode == "eager":
            why = "eager steps of all GPUs at once cannot be held back together; take mode graph"
        if why is not None:
            raise ProbeUnavailable(ReasonCode.UNSUPPORTED, why)

    def _memory(
        self, device: Accelerator, shape: Shape, precision: Precision, kept: Kept, place: Place
    ) -> Footprint:
        """What the case needs, if there is so much."""
        unpacked = kept.narrow and self._asked(device, kept) != SPLIT
        expected = footprint(shape, precision, kept, self.tokens, self.batch, unpacked=unpacked)
        if BENCH.holds(shape, precision, place):
            device.forget()
        else:
            BENCH.drop(device)
        needed = expected.total - (expected.weights if BENCH.model else 0)
        free = device.free_bytes()
        if needed > free:
            raise ProbeUnavailable(
                ReasonCode.NOT_ENOUGH_MEMORY,
                f"{format_bytes(expected.total)} needed ({format_bytes(expected.weights)} weights, "
                f"{format_bytes(expected.kv)} keys and values, {format_bytes(expected.work)} "
                f"activations); {format_bytes(free)} are free for {format_bytes(needed)} of it",
            )
        return expected

    def _asked(self, device: Accelerator, kept: Kept) -> str:
        """The attention to take: only ours reads a narrow cache as it is."""
        ours = kept.narrow and self.attention == AUTO and device.capability is not None
        return SPLIT if ours else self.attention

    def _backend(self, device: Accelerator, model: Decoder, context: WorkerContext) -> str:
        """The attention that will run; what the others took is noted."""
        if model.shape.latent:
            context.note("attention", told("math", model))
            return "math"
        query, keys, values = model.sample(self.batch)

        def read() -> Any:
            return model.read(query, keys, values)

        def timed(backend: str) -> float:
            model.choose(backend)
            try:
                with only(device.torch, backend):
                    return device.least(read)
            except Exception as error:  # Triton's own, and those of the tools it calls
                if backend != SPLIT or attention.fatal(error):
                    raise
                raise NotImplementedError(attention.first_line(error)) from error

        chosen, tried = attention.choose(
            device.torch,
            device.device,
            self._asked(device, model.kept),
            timed,
            also=(SPLIT,) if device.capability else (),
        )
        model.choose(chosen)
        with only(device.torch, chosen):
            found = read()
        device.on_all(lambda: check_attention(query, keys, values, found))
        context.note("attention", told(chosen, model))
        context.note("attention_tried", tried)
        return chosen


def only(torch: Any, backend: str) -> contextlib.AbstractContextManager[None]:
    """Let torch use one kernel of attention alone; ours is no matter to it."""
    return contextlib.nullcontext() if backend == SPLIT else attention.only(torch, backend)
