"""What the kernel says about threads, memory policy and pages, on this very machine."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from launching import CPUS, NUMACTL
from topobench.probes import binding
from topobench.probes.binding import page_nodes, policy_text
from topobench.reading import MemoryPolicy

ROOT = Path(__file__).parent.parent


def child(code: str, *wrapper: str) -> str:
    """What a fresh process prints: policies and affinities must not leak into pytest."""
    prelude = (
        "import os\nfrom topobench.probes import binding\nfrom topobench.reading import "
        "MemoryPolicy\nfrom topobench.topology import format_cpu_list\n"
    )
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", prelude + code],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.stdout.strip()


class TestPolicy:
    def test_what_is_set_is_what_the_kernel_says(self) -> None:
        assert child(
            "for policy, nodes in ((MemoryPolicy.BIND, (0,)), (MemoryPolicy.INTERLEAVE, (0,)),"
            " (MemoryPolicy.DEFAULT, ())):\n"
            "    binding.set_policy(policy, nodes)\n"
            "    print(binding.get_policy())"
        ).split() == ["bind:0", "interleave:0", "default"]

    @pytest.mark.skipif(NUMACTL is None, reason="numactl is not installed")
    def test_what_numactl_sets_is_read_back(self) -> None:
        assert child("print(binding.get_policy())", "numactl", "--membind=0") == "bind:0"
        assert child("print(binding.get_policy())", "numactl", "--preferred=0") == "preferred:0"
        assert child("print(binding.get_policy())", "numactl", "--localalloc") == "local"

    @pytest.mark.parametrize("node", [63, 1023, 1024, 5000, -1])
    def test_a_node_that_is_not_there_is_refused(self, node: int) -> None:
        with pytest.raises(OSError, match=r"Invalid argument|cannot exist") as caught:
            binding.set_policy(MemoryPolicy.BIND, (node,))
        assert caught.value.errno == errno.EINVAL
        assert binding.get_policy() == "default"

    def test_a_filter_that_forbids_it_is_a_denial(self) -> None:
        code = (
            "print(binding.get_policy())\n"
            "try:\n    binding.set_policy(MemoryPolicy.BIND, (0,))\n"
            "except OSError as error:\n    print(binding.refusal(error), error.errno)"
        )
        wrapper = (sys.executable, str(ROOT / "tests" / "seccomp.py"))
        assert child(code, *wrapper).split() == ["denied", "denied", str(errno.EPERM)]

    def test_a_kernel_without_numa_is_unsupported_not_denied(self) -> None:
        assert binding.refusal(OSError(errno.ENOSYS, "")) == "unsupported"

    def test_an_unknown_machine_is_unsupported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.machine", lambda: "pdp11")
        assert binding.get_policy() == "unsupported"

    def test_policies_as_text(self) -> None:
        assert policy_text(MemoryPolicy.DEFAULT, ()) == "default"
        assert policy_text(MemoryPolicy.BIND, (1,)) == "bind:1"
        assert policy_text(MemoryPolicy.INTERLEAVE, (0, 1, 3)) == "interleave:0-1,3"


class TestCpus:
    @pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
    def test_every_thread_is_moved_and_reported(self) -> None:
        code = (
            "import threading\n"
            "stay = threading.Event()\n"
            "threads = [threading.Thread(target=stay.wait, daemon=True) for _ in range(3)]\n"
            "[t.start() for t in threads]\n"
            f"binding.set_cpus([{CPUS[1]}])\n"
            "seen = binding.thread_cpus()\n"
            "print(len(seen), {format_cpu_list(c) for c in seen.values()})\n"
            "binding.set_cpus(None)\n"
            "print({format_cpu_list(c) for c in binding.thread_cpus().values()})"
        )
        first, second = child(code).splitlines()
        assert first == f"4 {{'{CPUS[1]}'}}"
        assert second != f"{{'{CPUS[1]}'}}"

    def test_a_thread_with_its_own_affinity_shows(self) -> None:
        moved, leave = threading.Event(), threading.Event()

        def wander() -> None:
            os.sched_setaffinity(0, {CPUS[-1]})
            moved.set()
            leave.wait()

        thread = threading.Thread(target=wander)
        thread.start()
        moved.wait()
        seen = binding.thread_cpus()
        leave.set()
        thread.join()
        assert thread.native_id is not None
        assert seen[thread.native_id] == {CPUS[-1]}
        assert seen[threading.get_native_id()] == set(CPUS)

    def test_cpus_that_are_not_there_are_refused(self) -> None:
        with pytest.raises(OSError, match="Invalid argument"):
            binding.set_cpus([4095])

    def test_the_node_of_cpus(self) -> None:
        text = Path("/sys/devices/system/node/node0/cpulist").read_text()
        first = int(text.split("-")[0].split(",")[0])
        assert binding.node_of([first]) == 0
        assert binding.node_of([first, 4095]) is None
        assert binding.node_of([]) is None


class TestPages:
    def test_touched_pages_have_a_node_and_untouched_have_none(self) -> None:
        pages = 64
        memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        address = ctypes.addressof(view)
        assert page_nodes(address, len(memory)).total() == 0
        for page in range(48):
            memory[page * mmap.PAGESIZE] = 1
        assert page_nodes(address, len(memory)).total() == 48
        assert page_nodes(address + 10, 1).total() == 1
        assert page_nodes(address + mmap.PAGESIZE - 1, 2).total() == 2, "both pages of an overlap"
        assert page_nodes(address, 0).total() == 0
        del view

    def test_large_buffers_are_sampled(self) -> None:
        size = 128 << 20
        memory = mmap.mmap(-1, size)
        for offset in range(0, size, mmap.PAGESIZE):
            memory[offset] = 1
        view = (ctypes.c_char * size).from_buffer(memory)
        assert page_nodes(ctypes.addressof(view), size).total() == 16384
        del view
