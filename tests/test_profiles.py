from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from planning import dual, gpu, host, planned, small
from test_device_sets import wired
from topobench import config
from topobench.config import Overrides
from topobench.plan import make_plan

ROOT = Path(__file__).parent.parent
START_SECONDS = 8
"""Ray's start, discovery and the end of a sweep, around its cells."""


def test_there_are_three_and_quick_is_the_default() -> None:
    assert list(config.profiles()) == ["quick", "standard", "full"]
    assert config.load(None, environ={}).profile == "quick"


@pytest.mark.parametrize(
    ("name", "processes", "blocks", "bindings"),
    [
        ("quick", 1, 0, ["none", "local", "spread"]),
        ("standard", 3, 4, ["none", "local", "spread", "remote"]),
        ("full", 6, 8, ["none", "local", "spread", "remote"]),
    ],
)
def test_repeats_and_arms(name: str, processes: int, blocks: int, bindings: list[str]) -> None:
    profile = config.profiles()[name]
    assert (profile.processes, profile.blocks) == (processes, blocks)
    assert [b.name for b in profile.bindings] == bindings


@pytest.mark.parametrize(
    ("name", "compared"),
    [
        ("quick", {"host_to_device", "kernel_launch", "prefill", "all_reduce"}),
        ("standard", {"host_to_device", "kernel_launch"}),
        ("full", {"host_to_device", "kernel_launch", "prefill", "decode", "all_reduce"}),
    ],
)
def test_bindings_are_compared_where_they_act(name: str, compared: set[str]) -> None:
    """The others run under the first one; bindings that the user names are compared for all."""
    chosen = config.load(None, environ={}, overrides=Overrides(profile=name))
    arms: dict[str, set[str]] = {}
    plan = make_plan(chosen, [host(dual(8))], seed=1)
    for cell in planned(plan.cells):
        if "cpu_node" not in cell.case.params:
            arms.setdefault(cell.case.probe, set()).add(cell.arm.binding.name)
    assert {probe for probe, names in arms.items() if len(names) > 1} == compared
    assert all("none" in names for names in arms.values())
    shared = [c for c in plan.cells if c.case.params.get("tensor_parallel", 1) != 1]
    assert name == "quick" or {c.arm.binding.name for c in shared} == {"none"}
    own = config.load(None, environ={}, overrides=Overrides(profile=name, bindings="none,local"))
    assert own.one_binding == ()


def test_blocks_come_in_mirrored_pairs() -> None:
    for profile in config.profiles().values():
        assert profile.blocks % 2 == 0


@pytest.mark.parametrize(
    ("profile", "probe", "first", "last", "step"),
    [
        ("standard", "host_to_device", 4 << 10, 256 << 20, 4),
        ("full", "host_to_device", 16 << 10, 256 << 20, 2),
        ("full", "prefill", 128, 8192, 2),
        ("full", "all_reduce", 8, 8 << 30, 2),
    ],
)
def test_sizes_are_a_geometric_row(
    profile: str, probe: str, first: int, last: int, step: int
) -> None:
    params = {p.name: p.params for p in config.profiles()[profile].probes}[probe]
    row = params["sequence" if probe == "prefill" else "bytes"]
    sizes = [size for size in row if isinstance(size, int)]
    assert (sizes[0], sizes[-1]) == (first, last)
    assert {b // a for a, b in itertools.pairwise(sizes)} == {step}


def test_standard_prefills_a_short_and_a_long_prompt_over_one_gpu_and_more() -> None:
    params = {p.name: p.params for p in config.profiles()["standard"].probes}["prefill"]
    assert params["sequence"] == (256, 2048)
    assert params["tensor_parallel"] == (1, 2, 4, 8)


def test_quick_sizes_are_powers_of_two_from_small_to_large() -> None:
    params = {p.name: p.params for p in config.profiles()["quick"].probes}
    assert params["host_to_device"]["bytes"] == (64 << 10, 1 << 20, 256 << 20)
    assert params["all_reduce"]["bytes"] == (8 << 10, 1 << 20, 128 << 20)


@pytest.mark.parametrize("name", ["quick", "standard", "full"])
def test_every_profile_has_the_collectives_that_queries_ask_for_by_themselves(name: str) -> None:
    """``hop-classes`` and ``price-all-reduce`` name these sizes where nobody else does."""
    params = {p.name: p.params for p in config.profiles()[name].probes}
    assert {8 << 10, 1 << 20, 128 << 20} <= set(params["all_reduce"]["bytes"])
    asked = [
        re.findall(r"param (?:small|large|bytes) bytes = (\w+)", path.read_text("utf-8"))
        for path in (
            ROOT / f"topobench/db/queries/{q}.sql" for q in ("hop-classes", "price-all-reduce")
        )
    ]
    assert asked == [["8K", "128M"], ["128M"]]


@pytest.mark.parametrize(
    ("limit", "cpus", "gpus"), [(45, 2, 0), (60, 16, 1)], ids=["cpu host", "one gpu"]
)
def test_quick_is_planned_within_its_goal(limit: int, cpus: int, gpus: int) -> None:
    here = host(small(cpus=cpus, gpus=[gpu(i) for i in range(gpus)]))
    plan = make_plan(config.load(None, environ={}), [here], seed=1)
    assert plan.estimated_seconds + START_SECONDS <= limit


@pytest.mark.parametrize(("profile", "minutes"), [("quick", 3), ("standard", 20), ("full", 180)])
def test_a_host_of_eight_gpus_is_planned_within_the_goal(profile: str, minutes: int) -> None:
    chosen = config.load(None, environ={}, overrides=Overrides(profile=profile))
    plan = make_plan(chosen, [host(dual(8))], seed=1)
    assert plan.estimated_seconds + START_SECONDS <= 60 * minutes


@pytest.mark.parametrize(("profile", "minutes"), [("quick", 3), ("standard", 20), ("full", 180)])
def test_eight_gpus_in_pairs_of_nvlink_have_more_sets_and_are_planned_within_it(
    profile: str, minutes: int
) -> None:
    near = {"NV4": [[0, 1], [2, 3], [4, 5], [6, 7]], "NODE": [[0, 1, 2, 3], [4, 5, 6, 7]]}
    chosen = config.load(None, environ={}, overrides=Overrides(profile=profile))
    plan = make_plan(chosen, [host(wired(near, "SYS"))], seed=1)
    assert plan.estimated_seconds + START_SECONDS <= 60 * minutes
    sets = {c.devices for c in planned(plan.cells) if c.case.params.get("tensor_parallel") == 2}
    assert len(sets) == (0 if profile == "quick" else 3)


@pytest.mark.parametrize("name", ["quick", "standard", "full"])
def test_every_probe_of_a_profile_can_be_planned(name: str) -> None:
    chosen = config.load(None, environ={}, overrides=Overrides(profile=name))
    hosts = [host(small(cpus=16, gpus=[gpu(0), gpu(1)]), key) for key in ("h1", "h2")]
    plan = make_plan(chosen, hosts, seed=1)
    measured = {c.case.probe for c in plan.cells if c.status == "planned"}
    assert measured == {p.name for p in config.profiles()[name].probes}


def test_the_documentation_tells_the_same_numbers() -> None:
    text = (ROOT / "docs/config.md").read_text("utf-8")
    for profile in config.profiles().values():
        row = re.search(rf"^\| `{profile.name}` \|.*$", text, re.MULTILINE)
        assert row, profile.name
        cells = [cell.strip() for cell in row[0].strip("|").split("|")]
        arms = ", ".join(b.name for b in profile.bindings)
        assert cells[2:5] == [str(profile.processes), str(profile.blocks), arms]
