"""What an arm is worth: which numbers are held against each other, and when nothing is said."""

from __future__ import annotations

from typing import Any

import pytest

import report_documents as documents
from topobench.comparison import Change
from topobench.effects import arm_effects, benches, compared
from topobench.user_command import Definition

GPU = documents.gpu_uuid("gpu01", 0)
OTHER = documents.gpu_uuid("gpu01", 1)


def copy(arm: str, block: int, rate: float, **changes: Any) -> dict[str, Any]:
    made = documents.cell(
        "host_to_device",
        [documents.reading("bandwidth_bytes_per_second", rate)],
        params={"bytes": 1 << 20, "direction": "h2d"},
        devices=[GPU],
        binding=documents.binding(arm),
        block=block,
    )
    return {**made, **changes}


def test_arms_are_paired_block_by_block_so_that_drift_cancels() -> None:
    """The host slows down by half from the first block to the last; the arms keep their ratio."""
    cells = []
    for block in range(8):
        level = 50e9 * (1 - block / 16)
        cells += [copy("none", block, level), copy("local", block, 1.1 * level)]
    (bench,) = benches(cells)
    found = compared(bench, "none", "local")
    assert found.effect_ratio == pytest.approx(0.1)
    assert (found.n_b, found.verdict) == (8, Change.IMPROVED)
    assert found.lo == pytest.approx(0.1)
    assert found.p is None


@pytest.mark.parametrize(
    ("probe", "ones", "words"),
    [
        ("host_to_device", [{"memory": "pinned"}, {"memory": "pageable"}], ["", " pageable"]),
        ("peer", [{"ways": w} for w in ("one", "both", "all")], ["", " both ways", " all at once"]),
        ("peer", [{"p2p": "on"}, {"p2p": "off"}], ["", " P2P off"]),
        ("gemm", [{"size": 4096}, {"size": 8192}], [" 4096", " 8192"]),
        ("weight_load", [{"readers": 1}, {"readers": 4}], [" 1 readers", " 4 readers"]),
        ("weight_load", [{"chunk_bytes": 1 << 20, "io": "direct"}], [" direct by 1 MiB"]),
    ],
)
def test_cases_that_differ_have_words_that_differ(
    probe: str, ones: list[dict[str, Any]], words: list[str]
) -> None:
    """In a figure of arms, cases with the same words stood on one line."""
    cells = [
        {**copy(arm, 0, 1e9), "probe": probe, "params": one}
        for one in ones
        for arm in ("none", "local")
    ]
    assert [bench.words for bench in benches(cells)] == [f"{probe}{word}" for word in words]


def test_workers_that_chose_different_attention_kernels_are_no_pair() -> None:
    """Another kernel takes 2 % longer; binding changes nothing, and must not be called slower."""
    cells = []
    for block in range(9):
        for arm in ("none", "local"):
            slow = arm == "local" and block >= 6
            conditions = {"attention": "flash" if slow else "cudnn"}
            cells.append(copy(arm, block, 98e9 if slow else 100e9, conditions=conditions))
    (bench,) = benches(cells)
    found = compared(bench, "none", "local")
    assert (found.n_a, found.n_b) == (6, 6)
    assert found.effect_ratio == pytest.approx(0.0)


def test_each_load_of_a_ladder_is_a_bench_of_its_own() -> None:
    """An arm may be worth nothing at four in flight, and a tenth at eight."""
    cells = []
    for block in range(8):
        for arm in ("none", "local"):
            told = [
                documents.reading("ttft_seconds", 0.1, point={"concurrency": 4}),
                documents.reading(
                    "ttft_seconds", 0.22 if arm == "local" else 0.2, point={"concurrency": 8}
                ),
            ]
            served = documents.cell(
                "serving", told, params={"server": "mine"}, binding=documents.binding(arm)
            )
            cells.append({**served, "block": block})
    found = {e.bench.param("concurrency"): e for e in arm_effects(benches(cells))}
    assert {load: e.found.verdict for load, e in found.items()} == {
        4: Change.EQUIVALENT,
        8: Change.REGRESSED,
    }
    assert found[8].bench.words == "serving mine"


def test_each_of_the_gpus_at_once_is_a_bench_of_its_own() -> None:
    """As probes tell them: by rank and device. What ranks of one model took is no GPU's own."""
    metric = "bandwidth_bytes_per_second"
    cells = [
        copy(arm, block, 0.0, devices=[GPU, OTHER], ranks=2, readings=[
            documents.reading(metric, 90e9),
            *(
                documents.reading(metric, rate, point={"rank": rank, "device": gpu})
                for rank, (gpu, rate) in enumerate({GPU: 40e9 * gain, OTHER: 50e9}.items())
            ),
            documents.reading(metric, 1e9, point={"rank": 0}),
        ])
        for block in range(8)
        for arm, gain in (("none", 1.0), ("local", 1.2))
    ]  # fmt: skip
    found = {b.devices: compared(b, "none", "local").effect_ratio for b in benches(cells)}
    expected = {(GPU, OTHER): 0.0, (GPU,): 0.2, (OTHER,): 0.0}
    assert found == {devices: pytest.approx(effect) for devices, effect in expected.items()}


def test_a_pass_and_its_rate_of_tokens_are_called_alike() -> None:
    """3.5 % longer is beyond 2 % either way; of a part of the host's work, within 5 %."""

    def prompt(arm: str, block: int, longer: float) -> dict[str, Any]:
        named = {"device": "prefill_device_seconds", "rate": "tokens_per_second"}
        readings = [
            documents.reading(named["device"], 0.1 * longer, unit="s", better=-1),
            documents.reading(named["rate"], 1e4 / longer, unit="token/s"),
            documents.reading(
                "host_part_seconds", 1e-3 * longer, unit="s", better=0, point={"part": "launch"}
            ),
        ]
        return copy(arm, block, 0.0, probe="prefill", readings=readings)

    cells = [prompt(a, b, x) for b in range(8) for a, x in (("none", 1.0), ("remote", 1.035))]
    found = {b.part or b.metric: compared(b, "none", "remote").verdict for b in benches(cells)}
    assert found == {
        "prefill_device_seconds": Change.REGRESSED,
        "tokens_per_second": Change.REGRESSED,
        "launch": Change.EQUIVALENT,
    }


def engines(*environments: dict[str, str]) -> list[Any]:
    """A command; the engine ``new`` is 4 % faster than any other under either binding."""
    own = Definition("own", ("bench",), environments=environments)
    return [
        documents.cell(
            "command",
            [documents.reading("tokens_per_second", 5200.0 if "new" in env.values() else 5000.0)],
            params={"command": "own", "definition": own.text, "digest": own.digest},
            binding=documents.binding(binding),
            arm="+".join([binding, *(f"{k}={v}" for k, v in env.items())]),
            env=env,
            block=block,
        )
        for block in range(8)
        for binding in ("none", "local")
        for env in reversed(environments)
    ]


def test_environments_of_a_command_are_held_against_its_first() -> None:
    """Named last by the alphabet."""
    found = [*arm_effects(benches(engines({"ENGINE": "old"}, {"ENGINE": "new"})))]
    assert [(e.arm, e.reference) for e in found] == [
        ("none+ENGINE=new", "none+ENGINE=old"),
        ("local+ENGINE=new", "none+ENGINE=new"),
        ("local+ENGINE=old", "none+ENGINE=old"),
    ]
    assert [e.found.effect_ratio for e in found] == pytest.approx([0.04, 0.0, 0.0])


def test_bindings_of_a_command_are_compared_within_an_environment_without_variables_too() -> None:
    found = [*arm_effects(benches(engines({}, {"ENGINE": "new"})))]
    assert [(e.arm, e.reference) for e in found] == [
        ("none+ENGINE=new", "none"),
        ("local+ENGINE=new", "none+ENGINE=new"),
        ("local", "none"),
    ]
    assert [e.found.effect_ratio for e in found] == pytest.approx([0.04, 0.0, 0.0])


def test_a_block_that_lacks_an_arm_is_left_out() -> None:
    cells = [copy("none", b, 50e9) for b in range(8)]
    cells += [copy("local", b, 50e9) for b in range(5)]
    found = compared(benches(cells)[0], "none", "local")
    assert (found.n_a, found.verdict, found.lo) == (5, Change.INCONCLUSIVE, None)


def test_only_usable_numbers_of_several_arms_make_a_bench() -> None:
    good = copy("none", 0, 50e9)
    invalid = copy("local", 0, 60e9, status="invalid")
    proof = documents.reading("locality_ratio", 1.0)
    assert benches([good, invalid]) == []
    assert benches([{**good, "readings": [proof]}, copy("local", 0, 1.0, readings=[proof])]) == []
    neither = documents.reading("power_watts", 400.0, unit="W", better=0)
    assert (
        benches([{**good, "readings": [neither]}, copy("local", 0, 1.0, readings=[neither])]) == []
    )


def test_gpus_measured_at_once_are_benches_of_their_own_beside_their_sum() -> None:
    def together(arm: str) -> dict[str, Any]:
        readings = [
            documents.reading("bandwidth_bytes_per_second", 100e9),
            documents.reading("bandwidth_bytes_per_second", 40e9, point={"device": GPU}),
            documents.reading("bandwidth_bytes_per_second", 60e9, point={"device": OTHER}),
            documents.reading("bandwidth_bytes_per_second", 60e9, point={"rank": 1}),
        ]
        return copy(arm, 0, 1.0, readings=readings, devices=[GPU, OTHER], ranks=2)

    found = {b.devices: b.median("none") for b in benches([together("none"), together("local")])}
    assert found == {(GPU, OTHER): 100e9, (GPU,): 40e9, (OTHER,): 60e9}


@pytest.mark.parametrize(
    ("metric", "unit", "better", "tolerance"),
    [
        ("bandwidth_bytes_per_second", "B/s", 1, 0.03),
        ("latency_seconds", "s", -1, 0.05),
        ("tokens_per_second", "token/s", 1, 0.02),
    ],
)
def test_the_tolerance_follows_the_unit(
    metric: str, unit: str, better: int, tolerance: float
) -> None:
    cells = []
    for block in range(8):
        for arm in ("none", "local"):
            reading = documents.reading(metric, 1.0, unit=unit, better=better)
            cells.append(copy(arm, block, 1.0, readings=[reading]))
    found = compared(benches(cells)[0], "none", "local")
    assert (found.tolerance, found.verdict) == (tolerance, Change.EQUIVALENT)
