from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from planning import configured, dual, host, planned, small, without_ids
from topobench import costs
from topobench.choice import timed
from topobench.errors import UsageError
from topobench.plan import Plan, batches, estimate, estimate_all, make_plan
from topobench.probes import registry
from topobench.reading import Cell, ReasonCode, Status
from topobench.topology import Topology


class TestBudget:
    """The least informative cells go first, and each says so."""

    def plan(self, budget: str | None, **flags: Any) -> Plan:
        chosen = configured(profile="standard", budget=budget, **flags)
        return make_plan(chosen, [host(dual(gpus=2))], seed=1)

    def left_out(self, plan: Plan) -> list[Cell]:
        return [c for c in plan.cells if c.reason and c.reason.code is ReasonCode.OVER_BUDGET]

    @pytest.mark.parametrize("budget", ["20m", "10m", "5m", "2m", "1m", "30s"])
    def test_the_estimate_keeps_it(self, budget: str) -> None:
        plan = self.plan(budget)
        assert 0 < plan.estimated_seconds <= configured(budget=budget).budget_seconds  # type: ignore[operator]
        assert all(c.status is Status.SKIPPED for c in self.left_out(plan))

    @pytest.mark.parametrize(
        ("places", "profile", "seconds"),
        [
            ([small()], "full", 300),
            ([dual(2), dual(2)], "standard", 139.3),
            ([dual(8)], "full", 300),
        ],
    )
    def test_what_is_left_carries_the_starts_of_what_was_left_out(
        self, places: list[Topology], profile: str, seconds: float
    ) -> None:
        """The first cell of a worker says what it loads: without it the next one loads that."""
        hosts = [host(place, f"h{number}") for number, place in enumerate(places)]
        chosen = configured(profile=profile, budget=f"{seconds}s", bindings="local,none")
        plan = make_plan(chosen, hosts, seed=1)
        expected: dict[str, float] = {}
        for batch in batches(plan.cells):
            cases = [timed(registry.load(c.case.probe), c.case.params) for c in batch]
            gpus = costs.gpus_of_a_host(batch[0])
            found = costs.of_worker(
                cases, batch[0].arm, gpus=gpus, ranks=batch[0].ranks, known=set()
            )
            expected |= {c.id: s for c, (_, s) in zip(batch, found, strict=True)}
        assert {c.id: c.estimated_seconds for c in planned(plan.cells)} == expected
        assert self.left_out(plan)
        assert estimate_all(plan.cells) <= plan.estimated_seconds <= seconds

    def test_enough_time_leaves_nothing_out(self) -> None:
        assert without_ids(self.plan("9h")) == without_ids(self.plan(None))

    def test_repeats_go_first(self) -> None:
        full = self.plan(None).estimated_seconds
        plan = self.plan(f"{full - 1:.0f}s")
        assert {c.process_no for c in self.left_out(plan)} == {3}

    def test_then_middle_sizes_and_the_ends_stay(self) -> None:
        whole = self.plan(None, probes="host_to_device").cells
        first = [dataclasses.replace(c) for c in whole if c.process_no == 0]
        plan = self.plan(f"{estimate(first) * 0.9:.0f}s", probes="host_to_device")
        kept = {c.case.params["bytes"] for c in planned(plan.cells)}
        assert {4096, 2**28} <= kept
        assert {c.process_no for c in planned(plan.cells)} == {0}

    def test_none_and_local_outlive_other_arms(self) -> None:
        plan = self.plan("11s", probes="host_to_device", devices="0")
        assert {c.arm.name for c in planned(plan.cells)} <= {"none", "local"}

    def test_a_cell_that_is_too_long_by_itself_pushes_out_no_other(self) -> None:
        """Hours of one shape would leave no time for the rest, which takes a minute."""
        flags: dict[str, Any] = {
            "probes": "prefill,host_memory",
            "sets": ("prefill.sequence=512,131072",),
        }
        whole = self.plan(None, **flags)
        long = [c for c in planned(whole.cells) if c.case.params.get("sequence") == 131072]
        plan = self.plan(f"{min(c.estimated_seconds for c in long) - 1:.0f}s", **flags)
        kept = planned(plan.cells)
        assert {c.case.probe for c in kept} == {"prefill", "host_memory"}
        assert {c.case.params.get("sequence") for c in kept} == {512, None}

    def test_a_cell_of_days_needs_a_budget(self) -> None:
        """A slip of a size would hold a host for months."""
        flags: dict[str, Any] = {
            "probes": "prefill",
            "sets": ("prefill.sequence=512,1048576", "prefill.batch=1024"),
        }
        plan = self.plan(None, **flags)
        left = self.left_out(plan)
        assert {c.case.params["sequence"] for c in left} == {1048576}
        assert all(c.estimated_seconds > 24 * 3600 for c in left)
        for reason in {c.reason.text for c in left if c.reason}:
            assert reason.startswith("left out to fit 24 h 00 min, the longest a cell may take")
            assert reason.endswith(" min: prefill, too long by itself")
        assert any(w.startswith("no budget: ") for w in plan.warnings)
        seconds = sum(c.estimated_seconds for c in plan.cells)
        assert self.left_out(self.plan(f"{seconds * 2:.0f}s", **flags)) == []

    def test_what_was_left_out_is_summed_up(self) -> None:
        (warning,) = self.plan("8m").warnings
        assert warning.startswith("budget of 8 min: ")
        assert "repeat 4 (" in warning

    def test_hosts_work_side_by_side_within_it(self) -> None:
        alone = make_plan(configured(probes="host_memory"), [host(small())], seed=1)
        seconds = math.ceil(alone.estimated_seconds)
        hosts = [host(small(), key) for key in "abc"]
        chosen = configured(probes="host_memory", budget=f"{seconds}s")
        plan = make_plan(chosen, hosts, seed=1)
        assert self.left_out(plan) == []
        assert plan.estimated_seconds <= seconds
        assert len(planned(plan.cells)) == 3 * len(planned(alone.cells))

    def test_a_budget_without_room_for_one_cell_is_refused(self) -> None:
        with pytest.raises(UsageError, match="1 s has no room for a single cell; the shortest"):
            self.plan("1s")
