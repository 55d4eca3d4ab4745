"""Bindings on a kernel with two NUMA nodes, by numactl and by system calls alike."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.guest import run
from topobench.reading import Binding, MemoryPolicy, ReasonCode, Run, Status, to_json

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ROOT = Path(__file__).parent.parent
WAYS = pytest.mark.parametrize("way", ["numactl", "syscalls"])

NEAR = Binding("local", "0-1", (0,), MemoryPolicy.BIND, (0,))
FAR = Binding("remote", "0-1", (0,), MemoryPolicy.BIND, (1,))
SPREAD = Binding("spread", "0-3", (0, 1), MemoryPolicy.INTERLEAVE, (0, 1))
CPUS_ONLY = Binding("mine", "2-3", (1,))
OUTSIDE = Binding("outside", "0", (0,))
HALF_OUTSIDE = Binding("half", "0-1", (0,))
WRONG_MEMORY = Binding("wrong", "2-3", (1,), MemoryPolicy.BIND, (1,))

JOBS: Mapping[str, list[tuple[str, Binding]]] = {
    "two": [
        ("buffer", FAR),
        ("buffer", SPREAD),
        ("buffer", CPUS_ONLY),
        ("misplaced", NEAR),
    ],
    "cpuset": [
        ("buffer", Binding("none")),
        ("buffer", OUTSIDE),
        ("buffer", HALF_OUTSIDE),
        ("buffer", WRONG_MEMORY),
    ],
}


@functools.cache
def boot(shape: str) -> list[dict[str, Any]]:
    """The runs of all jobs of a shape, from one boot."""
    jobs = json.dumps([(probe, to_json(binding), {}) for probe, binding in JOBS[shape]])
    done = run(
        shape,
        [sys.executable, str(ROOT / "tests" / "lab" / "workers.py"), jobs],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def outcome(shape: str, way: str, probe: str, binding: Binding) -> Run:
    """The run of one job."""
    return Run.from_json(boot(shape)[JOBS[shape].index((probe, binding))][way])


@WAYS
class TestTwoNodes:
    def test_memory_is_where_it_was_asked_for(self, way: str) -> None:
        found = outcome("two", way, "buffer", FAR)
        (member,) = found.members
        assert found.status is Status.OK
        assert (member.cpus, member.cpu_node) == ("0-1", 0)
        assert (member.memory_policy, member.memory_node) == ("bind:1", 1)
        assert found.readings[1].samples == (1.0,)
        assert found.conditions["buffer_page_share"] == {"1": 1.0}

    def test_spread_gives_each_node_half(self, way: str) -> None:
        found = outcome("two", way, "buffer", SPREAD)
        (member,) = found.members
        assert found.status is Status.OK
        assert (member.cpus, member.cpu_node, member.memory_node) == ("0-3", None, None)
        assert member.memory_policy == "interleave:0-1"
        assert found.conditions["buffer_page_share"] == pytest.approx({"0": 0.5, "1": 0.5})
        assert found.readings[1].samples == (1.0,)

    def test_first_touch_follows_the_cpus(self, way: str) -> None:
        found = outcome("two", way, "buffer", CPUS_ONLY)
        assert (found.members[0].cpu_node, found.members[0].memory_node) == (1, 1)
        assert found.members[0].memory_policy == "default"
        assert found.readings[1].samples == (1.0,)

    def test_pages_on_another_node_make_a_run_invalid(self, way: str) -> None:
        """CPUs and policy look right at the end; only the pages tell."""
        found = outcome("two", way, "misplaced", NEAR)
        assert found.status is Status.INVALID
        assert str(found.reason) == (
            "wrong_binding: only 0.0% of a measured buffer lies on NUMA nodes [0], as asked"
        )
        assert found.readings[1].samples == (0.0,)
        assert found.members[0].memory_node == 1
        assert found.members[0].memory_policy == "bind:0"


@WAYS
class TestCpuset:
    """A container with CPUs 1-3 and the memory of node 0 (C31)."""

    def test_none_is_what_the_cpuset_allows(self, way: str) -> None:
        found = outcome("cpuset", way, "buffer", Binding("none"))
        assert (found.status, found.members[0].cpus) == (Status.OK, "1-3")
        assert found.members[0].memory_node == 0

    @pytest.mark.parametrize("binding", [OUTSIDE, HALF_OUTSIDE], ids=["all", "half"])
    def test_cpus_outside_are_refused_not_cut(self, way: str, binding: Binding) -> None:
        found = outcome("cpuset", way, "buffer", binding)
        assert found.reason is not None
        assert (found.status, found.reason.code) == (Status.SKIPPED, ReasonCode.CPU_NOT_ALLOWED)
        assert found.readings == ()

    def test_memory_outside_is_refused(self, way: str) -> None:
        found = outcome("cpuset", way, "buffer", WRONG_MEMORY)
        assert found.reason is not None
        assert (found.status, found.reason.code) == (Status.SKIPPED, ReasonCode.MEM_NOT_ALLOWED)
        assert found.readings == ()
