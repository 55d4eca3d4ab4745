from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topobench import units


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8K", 8192),
        ("8k", 8192),
        ("8KiB", 8192),
        ("8 KiB", 8192),
        ("64 MiB", 64 * 2**20),
        ("64M", 64 * 2**20),
        ("1.5K", 1536),
        ("2TiB", 2 * 2**40),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1GB", 10**9),
        ("1e9", 10**9),
        ("2.5e3", 2500),
        ("4096", 4096),
        ("8B", 8),
        ("0", 0),
        ("+1", 1),
        ("  1G ", 2**30),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_a_size_is_read_exactly(text: str, size: int) -> None:
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("-1", "negative"),
        ("8 Kb", "bits"),
        ("8 Kbit", "bits"),
        ("8 bits", "bits"),
        ("12b", "bits"),
        ("0.3", "whole number of bytes"),
        ("1e999", "too large"),
        ("16E", "too large"),
        ("9Q", "unknown unit 'Q'"),
        ("0x10", "not understood"),
        ("nan", "not understood"),
        ("1,5K", "not understood"),
        ("٣", "not understood"),
    ],
)
def test_what_is_no_size_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1 h 30 m", 5400.0),
        ("2d", 172800.0),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("1.5ms", 0.0015),
        ("12ns", 12e-9),
        ("0s", 0.0),
    ],
)
def test_a_duration_is_read_exactly(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("7:30", "two ways"),
        ("90", "no unit"),
        ("1e3", "no unit"),
        ("", "not a duration"),
        ("-5s", "negative"),
        ("5 minutes", "not a duration"),
        ("10m?", "not a duration"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        units.parse_duration(text)


@pytest.mark.parametrize(("text", "count"), [("0", 0), ("12", 12), ("1e3", 1000), ("5K", 5000)])
def test_a_count_takes_powers_of_ten(text: str, count: int) -> None:
    assert units.parse_count(text) == count


@pytest.mark.parametrize("text", ["-1", "1.5", "5KiB", "x", "", "1_000"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"whole number|negative"):
        units.parse_count(text)


@pytest.mark.parametrize(
    ("text", "rate"), [("25 GB/s", 25e9), ("25e9", 25e9), ("1 GiB/s", 2.0**30), ("7GB", 7e9)]
)
def test_a_rate_is_bytes_a_second(text: str, rate: float) -> None:
    assert units.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["400 Gb/s", "400Gbps", "400 Gbit/s"])
def test_a_rate_in_bits_is_refused_not_guessed(text: str) -> None:
    with pytest.raises(ValueError, match="bits"):
        units.parse_rate(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (8, "8 B"),
        (1000, "1000 B"),
        (1024, "1 KiB"),
        (8192, "8 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1 MiB"),
        (128 * 2**20, "128 MiB"),
        (2**40, "1 TiB"),
    ],
)
def test_sizes_print_in_powers_of_1024(size: int, text: str) -> None:
    assert units.format_bytes(size) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (25.34e9, "25.3 GB/s"),
        (478.3e9, "478 GB/s"),
        (4e12, "4000 GB/s"),
        (1.234e9, "1.23 GB/s"),
        (1e6, "0.00100 GB/s"),
        (0.0, "0 GB/s"),
    ],
)
def test_rates_print_in_decimal_gigabytes(rate: float, text: str) -> None:
    assert units.format_rate(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (2.5e-9, "2.50 ns"),
        (12.34e-6, "12.3 us"),
        (999.4e-6, "999 us"),
        (999.6e-6, "1.000 ms"),
        (1.25e-3, "1.25 ms"),
        (90.0, "90.0 s"),
        (-1.25e-3, "-1.25 ms"),
    ],
)
def test_seconds_print_in_a_unit_that_leaves_one_or_more(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 s"),
        (45.0, "45 s"),
        (150.0, "3 min"),
        (7199.0, "2 h 00 min"),
        (7500.0, "2 h 05 min"),
    ],
)
def test_spans_round_up(seconds: float, text: str) -> None:
    assert units.format_span(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "500 ms"),
        (90.5, "90.5 s"),
        (150.0, "2 min 30 s"),
        (3600.0, "60 min"),
        (7500.25, "2 h 05 min 0.25 s"),
    ],
)
def test_limits_are_told_as_they_were_set(seconds: float, text: str) -> None:
    assert units.format_limit(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (119.4, "119 s"),
        (119.6, "2 min 00 s"),
        (664.5, "11 min 04 s"),
        (7199.4, "119 min 59 s"),
        (7530.0, "2 h 05 min"),
    ],
)
def test_what_was_measured_is_not_rounded_up(seconds: float, text: str) -> None:
    assert units.format_elapsed(seconds) == text


def test_percent_has_one_decimal() -> None:
    assert units.format_percent(0.0321) == "3.2 %"
    assert units.format_percent(-0.1) == "-10.0 %"


@given(st.integers(0, 2**63 - 1))
def test_every_whole_size_reads_back(size: int) -> None:
    assert units.parse_bytes(str(size)) == size


@given(st.integers(1, 1023), st.sampled_from([(i, u) for i, u in enumerate("KMGTP", 1)]))
def test_a_printed_power_reads_back(count: int, unit: tuple[int, str]) -> None:
    size = count * 1024 ** unit[0]
    assert units.parse_bytes(units.format_bytes(size)) == size


@given(st.floats(1e-9, 1e15))
def test_a_printed_size_is_within_half_a_percent(size: float) -> None:
    printed = units.format_bytes(size)
    number, unit = printed.split()
    factor = 1 if unit == "B" else 1024 ** ("KMGTPE".index(unit[0]) + 1)
    assert float(number) * factor == pytest.approx(size, rel=0.005, abs=0.005)


@given(st.floats(1e-9, 1e6))
def test_a_printed_time_is_within_half_a_percent(seconds: float) -> None:
    assert units.parse_duration(units.format_seconds(seconds)) == pytest.approx(seconds, rel=0.005)


@given(st.floats(1e3, 1e13))
def test_a_printed_rate_is_within_half_a_percent(rate: float) -> None:
    value = float(units.format_rate(rate).removesuffix(" GB/s"))
    assert math.isclose(value * 1e9, rate, rel_tol=0.005)


@given(st.text(max_size=12))
@pytest.mark.parametrize(
    "parse", [units.parse_bytes, units.parse_count, units.parse_duration, units.parse_rate]
)
def test_garbage_gives_a_value_or_a_sentence(parse: Callable[[str], float], text: str) -> None:
    """No other exception than ValueError leaves a parser."""
    found = _value_or_sentence(parse, text)
    assert found if isinstance(found, str) else found >= 0


def _value_or_sentence(parse: Callable[[str], float], text: str) -> float | str:
    try:
        return parse(text)
    except ValueError as error:
        return str(error)


def test_a_cpu_list_has_no_numbers_that_would_fill_the_memory() -> None:
    assert units.parse_cpu_list("0-5:2/4") == (0, 1, 4, 5)
    for text in ("0-1000000000000", "7,99999999999", "0-3:1/0", "0-3:1/", "3-1"):
        with pytest.raises(ValueError, match="bad CPU range"):
            units.parse_cpu_list(text)
