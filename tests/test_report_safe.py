"""Text from outside cannot steer a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import printed
from topobench.report.safe import clean, command
from topobench.report.sheet import Column, Prose, Sheet, csv_field


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("two\nlines\r\tand a tab", r"two\nlines\r\tand a tab"),
        ("bell\x07 nul\x00 c1\x9b2J", r"bell\x07 nul\x00 c1\x9b2J"),
        ("turn\u202earound", r"turn\u202earound"),
        ("para\u2029graph\u2028", r"para\u2029graph\u2028"),
        ("half\ud800", r"half\ud800"),
        ("Größe 机器 [red]x[/red]", "Größe 机器 [red]x[/red]"),
        (None, "None"),
    ],
)
def test_control_characters_are_written_out(given_text: object, shown: str) -> None:
    assert clean(given_text) == shown


@given(st.text())
def test_cleaned_text_has_no_control_characters(given_text: str) -> None:
    kinds = {unicodedata.category(c) for c in clean(given_text)}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_long_text_is_cut_and_says_so() -> None:
    assert clean("x" * 100, limit=10) == "x" * 10 + " ... (90 more characters)"


def test_markup_is_printed_as_it_stands() -> None:
    markup = "[bold red]:smile:[/]"
    assert printed(Prose(clean(markup), indent=0), colour=True) == f"{markup}\n"
    assert printed(Sheet([Column("")], [[clean(markup)]], header=False)) == f"  {markup}\n"


def test_a_command_is_never_wrapped() -> None:
    """A line to copy stays one line, however narrow the terminal."""
    line = "pip install " + " ".join(f"package{i}" for i in range(20))
    assert printed(command(line), width=40) == f"  {line}\n"


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, ""),
        (1.5, "1.5"),
        ("a,b", '"a,b"'),
        ('say "hi"', '"say ""hi"""'),
        ("two\nlines", r"two\nlines"),
        ("\x1b[31m", r"\x1b[31m"),
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("@h07", "'@h07"),
        ("-1+cmd", "'-1+cmd"),
        ("+1e3", "+1e3"),
        (-1.5, "-1.5"),
    ],
)
def test_csv_fields_are_quoted_where_needed(value: object, field: str) -> None:
    """And no text is a formula to a spreadsheet."""
    assert csv_field(value) == field
