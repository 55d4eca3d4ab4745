"""Rows for a spreadsheet: the same values as the JSON document of the same command."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import report_documents as documents
import sights
from topobench import cli
from topobench.report.rows import csv_of

CRITERIA = Path(__file__).parents[1] / "docs" / "examples" / "accept" / "h200-sxm8.yaml"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = sights.store_at(tmp_path_factory.mktemp("rows"))
    hosts = [sights.host("h1", gpus=2), sights.host("=1+1", gpus=2)]
    sights.fill(url, hosts, probes="host_memory,gemm,device_memory", day=28)
    sights.fill(url, hosts, probes="host_memory,gemm,device_memory")
    return url


def said(capsys: pytest.CaptureFixture[str], store: str, *arguments: str, format: str) -> str:
    cli.main([*arguments, "--store", store, "--format", format])
    return capsys.readouterr().out


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_reading_of_a_sweep_is_a_row(capsys: pytest.CaptureFixture[str], store: str) -> None:
    data = json.loads(said(capsys, store, "report", format="json"))["data"]
    rows = table(said(capsys, store, "report", format="csv"))
    medians = [r["median"] for c in data["cells"] for r in c["readings"]]
    assert [float(row["median"]) for row in rows] == medians
    assert {row["host"] for row in rows} == {"h1", "'=1+1"}, "a formula is kept a text"
    assert json.loads(rows[0]["params"]) == data["cells"][0]["params"]


def test_a_cell_that_gave_nothing_is_a_row_with_its_reason() -> None:
    document = documents.troubled_sweep()
    rows = table(csv_of("report", document))
    failed = [c for c in document["cells"] if not c["readings"]]
    assert len(failed) == 3
    told = [(r["status"], r["reason"]) for r in rows if not r["metric"]]
    assert told == [(c["status"], c["reason"] or "") for c in failed]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["compare", "date:2026-11-28", "date:2026-11-29"], lambda d: len(d["cases"])),
        (["check"], lambda d: sum(len(s["checks"]) or 1 for s in d["subjects"])),
        (["check", "--print-policy"], lambda d: len(d["policy"])),
        (["advise", "h1"], lambda d: len(d["advice"])),
        (
            ["accept", "--criteria", str(CRITERIA)],
            lambda d: sum(len(r["answers"]) or 1 for r in d["rules"]),
        ),
    ],
    ids=["compare", "check", "policy", "advise", "accept"],
)
def test_a_command_has_as_many_rows_as_answers(
    capsys: pytest.CaptureFixture[str], store: str, arguments: list[str], count: Any
) -> None:
    data = json.loads(said(capsys, store, *arguments, format="json"))["data"]
    rows = table(said(capsys, store, *arguments, format="csv"))
    assert len(rows) == count(data) > 0
    assert None not in rows[0], "no row is longer than the header"
