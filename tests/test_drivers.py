"""Which process drives a sweep, and what is said once it is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storing import begin, cell
from topobench import cli
from topobench.db.store import Store
from topobench.drivers import Driver, own_driver

SCRIPT = (
    "import json, sys; from topobench.drivers import own_driver; "
    "print(json.dumps(own_driver().to_json()), flush=True); sys.stdin.read()"
)


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], Driver]]:
    """Another process of this machine, and how it names itself."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, Driver.from_json(json.loads(process.stdout.readline()))
        process.kill()


def test_a_driver_is_there_until_it_is_killed(
    other: tuple[subprocess.Popen[str], Driver],
) -> None:
    process, driver = other
    assert (driver.pid, driver.is_gone) == (process.pid, False)
    process.kill()
    process.wait(30)
    assert driver.is_gone


def test_a_pid_that_was_used_again_is_another_process() -> None:
    own = own_driver()
    assert own is not None
    assert (own.pid, own.is_gone) == (os.getpid(), False)
    assert replace(own, start=own.start - 1).is_gone


def test_of_another_machine_or_container_nothing_is_said() -> None:
    own = own_driver()
    assert own is not None
    nobody = replace(own, pid=2**22 + 1)
    assert nobody.is_gone
    assert not replace(nobody, boot="0f0f0f0f-0000-4000-8000-000000000000").is_gone
    assert not replace(nobody, namespace="pid:[1]").is_gone


def test_reports_and_queries_tell_of_a_sweep_whose_driver_is_gone(
    tmp_path: Path,
    other: tuple[subprocess.Popen[str], Driver],
    capsys: pytest.CaptureFixture[str],
) -> None:
    process, driver = other
    url = f"sqlite:///{tmp_path}/t.db"
    with Store.open(url) as store:
        sweep = begin(store, cell(), driver=driver.to_json())
        assert store.sweep_document(sweep)["sweep"]["warnings"] == []
        assert store.lost_sweeps() == []
        process.kill()
        process.wait(30)
        (warning,) = store.sweep_document(sweep)["sweep"]["warnings"]
        assert warning == (
            f"driver_gone: sweep {sweep[:8]} says running, but the process that ran it (pid "
            f"{process.pid} on {driver.host}) is gone; go on with it: topobench probe --resume "
            f"{sweep[:8]}"
        )
    assert cli.main(["report", "--store", url]) == 0
    assert "driver_gone" in capsys.readouterr().out
    assert cli.main(["query", "sweeps", "--store", url]) == 0
    assert f"topobench: driver_gone: sweep {sweep[:8]}" in capsys.readouterr().err
    with Store.open(url) as store:
        store.resume_sweep(sweep, own_driver().to_json())  # type: ignore[union-attr]
        assert store.lost_sweeps() == []
        store.resume_sweep(sweep, driver.to_json())
        store.end_sweep(sweep, "interrupted")
        assert store.sweep_document(sweep)["sweep"]["warnings"] == []


@pytest.mark.root
def test_a_host_is_called_by_its_name_in_any_locale() -> None:
    """The kernel's name in a space of its own; ASCII alone is what Python would decode."""
    code = (
        "import socket; socket.sethostname(b'b\\xc3\\xbccks'); "
        "from topobench.processes import host_name; print(ascii(host_name()))"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        ["unshare", "--uts", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **plain},
    )
    if "unshare failed" in done.stderr or "not permitted" in done.stderr:
        pytest.skip(f"no names of its own can be had here: {done.stderr.strip()}")
    assert (done.stdout, done.stderr) == ("'b\\xfccks'\n", "")
