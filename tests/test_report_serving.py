"""What the report says of servers under load."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, Group

from report_documents import cell
from topobench.report.page.parts import Table, from_rich
from topobench.report.records import Places
from topobench.report.serving import MOST_WINDOWS, served

PLACES = Places(hosts={"k1": "gpu01"})


def window(load: float, meets: bool | None, *, rate: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "concurrency": None if rate else load,
        "offered_per_second": load if rate else None,
        "answered_per_second": 71.25,
        "output_tokens_per_second": 1234.0,
        "n": 400,
        "good": 396,
        "errors": 0,
        "limit_on": "ttft",
        "limit_seconds": 0.35,
        "valid": True,
        "meets": meets,
        "faults": [],
        "latencies": {
            "ttft_seconds": {"p50": 0.05, "p99": 0.3},
            "tpot_seconds": {"p50": 0.0125},
            **({"ttft_from_schedule_seconds": {"p50": 0.06, "p99": 0.34}} if rate else {}),
        },
        **more,
    }


def serving(
    windows: list[dict[str, Any]], search: dict[str, Any] | None = None, **more: Any
) -> Any:
    params = {"server": "mine", **more.pop("params", {})}
    conditions = {"windows": windows, "search": search}
    return cell("serving", params=params, host="k1", conditions=conditions, **more)


def shown(*cells: Any) -> str:
    text = io.StringIO()
    Console(width=110, file=text).print(Group(*served(cells, PLACES)))
    return " ".join(text.getvalue().split())


def test_each_window_has_a_row_and_the_search_its_answer() -> None:
    search = {"ended": "found", "best": 64.0, "first_over": 67.0, "windows": 9}
    text = shown(
        serving([window(64.0, True), window(67.0, False)], {**search, "over_share_upper": 0.006})
    )
    assert "limit: P99 of the time to the first token within 350 ms" in text
    assert "mine 64 71.25 50.0 ms 300 ms 12.5 ms 1234 99.0 % yes" in text
    assert "mine 67 71.25 50.0 ms 300 ms 12.5 ms 1234 99.0 % no" in text
    assert (
        "mine, arm none: holds 64 requests in flight; 67 are over the limit "
        "(9 windows tried; at most 0.6 % over it, at 95 %)"
    ) in text


def test_rates_are_told_apart_and_count_from_when_requests_were_due() -> None:
    search = {"ended": "not settled", "best": None, "first_over": 9.0, "windows": 40}
    text = shown(serving([window(12.5, None, rate=True)], search))
    assert "first token from when a request was due within 350 ms" in text
    assert "mine 12.5/s 71.25 60.0 ms 340 ms" in text
    assert "no load was found (not settled, 40 windows tried)" in text


def test_what_differs_gets_a_column_and_what_spoilt_a_window_is_said() -> None:
    fault = "client_overloaded: the client's event loop woke up to 30.0 ms late"
    bad = window(8.0, None, valid=False, faults=[fault], errors=3)
    text = shown(
        serving([window(8.0, True)], params={"arguments": "block=16"}),
        serving([bad], params={"arguments": "block=32"}),
    )
    assert "mine block=16 8 71.25" in text
    assert "mine * block=32 8 71.25" in text
    assert "99.0 % 3 -" in text
    assert f"* not used, 1 window: {fault}" in text


def test_many_windows_are_cut_and_counted() -> None:
    text = shown(serving([window(8.0, True)] * (MOST_WINDOWS + 5)))
    assert "5 windows more" in text


def test_without_windows_there_is_nothing_and_a_page_has_the_same_table() -> None:
    assert list(served([serving([])], PLACES)) == []
    parts = from_rich(served([serving([window(8.0, True)])], PLACES))
    (table,) = [p for p in parts if isinstance(p, Table)]
    assert table.rows[0][0] == "mine"
