"""The command line: exit codes, errors and JSON on every command, and a quick start."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from documents import check
from topobench import cli, commands
from topobench.errors import RefusedError
from topobench.signals import Interrupted

BODIES = {
    ("probe",): ("probe", []),
    ("plan",): ("plan", []),
    ("report",): ("report", []),
    ("query",): ("querying.query", ["latest"]),
    ("doctor",): ("doctor", []),
    ("topo", "show"): ("topo_show", []),
    ("topo", "import"): ("topo_import", ["--from", "smi", "matrix.txt"]),
    ("topo", "diff"): ("topo_diff", ["live", "live"]),
    ("topo", "gather"): ("topo_gather", ["out.tgz"]),
    ("import", "nccl-tests"): ("import_results", ["out.txt"]),
    ("import", "nvbandwidth"): ("import_results", ["out.txt"]),
    ("db", "info"): ("db_info", []),
    ("db", "check"): ("upkeep.db_check", []),
    ("db", "upgrade"): ("upkeep.db_upgrade", []),
    ("db", "import"): ("upkeep.db_import", ["spool"]),
    ("db", "export"): ("upkeep.db_export", ["out"]),
    ("db", "vacuum"): ("upkeep.db_vacuum", []),
    ("price", "add"): ("upkeep.price_add", ["h200-sxm8", "cloud_hour", "24.5", "USD"]),
    ("price", "list"): ("upkeep.price_list", []),
    ("demo",): ("demo", []),
    ("compare",): ("comparing.compare", ["latest", "1a2b"]),
    ("serve",): ("seeing.serve", []),
    ("advise",): ("seeing.advise", []),
    ("accept",): ("accepting.accept", ["--criteria", "c.yaml"]),
    ("check",): ("judging.check", []),
    ("sweep",): ("fleet_sweeps.sweep", ["--fleet", "fleet.yaml"]),
    ("daemon",): ("daemon.run", ["--fleet", "fleet.yaml"]),
    ("ack",): ("judging.ack", ["h07", "--ticket", "T-1", "--until", "2099-01-01"]),
}
"""Each command -> the function that does its work, and the arguments it needs."""
CRASH_CODES: dict[tuple[str, ...], int] = {
    ("probe",): 70,
    ("sweep",): 70,
    ("compare",): 70,
    ("check",): 3,
    ("accept",): 3,
}
"""Exit code of a fault of ours where it is not 1."""
JUDGES = {("check",), ("accept",)}
"""Where 0, 1 and 2 are verdicts, and everything else is 3."""
IDS = [" ".join(words) for words in BODIES]


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that name it."""
    children = getattr(command, "commands", None)
    if not children:
        yield words, command
        return
    for name, child in children.items():
        yield from leaves(child, (*words, name))


def place_of(body: str) -> tuple[Any, str]:
    """The module and the name of a command's function; ``commands`` unless it says another."""
    module, _, name = body.rpartition(".")
    return importlib.import_module(f"topobench.{module or 'commands'}"), name


COMMANDS = dict(leaves(typer.main.get_command(cli.app)))


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOPOBENCH_STORE", raising=False)


def checked(text: str, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text)
    check(document, name)
    return document


def test_no_command_is_left_out_of_these_tests() -> None:
    assert set(COMMANDS) == set(BODIES)


@pytest.mark.parametrize("words", BODIES, ids=IDS)
def test_a_bad_flag_is_a_usage_error(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, "--no-such-flag"]) == (3 if words in JUDGES else 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("topobench: ")
    assert "--no-such-flag" in err
    assert "--help" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["probee"], "No such command 'probee'. Did you mean 'probe'? See --help"),
        (
            ["probe", "--seed", "x"],
            "Invalid value for '--seed': Input should be a valid integer; see --help",
        ),
        (
            ["probe", "--trigger", "now"],
            "Invalid value for '--trigger': 'now' is not one of 'manual', 'cron'; see --help",
        ),
        (
            ["topo", "import", "matrix.txt"],
            "Missing option '--from'. Choose from: smi, hwloc, nccl, json; see --help",
        ),
    ],
)
def test_what_the_parser_refuses_is_one_line_in_plain_words(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err == f"topobench: {told}\n"


def test_without_a_command_the_help_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["price"]) == 2
    assert capsys.readouterr().err.startswith("Usage: topobench price ")


@pytest.mark.parametrize("words", BODIES, ids=IDS)
def test_a_bad_flag_gives_one_json_document_where_json_is_asked(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code = 3 if words in JUDGES else 2
    assert cli.main([*words, "--no-such-flag", "--format", "json"]) == code
    document = checked(capsys.readouterr().out, "error")
    assert document["exit_code"] == code
    assert document["error"]["type"] == "UsageError"
    assert "--no-such-flag" in document["error"]["message"]


@pytest.mark.parametrize("words", BODIES, ids=IDS)
def test_a_fault_of_ours_has_its_exit_code_and_a_traceback(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body, arguments = BODIES[words]

    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(*place_of(body), crash)
    code = CRASH_CODES.get(words, 1)
    assert cli.main([*words, *arguments]) == code
    assert "planted" in capsys.readouterr().err
    assert cli.main([*words, *arguments, "--format", "json"]) == code
    document = checked(capsys.readouterr().out, "error")
    assert (document["exit_code"], document["error"]["message"]) == (code, "planted")


@pytest.mark.parametrize("words", BODIES, ids=IDS)
def test_a_refusal_and_an_interrupt_keep_their_codes(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body, arguments = BODIES[words]
    refused = 3 if words in JUDGES else 4
    for error, code in ((RefusedError("held by nightly"), refused), (KeyboardInterrupt(), 130)):

        def fail(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(*place_of(body), fail)
        assert cli.main([*words, *arguments]) == code
    assert "held by nightly" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (KeyboardInterrupt(), 130),
        (Interrupted(signal.SIGTERM), 143),
        (Interrupted(signal.SIGHUP), 129),
        (SystemExit(signal.SIGTERM), 143),
    ],
    ids=repr,
)
def test_a_signal_has_its_code_and_its_document(
    raised: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(commands, "probe", fail)
    assert cli.main(["probe"]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"topobench: ended by {signal.Signals(code - 128).name}\n")
    assert cli.main(["probe", "--format", "json"]) == code
    document = checked(capsys.readouterr().out, "error")
    assert (document["exit_code"], document["error"]["type"]) == (code, "Interrupted")


@pytest.mark.parametrize("words", BODIES, ids=IDS)
def test_every_help_text_says_what_it_does_and_gives_an_example(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example" in out
    examples = [line for line in out.splitlines() if line.startswith("    topobench ")]
    assert examples, "no example stands on a line of its own"
    assert all(line.split()[1 : 1 + len(words)] == list(words) for line in examples)


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["probe", "--probes", "no_such"], 2, "no_such"),
        (["probe", "--probes", ","], 2, "probe"),
        (["probe", "--probes", ""], 2, "--probes is empty"),
        (["topo", "show", "--root="], 2, "--root is empty"),
        (["check", ""], 3, "what follows 'check' is empty"),
        (["probe", "--set", "host_memory.bytes=lots"], 2, "host_memory.bytes"),
        (["probe", "--set", "host_memory.size=1"], 2, "size"),
        (["probe", "--profile", "quik"], 2, "quick"),
        (["probe", "--cluster", "absent.yaml"], 2, "absent.yaml"),
        (["probe", "--store", "mysql://h/d"], 2, "mysql"),
        (["probe", "--store", "sqlite:////no/such/folder/t.db"], 3, "does not exist"),
        (["probe", "--budget", "soon"], 2, "budget"),
        (["probe", "--resume", "latest"], 3, "no sweep"),
        (["probe", "--resume", "latest", "--probes", "gemm"], 2, "leave out --probes"),
        (["probe", "--like", "latest", "--set", "gemm.size=64", "--seed", "1"], 2, "--set, --seed"),
        (["report"], 1, "no such file"),
        (["query"], 2, "--list"),
        (["query", "latest", "--sql", "select 1"], 2, "--list"),
        (["query", "no-such"], 2, "no-such"),
        (["topo", "show", "--root", "absent"], 2, "absent"),
        (["topo", "import", "--from", "smi", "absent.txt"], 1, "absent.txt"),
        (["topo", "import", "matrix.txt"], 2, "--from"),
        (["topo", "diff", "live", "absent"], 2, "absent"),
        (["topo", "gather", "no/such/folder/out.tgz"], 1, "out.tgz"),
        (["db", "info"], 1, "no such file"),
        (["db", "import", "absent"], 1, "absent"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_bad_input_is_named_and_mended(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == code
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


def test_every_mistake_of_a_config_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text(
        "kind: topobench/v1\nnmae: lab\nbudget: 7:30\nbudget: 5m\ndevices: [0000:01:00.0]\n"
    )
    assert cli.main(["probe", "--cluster", "c.yaml"]) == 2
    err = capsys.readouterr().err
    for line, key in ((2, "nmae"), (3, "budget"), (4, "budget")):
        assert f"c.yaml:{line}: {key}" in err


def test_a_file_of_nothing_but_mistakes_is_told_shortly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text("kind: topobench/v1\n" * 10_001)
    assert cli.main(["probe", "--cluster", "c.yaml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[-1]) == (101, "and 9900 more")


def test_an_error_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text('kind: topobench/v1\n"\\e[2Jkey": 1\n')
    assert cli.main(["probe", "--cluster", "c.yaml"]) == 2
    assert "c.yaml:2: \\x1b[2Jkey: unknown key" in capsys.readouterr().err


def test_print_config_shows_the_effective_one_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--set", "host_memory.bytes=64M", "--devices", "0000:01:00.0", "--budget", "5m"]
    assert cli.main(["probe", "--print-config", *flags]) == 0
    out = capsys.readouterr().out
    (tmp_path / "again.yaml").write_text(out)
    assert cli.main(["probe", "--print-config", "--cluster", "again.yaml"]) == 0
    assert capsys.readouterr().out == out
    assert "64 MiB" in out
    assert "0000:01:00.0" in out
    assert list(tmp_path.glob("topobench.db*")) == []


def test_a_reader_that_had_enough_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m topobench query --list --format json | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


FULL = "topobench: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "redirection", "code", "error"),
    [
        ("query --list", ">&-", 0, ""),
        ("probe --print-config", "<&- >&-", 0, ""),
        ("query --bad", "<&- >&- 2>&-", 2, ""),
        *(
            (arguments, ">/dev/full", 1, FULL)
            for arguments in ("query --list", "query --list --format json", "--help", "--version")
        ),
        ("--help", "| true", 0, ""),
    ],
)
def test_standard_streams_that_are_closed_or_full(
    arguments: str, redirection: str, code: int, error: str
) -> None:
    command = f"{sys.executable} -m topobench {arguments} {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", error)


@pytest.mark.parametrize("columns", ["0", "-5", "1e9", "99999999999", ""])
def test_a_width_that_no_terminal_has_is_none(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With no column nothing would be printed, and with too many a bar would fill memory."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert cli.main(["query", "--list"]) == 0
    usual = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["query", "--list"]) == 0
    assert capsys.readouterr().out == usual != ""


@pytest.mark.parametrize("arguments", ["topo show --root X", "topo diff X live", "db import X"])
def test_a_path_that_the_system_refuses_is_no_bug_of_ours(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "x" * 300
    assert cli.main([word.replace("X", path) for word in arguments.split()]) == 1
    assert capsys.readouterr().err == f"topobench: {path}: File name too long; name another path\n"


def test_a_folder_that_was_removed_is_no_bug_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.delenv("TOPOBENCH_STORE", raising=False)
    (tmp_path / "gone").rmdir()
    assert [cli.main(["probe"]), cli.main(["report"])] == [3, 1]
    assert capsys.readouterr().err.count("was removed; change to another one\n") == 2


def test_a_terminal_without_a_letter_shows_its_number() -> None:
    sqlite3.connect("t.db").close()
    ask = [sys.executable, "-m", "topobench", "query", "--store", "sqlite:///t.db"]
    done = subprocess.run(
        [*ask, "--sql", "select 'h\u00f6st' as a", "--format", "csv"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, ["a", "h\\xf6st"])


def test_the_json_of_an_error_is_the_only_thing_on_standard_output(tmp_path: Path) -> None:
    (tmp_path / "topobench.db").write_text("this is no database")
    done = subprocess.run(
        [sys.executable, "-m", "topobench", "report", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    document = checked(done.stdout, "error")
    assert done.returncode == document["exit_code"] == 1
    assert "topobench.db" in document["error"]["message"]


def test_exit_codes_are_documented() -> None:
    text = (Path(__file__).parents[1] / "docs" / "exit-codes.md").read_text()
    for words in itertools.chain(BODIES):
        assert f"`{' '.join(words)}`" in text or f"`{words[0]}`" in text, words
