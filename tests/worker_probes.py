"""
Probes with every kind of bad manners; real workers run them in the launcher's tests.

Loaded inside workers by ``worker_probes:Class``: tests put this folder on PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from topobench.errors import ProbeUnavailable, ResultInvalid
from topobench.probes import host_network, so_far
from topobench.probes.all_reduce import AllReduce, Buffers
from topobench.probes.collective import Group
from topobench.probes.foreign import run_foreign
from topobench.probes.protocol import Arms, WorkerContext, parameter
from topobench.probes.timing import Sampler
from topobench.reading import Better, Metric, Reading, ReasonCode, Summary
from topobench.stats import summarise

SPEED = Metric("bandwidth_bytes_per_second", Better.HIGHER, "for tests")
TIME = Metric("duration_seconds", Better.LOWER, "for tests")


def reading(value: float, metric: Metric = SPEED) -> Reading:
    summary = Summary(n=1, median=value, minimum=value, maximum=value, mad=0.0)
    return Reading(metric.name, summary, (value,))


class Base:
    """What the probes below share."""

    version: ClassVar[int] = 1
    summary: ClassVar[str] = "for tests"
    needs: ClassVar[frozenset[str]] = frozenset()
    metrics: ClassVar[tuple[Metric, ...]] = (SPEED, TIME)
    arms: ClassVar[Arms] = Arms.BINDINGS

    def estimated_seconds(self) -> float:
        return 0.0


@dataclass(frozen=True)
class Steady(Base):
    """Well-behaved: tells where it ran."""

    name: ClassVar[str] = "steady"
    value: float = parameter(1.0, help="the result")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        context.note("affinity", sorted(os.sched_getaffinity(0)))
        context.note("threads", os.environ["OMP_NUM_THREADS"])
        context.note("pid", os.getpid())
        context.note("cells_before", context.cells_before)
        context.note("devices", list(context.devices))
        context.note("environment", dict(os.environ))
        context.note("deadline", context.deadline_seconds)
        sys.stdout.write("steady says hello\n")
        yield reading(self.value)


@dataclass(frozen=True)
class Crasher(Base):
    """Dies in the way asked for, after one reading."""

    name: ClassVar[str] = "crasher"
    how: str = parameter("exit", help="the way to go")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        yield reading(5.0)
        if self.how.startswith("exit"):
            sys.stderr.write("last words\n")
            os._exit(int(self.how.removeprefix("exit") or 0))
        if self.how.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, self.how))
        if self.how == "null":
            ctypes.string_at(0)
        if self.how == "sys.exit":
            raise SystemExit(0)
        time.sleep(60)


@dataclass(frozen=True)
class Raiser(Base):
    """Raises what is asked for."""

    name: ClassVar[str] = "raiser"
    what: str = parameter("internal", help="which exception")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        if self.what == "unavailable":
            raise ProbeUnavailable(ReasonCode.NO_PACKAGE, "there is no numba here")
        if self.what == "wrong_data":
            yield reading(7.0)
            raise ResultInvalid(ReasonCode.WRONG_DATA, "byte 3 is wrong")
        if self.what == "memory":
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            bytearray(4 << 30)
        if self.what == "cuda":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
        if self.what == "undeclared":
            yield reading(1.0, Metric("power_watts", Better.LOWER, "not declared"))
        if self.what == "odd_note":
            context.note("odd", {1, 2})
        if self.what == "nothing":
            return
        raise ZeroDivisionError("password=hunter2 at https://me:hunter3@example.org")


@dataclass(frozen=True)
class Values(Base):
    """Gives values that no clock can give."""

    name: ClassVar[str] = "values"
    value: str = parameter("nan", help="text of a float")
    metric: str = parameter("speed", help="speed or time")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        yield reading(float(self.value), TIME if self.metric == "time" else SPEED)


@dataclass(frozen=True)
class Sleeper(Base):
    """Sleeps; may hold the interpreter's lock or start a stubborn family meanwhile."""

    name: ClassVar[str] = "sleeper"
    seconds: float = parameter(60.0, help="how long")
    how: str = parameter("plain", help="plain, locked, family, flood, stopped")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        yield reading(3.0)
        if self.how == "family":
            start_family()
        if self.how == "locked":
            ctypes.PyDLL(None).sleep(int(self.seconds))  # PyDLL keeps the lock
        if self.how == "flood":
            while True:
                os.write(1, b"x" * 65536)
        time.sleep(self.seconds)


def start_family() -> None:
    """A child and a grandchild that ignore TERM; the grandchild has left the session."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    grandchild = stubborn + "time.sleep(60)"
    child = stubborn + (
        "import subprocess, sys; "
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}], start_new_session=True); "
        "time.sleep(60)"
    )
    subprocess.Popen([sys.executable, "-c", child])


@dataclass(frozen=True)
class Scribbler(Base):
    """Misuses the result pipe."""

    name: ClassVar[str] = "scribbler"
    how: str = parameter("garbage", help="garbage, close, other_type, half_line, ...")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        yield reading(2.0)
        pipe = int(sys.argv[1])
        if self.how == "close":
            os.close(pipe)
        elif self.how == "endless":
            while True:
                os.write(pipe, b"x" * 65536)
        else:
            os.write(pipe, {
                "garbage": b"\xff\x00 no JSON\n",
                "array": b"[1, 2]\n",
                "other_type": b'{"type": "surprise"}\n',
                "bad_reading": b'{"type": "reading", "cell": "x", "reading": {}}\n',
                "bad_end": b'{"type": "end", "cell": "x", "status": "splendid"}\n',
            }[self.how])  # fmt: skip
        time.sleep(60)


@dataclass(frozen=True)
class Stray(Base):
    """Lets a thread of its own leave the binding, or changes the memory policy."""

    name: ClassVar[str] = "stray"
    how: str = parameter("thread", help="thread or policy")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        from topobench.probes import binding
        from topobench.reading import MemoryPolicy

        if self.how == "policy":
            binding.set_policy(MemoryPolicy.INTERLEAVE, (0,))
        if self.how == "thread":
            moved = threading.Event()

            def wander() -> None:
                os.sched_setaffinity(0, {1})
                moved.set()
                time.sleep(60)

            threading.Thread(target=wander, daemon=True).start()
            moved.wait()
        yield reading(4.0)


@dataclass(frozen=True)
class Buffer(Base):
    """Shows its buffer to the worker."""

    name: ClassVar[str] = "buffer"
    size: int = parameter(1 << 20, help="bytes")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        memory = mmap.mmap(-1, self.size)
        for offset in range(0, self.size, mmap.PAGESIZE):
            memory[offset] = 1
        view = (ctypes.c_char * self.size).from_buffer(memory)
        context.buffer_ready(ctypes.addressof(view), self.size)
        yield reading(6.0)


@dataclass(frozen=True)
class ClockStep(Base):
    """Runs while the wall clock is set back by an hour."""

    name: ClassVar[str] = "clock_step"

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        real = time.time
        time.time = lambda: real() - 3600.0
        yield reading(8.0)


@dataclass(frozen=True)
class Meeting(Base):
    """
    Ranks meet at a socket of rank 0, which adds up their numbers round by round.

    A rank that is to die does so after ``die_at`` rounds.
    """

    name: ClassVar[str] = "meeting"
    arms: ClassVar[Arms] = Arms.GANG
    die: int = parameter(-1, help="rank that dies")
    die_at: int = parameter(5, help="after so many rounds")
    how: str = parameter("SIGKILL", help="SIGKILL, raise or skip")
    backend: str = parameter("gloo", help="for the record")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        if self.how == "skip":
            raise ProbeUnavailable(ReasonCode.UNSUPPORTED, "no collectives here")
        with self.joined(context) as total:
            context.note("affinity", sorted(os.sched_getaffinity(0)))
            for number in range(20):
                if context.rank == self.die and number == self.die_at:
                    self._die()
                started = time.perf_counter()
                found = total(context.rank + 1)
                took = time.perf_counter() - started
                assert found == sum(range(1, context.ranks + 1))
                yield reading(took, TIME)

    @contextlib.contextmanager
    def joined(self, context: WorkerContext) -> Iterator[Callable[[int], int]]:
        """Meet the others; gives the sum of what all ranks call it with."""
        with contextlib.ExitStack() as stack:
            if context.rank:
                host, port = context.wait().split(":")
                peers = [socket.create_connection((host, int(port)))]
            else:
                server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                context.publish(f"127.0.0.1:{server.getsockname()[1]}")
                peers = [server.accept()[0] for _ in range(context.ranks - 1)]
            lines = [stack.enter_context(peer.makefile("rw", buffering=1)) for peer in peers]
            for peer in peers:
                stack.callback(peer.close)

            def total(value: int) -> int:
                if context.rank == 0:
                    value += sum(map(received, lines))
                for line in lines:
                    line.write(f"{value}\n")
                return value if context.rank == 0 else received(lines[0])

            yield total

    def _die(self) -> None:
        if self.how == "raise":
            raise ValueError("this rank has had enough")
        os.kill(os.getpid(), getattr(signal, self.how))


def received(line: IO[str]) -> int:
    if not (text := line.readline()):
        raise ConnectionError("Connection closed by peer")
    return int(text)


@dataclass(frozen=True)
class Reduced(Meeting):
    """The same over gloo, whose ranks have gloo's words for what they see of each other."""

    name: ClassVar[str] = "reduced"

    @contextlib.contextmanager
    def joined(self, context: WorkerContext) -> Iterator[Callable[[int], int]]:
        import torch
        import torch.distributed as dist

        if context.rank == 0:
            store = dist.TCPStore(
                "127.0.0.1", 0, context.ranks, is_master=True, wait_for_workers=False
            )
            context.publish(f"127.0.0.1:{store.port}")
        else:
            host, port = context.wait().split(":")
            store = dist.TCPStore(host, int(port), context.ranks, is_master=False)
        dist.init_process_group("gloo", store=store, rank=context.rank, world_size=context.ranks)

        def total(value: int) -> int:
            tensor = torch.full((1 << 18,), float(value))
            dist.all_reduce(tensor)
            return int(tensor[0].item())

        try:
            yield total
        finally:
            dist.destroy_process_group()


@dataclass(frozen=True)
class Misplaced(Base):
    """Measures memory that it got from another NUMA node than asked."""

    name: ClassVar[str] = "misplaced"
    node: int = parameter(1, help="where the pages are")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        from topobench.probes import binding
        from topobench.reading import MemoryPolicy

        binding.set_policy(MemoryPolicy.BIND, (self.node,))
        yield from Buffer(1 << 20).measure(context)
        binding.set_policy(context.binding.memory, context.binding.memory_nodes)


DAEMON = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.execve(sys.executable, [sys.executable, '-c', 'import signal, time; "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)', sys.argv[1]], {})\n"
    "    os._exit(0)\n"
    "print('out', flush=True)\n"
    "print('err', file=sys.stderr, flush=True)\n"
    "time.sleep(float(sys.argv[2]))\n"
    "sys.exit(3)\n"
)
"""Leaves a grandchild that ignores TERM, in a session of its own, without our marks."""


@dataclass(frozen=True)
class Foreign(Base):
    """Runs a program that leaves a stubborn daemon behind."""

    name: ClassVar[str] = "foreign"
    mark: str = parameter("", help="last argument of the daemon, to find it by")
    seconds: float = parameter(0.5, help="how long the program itself runs")
    timeout: float = parameter(20.0, help="its time limit")
    program: str = parameter("python", help="python, or a path")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        out = Path(tempfile.gettempdir()) / f"{self.mark}.out"
        program = sys.executable if self.program == "python" else self.program
        ended = run_foreign(
            [program, "-c", DAEMON, self.mark, str(self.seconds)],
            env={},
            timeout_seconds=self.timeout,
            stdout_path=out,
        )
        context.note("code", ended.code)
        context.note("timed_out", ended.timed_out)
        context.note("out", out.read_text())
        out.unlink()
        yield reading(ended.seconds, TIME)


@dataclass(frozen=True)
class Paced(Base):
    """Takes samples at a steady pace and tells in a file when the first one began."""

    name: ClassVar[str] = "paced"
    mark: str = parameter("", help="path of the file")
    count: int = parameter(24, help="samples of 50 ms")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        samples, ends = [], []
        Path(self.mark).write_text(str(time.monotonic()))
        for number in range(self.count):
            time.sleep(0.05)
            samples.append(1.0 + number)
            ends.append(time.monotonic())
        yield Reading(TIME.name, summarise(samples), tuple(samples), {}, tuple(ends))


@dataclass(frozen=True, slots=True)
class LostReduce(AllReduce):
    """All-reduce over gloo; one rank is killed or stopped in the midst of timing."""

    name: ClassVar[str] = "lostreduce"

    die: int = parameter(-1, help="rank that gets the signal")
    die_at: int = parameter(4, help="before its buffers are renewed for the n-th time")
    how: str = parameter("SIGKILL", help="the signal")

    def buffers(self, group: Group) -> Buffers:
        data = Buffers(group, self)
        refill, times = data.refill, itertools.count(1)

        def until(count: int) -> None:
            if group.rank == self.die and next(times) == self.die_at:
                os.kill(os.getpid(), getattr(signal, self.how))
            refill(count)

        data.refill = until  # type: ignore[method-assign]
        return data


@dataclass(frozen=True, slots=True)
class LostNetwork(host_network.HostNetwork):
    """Transfers between two hosts, of which one stops in the second."""

    name: ClassVar[str] = "lostnetwork"

    stop: int = parameter(1, help="rank that is stopped")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        transfer, times = host_network._transfer, itertools.count(1)

        def until(*args: Any, **flags: Any) -> float:
            if next(times) == 2:
                os.kill(os.getpid(), signal.SIGSTOP)
            return transfer(*args, **flags)

        if context.rank == self.stop:
            host_network._transfer = until
        yield from host_network.HostNetwork.measure(self, context)


@dataclass(frozen=True)
class Stuck(Base):
    """Tells one reading, then takes four samples of another and hangs."""

    name: ClassVar[str] = "stuck"
    how: str = parameter("native", help="native, kernel, raise, wrong or none")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        yield reading(3.0)
        with so_far.durations(TIME.name, parts=2):
            sampler = Sampler(0.0, 100.0)
        for number in range(1, 5):
            time.sleep(so_far.EVERY_SECONDS)
            sampler.add(float(number))
        if self.how == "native":
            ctypes.PyDLL(None).sleep(60)  # keeps the interpreter's lock, as a stuck driver does
        if self.how == "kernel":
            import torch

            torch.cuda._sleep(1 << 50)  # days
            torch.cuda.synchronize()
        if self.how == "wrong":
            raise ResultInvalid(ReasonCode.WRONG_DATA, "byte 3 is wrong")
        if self.how == "raise":
            raise ZeroDivisionError
        yield reading(2.0, TIME)
