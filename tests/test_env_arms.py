"""Environments as arms: what they are called, where they are laid out, what forbids them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from launching import cell
from planning import configured, dual, host, planned, reasons
from test_launch_rings import in_ring, launcher, quad
from topobench import config, env_arms
from topobench.agents import environment, nccl_run
from topobench.agents.gang import Outcome
from topobench.config import ClusterConfig
from topobench.env_arms import EnvArm
from topobench.errors import ConfigError
from topobench.plan import batches, make_plan
from topobench.reading import Arm, Binding, Reason, ReasonCode, Status, to_json
from topobench.rings import RING_ONLY

LL = {"NCCL_PROTO": "LL"}


def of_file(folder: Path, text: str) -> ClusterConfig:
    file = folder / "cluster.yaml"
    file.write_text(f"kind: topobench/v1\n{text}")
    return config.load(file, environ={})


def compared(*arms: EnvArm, **changes: object) -> ClusterConfig:
    chosen = configured(probes="all_reduce", bindings="none")
    return dataclasses.replace(chosen, env_arms=arms, **changes)  # type: ignore[arg-type]


class TestNames:
    def test_an_arm_says_binding_ring_and_environment(self) -> None:
        arm = Arm(Binding("none"), "auto", LL, env_name="proto_ll")
        assert arm.name == "none/auto+proto_ll"
        assert Arm(Binding("none"), env=LL, env_name="mine").name == "none+mine"
        assert Arm.from_json(to_json(arm)) == arm

    def test_a_file_names_built_in_arms_or_its_own(self, tmp_path: Path) -> None:
        found = of_file(tmp_path, "env_arms: [p2p_off, {name: mine, env: {NCCL_NTHREADS: 256}}]\n")
        assert found.env_arms == (
            EnvArm("p2p_off", {"NCCL_P2P_DISABLE": "1"}),
            EnvArm("mine", {"NCCL_NTHREADS": "256"}),
        )
        again = tmp_path / "again"
        again.mkdir()
        text = config.to_yaml(found).removeprefix("kind: topobench/v1\n")
        assert of_file(again, text).env_arms == found.env_arms

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("[p2p_of]", "env_arms[0]: 'p2p_of' is not known; accepted are nvls_on"),
            ("[{name: mine}]", "env_arms[0]: has no env; write {name: NAME, env: {...}}"),
            ("[{env: {A: 1}}]", "env_arms[0]: has no name"),
            ("[{name: p2p_off, env: {A: 1}}]", "env_arms[0].name: p2p_off is built in"),
            ("[{name: mine, env: {}}]", "env_arms[0]: sets nothing"),
            ("[{name: mine, env: {1A: 1}}]", "'1A' cannot name an environment variable"),
            ("[p2p_off, p2p_off]", "env_arms: p2p_off is given twice"),
        ],
    )
    def test_mistakes_say_what_is_accepted(self, tmp_path: Path, line: str, told: str) -> None:
        with pytest.raises(ConfigError) as mistake:
            of_file(tmp_path, f"env_arms: {line}\n")
        assert told in str(mistake.value)


class TestLaidOut:
    def test_each_runs_beside_auto_in_mirrored_blocks_under_the_first_binding(self) -> None:
        chosen = compared(EnvArm.preset("p2p_off"), EnvArm("ll", LL), blocks=2)
        chosen = dataclasses.replace(chosen, rings=("auto", "auto_ring"))
        plan = make_plan(chosen, [host(dual(gpus=4))], seed=3)
        assert {c.arm.name: dict(c.arm.env) for c in planned(plan.cells)} == {
            "none/auto": {},
            "none/auto_ring": dict(RING_ONLY),
            "none/auto+p2p_off": {"NCCL_P2P_DISABLE": "1"},
            "none/auto+ll": LL,
        }
        order = [(b[0].block, b[0].arm.name) for b in batches(plan.cells)]
        first, second = ([n for block, n in order if block == k] for k in (0, 1))
        assert len(first) == 4
        assert second == first[::-1]

    def test_without_auto_among_the_rings_the_reference_comes_along(self) -> None:
        chosen = compared(EnvArm("ll", LL), rings=("auto_ring",))
        cells = planned(make_plan(chosen, [host(dual(gpus=2))], seed=1).cells)
        assert {c.arm.name for c in cells} == {"none/auto_ring", "none/auto", "none/auto+ll"}

    def test_collectives_without_ring_arms_compare_them_too(self) -> None:
        chosen = dataclasses.replace(
            configured(probes="all_gather", bindings="none"), env_arms=(EnvArm("ll", LL),)
        )
        cells = planned(make_plan(chosen, [host(dual(gpus=2))], seed=1).cells)
        assert {c.arm.name for c in cells} == {"none", "none+ll"}

    def test_gloo_reads_nothing_of_nccl(self) -> None:
        """Other settings are compared between CPU processes as well."""
        own = EnvArm("lazy", {"TORCH_GLOO_LAZY_INIT": "1"})
        cells = make_plan(compared(EnvArm("ll", LL), own), [host(dual(gpus=0))], seed=1).cells
        assert {c.arm.name for c in planned(cells)} == {"none", "none+lazy"}
        assert reasons(cells) == [
            ("all_reduce", "none+ll", Status.NOT_APPLICABLE, ReasonCode.EQUIVALENT_ARMS)
        ]

    def test_a_gang_over_hosts_compares_them_too_and_one_host_may_forbid(self) -> None:
        """In mirrored blocks, as on one host."""
        chosen = compared(EnvArm("ll", LL), EnvArm.preset("nvls_on"), blocks=2)
        wanted = config.ProbeChoice("all_reduce", {"hosts": ("all",), "bytes": (8,)})
        expected = config.HostExpectation("h2", env={"NCCL_NVLS_ENABLE": "0"})
        chosen = dataclasses.replace(
            chosen, probes=(wanted,), hosts=(config.HostExpectation("h1"), expected)
        )
        hosts = [host(dual(gpus=2), name) for name in ("h1", "h2")]
        plan = make_plan(chosen, hosts, seed=3)
        order = [(b[0].block, b[0].arm.name) for b in batches(plan.cells)]
        first, second = ([n for block, n in order if block == k] for k in (0, 1))
        assert set(first) == {"none/auto", "none/auto+ll"}
        assert second == first[::-1]
        assert reasons(plan.cells) == [
            ("all_reduce", "none/auto+nvls_on", Status.NOT_APPLICABLE, ReasonCode.UNSUPPORTED)
        ]

    def test_what_the_site_forbids_is_not_laid_out(self) -> None:
        arms = EnvArm.preset("nvls_on"), EnvArm.preset("nvls_off")
        chosen = compared(*arms, env={"NCCL_NVLS_ENABLE": "0"})
        cells = make_plan(chosen, [host(dual(gpus=2))], seed=1).cells
        assert {c.arm.name for c in planned(cells)} == {"none/auto", "none/auto+nvls_off"}
        (refused,) = (c for c in cells if c.reason)
        assert (refused.arm.name, refused.status) == ("none/auto+nvls_on", Status.NOT_APPLICABLE)
        assert refused.reason is not None
        assert refused.reason.text.startswith("NCCL_NVLS_ENABLE=0 is set where")


class TestForbidden:
    @pytest.mark.parametrize(
        "surroundings",
        [{"NCCL_NVLS_ENABLE": "0"}, {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}],
        ids=str,
    )
    def test_any_switch_against_multicast_forbids_nvls(
        self, surroundings: Mapping[str, str]
    ) -> None:
        assert env_arms.refusal({"NCCL_NVLS_ENABLE": "1"}, {}, surroundings) is not None
        assert env_arms.refusal({"NCCL_NVLS_ENABLE": "0"}, surroundings) is None
        assert env_arms.refusal(LL, surroundings) is None

    def test_a_file_of_nccl_forbids_as_the_environment_does(self, tmp_path: Path) -> None:
        """The variable of an arm would win over the file."""
        (tmp_path / ".nccl.conf").write_text("NCCL_NVLS_ENABLE=0\n")
        around = {"HOME": str(tmp_path)}
        arm = Arm(Binding("none"), "auto", {"NCCL_NVLS_ENABLE": "1"}, env_name="nvls_on")
        asking = dataclasses.replace(cell("steady"), arm=arm)
        found = environment.build(asking, around, sweep="s", site={}, package_root=tmp_path)
        assert environment.conflict(asking, around, found) is not None

    def test_an_arm_cannot_set_what_workers_always_get(self, tmp_path: Path) -> None:
        arm = Arm(Binding("none", threads=2), env={"OMP_NUM_THREADS": "9"}, env_name="nine")
        asking = dataclasses.replace(cell("steady"), arm=arm)
        found = environment.build(asking, {}, sweep="s", site={}, package_root=tmp_path)
        assert str(environment.conflict(asking, {}, found)) == (
            "unsupported: workers always get OMP_NUM_THREADS=2; the arm asks for OMP_NUM_THREADS=9"
        )


class TestInForce:
    def judged(self, logged: Mapping[str, str], **conditions: object) -> Reason | None:
        asking = dataclasses.replace(cell("x"), arm=Arm(Binding("none"), "auto", LL, (), "ll"))
        outcome = Outcome(Status.OK, conditions=conditions)
        return nccl_run.in_force(asking, outcome, logged).reason

    def test_what_worker_and_nccl_say_is_held_against_the_arm(self) -> None:
        assert self.judged(LL, env=LL) is None
        assert self.judged({"NCCL_PROTO": "ll"}, env=LL) is None
        assert self.judged({}) is None, "NCCL does not name all that it reads"
        for reason in (self.judged({"NCCL_PROTO": "Simple"}, env=LL), self.judged({}, env={})):
            assert reason is not None
            assert reason.code is ReasonCode.WRONG_ENVIRONMENT

    def test_an_arm_that_nccl_did_not_take_is_failed(
        self, lab: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The stand-in for NCCL always logs that NVLS is off."""
        monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
        arm = Arm(Binding("none"), "auto", {"NCCL_NVLS_ENABLE": "1"}, env_name="nvls_on")
        asking = dataclasses.replace(in_ring("auto"), arm=arm)
        (found,) = launcher(lab, quad()).run([asking], stop=lab.stop)  # type: ignore
        assert found.status is Status.FAILED
        assert str(found.reason) == (
            "wrong_environment: the arm sets NCCL_NVLS_ENABLE=1; NCCL took NCCL_NVLS_ENABLE=0"
        )
        assert found.readings == ()
