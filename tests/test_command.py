"""The user's own benchmarks: described in cluster.yaml, run under a worker, never a peer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import judging
from launching import Lab, cell
from planning import dual, host
from topobench import config, policy, user_command
from topobench.config import ClusterConfig, Overrides
from topobench.db import evidence
from topobench.db.store import Store
from topobench.errors import ConfigError
from topobench.plan import make_plan
from topobench.reading import Better, Reading, Reason, ReasonCode, Run, Scalar, Status
from topobench.user_command import Definition, metric_of, values

KIND = "kind: topobench/v1\n"
COMMANDS = (
    KIND
    + r"""
probes: [command]
bindings: [none, local]
commands:
  engine:
    argv: [bench, --max-tokens, "128", ""]
    version: [bench, --version]
    gpus: each
    seconds: 40s
    timeout: 5m
    env: {ENGINE_CACHE: "0"}
    folder: /opt
    metrics:
      throughput: {pattern: 'Throughput: ([0-9.]+) tok/s', unit: token/s, better: higher}
      accuracy: {unit: "%", better: higher}
  whole: {argv: [train], gpus: all}
"""
)


def load(tmp_path: Path, text: str, **overrides: Any) -> ClusterConfig:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    return config.load(file, environ={}, overrides=Overrides(**overrides))


def mistakes(tmp_path: Path, text: str, **overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text, **overrides)
    return str(error.value)


def ran(lab: Lab, definition: Definition) -> Run:
    (run,) = lab.run(cell("command", command=definition.name, definition=definition.text))
    return run


def python(code: str, *arguments: str, **more: object) -> Definition:
    fields: dict[str, object] = {"argv": (sys.executable, "-c", code, *arguments), **more}
    return Definition("own", **fields)  # type: ignore[arg-type]


class TestConfig:
    def test_a_definition_is_read_and_written_back(self, tmp_path: Path) -> None:
        found = load(tmp_path, COMMANDS)
        engine, whole = found.commands
        assert engine.argv == ("bench", "--max-tokens", "128", "")
        assert (engine.gpus, engine.seconds, engine.timeout_seconds) == ("each", 40.0, 300.0)
        assert [m.metric.name for m in engine.metrics] == [
            "throughput_tokens_per_second",
            "accuracy_ratio",
        ]
        assert (whole.argv, whole.gpus, whole.metrics) == (("train",), "all", ())
        assert load(tmp_path, config.to_yaml(found)) == found

    def test_it_travels_as_text_and_its_digest_tells_versions_apart(self, tmp_path: Path) -> None:
        engine = load(tmp_path, COMMANDS).commands[0]
        assert Definition.from_text(engine.text) == engine
        other = load(tmp_path, COMMANDS.replace('"128"', '"256"')).commands[0]
        assert other.digest != engine.digest
        assert engine.digest == hashlib.sha256(engine.text.encode()).hexdigest()[:12]

    def test_all_commands_run_or_those_named(self, tmp_path: Path) -> None:
        both = [p.params["command"] for p in load(tmp_path, COMMANDS).probes]
        assert both == [("engine",), ("whole",)]
        named = COMMANDS.replace("[command]", "[{command: {command: whole}}]")
        assert [p.params["command"] for p in load(tmp_path, named).probes] == [("whole",)]

    @pytest.mark.parametrize(
        ("wrong", "right", "said"),
        [
            ("argv: [train]", "gpus: none", "commands.whole: has no argv"),
            ("[train]", "train --fast", "expected a list: [PROGRAM, ARGUMENT ...]"),
            ("[train]", "[train, --api-key=abc]", "commands.whole.argv[1]: looks like a secret"),
            ("ENGINE_CACHE", "HF_TOKEN", "HF_TOKEN looks like a secret"),
            ("([0-9.]+) tok", "[0-9.]+ tok", "has 0 groups; it needs one"),
            ("unit: token/s", "unit: tok/s", "'tok/s' is no unit; accepted are"),
            ("better: higher}\n      acc", "better: up}\n      acc", "'up' is not known"),
            ("throughput: {pattern", "latency_seconds: {pattern", "accepted"),
            ("timeout: 5m", "timeout: 5h", "is above 10 times seconds"),
            ("probes: [command]", "probes: [{command: {command: wole}}]", "did you mean whole?"),
            ("probes: [command]", "probes: [{command: {digest: a}}]", "digest: not set here"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path: Path, wrong: str, right: str, said: str) -> None:
        if right.startswith("latency_seconds"):
            right, said = "latency: {pattern", "of latency_seconds lower is better everywhere"
            text = COMMANDS.replace("unit: token/s", "unit: ms").replace(wrong, right)
        else:
            text = COMMANDS.replace(wrong, right)
        assert said in mistakes(tmp_path, text)

    def test_without_a_definition_there_is_nothing_to_run(self, tmp_path: Path) -> None:
        assert "describe one under commands:" in mistakes(tmp_path, KIND, probes="command")


class TestPlan:
    def test_each_gpu_alone_and_all_in_one_process_under_every_arm(self, tmp_path: Path) -> None:
        found = load(tmp_path, COMMANDS)
        there = host(dual(2))
        cells = make_plan(found, [there], seed=1).cells
        planned = {
            (str(c.case.params["command"]), len(c.devices), c.ranks, c.arm.name)
            for c in cells
            if c.status is Status.PLANNED
        }
        assert planned == {
            (name, count, 1, arm)
            for name, count in (("engine", 1), ("whole", 2))
            for arm in ("none", "local")
        }
        assert all(c.arm.rank_bindings == () for c in cells)
        one = COMMANDS.replace("folder: /opt", 'environments: [{A: "1"}]')
        alone = make_plan(load(tmp_path, one), [there], seed=1).cells
        assert {c.arm.env.get("A") for c in alone if len(c.devices) == 1} == {"1"}
        assert {c.estimated_seconds for c in cells} == {40.0, 60.0}

    def test_environments_are_arms_in_mirrored_blocks(self, tmp_path: Path) -> None:
        text = COMMANDS.replace(
            "gpus: all}", 'gpus: none, env: {A: "0"}, environments: [{A: "1"}, {B: "2"}]}'
        )
        found = load(tmp_path, text.replace("[none, local]", "[none]"), profile="standard")
        assert load(tmp_path, config.to_yaml(found)) == found
        cells = make_plan(found, [host(dual(0))], seed=1).cells
        own = [c for c in cells if c.status is Status.PLANNED]
        arms = [(c.block, tuple(sorted(c.arm.env.items()))) for c in own]
        first, second = (("A", "1"),), (("A", "0"), ("B", "2"))
        assert sorted(arms) == sorted((b, e) for b in range(4) for e in (first, second))
        blocks = [[e for b, e in arms if b == n] for n in range(4)]
        assert blocks[0] == blocks[1][::-1]
        assert blocks[2] == blocks[3][::-1]
        assert len({c.case.params_hash for c in own}) == 1
        assert {c.arm.name for c in own} == {"none+A=1", "none+A=0 B=2"}

    def test_without_gpus_both_are_left_out(self, tmp_path: Path) -> None:
        cells = make_plan(load(tmp_path, COMMANDS), [host(dual(0))], seed=1).cells
        assert {c.reason.code for c in cells if c.reason} == {ReasonCode.NO_GPU}
        assert {c.status for c in cells} == {Status.SKIPPED}


class TestValues:
    def test_patterns_and_json_lines_in_stored_units(self) -> None:
        wanted = Definition(
            "own",
            ("x",),
            (
                metric_of("step", "ms", "lower", r"^step (\S+)$"),
                metric_of("accuracy", "%", "higher"),
            ),
        )
        text = (
            "step 2.5\nstep 1e1\n{broken\n{}\n"
            '{"metric": "accuracy", "value": 75}\n'
            '{"metric": "load_bandwidth", "value": "3.5", "unit": "GB/s", "better": "higher"}\n'
        )
        found = {m.metric.name: (n, m.better) for m, n in values(wanted, text).items()}
        assert found == {
            "step_seconds": ([0.0025, 0.01], Better.LOWER),
            "accuracy_ratio": ([0.75], Better.HIGHER),
            "load_bandwidth_bytes_per_second": ([3.5e9], Better.HIGHER),
        }

    def test_a_pattern_finds_an_accuracy_in_a_printed_result_file(self) -> None:
        """As lm-eval writes it; its standard error has a name of its own."""
        results = {"exact_match,strict-match": 0.5011, "exact_match_stderr,strict-match": 0.0137}
        text = json.dumps({"results": {"gsm8k": {"alias": "gsm8k", **results}}}, indent=2)
        pattern = '"exact_match,strict-match": ([0-9.e-]+)'
        wanted = Definition("own", ("x",), (metric_of("gsm8k", "1", "higher", pattern),))
        assert [*values(wanted, text).values()] == [[0.5011]]

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("", "its output holds no accuracy"),
            ('{"metric": "accuracy", "value": null}', "accuracy: None is no number"),
            ('{"metric": "accuracy", "value": true}', "accuracy: True is no number"),
            ('{"metric": "accuracy", "value": NaN}', "accuracy: nan is no number"),
            ('{"metric": "speed", "value": 1, "unit": "GB/s"}', "names no better"),
            ('{"metric": "a b", "value": 1, "unit": "s", "better": "lower"}', "is no metric"),
            (
                '{"metric": "accuracy", "value": 1}\n'
                '{"metric": "accuracy", "value": 1, "better": "lower"}',
                "came with two units, directions or patterns",
            ),
        ],
    )
    def test_what_cannot_be_trusted_is_refused(self, line: str, said: str) -> None:
        wanted = Definition("own", ("x",), (metric_of("accuracy", "%", "higher"),))
        with pytest.raises(ValueError, match=said):
            values(wanted, line)

    def test_every_unit_gives_a_metric(self) -> None:
        for unit in user_command.SCALES:
            assert metric_of("own", unit, "neither").metric.unit


class TestRun:
    def test_time_values_version_and_digest(
        self, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script = tmp_path / "bench.py"
        script.write_text(
            "import json, os, sys, time\n"
            "time.sleep(0.2)\n"
            "print('shell?', sys.argv[1])\n"
            "print(json.dumps({'metric': 'speed', 'value': 7, 'unit': 'GB/s',"
            " 'better': 'higher'}))\n"
            "print('left', os.environ['OWN'], os.environ.get('SECRET_TOKEN'), os.getcwd())\n"
        )
        wanted = Definition(
            "own",
            (sys.executable, str(script), "$HOME;`id`"),
            (metric_of("own_count", "count", "neither", r"^left (\d+) "),),
            version=(sys.executable, "--version"),
            env={"OWN": "1"},
            folder=str(tmp_path),
        )
        monkeypatch.setenv("SECRET_TOKEN", "never-passed")
        run = ran(lab, wanted)
        assert (run.status, run.reason) == (Status.OK, None)
        found = {r.metric: (r.summary.median, r.better) for r in run.readings}
        assert found["speed_bytes_per_second"] == (7e9, Better.HIGHER)
        assert found["own_count"] == (1.0, Better.NEITHER)
        assert found["duration_seconds"][0] >= 0.2
        told = run.conditions["command"]
        assert told["version"].startswith("Python 3.")
        assert told["sha256"][str(script)] == hashlib.sha256(script.read_bytes()).hexdigest()
        assert "shell? $HOME;`id`" in run.log_tail
        assert f"1 None {tmp_path}" in run.log_tail

    def test_its_own_time_limit_ends_it_and_its_children(self, lab: Lab) -> None:
        code = "import subprocess, time; subprocess.Popen(['sleep', '99']); time.sleep(99)"
        run = ran(lab, python(code, timeout_seconds=1.0))
        assert run.status is Status.FAILED
        assert run.reason == Reason(ReasonCode.DEADLINE, f"{sys.executable} was ended after 1 s")
        assert run.readings == ()

    @pytest.mark.parametrize(
        ("definition", "status", "code", "said"),
        [
            (python("raise SystemExit(3)"), Status.FAILED, "crashed", "ended with exit code 3"),
            (
                python("import os; os.kill(os.getpid(), 9)"),
                Status.FAILED,
                "signal",
                "was ended by SIGKILL",
            ),
            (
                python("", metrics=(metric_of("a", "s", "lower"),)),
                Status.FAILED,
                "parse",
                "own: its output holds no a",
            ),
            (Definition("own", ("no-such-program",)), Status.SKIPPED, "no_binary", "no-such"),
            (python("", folder="/no/such"), Status.SKIPPED, "no_binary", "/no/such"),
        ],
    )
    def test_what_went_wrong_is_said(
        self, lab: Lab, definition: Definition, status: Status, code: str, said: str
    ) -> None:
        run = ran(lab, definition)
        assert run.reason is not None
        assert (run.status, run.reason.code) == (status, code)
        assert said in run.reason.text


class Told(judging.Fleet):
    """A fleet whose readings say their direction, as a command's do."""

    def _reading(
        self, middle: float, metric: str, samples: int, point: Mapping[str, Scalar] | None
    ) -> Reading:
        made = super()._reading(middle, metric, samples, point)
        return dataclasses.replace(made, better=Better.HIGHER)


def test_the_arms_environment_wins_over_the_commands_own(lab: Lab) -> None:
    code = "import os; print('a', os.environ['A'], 'b', os.environ['B'])"
    wanted = python(
        code,
        metrics=(metric_of("a_count", "count", "neither", r"a (\d)"),),
        env={"A": "0", "B": "7"},
        environments=({"A": "1"},),
    )
    made = cell("command", command="own", definition=wanted.text)
    arm = dataclasses.replace(made.arm, env={"A": "1"})
    (run,) = lab.run(dataclasses.replace(made, arm=arm))
    assert run.status is Status.OK
    assert "a 1 b 7" in run.log_tail


class TestStored:
    def test_its_direction_is_stored_and_only_named_commands_have_peers(
        self, tmp_path: Path
    ) -> None:
        fleet = Told(tmp_path / "own.db")
        params = {"command": "engine", "digest": "d", "gpus": "none", "definition": "{}"}
        speed = "speed_bytes_per_second"
        sweep = fleet.sweep(probe="command", params=params, metric=speed)
        with Store.open(fleet.url) as store:
            for named in ((), ("engine",), ("other",)):
                rules = dataclasses.replace(policy.default(), peer_commands=named)
                (track,) = evidence.load(store, sweep, None, rules).evidence.tracks
                assert (track.metric, track.better) == (speed, 1)
                assert track.has_peers is (named == ("engine",))
                assert track.label.startswith("command engine ")
