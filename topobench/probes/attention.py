"""
Which kernel computes attention: those that torch has, each switched on alone.

Newer FlashAttention kernels are packages of their own, which torch can put in place of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from topobench.errors import ProbeUnavailable, ResultInvalid
from topobench.reading import ReasonCode

BACKENDS = {
    "math": "MATH",
    "efficient": "EFFICIENT_ATTENTION",
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
"""Ours -> torch's name."""
NEWER = {"fa3": "FA3", "fa4": "FA4"}
"""Ours -> the name by which torch activates a package in place of its own ``flash``."""
CHOICES = ("auto", *BACKENDS, *NEWER)
CANDIDATES = {"cuda": ("cudnn", "flash", "efficient"), "cpu": ("flash",)}
"""What ``auto`` tries: the first that no other beats clearly, ``math`` if none works."""
CLEARLY = 0.05
CHECKED_ROWS, FARTHEST = 32, 0.02
"""Tokens of which attention is computed again, and the largest relative error of it."""
SCORE_BYTES = 12
"""Of each pair of tokens and head, where ``math`` writes scores down: three times float32."""


@contextlib.contextmanager
def only(torch: Any, backend: str) -> Iterator[None]:
    """
    Let torch use one backend alone: it raises rather than take another.

    Raises:
        ProbeUnavailable: ``unsupported``: a newer kernel that cannot be activated here.
    """
    with contextlib.ExitStack() as stack:
        if backend in NEWER:
            stack.enter_context(_activated(torch, backend))
        name = BACKENDS["flash" if backend in NEWER else backend]
        chosen = getattr(torch.nn.attention.SDPBackend, name)
        stack.enter_context(torch.nn.attention.sdpa_kernel([chosen]))
        yield


def choose(
    torch: Any,
    device: str,
    asked: str,
    timed: Callable[[str], float],
    *,
    also: tuple[str, ...] = (),
) -> tuple[str, dict[str, float | str]]:
    """
    The backend to use, and what each of those tried took or said.

    Args:
        asked: One of :data:`CHOICES`.
        timed: Seconds that a backend takes; raises RuntimeError where it cannot.
        also: Candidates of ``auto`` beside torch's own.

    Raises:
        ProbeUnavailable: ``unsupported``: the one asked for cannot do it, with torch's words.
    """
    tried: dict[str, float | str] = {}
    worked: dict[str, float] = {}
    for backend in (*CANDIDATES[device], *also, "math") if asked == "auto" else (asked,):
        if backend == asked or backend != "math" or not worked:
            try:
                tried[backend] = worked[backend] = timed(backend)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                if fatal(error):
                    raise
                tried[backend] = first_line(error)
    if not worked:
        what = "; ".join(f"{b}: {words}" for b, words in tried.items())
        raise ProbeUnavailable(
            ReasonCode.UNSUPPORTED, f"torch {torch.__version__} has no such attention here: {what}"
        )
    least = min(worked.values())
    return next(b for b, t in worked.items() if t <= least * (1 + CLEARLY)), tried


def seconds(device: Any, model: Any, batch: int, sequence: int) -> float:
    """
    What attention of one layer takes by the device's clock, the best of some passes.

    Args:
        device: The ``Accelerator``.
        model: The ``Transformer``, with its backend set.

    Raises:
        ResultInvalid: ``wrong_data``: the kernel's result is not attention.
    """
    torch, shape = device.torch, model.shape
    query, key, value = (
        torch.randn(
            (batch, sequence, heads, width), dtype=model.products.activations, device=device.device
        ).transpose(1, 2)
        for heads, width in (
            (shape.heads, shape.head_width),
            (shape.kv_heads, shape.head_width),
            (shape.kv_heads, shape.value_width),
        )
    )
    found = model.attention(query, key, value)
    check(torch, (query[:1], key[:1], value[:1]), found[:1])
    del found
    return float(device.least(lambda: model.attention(query, key, value)))


def check(torch: Any, heads: tuple[Any, Any, Any], found: Any) -> None:
    """
    Compare some tokens of each head with the formula in float32.

    Args:
        heads: Queries, keys and values (1, heads, tokens, width).
        found: What a kernel made of them.

    Raises:
        ResultInvalid: ``wrong_data``.
    """
    query, key, value = heads
    tokens = query.shape[2]
    rows = torch.randperm(tokens)[:CHECKED_ROWS].to(query.device)
    shared = query.shape[1] // key.shape[1]
    error = spread = 0.0
    for head in range(query.shape[1]):
        own = head // shared
        scores = query[0, head, rows].float() @ key[0, own].float().T / query.shape[-1] ** 0.5
        later = torch.arange(tokens, device=query.device) > rows.unsqueeze(1)
        wanted = scores.masked_fill(later, float("-inf")).softmax(-1) @ value[0, own].float()
        error += float((found[0, head, rows].float() - wanted).square().sum())
        spread += float(wanted.square().sum())
    require_near(error, spread, tokens)


def require_near(error: float, spread: float, tokens: int) -> None:
    """
    Refuse attention that is too far from its formula.

    Args:
        error: Squares of the differences, summed.
        spread: Squares of what is right, summed.

    Raises:
        ResultInvalid: ``wrong_data``.
    """
    far = (error / spread) ** 0.5
    if not far <= FARTHEST:
        raise ResultInvalid(
            ReasonCode.WRONG_DATA,
            f"attention of {tokens} tokens is off by {far:.2g} from its formula; rounding "
            f"explains {FARTHEST:g}",
        )


def fatal(error: BaseException) -> bool:
    """Whether an error is no refusal: memory ran out, or the device is spoilt."""
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text or "cuda error" in text


def first_line(error: BaseException) -> str:
    """What an error says, without what it explains further down."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def _activated(torch: Any, backend: str) -> Iterator[None]:
    activate = getattr(torch.nn.attention, "activate_flash_attention_impl", None)
    restore = getattr(torch.nn.attention, "restore_flash_attention_impl", None)
    if activate is None or restore is None:
        raise ProbeUnavailable(
            ReasonCode.UNSUPPORTED,
            f"torch {torch.__version__} cannot put {NEWER[backend]} in place of its own kernel",
        )
    try:
        activate(NEWER[backend])
    except Exception as error:  # whatever a package that is absent or broken raises
        raise ProbeUnavailable(
            ReasonCode.UNSUPPORTED, f"{NEWER[backend]} cannot be activated: {first_line(error)}"
        ) from error
    try:
        yield
    finally:
        restore()
