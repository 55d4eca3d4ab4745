"""The one JSON document that --format json prints."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

import report_documents as documents
from topobench import __version__, upkeep
from topobench.envelope import envelope, error_envelope
from topobench.errors import ConfigError, NotFound
from topobench.reading import Reason, ReasonCode, Status

SCHEMAS = Path(__file__).parent.parent / "docs" / "schemas"
NOW = "2026-11-29T16:02:00Z"
ENVELOPED = tuple(sorted(p.stem for p in SCHEMAS.glob("*.json") if p.stem != "topology"))


def validator(name: str) -> jsonschema.Draft202012Validator:
    loaded = {n: json.loads((SCHEMAS / f"{n}.json").read_text()) for n in ENVELOPED}
    registry: Registry[Any] = Registry().with_resources(
        (found["$id"], Resource.from_contents(found)) for found in loaded.values()
    )
    return jsonschema.Draft202012Validator(loaded[name], registry=registry)


def errors(name: str, document: Any) -> list[str]:
    """What a schema finds wrong, after the way through text that every reader takes."""
    text = json.dumps(document, allow_nan=False)
    return [e.message for e in validator(name).iter_errors(json.loads(text))]


def wrap(command: str, data: Any, **changes: Any) -> dict[str, Any]:
    return envelope(
        command, data, **{"status": "ok", "exit_code": 0, "generated_at": NOW, **changes}
    )


@pytest.mark.parametrize("name", ENVELOPED)
def test_schemas_are_sound(name: str) -> None:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"].endswith(f"/{name}.json")


def test_the_envelope_has_exactly_the_promised_keys() -> None:
    assert wrap("probe", {"a": 1}, warnings=("late",)) == {
        "schema": "topobench.probe/1",
        "tool_version": __version__,
        "generated_at": NOW,
        "status": "ok",
        "exit_code": 0,
        "warnings": ["late"],
        "data": {"a": 1},
    }


@pytest.mark.parametrize(
    "document",
    [
        documents.cpu_host_sweep(),
        documents.troubled_sweep(),
        documents.eight_gpu_sweep(),
        documents.fleet_sweep(3),
        documents.sweep([], []),
    ],
    ids=["cpu_host", "troubled", "eight_gpus", "fleet", "empty"],
)
@pytest.mark.parametrize("command", ["probe", "report"])
def test_sweeps_fit_their_schemas(command: str, document: dict[str, Any]) -> None:
    assert errors(command, wrap(command, document)) == []


def break_status(document: dict[str, Any]) -> None:
    document["cells"][0]["status"] = "great"


def break_number(document: dict[str, Any]) -> None:
    """A number in the readings of a failed cell."""
    document["cells"][0] |= {"status": "failed", "reason": "busy: x"}


def break_reason(document: dict[str, Any]) -> None:
    document["cells"][0] |= {"status": "skipped", "reason": None, "readings": []}


def break_time(document: dict[str, Any]) -> None:
    document["sweep"]["started_at"] = "yesterday"


def break_level(document: dict[str, Any]) -> None:
    document["cells"][0]["readings"][0]["ci_level"] = "95 %"


def break_store(document: dict[str, Any]) -> None:
    del document["store"]


@pytest.mark.parametrize(
    "damage",
    [break_status, break_number, break_reason, break_time, break_level, break_store],
)
def test_damaged_sweeps_do_not_fit(damage: Any) -> None:
    document = documents.cpu_host_sweep()
    damage(document)
    assert errors("probe", wrap("probe", document)) != []


def test_another_command_s_document_does_not_fit() -> None:
    assert errors("report", wrap("probe", documents.cpu_host_sweep())) != []


def test_query_and_doctor_fit_their_schemas() -> None:
    answer: dict[str, Any] = {
        "name": None,
        "params": {},
        "columns": ["a"],
        "rows": [[1], [None], ["x"]],
    }
    assert errors("query", wrap("query", answer)) == []
    assert errors("query", wrap("query", {**answer, "rows": [{"a": 1}]})) != []
    finding: dict[str, Any] = dict.fromkeys(("check", "found", "wanted", "why"), "x")
    finding |= {"level": "warn", "fix": None, "undo": None}
    data = {"host": "gpu01", "findings": [finding]}
    assert errors("doctor", wrap("doctor", data)) == []
    finding["level"] = "bad"
    assert errors("doctor", wrap("doctor", data)) != []


@pytest.mark.parametrize("command", ["probe", "report", "query", "doctor"])
def test_a_failed_command_says_what_and_has_no_data(command: str) -> None:
    mistakes = ConfigError(["lab.yaml:3: probs: unknown key; did you mean probes?"])
    document = error_envelope(command, mistakes, exit_code=2, generated_at=NOW)
    assert document["data"] is None
    assert document["error"] == {
        "type": "ConfigError",
        "message": "lab.yaml:3: probs: unknown key; did you mean probes?",
    }
    assert (document["status"], document["exit_code"]) == ("error", 2)
    assert errors("error", document) == errors(command, document) == []


def test_no_data_and_no_error_does_not_fit() -> None:
    assert errors("envelope", wrap("probe", None)) != []
    failed = error_envelope("db-info", NotFound("no sweep x"), exit_code=1, generated_at=NOW)
    assert errors("envelope", failed) == []
    assert errors("envelope", {**failed, "data": {}}) != []


def test_what_json_cannot_write_becomes_what_it_can() -> None:
    """Databases give dates, decimals and bytes; probes may give NaN, which is no number."""
    found = wrap(
        "query",
        {
            "rows": [
                (math.nan, -math.inf, 1.5, decimal.Decimal("2.50"), decimal.Decimal("NaN")),
                [b"\x01\xff", datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC)],
                [uuid.UUID(int=5), datetime.timedelta(seconds=90), True, None],
            ],
            "status": Status.OK,
            "reason": Reason(ReasonCode.BUSY, "other work"),
            7: "key",
        },
    )["data"]
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "rows": [
            [None, None, 1.5, 2.5, None],
            ["\\x01ff", "2026-01-02T03:00:00+00:00"],
            ["00000000-0000-0000-0000-000000000005", "0:01:30", True, None],
        ],
        "status": "ok",
        "reason": "busy: other work",
        "7": "key",
    }


def test_the_store_s_own_documents_fit_their_schemas(tmp_path: Path) -> None:
    """What the real store says of itself, with and without a sweep."""
    from topobench.db.store import Store

    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        info = store.info()
    assert errors("db-info", wrap("db-info", info)) == []
    sweep = documents.cpu_host_sweep()["sweep"]
    assert errors("db-info", wrap("db-info", {**info, "last_sweep": sweep})) == []
    assert errors("db-info", wrap("db-info", {**info, "last_sweep": {}})) != []
    upgraded = upkeep.db_upgrade(info["url"]).data
    assert errors("db-upgrade", wrap("db-upgrade", upgraded)) == []
