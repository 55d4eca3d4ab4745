"""A run is bound as it says, or it says that it is not."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from launching import CPUS, NUMACTL, Lab, cell, host
from topobench.agents.launch import numactl
from topobench.reading import Binding, MemoryPolicy, ReasonCode, Run, Status, to_json

ROOT = Path(__file__).parent.parent
NODE_0 = Binding("local", str(CPUS[0]), (0,), MemoryPolicy.BIND, (0,))
SPREAD = Binding("spread", str(CPUS[0]), (0,), MemoryPolicy.INTERLEAVE, (0,))
CPU_ONLY = Binding("mine", str(CPUS[0]), (0,))
TWO_CPUS = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
PROGRAM = pytest.param(
    NUMACTL,
    id="numactl",
    marks=pytest.mark.skipif(NUMACTL is None, reason="numactl is not installed"),
)
SYSCALLS = pytest.param(None, id="syscalls")

AGENT = """
import json, sys
from pathlib import Path
from launching import Lab, cell, host
from topobench.reading import Binding, to_json
lab = Lab(Path({folder!r}))
lab.sweep = {sweep!r}
here = host(numactl={program!r}, memory_policy={policy!r})
runs = lab.run(cell("steady", binding=Binding.from_json(json.loads({binding!r}))), on=here)
sys.stdout.write(json.dumps(to_json(runs)))
"""


def run_under(
    wrapper: Sequence[str],
    lab: Lab,
    binding: Binding,
    *,
    program: str | None = None,
    policy: str = "ok",
) -> Run:
    """Run a steady cell by an agent that was itself started under a wrapper."""
    text = AGENT.format(
        folder=str(lab.logs.parent),
        sweep=lab.sweep,
        program=program,
        policy=policy,
        binding=json.dumps(to_json(binding)),
    )
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )
    return Run.from_json(json.loads(done.stdout)[0])


@pytest.mark.parametrize("program", [PROGRAM, SYSCALLS])
class TestBothWays:
    """numactl and system calls give the same binding, proven by the kernel."""

    def test_cpus_and_memory_of_one_node(self, lab: Lab, program: str | None) -> None:
        (run,) = lab.run(cell("buffer", binding=NODE_0), on=host(numactl=program))
        (member,) = run.members
        assert (run.status, run.warnings) == (Status.OK, ())
        assert (member.cpus, member.memory_policy) == (str(CPUS[0]), "bind:0")
        assert (member.cpu_node, member.memory_node) == (0, 0)
        _, locality = run.readings
        assert locality.metric == "locality_ratio"
        assert locality.samples == (1.0,)
        assert run.conditions["buffer_page_share"] == {"0": 1.0}

    def test_interleave(self, lab: Lab, program: str | None) -> None:
        (run,) = lab.run(cell("buffer", binding=SPREAD), on=host(numactl=program))
        assert run.status is Status.OK
        assert run.members[0].memory_policy == "interleave:0"

    def test_cpus_alone(self, lab: Lab, program: str | None) -> None:
        (run,) = lab.run(cell("steady", binding=CPU_ONLY), on=host(numactl=program))
        assert run.conditions["affinity"] == [CPUS[0]]
        assert run.members[0].memory_policy == "default"

    def test_none_is_everything_allowed(self, lab: Lab, program: str | None) -> None:
        (run,) = lab.run(cell("buffer"), on=host(numactl=program))
        assert run.members[0].memory_policy == "default"
        assert run.status is Status.OK
        assert [r.metric for r in run.readings] == ["bandwidth_bytes_per_second"]
        assert run.members[0].memory_node == 0, "observed, though nothing was asked for"

    def test_threads_are_those_of_the_binding(self, lab: Lab, program: str | None) -> None:
        (run,) = lab.run(
            cell("steady", binding=Binding("none", threads=3)), on=host(numactl=program)
        )
        assert run.conditions["threads"] == "3"

    def test_a_cpu_that_does_not_exist(self, lab: Lab, program: str | None) -> None:
        """C31: never unbound but labelled as bound."""
        runs = lab.run(
            *(cell("steady", binding=Binding("local", "4095", (0,))) for _ in range(2)),
            on=host(numactl=program),
        )
        assert {r.reason.code for r in runs if r.reason} == {ReasonCode.CPU_NOT_ALLOWED}
        assert {r.status for r in runs} == {Status.SKIPPED}
        assert all(r.readings == () for r in runs)

    def test_a_node_that_does_not_exist(self, lab: Lab, program: str | None) -> None:
        binding = Binding("remote", str(CPUS[0]), (0,), MemoryPolicy.BIND, (63,))
        (run,) = lab.run(cell("steady", binding=binding), on=host(numactl=program))
        assert run.reason is not None
        assert run.reason.code is ReasonCode.MEM_NOT_ALLOWED
        assert run.readings == ()


class TestBrokenBindings:
    @TWO_CPUS
    def test_a_thread_that_leaves_its_cpus(self, lab: Lab) -> None:
        binding = Binding("local", str(CPUS[0]), (0,))
        run, after = lab.run(cell("stray", binding=binding), cell("steady", binding=binding))
        assert run.reason is not None
        assert (run.status, run.reason.code) == (Status.INVALID, ReasonCode.WRONG_BINDING)
        assert run.reason.text == (
            f"after the measurement a thread may run on CPUs {CPUS[1]}; asked for were {CPUS[0]}"
        )
        assert run.members[0].cpus == f"{CPUS[0]}-{CPUS[1]}"
        assert after.status is Status.OK, "in a fresh worker"
        assert after.members[0].pid != run.members[0].pid

    def test_a_policy_that_changes(self, lab: Lab) -> None:
        (run,) = lab.run(cell("stray", how="policy", binding=NODE_0))
        assert str(run.reason) == (
            "wrong_binding: after the measurement the memory policy is interleave:0; "
            "asked for was bind:0"
        )
        assert run.members[0].memory_policy == "interleave:0"


class TestInherited:
    @TWO_CPUS
    @pytest.mark.parametrize("program", [PROGRAM, SYSCALLS])
    def test_an_agent_under_taskset_still_binds_where_asked(
        self, lab: Lab, program: str | None
    ) -> None:
        binding = Binding("local", str(CPUS[1]), (0,))
        run = run_under(["taskset", "-c", str(CPUS[0])], lab, binding, program=program)
        assert run.status is Status.OK
        assert run.members[0].cpus == str(CPUS[1])

    @TWO_CPUS
    def test_none_resets_what_taskset_left_and_says_so(self, lab: Lab) -> None:
        run = run_under(["taskset", "-c", str(CPUS[0])], lab, Binding("none"))
        assert run.conditions["affinity"] == CPUS
        assert run.conditions["inherited"]["cpus"] == str(CPUS[0])
        (warning,) = run.warnings
        assert warning.startswith(
            f"inherited_binding: the agent was started with CPUs {CPUS[0]} of "
        )

    @pytest.mark.skipif(NUMACTL is None, reason="numactl is not installed")
    def test_none_resets_a_memory_policy_and_says_so(self, lab: Lab) -> None:
        run = run_under(["numactl", "--interleave=0"], lab, Binding("none"))
        assert run.members[0].memory_policy == "default"
        assert run.conditions["inherited"]["memory_policy"] == "interleave:0"
        assert "memory policy interleave:0" in run.warnings[0]

    @pytest.mark.skipif(NUMACTL is None, reason="numactl is not installed")
    @pytest.mark.parametrize("program", [PROGRAM, SYSCALLS])
    def test_an_arm_without_memory_binding_resets_it_too(
        self, lab: Lab, program: str | None
    ) -> None:
        run = run_under(["numactl", "--membind=0"], lab, CPU_ONLY, program=program)
        assert (run.status, run.members[0].memory_policy) == (Status.OK, "default")


class TestDenied:
    """A container without SYS_NICE: CPUs are bound, memory is not, and the run says so."""

    WRAPPER = (sys.executable, str(ROOT / "tests" / "seccomp.py"))

    @pytest.mark.parametrize("policy", ["denied: EPERM", "ok"], ids=["known", "unknown"])
    def test_the_worker_binds_cpus_only(self, lab: Lab, policy: str) -> None:
        run = run_under(self.WRAPPER, lab, NODE_0, policy=policy)
        assert run.status is Status.OK
        assert (run.members[0].cpus, run.members[0].memory_policy) == (str(CPUS[0]), "denied")
        (warning,) = run.warnings
        assert warning.startswith("mem_policy_denied: memory policy calls are denied here")

    @pytest.mark.skipif(NUMACTL is None, reason="numactl is not installed")
    def test_a_known_denial_leaves_numactl_out(self, lab: Lab) -> None:
        run = run_under(self.WRAPPER, lab, NODE_0, program=NUMACTL, policy="denied: EPERM")
        assert (run.status, run.members[0].memory_policy) == (Status.OK, "denied")

    @pytest.mark.skipif(NUMACTL is None, reason="numactl is not installed")
    def test_an_unknown_one_makes_numactl_fail_with_a_reason(self, lab: Lab) -> None:
        run = run_under(self.WRAPPER, lab, NODE_0, program=NUMACTL)
        assert run.status is Status.FAILED
        assert str(run.reason) == (
            "mem_policy_denied: numactl could not bind the worker: "
            "set_mempolicy: Operation not permitted"
        )

    def test_an_arm_without_memory_binding_is_labelled_but_not_warned_about(self, lab: Lab) -> None:
        run = run_under(self.WRAPPER, lab, Binding("none"))
        assert (run.warnings, run.members[0].memory_policy) == ((), "denied")


class TestNumactl:
    def test_a_numactl_that_is_gone(self, lab: Lab) -> None:
        runs = lab.run(*(cell("steady", binding=NODE_0) for _ in range(3)), on=host(numactl="/no"))
        assert [str(r.reason) for r in runs] == [
            "no_numactl: /no cannot be started: No such file or directory"
        ] * 3

    def test_a_numactl_that_fails_in_its_own_way(self, lab: Lab, tmp_path: Path) -> None:
        broken = tmp_path / "numactl"
        broken.write_text(
            "#!/bin/sh\necho libnuma.so.1: cannot open shared object file >&2\nexit 1"
        )
        broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
        runs = lab.run(
            *(cell("steady", binding=NODE_0) for _ in range(3)), on=host(numactl=str(broken))
        )
        assert {str(r.reason) for r in runs} == {
            "no_numactl: numactl could not bind the worker: "
            "libnuma.so.1: cannot open shared object file"
        }
        assert "libnuma" in runs[0].log_tail

    def test_its_command_line(self) -> None:
        binding = Binding("x", "0-3,8", (0,), MemoryPolicy.BIND, (0, 1))
        assert numactl("/usr/bin/numactl", binding, denied=False) == (
            *("/usr/bin/numactl", "--all", "--physcpubind=0-3,8", "--membind=0-1", "--"),
        )
        assert numactl("numactl", SPREAD, denied=False)[3] == "--interleave=0"
        assert numactl("numactl", CPU_ONLY, denied=False)[2:] == (
            f"--physcpubind={CPUS[0]}",
            "--",
        )
        assert numactl("numactl", Binding("none"), denied=False) == ()
        assert numactl("numactl", NODE_0, denied=True) == ()
        assert numactl(None, NODE_0, denied=False) == ()
