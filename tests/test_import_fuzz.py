"""Broken and hostile files: only ImportFailed comes out beside a document, and quickly."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from documents import check
from topobench.db.columns import parse_time
from topobench.errors import ImportFailed
from topobench.importers import document as shared
from topobench.importers import nccl_tests, nvbandwidth
from topobench.importers.cells import Origin, cells_and_runs, import_host, started_at
from topobench.importers.document import Document

DATA = Path(__file__).parent / "data"
CORPUS = [
    f.read_text()
    for f in sorted(
        [
            *(DATA / "nccl_tests").iterdir(),
            *(DATA / "h200x2").glob("nccl_tests_*"),
            DATA / "h200x2" / "nvbandwidth_0.8.json",
        ]
    )
]
PARSERS = (nccl_tests.parse, nvbandwidth.parse)
ODD = (
    "nan",
    "inf",
    "-1",
    "N/A",
    "1e999",
    "9" * 30,
    "{",
    "}",
    "[",
    '"',
    "\x00",
    "\ud800",
    "0x1f",
    "",
)

effort = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def survives(text: str) -> None:
    """Both importers give a document that is what its schema says, or ImportFailed."""
    for parse in PARSERS:
        found = document_of(parse, text)
        if found is None:
            continue
        document = found.to_json()
        check(json.loads(json.dumps(document)), "import")
        json.dumps(document).encode("utf-8")
        assert parse_time(started_at(found, Origin(), "2026-11-29T00:00:00Z")[0]).year > 0
        try:
            made = cells_and_runs(found, "0" * 64, "import:x", "2026-11-29T00:00:00Z")
        except ImportFailed:
            continue
        assert len({cell.id for cell, _ in made}) == len(made)


def document_of(parse: Callable[[str], Document], text: str) -> Document | None:
    """The document, or None where the text was refused."""
    try:
        return parse(text)
    except ImportFailed:
        return None


@effort
@given(st.integers(0, len(CORPUS) - 1), st.randoms(use_true_random=False))
def test_a_mutated_file_never_breaks_an_importer(index: int, chance: random.Random) -> None:
    text = CORPUS[index]
    for _ in range(chance.randint(1, 8)):
        at, length = chance.randrange(len(text) + 1), chance.choice((0, 1, 3, 20, 400))
        other = chance.choice(CORPUS)
        start = chance.randrange(len(other))
        text = chance.choice(
            (
                text[:at] + text[at + length :],
                text[:at] + chance.choice(ODD) + text[at + length :],
                text[:at] + text[at : at + length] * 3 + text[at + length :],
                text[:at] + other[start : start + length] + text[at:],
                text[: at + 1],
            )
        )
    survives(text)


@effort
@given(st.integers(0, len(CORPUS) - 1), st.randoms(use_true_random=False))
def test_a_mutated_word_never_breaks_an_importer(index: int, chance: random.Random) -> None:
    lines = [line.split(" ") for line in CORPUS[index].split("\n")]
    for _ in range(chance.randint(1, 6)):
        words = chance.choice(lines)
        words[chance.randrange(len(words))] = chance.choice(ODD)
    survives("\n".join(" ".join(words) for words in lines))


@effort
@given(st.text(max_size=400))
def test_any_text_is_refused_or_read(text: str) -> None:
    survives(text)
    survives("{" + text)
    survives("# nccl-tests version 2\n" + text)
    survives("nvbandwidth Version: v0.8\nRunning x.\n" + text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)


@effort
@given(st.data())
def test_any_value_in_any_place_of_the_json_is_survived(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([t for t in CORPUS if t.lstrip().startswith("{")]))
    document = json.loads(text)
    place, chance = document, data.draw(st.randoms(use_true_random=False))
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = chance.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.8:
            place = inner
            continue
        place[key] = data.draw(_JSON)
        break
    survives(json.dumps(document))


@pytest.mark.parametrize(
    "unit",
    ["[", '{"a":', "Test ", "a.", "0 ", "1:", "[1,0]<stdout>:", "# Rank 0 on ", ":1", "-", "\x1b["],
)
def test_repetitions_do_not_take_long(unit: str) -> None:
    """Of every size up to the largest line, and far beyond it; the test's time-out judges."""
    for head in ("", "# ", "8 8 float sum -1", "# nccl-tests version 2\n", "Running x.\n"):
        for size in (shared.LONGEST_LINE - 200, 100_000):
            text = head + unit * (size // len(unit)) + "\n"
            survives(text * 20)


def test_a_deep_nest_is_refused() -> None:
    for parse in PARSERS:
        with pytest.raises(ImportFailed):
            parse('{"nvbandwidth":' + "[" * 1_000_000)


def test_an_imported_host_says_nothing_it_does_not_know() -> None:
    host = import_host(Origin(), "0" * 64, "2026-11-29T00:00:00Z")
    assert (host.key, host.name, host.address) == ("import:" + "0" * 16, "unknown", "")
    assert host.topology.gpus == ()
    assert host.topology.cpus.online is None
