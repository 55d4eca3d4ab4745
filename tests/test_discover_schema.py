"""The published schema of topobench.topology/1 against what discovery writes."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import typing
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import topobench.topology
from fake_nvml import FakeNvml, Refusal, gpu
from made_machine import Eight
from topobench.agents.discover import discover, read_nvml
from topobench.topology import SCHEMA, Topology

SCHEMA_FILE = Path(__file__).parents[1] / "docs/schemas/topology.json"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An 8-GPU host of which one GPU is lost, as plain JSON."""
    machine = Eight(tmp_path_factory.mktemp("eight"), cpus=2).make()
    answers = [gpu(i, a) for i, a in enumerate(sorted(machine.gpu_addresses))]
    facts = read_nvml(FakeNvml([*answers[:7], Refusal(15)]))
    text = json.dumps(discover(machine.root, nvml=facts).to_json())
    document: dict[str, Any] = json.loads(text)
    return document


@pytest.fixture(scope="module")
def small(eight: dict[str, Any]) -> dict[str, Any]:
    """The same with one element left in each list."""
    cut: dict[str, Any] = _first_only(eight)
    return cut


def _first_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _first_only(v) for k, v in value.items()}
    return [_first_only(v) for v in value[:1]] if isinstance(value, list) else value


def test_this_machine_fits(validator: jsonschema.Draft202012Validator) -> None:
    validator.validate(json.loads(json.dumps(discover().to_json())))


def test_eight_gpus_fit(validator: jsonschema.Draft202012Validator, eight: dict[str, Any]) -> None:
    validator.validate(eight)
    ends = 8 + 8 + 8 + 2  # GPUs, ports, disks, NUMA nodes
    assert len(eight["paths"]) == ends * (ends - 1) / 2


def test_keys_may_be_added_anywhere(
    validator: jsonschema.Draft202012Validator, eight: dict[str, Any]
) -> None:
    """A later version's keys pass the schema, and a reader of today ignores them."""
    grown = copy.deepcopy(eight)
    for place in (grown, grown["cpus"], grown["pci"][0], grown["gpus"][0]["nvlink"]):
        place["added_later"] = {"x": 1}
    validator.validate(grown)
    assert Topology.from_json(grown) == Topology.from_json(eight)


def _places(value: Any, path: tuple[Any, ...] = ()) -> typing.Iterator[tuple[Any, ...]]:
    """Paths to one key of each kind of object."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from _places(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from _places(value[0], (*path, 0))


def test_every_key_is_required(
    validator: jsonschema.Draft202012Validator, small: dict[str, Any]
) -> None:
    for *folder, key in _places(small):
        document = copy.deepcopy(small)
        place = document
        for step in folder:
            place = place[step]
        del place[key]
        assert not validator.is_valid(document), (*folder, key)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (("cpus", "online"), 5),
        (("pci", 0, "role"), "switch"),
        (("pci", 0, "address"), "00000000:10:01.0"),
        (("gpus", 0, "state"), "broken"),
        (("numa_nodes", 0, "kind"), "ram"),
        (("fingerprints", "shape"), "abc"),
        (("numa_distances", "matrix"), [10, 21]),
    ],
)
def test_wrong_values_are_refused(
    validator: jsonschema.Draft202012Validator,
    eight: dict[str, Any],
    change: tuple[Any, ...],
    value: Any,
) -> None:
    document = copy.deepcopy(eight)
    place = document
    for step in change[:-1]:
        place = place[step]
    place[change[-1]] = value
    assert not validator.is_valid(document)


def test_schema_names_exactly_the_fields_of_the_code() -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    for name, part in {"Topology": schema, **schema["$defs"]}.items():
        kind = getattr(topobench.topology, name)
        fields = {"class" if f.name == "pci_class" else f.name for f in dataclasses.fields(kind)}
        assert set(part["properties"]) - {"schema"} == fields, name
        assert set(part["required"]) - {"schema"} == fields, name


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"schema": "topobench.topology/2"},
        {"schema": SCHEMA},
        {"schema": SCHEMA, "taken_at": 5},
        {
            "schema": SCHEMA,
            "taken_at": "",
            "root": "",
            "virtualization": "",
            "trust": "",
            "machine": [],
            "cpus": {},
        },
    ],
)
def test_document_of_another_kind_is_a_value_error(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not a topobench|missing|not of type"):
        Topology.from_json(document)


def test_values_of_a_wrong_type_are_value_errors(small: dict[str, Any]) -> None:
    """Whatever key holds whatever: nothing else is raised."""
    values: tuple[Any, ...] = (None, 5, "x", [], {}, True)
    for *folder, key in _places(small):
        for value in values:
            document = copy.deepcopy(small)
            place = document
            for step in folder:
                place = place[step]
            place[key] = value
            try:
                Topology.from_json(document)
            except ValueError:
                continue


def test_every_warning_is_documented() -> None:
    """Codes of discovery, paths and importers, against the table of the documentation."""
    root = Path(__file__).parents[1]
    sources = [*(root / "topobench/agents/discover").glob("*.py"), root / "topobench/paths.py"]
    sources += (root / "topobench/importers").glob("*.py")
    given = {
        code
        for source in sources
        for code in re.findall(r'TopologyWarning\(\s*"(\w+)"', source.read_text())
    }
    table = (
        (root / "docs/topology.md").read_text().rpartition("## Warnings")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    assert {code for row in rows for code in re.findall(r"`(\w+)`", row)} == given
