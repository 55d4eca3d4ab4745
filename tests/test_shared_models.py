"""Models that GPUs share, in the report and by query: both say the same of one stored sweep."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from querying import Fleet
from storing import LATENCY, begin, cell, host, reading, run
from topobench import prefill_shared
from topobench.db.store import Store
from topobench.prefill_shared import UNTOLD, Shared
from topobench.reading import Cell, Run
from topobench.report.records import Places
from topobench.report.shared_text import remarks, shared_section

BUSBW = "busbw_bytes_per_second"
SECONDS = "prefill_device_seconds"
GPUS = ("GPU-k1-0", "GPU-k1-1")
ALPHA, BETA = 20e-6, 200e9
MESSAGE, MESSAGES = 64 << 20, 64
ONE, TWO = 0.350, 0.200
PREDICTED = ONE / 2 + MESSAGES * (ALPHA + MESSAGE / BETA)
BASE: dict[str, Any] = {
    "shape": "llama3-8b", "dtype": "bf16", "attention": "auto", "mode": "graph", "batch": 1,
    "sequence": 8192,
}  # fmt: skip

Pairs = list[tuple[Cell, Run]]


def prompt(
    gpus: int,
    seconds: float,
    *more: Any,
    at_once: str = "one",
    devices: tuple[str, ...] = (),
    **changes: Any,
) -> Pairs:
    params = {**BASE, "tensor_parallel": gpus, "at_once": at_once}
    ring = "auto" if gpus > 1 else None
    on = devices or GPUS[: 2 if at_once == "all" else gpus]
    made = cell(probe="prefill", params=params, devices=on, ranks=gpus, ring=ring, **changes)
    found = [
        reading(seconds, metric=SECONDS),
        reading(8192 / seconds, metric="tokens_per_second"),
        reading(9.0, metric=SECONDS, point={"rank": 0}),
    ]
    return [(made, run(made, *found, *more))]


def shared(seconds: float = TWO, size: float = MESSAGE, **changes: Any) -> Pairs:
    details = (
        reading(MESSAGES, metric="all_reduce_count"),
        reading(size, metric="all_reduce_bytes"),
        reading(0.16, metric="communication_share_ratio", point={"method": "events"}),
        reading(0.12, metric="communication_share_ratio", point={"method": "twin"}),
    )
    return prompt(2, seconds, *details, **changes)


SIZES = (8, 512, 32 << 10, 2 << 20, 128 << 20)


def line(
    *,
    arm: str = "none",
    ring: str = "auto",
    sizes: tuple[int, ...] = SIZES,
    devices: tuple[str, ...] = GPUS,
    alpha: float = ALPHA,
    beta: float = BETA,
    **changes: Any,
) -> Pairs:
    """All-reduces of several sizes between both GPUs."""
    found = []
    for size in sizes:
        params = {"bytes": size, "dtype": "float32", "backend": "nccl", "ranks": 2, **changes}
        made = cell(
            probe="all_reduce", params=params, devices=devices, ranks=2, ring=ring, binding=arm
        )
        time = alpha + size / beta
        done = run(made, reading(time, metric=LATENCY), reading(size / time, metric=BUSBW))
        found.append((made, done))
    return found


def ask(store: Store, *groups: Pairs) -> tuple[list[Shared], list[dict[str, Any]]]:
    """What report and query make of a sweep."""
    pairs = [pair for group in groups for pair in group]
    sweep = begin(store, *(c for c, _ in pairs), hosts=[host(gpus=3, prefix="GPU-k1")])
    for _, done in pairs:
        store.put_run(done)
    store.end_sweep(sweep)
    cells = store.sweep_document(sweep)["cells"]
    return prefill_shared.shared(cells), Fleet(store, "", {}).ask("tensor-parallel")


def both(case: Shared, row: dict[str, Any]) -> None:
    """They agree."""
    pairs = {
        "device_seconds": case.seconds,
        "alone_seconds": case.alone_seconds,
        "speed_up_ratio": case.speed_up,
        "efficiency_ratio": case.efficiency,
        "events_share_ratio": case.events,
        "twin_share_ratio": case.twin,
        "predicted_seconds": case.predicted_seconds,
        "error_ratio": case.error,
    }
    for column, value in pairs.items():
        assert row[column] == (None if value is None else pytest.approx(value, rel=1e-6)), column


def test_two_gpus_stand_beside_one_and_beside_what_was_expected(store: Store) -> None:
    (case,), (row,) = ask(store, prompt(1, ONE), line(), shared())
    assert case.speed_up == pytest.approx(ONE / TWO)
    assert case.efficiency == pytest.approx(ONE / TWO / 2)
    assert (case.events, case.twin, case.ranks, case.path_class) == (0.16, 0.12, 2, "NV18")
    assert case.predicted_seconds == pytest.approx(PREDICTED, rel=1e-3)
    assert case.error == pytest.approx(PREDICTED / TWO - 1, rel=1e-2)
    assert (row["tp"], row["alone_at_once"], row["n_all_reduces"]) == (2, "one", MESSAGES)
    both(case, row)


def test_one_gpu_alone_is_taken_before_all_at_once_and_the_same_binding_before_others(
    store: Store,
) -> None:
    groups = (
        prompt(1, 0.5, at_once="all", binding="local"), prompt(1, 0.4), line(arm="local"),
        prompt(1, 0.3, binding="local"), shared(binding="local"),
    )  # fmt: skip
    (case,), (row,) = ask(store, *groups)
    assert (case.alone_seconds, case.alone_at_once) == (0.3, False)
    both(case, row)


def test_one_gpu_is_the_median_over_its_processes_and_over_the_gpus_that_share(
    store: Store,
) -> None:
    """One that takes no part does not count, nor does one slow process weigh more than others."""
    groups = (
        prompt(1, 0.30), prompt(1, 0.31, process_no=1), prompt(1, 0.90, process_no=2),
        prompt(1, 0.34, devices=GPUS[1:]), prompt(1, 0.20, devices=("GPU-k1-2",)),
        line(), shared(),
    )  # fmt: skip
    (case,), (row,) = ask(store, *groups)
    assert case.alone_seconds == pytest.approx((0.31 + 0.34) / 2)
    both(case, row)


def test_gpus_that_did_it_at_once_stand_for_one_and_that_is_said(store: Store) -> None:
    (case,), (row,) = ask(store, prompt(1, ONE, at_once="all"), line(), shared())
    assert (case.alone_seconds, case.alone_at_once, row["alone_at_once"]) == (ONE, True, "all")
    both(case, row)
    assert "one GPU was measured while the others did the same" in shown([case])


def test_of_more_gpus_at_once_the_slowest_of_those_that_share_stands_for_one(
    store: Store,
) -> None:
    """The third takes no part, however slow it is."""
    groups = []
    for number, seconds in enumerate([(0.30, 0.31, 0.90), (0.33, 0.32, 0.91)]):
        ((made, done),) = prompt(
            1, max(seconds), at_once="all", devices=(*GPUS, "GPU-k1-2"), process_no=number
        )
        own = [
            reading(value, metric=SECONDS, point={"rank": rank, "device": device})
            for rank, (device, value) in enumerate(zip(made.devices, seconds, strict=True))
        ]
        groups.append([(made, dataclasses.replace(done, readings=(*done.readings[:2], *own)))])
    (case,), (row,) = ask(store, *groups, line(), shared())
    assert case.alone_seconds == pytest.approx((0.31 + 0.33) / 2)
    assert (case.alone_at_once, row["alone_at_once"]) == (True, "all")
    both(case, row)


def test_queued_all_reduces_in_place_predict_rather_than_others(store: Store) -> None:
    others = line(beta=BETA / 9, mode="per_call"), line(beta=BETA / 7, place="out_of")
    (case,), (row,) = ask(store, prompt(1, ONE), *others, line(), shared())
    assert case.predicted_seconds == pytest.approx(PREDICTED, rel=1e-3)
    both(case, row)


def test_one_gpu_measured_again_later_stays_beside_the_two_of_its_sweep(store: Store) -> None:
    ask(store, prompt(1, ONE), line(), shared())
    _, (row,) = ask(store, prompt(1, ONE / 3))
    assert row["alone_seconds"] == pytest.approx(ONE)
    assert row["predicted_seconds"] == pytest.approx(PREDICTED, rel=1e-3)
    assert row["reason"] is None


TOLD_BY_QUERY = ("no line of all_reduce between these GPUs under none/auto", "outside the sizes")
"""The query has fewer words for why there is no line; the report says more."""
UNMEASURED = "all_reduce was not measured between these GPUs in this sweep"


@pytest.mark.parametrize(
    ("groups", "because"),
    [
        ((prompt(1, ONE), shared()), UNMEASURED),
        ((prompt(1, ONE), line(devices=(GPUS[0], "GPU-k1-2")), shared()), UNMEASURED),
        (
            (prompt(1, ONE), line(arm="local"), line(ring="worst"), shared()),
            "measured under local/auto, none/worst, not under none/auto",
        ),
        (
            (prompt(1, ONE), line(sizes=SIZES[:4]), shared()),
            "between these GPUs was measured at 4 sizes; a line needs 5",
        ),
        ((prompt(1, ONE), line(beta=-1e15), shared()), "do not grow with the size"),
        ((line(), shared()), "one GPU was not measured in this sweep"),
        ((prompt(1, ONE), line(), prompt(2, TWO)), UNTOLD),
        ((prompt(1, ONE), line(), shared(size=1 << 30)), "outside the fitted sizes, 8 to 1.34218e"),
    ],
    ids=[
        *("no line", "other GPUs", "another arm", "too few sizes", "no slope", "no single GPU"),
        *("no sizes", "a larger message"),
    ],
)
def test_without_its_grounds_there_is_no_prediction_but_a_reason(
    store: Store, groups: tuple[Pairs, ...], because: str
) -> None:
    (case,), (row,) = ask(store, *groups)
    assert case.predicted_seconds is None
    assert because in str(case.because)
    assert any(words in row["reason"] for words in (because, *TOLD_BY_QUERY))
    both(case, row)
    assert f"no prediction for 1 case: {case.because}" in shown([case])


def test_a_gang_over_hosts_says_nothing_of_processes_of_one() -> None:
    prompts = [*of_processes(prompt(1, ONE)), *of_processes(shared())]
    (case,) = prefill_shared.shared([*prompts, *of_processes(line(), hosts=["k1", "k2"])])
    assert case.because == "all_reduce was not measured between these processes in this sweep"
    (case,) = prefill_shared.shared([*prompts, *of_processes(line())])
    assert case.predicted_seconds == pytest.approx(PREDICTED, rel=1e-3)


def of_processes(pairs: Pairs, hosts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Cells of a document, of processes on CPUs in place of GPUs."""
    return [
        {
            "host": made.host,
            "hosts": list(hosts),
            "probe": made.case.probe,
            "params": dict(made.case.params),
            "arm": made.arm.name,
            "devices": [],
            "ranks": made.ranks,
            "block": made.block,
            "process_no": made.process_no,
            "status": str(done.status),
            "readings": [
                {"metric": r.metric, "point": dict(r.point), "median": r.summary.median}
                for r in done.readings
            ],
        }
        for made, done in pairs
    ]


def shown(found: list[Shared]) -> str:
    """The remarks beneath the table, on one line."""
    return " ".join(remarks(found))


def test_the_report_has_a_row_for_each_case(store: Store) -> None:
    pairs = [*prompt(1, ONE), *line(), *shared()]
    sweep = begin(store, *(c for c, _ in pairs), hosts=[host(gpus=3, prefix="GPU-k1")])
    for _, done in pairs:
        store.put_run(done)
    store.end_sweep(sweep)
    document = store.sweep_document(sweep)
    console = Console(width=150, record=True, file=io.StringIO())
    for part in shared_section(document["cells"], Places.of(document["hosts"])):
        console.print(part)
    text = console.export_text()
    for figure in ("2 NV18", "none/auto", "200 ms", "1.75x", "87.5 %", "16.0 %", "12.0 %"):
        assert figure in text
