"""What every registered probe must hold."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probing import Listener, measure
from topobench.errors import ProbeUnavailable, UsageError
from topobench.probes import registry
from topobench.probes.protocol import Arms, Kind, Probe, build, fields_of
from topobench.probes.worker_checks import LOCALITY
from topobench.reading import UNITS, Better, Case, to_json
from topobench.user_command import Definition

DOCS = Path(__file__).parent.parent.parent / "docs"
NAMES = sorted(registry.PROBES)
NEEDS = ("cuda", "torch", "numba", "gpus>=", "hosts>=", "cpus>=", "binary:")


@pytest.fixture(params=NAMES)
def probe(request: pytest.FixtureRequest) -> type[Probe]:
    return registry.load(request.param)


def parameters(probe: type[Probe]) -> dict[str, dataclasses.Field[Any]]:
    return dict(fields_of(probe))


def test_it_says_what_it_is(probe: type[Probe]) -> None:
    assert registry.load(probe.name) is probe
    assert probe.version >= 1
    assert 10 < len(probe.summary) < 80
    assert isinstance(probe.arms, Arms)
    assert all(n.startswith(NEEDS) for n in probe.needs)


def test_it_is_a_frozen_slotted_dataclass(probe: type[Probe]) -> None:
    made: Any = build(probe, {})
    assert dataclasses.is_dataclass(made)
    assert not hasattr(made, "__dict__")
    name = next(iter(parameters(probe)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, name, 1)


def test_its_metrics_have_units_directions_and_help(probe: type[Probe]) -> None:
    assert probe.metrics
    for metric in probe.metrics:
        assert metric.unit in UNITS.values()
        assert metric.better in Better
        assert metric.help
    names = [m.name for m in probe.metrics]
    assert len(set(names)) == len(names)


def test_its_parameters_have_help_kind_and_an_accepted_default(probe: type[Probe]) -> None:
    for name, declared in parameters(probe).items():
        meta = declared.metadata
        assert meta["help"], name
        assert isinstance(meta["kind"], Kind), name
        assert (meta["kind"] is Kind.CHOICE) == bool(meta["choices"]), name
        default = declared.default
        assert default is None or isinstance(default, str | int | float | bool), name
        if meta["choices"]:
            assert default in meta["choices"]
        if default is not None and meta["minimum"] is not None:
            assert default >= meta["minimum"]
        if default is not None and meta["maximum"] is not None:
            assert default <= meta["maximum"]


def test_its_parameters_survive_json(probe: type[Probe]) -> None:
    params: dict[str, Any] = {n: f.default for n, f in parameters(probe).items()}
    case = Case(probe.name, probe.version, params)
    again = Case.from_json(json.loads(json.dumps(to_json(case))))
    assert again == case
    assert again.params_hash == case.params_hash
    assert build(probe, again.params) == build(probe, {})


def test_an_unknown_parameter_is_refused(probe: type[Probe]) -> None:
    with pytest.raises(TypeError, match="nosuch"):
        build(probe, {"nosuch": 1})


def test_its_estimate_is_a_time_for_every_choice(probe: type[Probe]) -> None:
    for name, declared in parameters(probe).items():
        values: tuple[Any, ...] = declared.metadata["choices"] or (declared.default,)
        for value in values:
            assert 0 < build(probe, {name: value}).estimated_seconds() < 3600


def test_its_estimate_never_falls_with_the_size(probe: type[Probe]) -> None:
    if "bytes" not in parameters(probe):
        pytest.skip(f"{probe.name} has no parameter bytes")
    sizes = [1 << 20, 1 << 24, 1 << 28, 1 << 30]
    seconds = [build(probe, {"bytes": s}).estimated_seconds() for s in sizes]
    assert seconds == sorted(seconds)


def test_without_a_gpu_it_measures_or_says_why_not(probe: type[Probe]) -> None:
    """With the least of everything, alone, on this host's CPUs."""
    smallest: dict[str, Any] = {"bytes": 1 << 20} if "bytes" in parameters(probe) else {}
    if "definition" in parameters(probe):
        smallest = {"definition": Definition("own", ("true",)).text}
    if "ranks" in parameters(probe) or "hosts>=2" in probe.needs:
        pytest.skip(f"{probe.name} needs a gang; its own test runs one of real processes")
    listener = Listener()
    made = build(probe, smallest)
    if "cuda" in probe.needs:
        with pytest.raises(ProbeUnavailable, match="no_gpu"):
            measure(made, listener.context())
        return
    if "server_definition" in parameters(probe):
        with pytest.raises(ProbeUnavailable, match="not_selected"):
            measure(made, listener.context())
        return
    for reading in measure(made, listener.context()):
        assert reading.summary.n == len(reading.samples) - reading.summary.warmups
        assert min(reading.samples) > 0
        assert json.loads(json.dumps(to_json(reading)))["metric"] == reading.metric
    json.dumps(listener.notes)


def test_declaring_probes_loads_nothing_heavy() -> None:
    heavy = ["torch", "numpy", "ray", "sqlalchemy", "pynvml", "scipy", "pydantic", "numba"]
    code = (
        "import sys\n"
        "from topobench.probes import registry\n"
        "for name in registry.PROBES: registry.load(name)\n"
        f"print([m for m in {heavy} if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_probe_is_a_usage_error_that_lists_the_known() -> None:
    with pytest.raises(UsageError, match=r"no probe named 'nosuch'.*host_memory"):
        registry.load("nosuch")


def test_a_metric_means_the_same_in_every_probe() -> None:
    seen: dict[str, Better] = {}
    for name in NAMES:
        for metric in registry.load(name).metrics:
            assert seen.setdefault(metric.name, metric.better) == metric.better


def test_every_metric_is_documented_with_its_unit_and_direction() -> None:
    """docs/metrics.md has a table row ``| `name` | unit | better | meaning |`` for each."""
    rows = {}
    for line in (DOCS / "metrics.md").read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            rows[cells[0].strip("`")] = cells[1:]
    directions = {Better.HIGHER: "higher", Better.LOWER: "lower", Better.NEITHER: "neither"}
    metrics = {m.name: m for n in NAMES for m in registry.load(n).metrics}
    for metric in (*metrics.values(), LOCALITY):
        assert metric.name in rows, f"docs/metrics.md lacks {metric.name}"
        unit, better, meaning = rows[metric.name]
        assert (unit, better) == (metric.unit, directions[metric.better])
        assert len(meaning) > 20


def test_every_probe_has_its_section_in_methods(probe: type[Probe]) -> None:
    """docs/methods.md has a heading for it that names each of its parameters and metrics."""
    text = (DOCS / "methods.md").read_text()
    _, found, rest = text.partition(f"\n## {probe.name}\n")
    assert found, f"docs/methods.md lacks a section {probe.name}"
    section = rest.partition("\n## ")[0]
    for name in (*parameters(probe), *(m.name for m in probe.metrics)):
        assert f"`{name}`" in section, f"docs/methods.md: {probe.name} does not explain {name}"
