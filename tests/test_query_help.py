"""What the command line says about named queries, and every answer as CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from documents import check
from querying import Fleet, given
from topobench import cli
from topobench.db.queries import list_queries


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["query", *words]) == 0
    return capsys.readouterr().out


def test_the_list_names_every_query_with_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--list").splitlines()
    for query in list_queries():
        (line,) = [x for x in lines if x.split(" ")[0] == query.name]
        assert line.split(maxsplit=1)[1] == query.answers
    document: dict[str, Any] = json.loads(printed(capsys, "--list", "--format", "json"))
    check(document, "query")
    assert document["data"]["columns"] == ["query", "title", "answers", "parameters"]
    rows = {row[0]: row for row in document["data"]["rows"]}
    assert rows["coverage"] == [
        "coverage",
        "Coverage",
        "Which hosts were not measured lately, or never?",
        "cluster=% since=14d now=now",
    ]


def test_a_query_is_explained_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "ring-gain", "--explain")
    assert shown.startswith("ring-gain: Ring gain\nDoes a hand-made ring beat NCCL's own")
    assert "above_mde: 1 if the gain is larger than the smallest one" in shown
    assert "tolerance  number  0.03     differences up to this do not matter" in shown
    assert "topobench query ring-gain --param host=% --since 7d" in shown
    document = json.loads(printed(capsys, "ring-gain", "--explain", "--format", "json"))
    check(document, "query")
    assert document["data"]["columns"] == ["parameter", "kind", "default", "meaning"]
    assert document["data"]["title"] == "Ring gain"


@pytest.mark.parametrize("words", [("--explain",), ("latest", "--explain", "--since", "3d")])
def test_explain_stands_alone_with_a_name(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["query", *words]) == 2
    assert "give a query's NAME" in capsys.readouterr().err


def test_every_query_is_printed_as_csv_and_for_people(
    sqlite_fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    for query in list_queries():
        words = [f"--param={k}={v}" for k, v in given(query).items()]
        asked = (query.name, *words, "--store", sqlite_fleet.url)
        table = list(csv.reader(io.StringIO(printed(capsys, *asked, "--format", "csv"))))
        answer = sqlite_fleet.answer(query.name)
        assert table[0] == list(answer.columns), query.name
        assert len(table) == len(answer.rows) + 1, query.name
        assert {len(row) for row in table} == {len(answer.columns)}, query.name
        shown = printed(capsys, *asked)
        count = len(answer.rows)
        assert shown.endswith(f"{count} row{'' if count == 1 else 's'}\n"), query.name


def test_samples_are_printed_by_the_beginning_of_a_run(
    sqlite_fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sqlite_fleet.ask("samples")[0]["run"]
    shown = printed(
        capsys, "samples", f"--param=run={run[:12]}", "--store", sqlite_fleet.url, "--format=json"
    )
    document = json.loads(shown)
    check(document, "query")
    columns = document["data"]["columns"]
    (row,) = document["data"]["rows"]
    found = dict(zip(columns, row, strict=True))
    assert (found["run"], found["position"], found["warmup"]) == (run, 0, 0)
    assert found["value"] == pytest.approx(found["median"], rel=1e-6)
