"""
What a worker keeps of models between cells: weights are made once for a shape and precision.

One model at a time: before another is made, the last one's memory is free again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from topobench.errors import ProbeUnavailable, ResultInvalid
from topobench.probes import reference
from topobench.probes.accelerator import Accelerator
from topobench.probes.precisions import Precision
from topobench.probes.shapes import Shape
from topobench.probes.transformer import Place, Transformer
from topobench.reading import ReasonCode

CHECKED_TOKENS = 128
"""Of the prompt on which a precision is held against float32."""
COMPARED_AT_ONCE = 1 << 20
"""Numbers of which a difference is made at a time."""


@dataclass(frozen=True, slots=True)
class Errors:
    """
    How far a precision is from float32, by the root mean square, relative.

    Args:
        logits: Of the whole model.
        modules: Of each module of the last layer, given what float32 gives it.
    """

    logits: float
    modules: dict[str, float]


@dataclass
class Bench:
    """
    The model at hand, and what was found out about the device so far.

    Args:
        aside_seconds: What was spent on what a program that only runs the model does not do.
    """

    aside_seconds: float = 0.0
    model: Transformer | None = None
    key: Any = None
    make_seconds: float = 0.0
    ceilings: dict[Any, float] = field(default_factory=dict)
    errors: dict[Any, Errors] = field(default_factory=dict)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Around work that is not part of bringing a model to its first pass."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.aside_seconds += time.perf_counter() - began

    def ceiling(self, device: Accelerator, product: str) -> float | None:
        """FLOP a second of matrix products; None where torch has none of that type here."""
        key = (device.device, product)
        if key not in self.ceilings:
            try:
                with self.aside():
                    self.ceilings[key] = device.ceiling(product)
            except ProbeUnavailable:
                return None
            device.forget()
        return self.ceilings[key]

    def take(
        self, device: Accelerator, shape: Shape, precision: Precision, place: Place
    ) -> Transformer:
        """The model of a shape and precision, made if it is not at hand."""
        key = (shape, precision, place)
        if self.model is None or key != self.key:
            self.drop(device)
            began = time.perf_counter()
            self.model = Transformer(device.torch, shape, precision, place)
            device.wait()
            self.key, self.make_seconds = key, time.perf_counter() - began
        return self.model

    def holds(self, shape: Shape, precision: Precision, place: Place) -> bool:
        """Whether that model is at hand."""
        return self.model is not None and self.key == (shape, precision, place)

    def drop(self, device: Accelerator) -> None:
        """Free the model at hand."""
        self.model = self.key = None
        device.forget()

    def check(self, device: Accelerator, model: Transformer) -> Errors:
        """
        Hold the model against float32, once.

        Raises:
            ResultInvalid: ``wrong_data``: it is farther off than its type explains.
        """
        precision = model.products.precision
        key = (self.key, model.backend)
        if key not in self.errors:
            with self.aside():
                self.errors[key] = errors_of(device.torch, model)
            device.forget()
        found = self.errors[key]
        device.on_all(lambda: require_close(found.logits, precision, "its float32 reference"))
        return found


def errors_of(torch: Any, model: Transformer) -> Errors:
    """Compare a model with float32 on a short prompt; modules only where it is not split."""
    shape, device = model.whole, model.place.device
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(shape.vocabulary, (1, CHECKED_TOKENS), generator=generator).to(device)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        plain = reference.Reference(torch, shape, device)
        wanted = plain.logits(ids)
    finally:
        torch.set_float32_matmul_precision(before)
    cache = model.cache(1, CHECKED_TOKENS)
    found = model.forward(ids, cache)
    if model.place.ranks > 1:
        return Errors(distance(found, wanted), {})
    weights = model.layers[-1]
    dtype = model.products.activations
    works: dict[str, Callable[[Any], Any]] = {
        "qkv": lambda x: model.project(x, weights),
        "attention": lambda x: model.mix(x, weights, cache.layers[-1], cache.rotation),
        "output": lambda x: model.products(x, weights["output"]),
        "mlp": lambda x: model.mlp(x, weights),
        "head": lambda x: torch.nn.functional.linear(x, model.head),
    }
    modules = {}
    for name, work in works.items():
        given, right = plain.seen[name]
        modules[name] = distance(work(given.to(dtype)), right)
    return Errors(distance(found, wanted), modules)


def distance(found: Any, wanted: Any) -> float:
    """
    Root mean square of the difference, relative to that of what is right.

    Some rows after another, so that copies in float32 take little memory beside the model.
    """
    rows = max(1, COMPARED_AT_ONCE // wanted.shape[-1])
    parts = (t.reshape(-1, t.shape[-1]).split(rows) for t in (found, wanted))
    error = spread = 0.0
    for ours, right in zip(*parts, strict=True):
        error = error + (ours.float() - right.float()).norm().double().square()
        spread = spread + right.float().norm().double().square()
    return float((error / spread) ** 0.5)


def require_close(error: float, precision: Precision, what: str) -> None:
    """
    Refuse logits that are too far off.

    Raises:
        ResultInvalid: ``wrong_data``.
    """
    if not error <= precision.tolerance:
        raise ResultInvalid(
            ReasonCode.WRONG_DATA,
            f"logits in {precision.name} are off by {error:.2g} from {what}; no more than "
            f"{precision.tolerance:g} can be explained",
        )


BENCH = Bench()
"""Of this worker process."""
