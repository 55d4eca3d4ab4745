"""Tables whose numbers are never broken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from golden import printed
from topobench.report.sheet import Column, Prose, Sheet, facts

WHY = "a long reason that has to be wrapped on a narrow terminal"


def sheet() -> Sheet:
    return Sheet(
        [Column("name"), Column("rate\nGB/s", number=True), Column("why")],
        [["first", "55.30", WHY], ["机器", "1234.50", "short"]],
    )


def test_columns_are_aligned_and_units_stand_above_the_numbers() -> None:
    assert printed(sheet(), width=100) == (
        "            rate\n"
        "  name      GB/s  why\n"
        f"  first    55.30  {WHY}\n"
        "  机器   1234.50  short\n"
    )


def test_text_is_wrapped_before_numbers_suffer() -> None:
    assert printed(sheet(), width=42) == (
        "            rate\n"
        "  name      GB/s  why\n"
        "  first    55.30  a long reason that has\n"
        "                  to be wrapped on a\n"
        "                  narrow terminal\n"
        "  机器   1234.50  short\n"
    )


def test_a_table_that_cannot_fit_is_written_field_by_field() -> None:
    narrow = Sheet(
        [Column("size"), *(Column(f"GPU {i}\nGB/s", number=True) for i in range(3))],
        [["64 KiB", "16.80", "16.75", ""]],
    )
    assert printed(narrow, width=20) == (
        "  - size: 64 KiB\n    GPU 0 GB/s: 16.80\n    GPU 1 GB/s: 16.75\n"
    )


@given(
    st.lists(st.floats(0, 1e6).map(lambda x: f"{x:.3f}"), min_size=1, max_size=9),
    st.integers(10, 90),
)
def test_every_number_survives_every_width(numbers: list[str], width: int) -> None:
    wide = Sheet([Column("what"), *(Column("x", number=True) for _ in numbers)], [["w", *numbers]])
    assert set(numbers) <= set(printed(wide, width=width).split())


def test_facts_leave_out_what_is_empty() -> None:
    assert printed(facts([("GPUs", "2x H200"), ("NICs", "")])) == "  GPUs  2x H200\n"


def test_prose_keeps_its_indent_on_every_line() -> None:
    assert printed(Prose("one two three four", indent=4), width=14) == (
        "    one two\n    three four\n"
    )


def test_a_word_longer_than_the_terminal_is_broken_not_lost() -> None:
    shown = printed(Prose("x" * 50, indent=2), width=20)
    assert shown == f"  {'x' * 18}\n  {'x' * 18}\n  {'x' * 14}\n"
