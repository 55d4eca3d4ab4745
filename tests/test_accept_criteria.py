"""Criteria files: what a good one means, and every mistake with its line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topobench.accept_criteria import KIND, load, parse_value
from topobench.errors import ConfigError

EXAMPLES = sorted((Path(__file__).parents[1] / "docs/examples/accept").glob("*.yaml"))
RULE = """\
  - probe: host_to_device
    metric: bandwidth_bytes_per_second
    where: {bytes: 256M, direction: h2d}
    each: gpu
    op: at_least
    value: 50 GB/s
"""
GOOD = f"kind: {KIND}\nname: delivery\nrules:\n{RULE}"


def read(path: Path, text: str) -> list[str]:
    """The mistakes of a file."""
    (path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path / "c.yaml")
    return [m.replace(f"{path}/", "") for m in caught.value.mistakes]


def test_a_rule_has_base_units_and_typed_parameters(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GOOD)
    criteria = load(tmp_path / "c.yaml")
    (rule,) = criteria.rules
    assert (criteria.name, len(criteria.sha256)) == ("delivery", 64)
    assert rule.params == {"bytes": 256 << 20, "direction": "h2d"}
    assert (rule.op, rule.value, rule.arm, rule.statistic) == (">=", 50e9, "none", "median")
    assert rule.place == f"{tmp_path}/c.yaml:4"


def test_a_reference_has_a_margin(tmp_path: Path) -> None:
    text = GOOD.replace("op: at_least", "non_inferior_to: 1a2b").replace(
        "value: 50 GB/s", "margin: 3 %"
    )
    (tmp_path / "c.yaml").write_text(text)
    (rule,) = load(tmp_path / "c.yaml").rules
    assert (rule.reference, rule.margin, rule.value) == ("1a2b", 0.03, None)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (f"kind: {KIND}", "kind: topobench/v1", "c.yaml:1: kind: topobench/v1 is a cluster file"),
        (f"kind: {KIND}\n", "", "c.yaml:1: kind: missing"),
        (RULE, "", "c.yaml:3: rules: has no value"),
        ("probe: host_to_device", "probe: host_to_devise", "did you mean host_to_device"),
        ("  - probe: host_to_device\n    m", "  - m", "c.yaml:4: rules[0].probe: missing"),
        ("metric: bandwidth", "metric: bandwith", "did you mean bandwidth_bytes_per_second"),
        ("    each: gpu\n", "", "c.yaml:4: rules[0].each: missing; accepted are gpu, pair"),
        ("each: gpu", "each: gpus", "c.yaml:7: rules[0].each: 'gpus' is not known"),
        ("bytes: 256M", "bites: 256M", "c.yaml:6: rules[0].where.bites: unknown key"),
        ("bytes: 256M", "bytes: many", "c.yaml:6: rules[0].where.bytes: 'many' is not understood"),
        ("direction: h2d", "direction: up", "rules[0].where.direction: 'up' is not known"),
        ("op: at_least", "op: at_most", "rules[0].op: of bandwidth_bytes_per_second higher"),
        ("op: at_least", "op: '=='", "rules[0].op: '==' is not known"),
        ("op: at_least", "op: >=", "not YAML"),
        ("value: 50 GB/s", "value: 50", "rules[0].value: '50' is no rate with a unit"),
        ("value: 50 GB/s", "value: 50 Gb/s", "is in bits"),
        ("value: 50 GB/s", "value: 0 GB/s", "is not above zero"),
        ("value: 50 GB/s", "value: 2 * 25 GB/s", "is no rate with a unit"),
        ("    value: 50 GB/s\n", "", "c.yaml:4: rules[0].value: missing beside op"),
        ("value: 50 GB/s", "non_inferior_to: 1a2b", "has a value and a reference"),
        ("    op: at_least\n    value: 50 GB/s\n", "", "says nothing to meet"),
        ("op: at_least", "statistic: p99\n    op: at_least", "P99 counts from the slow end"),
        ("value: 50 GB/s", "value: 50 GB/s\n    tolerance: 1", "rules[0].tolerance: unknown key"),
        (RULE, RULE + RULE, "is given twice"),
        (RULE, "  - fast\n", "rules[0]: expected the keys of a rule"),
        ("name: delivery", "name: delivery\nname: again", "name: given twice"),
    ],
    ids=lambda v: v[:24] if isinstance(v, str) else None,
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, old: str, new: str, told: str) -> None:
    mistakes = "\n".join(read(tmp_path, GOOD.replace(old, new)))
    assert told in mistakes


def test_a_command_of_ones_own_has_metrics_of_ones_own(tmp_path: Path) -> None:
    own = GOOD.replace("host_to_device", "command").replace(
        "{bytes: 256M, direction: h2d}", "{command: c}"
    )
    own = own.replace("bandwidth_bytes_per_second", "ttft_seconds").replace("50 GB/s", "350 ms")
    (tmp_path / "c.yaml").write_text(own.replace("at_least", "at_most\n    statistic: p99"))
    (rule,) = load(tmp_path / "c.yaml").rules
    assert (rule.metric.unit, rule.value, rule.params) == ("s", 0.35, {"command": "c"})
    assert "must end in one of" in read(tmp_path, own.replace("ttft_seconds", "ttft"))[0]


def test_facts_are_not_measured(tmp_path: Path) -> None:
    fact = "  - {probe: discovered, metric: gpu_memory_bytes, each: host, statistic: median, "
    mistakes = read(tmp_path, f"kind: {KIND}\nrules:\n{fact}op: at_least, value: 80GB}}\n")
    assert mistakes == [
        "c.yaml:3: rules[0].each: gpu_memory_bytes is told of each gpu",
        "c.yaml:3: rules[0].statistic: gpu_memory_bytes is discovered, not measured; "
        "use op and value",
    ]


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("gpu", "gpus").replace("256M", "x").replace("name", "nmae")
    assert len(read(tmp_path, text)) == 3


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        ("B/s", "50 GB/s", 50e9),
        ("B/s", "46.6 GiB/s", 46.6 * 2**30),
        ("s", "350 ms", 0.35),
        ("token/s", "1200 tokens/s", 1200),
        ("FLOP/s", "650 TFLOP/s", 650e12),
        ("1", "95 %", 0.95),
        ("1", "8", 8),
        ("B", "141GB", 141e9),
        ("W", "700 W", 700),
    ],
)
def test_a_value_is_read_in_its_unit(unit: str, text: str, value: float) -> None:
    assert parse_value(unit, text) == pytest.approx(value)


@pytest.mark.parametrize("unit", ["B/s", "s", "token/s", "FLOP/s", "B", "W", "1"])
@pytest.mark.parametrize("text", ["", "-1 s", "nan", "inf", "1e999 GB/s", "50 furlongs", "1; 2"])
def test_a_value_that_is_none_is_refused(unit: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_value(unit, text)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_is_good(path: Path) -> None:
    assert load(path).rules


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


words = st.sampled_from(
    ["probe", "host_to_device", "metric", "each", "gpu", "op", "value", "where"]
)
scalars = words | st.text(max_size=8) | st.integers() | st.none()
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=5), inner),
    max_leaves=12,
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)
@given(
    st.text(max_size=80)
    | trees.map(lambda t: yaml.safe_dump({"kind": KIND, "rules": t}, allow_unicode=True))
)
def test_garbage_gives_our_errors_only(tmp_path: Path, text: str) -> None:
    with contextlib.suppress(UnicodeEncodeError):
        (tmp_path / "g.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError):
            load(tmp_path / "g.yaml")
