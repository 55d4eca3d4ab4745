"""Prefill of a model that two processes share over gloo: the same model, its sums and its times."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from probing import Listener, RankResult, measure, run_gang
from topobench.errors import ProbeUnavailable
from topobench.probes.prefill import Prefill

CASE: dict[str, Any] = {"shape": "tiny", "dtype": "fp32", "batch": 2, "sequence": 64}
EXPERTS: dict[str, Any] = {"shape": "tiny-experts", "dtype": "fp32", "sequence": 32}


@functools.cache
def ranks() -> list[RankResult]:
    """What both ranks gave for a plain model, and for one with latent attention and experts."""
    cases = [{**case, "tensor_parallel": 2} for case in (CASE, EXPERTS)]
    return run_gang(2, cases, probe=Prefill)


def readings(rank: int = 0, case: int = 0) -> dict[tuple[str, str], Any]:
    """Summaries by metric and point."""
    found = ranks()[rank].outcomes[case]
    assert isinstance(found, list), found
    return {
        (r["metric"], ",".join(map(str, r["point"].values()))): r["summary"]["median"]
        for r in found
    }


def test_two_ranks_together_are_the_whole_model() -> None:
    """Each rank's logits are held against the unsplit model in float32."""
    assert [r.exit_code for r in ranks()] == [0, 0]
    for rank in (0, 1):
        for case in (0, 1):
            assert 0 < readings(rank, case)["relative_error_ratio", ""] < 1e-5


def test_a_pass_has_two_sums_a_layer_of_all_activations() -> None:
    found = readings()
    assert found["all_reduce_count", ""] == 2 * 2
    assert found["all_reduce_bytes", ""] == 2 * 64 * 128 * 4
    stages = {point for metric, point in found if metric == "stage_seconds"}
    assert stages == {"qkv", "attention", "output", "mlp", "head", "all_reduce"}


def test_the_share_of_communication_is_told_both_ways() -> None:
    found = readings()
    assert 0 < found["communication_share_ratio", "events"] < 1
    apart, whole = found["prefill_apart_seconds", ""], found["prefill_device_seconds", ""]
    assert found["communication_share_ratio", "twin"] == pytest.approx(1 - apart / whole)


def test_work_and_rates_are_of_both_ranks_together() -> None:
    found = readings()
    slowest = max(
        (s for r in ranks()[0].outcomes[0] if r["metric"] == "prefill_device_seconds"
         and not r["point"] for s in r["samples"]),
    )  # fmt: skip
    assert found["work_flop_count", ""] == 79_953_920.0
    assert found["prefill_device_seconds", "0"] <= slowest
    assert ("tokens_per_second", "0") not in found
    notes = ranks()[0].listener.notes
    assert notes["backend"] == "gloo"
    assert notes["weights_bytes"] < 1_703_936  # of the whole model


def test_both_ranks_know_the_same_times() -> None:
    for metric in ("prefill_device_seconds", "prefill_wall_seconds", "prefill_apart_seconds"):
        assert readings(0)[metric, ""] == readings(1)[metric, ""]


def test_a_worker_alone_shares_no_model() -> None:
    with pytest.raises(ProbeUnavailable, match="tensor_parallel 2 needs as many workers"):
        measure(Prefill(**CASE, tensor_parallel=2), Listener().context())


@pytest.mark.parametrize(
    ("shape", "count", "words"),
    [
        ("tiny", 4, "kv_heads of tiny are 2: not a whole number for each of 4 ranks"),
        ("llama3-8b", 3, "heads of llama3-8b are 32: not a whole number for each of 3 ranks"),
    ],
)
def test_a_shape_that_does_not_divide_is_told(shape: str, count: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Prefill(shape=shape, tensor_parallel=count)
