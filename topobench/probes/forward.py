"""
One prompt and how it is run: eagerly, as a CUDA graph, or compiled.

The compiler sees the two halves of a layer, not the whole model: all layers share what it
makes, so compiling takes as long for 80 layers as for one. On a GPU the compiled layers are
then recorded in one CUDA graph.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from topobench.errors import ProbeUnavailable
from topobench.probes.accelerator import Accelerator, Mark
from topobench.probes.attention import fatal, first_line
from topobench.probes.timing import wall
from topobench.probes.transformer import Transformer
from topobench.reading import ReasonCode

MODES = ("eager", "graph", "compile")
STAGING_BYTES = 1 << 20
"""Least size of the host's buffer of token numbers: whole pages, so that their place is known."""


class Forward:
    """
    A prompt in front of a model.

    Args:
        batch: Sequences.
        sequence: Tokens of each.

    Attributes:
        staging: The host's buffer, of which the prompt is the beginning; pinned beside a GPU.
        launched: A run that launches each kernel by itself.
        run: A run in the mode that was prepared.
        logits: Of the last run.
        compile_seconds: The first run of compiled layers; None in other modes.
    """

    def __init__(self, device: Accelerator, model: Transformer, batch: int, sequence: int) -> None:
        torch = device.torch
        self.device = device
        self.model = model
        generator = torch.Generator().manual_seed(2)
        self.staging = torch.empty(
            max(STAGING_BYTES // 8, batch * sequence),
            dtype=torch.int64,
            pin_memory=device.device == "cuda",
        ).random_(0, model.shape.vocabulary, generator=generator)
        self.prompt = self.staging[: batch * sequence].view(batch, sequence)
        self.ids = self.prompt.to(device.device)
        self.cache = model.cache(batch, sequence)
        self.logits: Any = None
        self.compile_seconds: float | None = None
        self.launched: Callable[[], None] = self.eagerly
        self.run: Callable[[], None] = self.eagerly

    def eagerly(self) -> None:
        """Run kernel by kernel."""
        self.logits = self.model.forward(self.ids, self.cache)

    def marked(self, mark: Mark) -> None:
        """Run eagerly and tell the end of each stage."""
        self.logits = self.model.forward(self.ids, self.cache, mark)

    def answer(self) -> Any:
        """From the host's token numbers to the next token of each sequence, in host memory."""
        self.copy_in()
        self.run()
        return self.logits.argmax(dim=-1).cpu()

    def copy_in(self) -> None:
        """Bring the prompt to the device."""
        self.ids.copy_(self.prompt, non_blocking=True)

    def prepare(self, mode: str) -> None:
        """
        Make ``run`` work in a mode.

        Raises:
            ProbeUnavailable: ``unsupported``: this device or torch has no such mode.
        """
        if mode == "compile":
            self.run = self.launched = self._compiled()
            self.compile_seconds = self._first()
        if mode == "graph" or (mode == "compile" and self.device.device == "cuda"):
            self.run = self.device.captured(self.run)

    def apart(self, mode: str) -> Callable[[], None]:
        """
        A run in the same mode in which ranks do not add up their parts.

        Its logits are wrong, and nobody gets them.
        """
        kept, whole = self.logits, self.launched

        def run() -> None:
            self.model.adding = False
            try:
                whole()
            finally:
                self.model.adding = True
                self.logits = kept

        graph = mode == "graph" or (mode == "compile" and self.device.device == "cuda")
        return self.device.captured(run) if graph else run

    def _compiled(self) -> Callable[[], None]:
        torch, model = self.device.torch, self.model
        attend = torch.compile(model.attend, dynamic=False, fullgraph=True)
        feed = torch.compile(model.feed, dynamic=False, fullgraph=True)

        def run() -> None:
            self.logits = model.run(self.ids, self.cache, attend, feed)

        return run

    def _first(self) -> float:
        """Seconds of the first compiled run."""

        def once() -> None:
            self.run()
            self.device.wait()

        try:
            return wall(once)
        except Exception as error:  # the compiler's own, and those of the tools it calls
            if fatal(error):
                raise
            raise ProbeUnavailable(
                ReasonCode.UNSUPPORTED,
                f"torch {self.device.torch.__version__} cannot compile this model here: "
                f"{first_line(error)}",
            ) from error


@contextlib.contextmanager
def compiler(torch: Any, mode: str) -> Iterator[None]:
    """
    Let the compiler work in this process alone, with nothing found in caches or left in them.

    A pool of its processes would run unbound beside what is measured.
    """
    if mode != "compile":
        yield
        return
    folder = tempfile.mkdtemp(prefix="topobench-inductor-")
    settings = {
        "TORCHINDUCTOR_CACHE_DIR": folder,
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        torch._dynamo.reset()
        yield
    finally:
        torch._dynamo.reset()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        shutil.rmtree(folder, ignore_errors=True)
