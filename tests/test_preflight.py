"""What a host can run: asked of this kernel, under a real seccomp filter, of real children."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import topobench
from made_machine import write
from topobench.agents import preflight, torch_check
from topobench.agents.discover import discover
from topobench.agents.discover.tree import Tree
from topobench.agents.handshake import greet
from topobench.agents.memory_policy import memory_policy
from topobench.host import HostFacts
from topobench.reading import to_json
from topobench.topology import Gpu, Known, Topology, format_cpu_list

FILTERED = """
import ctypes, struct, sys
# struct sock_filter: load the call's number; if it is one of those, fail with this errno.
numbers, code = [int(n) for n in sys.argv[1].split(",")], int(sys.argv[2])
program = struct.pack("HBBI", 0x20, 0, 0, 0)
for i, number in enumerate(numbers):
    program += struct.pack("HBBI", 0x15, len(numbers) - i, 0, number)
program += struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
program += struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | code)
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
from topobench.agents.memory_policy import memory_policy
from topobench.agents.discover import discover
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(program) // 8, program)), 0, 0) == 0
print(memory_policy())
print(discover(nvml=None).cpus.allowed)
"""
SET_MEMPOLICY, GET_MEMPOLICY, SCHED_SETAFFINITY = 238, 239, 203
EPERM, ENOSYS = 1, 38

x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="call numbers of x86_64")


def under_filter(calls: list[int], code: int) -> list[str]:
    """Memory policy and allowed CPUs in a process whose kernel refuses ``calls``."""
    command = [sys.executable, "-c", FILTERED, ",".join(map(str, calls)), str(code)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_python(program: str, **environment: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    ).stdout.strip()


@x86
def test_memory_policy_is_ok_without_a_filter() -> None:
    """The kernels we test on allow it; one that does not must be seen at once."""
    assert under_filter([9999], EPERM)[0] == "ok"


@x86
@pytest.mark.parametrize("calls", [[SET_MEMPOLICY], [GET_MEMPOLICY], [238, 239, 237]])
def test_memory_policy_refused_by_seccomp_is_denied(calls: list[int]) -> None:
    answer = under_filter(calls, EPERM)[0]
    assert answer.startswith("denied: Operation not permitted: EPERM")
    assert "SYS_NICE" in answer


@x86
def test_kernel_without_memory_policies_is_denied() -> None:
    answer = under_filter([SET_MEMPOLICY, GET_MEMPOLICY], ENOSYS)[0]
    assert answer.startswith("denied: Function not implemented: ENOSYS")


@x86
def test_affinity_refused_by_seccomp_leaves_the_inherited_one() -> None:
    assert under_filter([SCHED_SETAFFINITY], EPERM)[1] == format_cpu_list(os.sched_getaffinity(0))


def test_asking_for_the_memory_policy_changes_no_policy() -> None:
    """A policy set before, as numactl does, is still there afterwards."""
    if memory_policy() != "ok" or shutil.which("numactl") is None:
        pytest.skip("needs numactl and a kernel that lets memory policies be set")
    program = "from topobench.agents.memory_policy import memory_policy as m; import subprocess\n"
    program += (
        "print(m(), subprocess.run(['numactl', '-s'], capture_output=True, text=True).stdout)"
    )
    command = ["numactl", "--interleave=0", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ok policy: interleave\n")


def test_facts_of_this_host() -> None:
    facts = preflight.facts(discover(nvml=None))
    assert facts.hostname == os.uname().nodename
    assert facts.interpreter == sys.executable
    assert facts.topobench == topobench.__version__
    assert facts.source_digest == greet()["source_digest"]
    assert facts.python == sys.version.split()[0]
    assert facts.numactl == shutil.which("numactl")
    assert facts.torch == importlib.metadata.version("torch")
    assert (facts.torch_gpus, facts.torch_error) == (None, None)
    assert facts.packages["numba"] == importlib.metadata.version("numba")
    assert facts.inherited_cpus == format_cpu_list(os.sched_getaffinity(0))
    assert facts.shm_bytes == shutil.disk_usage("/dev/shm").total
    assert facts.available_memory_bytes is not None
    assert 1 << 20 < facts.available_memory_bytes < 1 << 50
    assert HostFacts.from_json(to_json(facts)) == facts


def test_facts_import_neither_torch_nor_other_heavy_packages() -> None:
    program = """
        import sys
        from topobench.agents import preflight
        from topobench.agents.discover import discover
        preflight.facts(discover())
        print(*{"torch", "ray", "sqlalchemy", "numpy", "numba"} & set(sys.modules))
    """
    assert run_python(program) == ""


def test_inherited_affinity_is_told_apart_from_the_allowed_set() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    program = f"""
        import os
        os.sched_setaffinity(0, {{{cpus[-1]}}})
        from topobench.agents import preflight
        from topobench.agents.discover import discover
        topology = discover(nvml=None)
        print(preflight.facts(topology).inherited_cpus, topology.cpus.allowed)
    """
    assert run_python(program) == f"{cpus[-1]} {format_cpu_list(cpus)}"


def test_programs_on_the_path_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvbandwidth"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "all_reduce_perf").write_text("not executable")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert preflight.facts(discover(nvml=None)).binaries == {"nvbandwidth": str(program)}


def with_gpus(*uuids: str) -> Topology:
    """This host as if the driver saw GPUs."""
    import dataclasses

    known = Known(None, None, "test")
    gpus = tuple(Gpu(i, u, None, "NVIDIA H200", None, known) for i, u in enumerate(uuids))
    topology = discover(nvml=None)
    machine = dataclasses.replace(topology.machine, driver="580.159.04", cuda="13.0")
    return dataclasses.replace(topology, gpus=gpus, machine=machine)


def test_real_torch_that_cannot_use_the_drivers_gpus_says_why() -> None:
    """The CPU build of torch beside a driver: both versions and what to install."""
    import torch

    if torch.version.cuda:
        pytest.skip("this torch has CUDA in it")
    facts = torch_check.torch_facts(with_gpus("GPU-1"))
    assert facts.gpus == ()
    assert facts.error is not None
    assert f"torch {facts.version} (no CUDA in it)" in facts.error
    assert "driver 580.159.04 (CUDA 13.0)" in facts.error
    assert "install a torch built for CUDA 13.0 or older" in facts.error


def fake_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Put another torch before the real one in the child's path."""
    (tmp_path / "torch.py").write_text(textwrap.dedent(source))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_gpus_that_run_a_kernel_are_named_and_the_failing_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
        from types import SimpleNamespace
        version = SimpleNamespace(cuda="12.8")
        def properties(index):
            return SimpleNamespace(uuid=f"0000000{index}-1111-2222-3333-444444444444")
        cuda = SimpleNamespace(
            init=lambda: None, device_count=lambda: 3, get_device_properties=properties
        )
        class ones:
            def __init__(self, size, device):
                self.device = device
            def add_(self, value):
                if self.device == "cuda:1":
                    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
                return self
            def item(self):
                return 2.0
        print("a line that some library prints")
    """
    fake_torch(tmp_path, monkeypatch, source)
    facts = torch_check.torch_facts(with_gpus("GPU-1", "GPU-2", "GPU-3"))
    assert facts.gpus == (
        "GPU-00000000-1111-2222-3333-444444444444",
        "GPU-00000002-1111-2222-3333-444444444444",
    )
    assert facts.error is not None
    assert "uncorrectable ECC error" in facts.error


def test_torch_that_crashes_is_an_error_not_an_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_torch(tmp_path, monkeypatch, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    facts = torch_check.torch_facts(with_gpus("GPU-1"))
    assert facts.gpus == ()
    assert "ended with -11" in str(facts.error)


def test_torch_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(tmp_path, monkeypatch, "import time\ntime.sleep(100)")
    monkeypatch.setattr(torch_check, "_SECONDS", 1)
    assert "did not answer within 1 s" in str(torch_check.torch_facts(with_gpus("GPU-1")).error)


def test_hiding_of_gpus_from_the_agent_is_not_passed_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray sets an empty CUDA_VISIBLE_DEVICES for actors that ask for no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    source = "import os\nraise ImportError('visible: %r' % os.environ.get('CUDA_VISIBLE_DEVICES'))"
    fake_torch(tmp_path, monkeypatch, source)
    assert "visible: None" in str(torch_check.torch_facts(with_gpus("GPU-1")).error)


UUID = "4c4c4544-0051-3010-8052-b4c04f4d3733"


def machine_with(root: Path, **files: str) -> str:
    names = {"uuid": "sys/class/dmi/id/product_uuid", "machine_id": "etc/machine-id"}
    for name, text in files.items():
        write(root, names[name], text)
    return str(root)


def test_host_key_of_the_config_comes_first(tmp_path: Path) -> None:
    root = machine_with(tmp_path, uuid=UUID, machine_id="a" * 31 + "b")
    assert preflight.host_key("h07", "10.0.0.7", root=root) == ("h07", "id")


def test_host_key_takes_the_first_id_that_somebody_set(tmp_path: Path) -> None:
    both = machine_with(tmp_path / "1", uuid=UUID, machine_id="0123456789abcdef" * 2)
    machine = machine_with(tmp_path / "2", machine_id="0123456789abcdef" * 2)
    neither = machine_with(tmp_path / "3")
    keys = [preflight.host_key(None, "10.0.0.7", root=r) for r in (both, machine, neither)]
    assert [source for _, source in keys] == ["product_uuid", "machine_id", "address"]
    assert len({key for key, _ in keys}) == 3
    assert all(len(key) == 17 and key.startswith("h") for key, _ in keys)


def test_host_key_does_not_hold_the_id_itself(tmp_path: Path) -> None:
    key, _ = preflight.host_key(None, "a", root=machine_with(tmp_path, uuid=UUID))
    assert UUID[:8] not in key


def test_host_key_is_the_same_in_another_spelling(tmp_path: Path) -> None:
    """Firmware and tools write the UUID in upper or lower case."""
    lower = preflight.host_key(None, "a", root=machine_with(tmp_path / "1", uuid=UUID))
    upper = preflight.host_key(None, "b", root=machine_with(tmp_path / "2", uuid=UUID.upper()))
    assert lower == upper


@pytest.mark.parametrize(
    "dummy",
    [
        "00000000-0000-0000-0000-000000000000",
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        "03000200-0400-0500-0006-000700080009",
        "12345678-1234-5678-90ab-cddeefaabbcc",
        "Not Settable",
        "To be filled by O.E.M.",
        "Default string",
    ],
)
def test_dummy_uuid_is_passed_over(tmp_path: Path, dummy: str) -> None:
    root = machine_with(tmp_path, uuid=dummy, machine_id="0123456789abcdef" * 2)
    assert preflight.host_key(None, "a", root=root)[1] == "machine_id"


def test_uninitialised_machine_id_is_passed_over(tmp_path: Path) -> None:
    root = machine_with(tmp_path, machine_id="uninitialized")
    assert preflight.host_key(None, "a", root=root)[1] == "address"


def test_addresses_give_different_keys(tmp_path: Path) -> None:
    root = machine_with(tmp_path)
    a, b = (preflight.host_key(None, x, root=root)[0] for x in ("10.0.0.1", "10.0.0.2"))
    assert a != b


CGROUP = {
    "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0",
    "proc/self/cgroup": "0::/pod/box",
    "proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB",
}


def grouped(root: Path, **files: str) -> Any:
    for name, text in {**CGROUP, **files}.items():
        write(root, name, text)
    return Tree.open(root)


def test_memory_limit_of_the_group_bounds_what_is_available(tmp_path: Path) -> None:
    """Page cache is counted as free; the tightest parent counts."""
    tree = grouped(tmp_path)
    assert preflight.available_memory(tree) == 32 << 30
    write(tmp_path, "sys/fs/cgroup/pod/box/memory.max", "max")
    write(tmp_path, "sys/fs/cgroup/pod/memory.max", str(8 << 30))
    write(tmp_path, "sys/fs/cgroup/pod/memory.current", str(3 << 30))
    write(tmp_path, "sys/fs/cgroup/pod/memory.stat", f"anon 1\ninactive_file {1 << 30}")
    assert preflight.available_memory(tree) == 6 << 30


def test_cpu_quota_is_the_tightest_of_the_group_and_its_parents(tmp_path: Path) -> None:
    grouped(tmp_path)
    write(tmp_path, "sys/fs/cgroup/pod/box/cpu.max", "400000 100000")
    write(tmp_path, "sys/fs/cgroup/pod/cpu.max", "50000 100000")
    (tmp_path / "sys/devices").mkdir(parents=True)
    assert discover(tmp_path).cpus.quota_cpus == 0.5
