"""Selectors: what each text means, and what is refused with a hint."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topobench.compare_select import Days, Selector, meant, parse
from topobench.errors import UsageError


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("sweep:1a2b", Selector("sweep:1a2b", {"sweep": ("1a2b",)})),
        ("latest", Selector("latest", {}, bare="latest")),
        (
            "host:h07,date:2026-11-01..2026-11-07",
            Selector(
                "host:h07,date:2026-11-01..2026-11-07",
                {"host": ("h07",)},
                Days("2026-11-01", "2026-11-07"),
            ),
        ),
        ("2026-11-01", Selector("2026-11-01", {}, Days("2026-11-01", "2026-11-01"))),
        ("date:2026-11-01..", Selector("date:2026-11-01..", {}, Days("2026-11-01", None))),
        ("..2026-11-07", Selector("..2026-11-07", {}, Days(None, "2026-11-07"))),
        ("host:a,host:b", Selector("host:a,host:b", {"host": ("a", "b")})),
        (
            "sku:8x H200, 2 CPUs,cluster:lab",
            Selector(
                "sku:8x H200, 2 CPUs,cluster:lab",
                {"sku": ("8x H200, 2 CPUs",), "cluster": ("lab",)},
            ),
        ),
        ("h07,driver:580.95", Selector("h07,driver:580.95", {"driver": ("580.95",)}, bare="h07")),
        (
            "driver:580.95,2026-11-01..",
            Selector(
                "driver:580.95,2026-11-01..", {"driver": ("580.95",)}, Days("2026-11-01", None)
            ),
        ),
        ("10.9.0.10:6379", Selector("10.9.0.10:6379", {}, bare="10.9.0.10:6379")),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_text_means(text: str, selector: Selector) -> None:
    assert parse(text) == selector


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty part"),
        ("host:", "no value"),
        ("hots:h07", "did you mean host"),
        ("rack:r1", "keys are sweep, host"),
        ("date:2026-11-31", "is no day"),
        ("date:20261101", "is no day"),
        ("date:2026-11-07..2026-11-01", "ends before it begins"),
        ("date:..", "names no day"),
        ("2026-11-01,date:2026-11-02", "given twice"),
        ("host:a,date:", "no value"),
    ],
)
def test_a_wrong_text_is_told(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(text)


def test_a_word_with_two_meanings_is_no_meaning() -> None:
    assert meant("lab", ["cluster:lab"], ["lab"]) == "cluster:lab"
    with pytest.raises(UsageError, match="can mean cluster:lab, host:lab; write one of them"):
        meant("lab", ["cluster:lab", "host:lab"], ["lab"])
    with pytest.raises(UsageError, match="did you mean 'h07'"):
        meant("h7", [], ["h07", "lab"])


@settings(deadline=None)
@given(st.text(max_size=40) | st.from_regex(r"(host|date|x)?:?[0-9.\-,:]*", fullmatch=True))
def test_any_text_is_a_selector_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse(text).text == text
