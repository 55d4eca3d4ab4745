"""
Prefill of llama3-8b in bf16 beside transformers' LlamaForCausalLM, in one process, in turns.

    python -m benchmarks.versus_transformers [--rounds N] [--tokens 512,2048]

Both have random weights made on the device; theirs runs eagerly with sdpa and keeps keys and
values, as ours does. A pass is timed from an idle queue to its end, by events: what launching
does not hide counts. Ours is the best of a CUDA graph and a compiled one. The ways take turns,
each for a burst of load after a pause, as in the probe. Each length has a process of its own, so
that one that fails ends no other.

* at least 2 times theirs at 512 tokens, 1.15 at 2048 and 4096, 1.1 at 8192;
* at 4096 tokens at least 0.72 of large bf16 products of the same process;
* standard deviation of the samples at most 1 % of their mean;
* peak memory at most 1.15 of weights, keys and values; the prediction at most 10 % above it,
  and not below.

Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from topobench.probes import attention, device_work
from topobench.probes.accelerator import PASSES_SECONDS, Gpu
from topobench.probes.footprint import footprint
from topobench.probes.forward import Forward, compiler
from topobench.probes.precisions import PRECISIONS
from topobench.probes.protocol import WorkerContext
from topobench.probes.shapes import SHAPES, flop
from topobench.probes.timing import BURST_SECONDS, PAUSE_SECONDS, SETTLING_SECONDS
from topobench.probes.transformer import Place, Transformer
from topobench.reading import Binding

SHAPE, PRECISION = SHAPES["llama3-8b"], PRECISIONS["bf16"]
LEAST = {512: 2.0, 2048: 1.15, 4096: 1.15, 8192: 1.1}
"""Tokens -> how many times faster than transformers."""
LEAST_OF_PRODUCTS, PRODUCTS_AT = 0.72, 4096
MOST_DEVIATION, MOST_MEMORY, MOST_PREDICTED = 0.01, 1.15, 1.1
MODES = ("graph", "compile")
ROUNDS = 4
"""Bursts of each way."""


def main() -> int:
    """Print every pair of figures; 0 if no bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="bursts of each way")
    parser.add_argument("--tokens", default=",".join(map(str, LEAST)))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch finds no usable GPU: prefill is not compared")
        return 0
    lengths = [int(n) for n in options.tokens.split(",")]
    found = here(options.rounds, lengths[0]) if len(lengths) == 1 else bars(options.rounds, lengths)
    return 0 if all([*found]) else 1


def bars(rounds: int = ROUNDS, lengths: list[int] | None = None) -> Iterator[bool]:
    """Whether all bars of a length hold, one after the other, each in a process of its own."""
    for tokens in lengths or LEAST:
        command = [sys.executable, "-m", "benchmarks.versus_transformers"]
        sys.stdout.flush()
        ended = subprocess.run(
            [*command, "--rounds", str(rounds), "--tokens", str(tokens)],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if ended.returncode not in (0, 1) or "Traceback" in ended.stderr:
            print(f"  {tokens} tokens could not be compared:\n{ended.stderr[-2000:]}  MISSED")
        yield ended.returncode == 0


def here(rounds: int, tokens: int) -> Iterator[bool]:
    """Whether each bar of a length holds, measured in this process."""
    device = Gpu(device_work.Site(torch, _context(), None))
    print(f"prefill llama3-8b bf16, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    with torch.no_grad():
        ceiling = device.ceiling("bf16")
        print(f"  products of 8192 x 8192: {ceiling / 1e12:.1f} TFLOP/s")
        device.forget()
        began = time.perf_counter()
        model = Transformer(torch, SHAPE, PRECISION, Place("cuda"))
        device.wait()
        print(f"  weights made in {time.perf_counter() - began:.1f} s")
        yield from at_length(device, model, peer_model(), tokens, rounds, ceiling)


def at_length(
    device: Gpu, model: Transformer, peer: Any, tokens: int, rounds: int, ceiling: float
) -> Iterator[bool]:
    """One length of the prompt."""
    ways: dict[str, Callable[[], Any]] = {}
    chosen, tried = attention.choose(
        torch, "cuda", "auto", lambda backend: _attention(device, model, backend, tokens)
    )
    told = ", ".join(
        f"{b} {s * 1e6:.0f} us" if isinstance(s, float) else f"{b}: {s}" for b, s in tried.items()
    )
    print(f"{tokens} tokens; attention {chosen} ({told})")
    model.backend = chosen
    with compiler(torch, "compile"):
        with attention.only(torch, chosen):
            yield from memory(device, model, tokens, chosen)
            for mode in MODES:
                forward = Forward(device, model, 1, tokens)
                forward.prepare(mode)
                ways[mode] = forward.run
        if peer is not None:  # with the attention that torch chooses for it
            ids = forward.ids
            ways["transformers"] = lambda: peer(ids, use_cache=True, logits_to_keep=1)
        times = in_turn(device, ways, rounds)
    best = min(MODES, key=lambda mode: statistics.median(times[mode]))
    ours = statistics.median(times[best])
    deviation = statistics.stdev(times[best]) / statistics.mean(times[best])
    yield held(f"standard deviation of {best}", deviation, most=MOST_DEVIATION)
    share = flop(SHAPE, tokens, 1) / ours / ceiling
    least = LEAST_OF_PRODUCTS if tokens == PRODUCTS_AT else 0.0
    yield held("share of products", share, least=least)
    if peer is not None:
        ratio = statistics.median(times["transformers"]) / ours
        yield held(f"{best} against transformers", ratio, least=LEAST.get(tokens, 0.0))


def memory(device: Gpu, model: Transformer, tokens: int, backend: str) -> Iterator[bool]:
    """The peak of one eager pass, beside what it must hold and what was predicted."""
    others = torch.cuda.memory_allocated() - _bytes(model)
    device.forget()
    forward = Forward(device, model, 1, tokens)
    forward.run()
    peak = (device.peaks() or (0, 0))[0] - others
    told = footprint(SHAPE, PRECISION, tokens, 1, attention=backend)
    yield held(
        "peak memory by weights and cache", peak / (told.weights + told.kv), most=MOST_MEMORY
    )
    yield held("predicted peak by the peak", told.total / peak, least=1.0, most=MOST_PREDICTED)


def in_turn(device: Gpu, ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of passes of each way; they take turns by the burst."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():  # the first passes warm up
        device.once(call)
    for _ in range(rounds):
        for name, call in ways.items():
            times[name] += burst(device, call)
    for name, found in times.items():
        low, middle, high = min(found), statistics.median(found), max(found)
        print(
            f"  {name:14} {middle * 1e3:8.2f} ms, {low * 1e3:.2f} to {high * 1e3:.2f}, "
            f"n {len(found)}"
        )
    return times


def burst(device: Gpu, call: Callable[[], Any]) -> list[float]:
    """
    Seconds of a pass between the clock's settling and the power limit, after a pause.

    Short passes are averaged as the probe averages them. Of passes too long for all that, the
    first.
    """
    time.sleep(PAUSE_SECONDS)
    found: list[float] = []
    began = time.monotonic()
    seconds = first = device.once(call)
    passes = max(1, round(PASSES_SECONDS / first))
    while (load := time.monotonic() - began) + passes * seconds <= BURST_SECONDS:
        seconds = device.once(lambda: [call() for _ in range(passes)]) / passes
        if load >= SETTLING_SECONDS:
            found.append(seconds)
    return found or [first]


def peer_model() -> Any:
    """The same shape by transformers; None where it is not installed."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        print(f"  transformers cannot be imported ({error}): prefill is not compared with it")
        return None
    config = LlamaConfig(
        vocab_size=SHAPE.vocabulary,
        hidden_size=SHAPE.width,
        intermediate_size=SHAPE.ffn,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        max_position_embeddings=1 << 17,
        attn_implementation="sdpa",
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def held(what: str, value: float, least: float = 0.0, most: float = float("inf")) -> bool:
    """Print a figure and whether it is within its bar."""
    ok = least <= value <= most
    bar = f"at least {least:g}" if most == float("inf") else f"{least:g} to {most:g}"
    print(f"  {what}: {value:.4f} (bar {bar})  {'ok' if ok else 'MISSED'}")
    return ok


def _attention(device: Gpu, model: Transformer, backend: str, tokens: int) -> float:
    model.backend = backend
    with attention.only(torch, backend):
        return attention.seconds(device, model, 1, tokens)


def _bytes(model: Transformer) -> int:
    packed = [t for layer in model.layers for tensors in layer.values() for t in tensors]
    return sum(t.nbytes for t in (*packed, model.embedding, model.norm, model.head))


def _context() -> WorkerContext:
    """Of a process that no launcher watches."""
    return WorkerContext(
        binding=Binding("none"),
        devices=("0",),
        rank=0,
        ranks=1,
        publish=print,
        wait=str,
        interface=None,
        deadline_seconds=600.0,
        buffer_ready=lambda address, size: None,
        note=lambda key, value: None,
        warn=print,
    )


if __name__ == "__main__":
    sys.exit(main())
