"""Nothing that carries a driver's token outlives the driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from topobench import processes
from topobench.agents import embedded, reaper
from topobench.errors import AgentError

ROOT = Path(__file__).parent.parent

DRIVER = """
import os, subprocess, sys, time
from topobench.agents import reaper
token = reaper.new_token()
os.environ["TOPOBENCH_DRIVER"] = token
watcher = {watcher}
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"
children = [subprocess.Popen(["sleep", "120"], start_new_session=True)]
children.append(subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True))
# Ray's workers lose their environment to their title: the token stays with the parent.
shy = "import os, subprocess; e = dict(os.environ); del e['TOPOBENCH_DRIVER']; "
shy += "subprocess.run(['sleep', '120'], env=e)"
children.append(subprocess.Popen([sys.executable, "-c", shy]))
reaper.ray_folder(token).mkdir()
time.sleep(0.5)
print(token, watcher and watcher.pid, flush=True)
{then}
"""


def gone(look: Callable[[], object], seconds: float = 5.0) -> bool:
    """Whether nothing is found any more within that time."""
    until = time.monotonic() + seconds
    while look() and time.monotonic() < until:
        time.sleep(0.05)
    return not look()


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def start_driver(
    *, watcher: str = "reaper.start_reaper(token)", then: str = "time.sleep(120)"
) -> tuple[subprocess.Popen[str], str, int | None]:
    """A driver process, its token and its reaper's pid."""
    program = DRIVER.format(watcher=watcher, then=then)
    driver = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert driver.stdout is not None
    token, pid = driver.stdout.readline().split()
    return driver, token, None if pid == "None" else int(pid)


def family(token: str) -> list[processes.Process]:
    """Everything of a driver, those without the marker too."""
    return reaper._with_token({token})


@pytest.fixture
def drivers() -> Iterator[list[tuple[subprocess.Popen[str], str]]]:
    started: list[tuple[subprocess.Popen[str], str]] = []
    yield started
    for driver, token in started:
        driver.kill()
        driver.wait()
        assert driver.stdout is not None
        driver.stdout.close()
        reaper.reap(token)


Drivers = list[tuple[subprocess.Popen[str], str]]


def test_everything_is_gone_after_the_driver_was_killed(drivers: Drivers) -> None:
    driver, token, watcher = start_driver()
    drivers.append((driver, token))
    assert len(family(token)) == 4
    assert watcher is not None

    driver.kill()
    driver.wait()

    assert gone(lambda: family(token))
    assert gone(lambda: processes.find(watcher))
    assert not reaper.ray_folder(token).exists()


def test_a_good_bye_ends_only_the_reaper(drivers: Drivers) -> None:
    driver, token, watcher = start_driver(then="watcher.close(); watcher.close(); time.sleep(120)")
    drivers.append((driver, token))
    assert watcher is not None

    assert gone(lambda: processes.find(watcher))
    assert len(family(token)) == 4


def test_a_dead_reaper_does_not_disturb_a_clean_end(drivers: Drivers) -> None:
    driver, token, _ = start_driver(
        then="os.kill(watcher.pid, 9); time.sleep(0.2); watcher.close(); print('closed')"
    )
    drivers.append((driver, token))
    assert driver.stdout is not None
    assert driver.stdout.readline() == "closed\n"
    assert driver.wait() == 0


def test_a_clean_end_waits_for_no_other_child_of_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its reaper is one, and would have to be killed. The driver itself logs in Ray's folder."""
    started = []
    start = reaper.start_reaper

    def noted(token: str) -> reaper.Reaper:
        started.append(start(token))
        return started[0]

    monkeypatch.setattr(reaper, "start_reaper", noted)
    with (
        subprocess.Popen(["sleep", "120"]) as other,
        embedded.surroundings("local", "sweep") as options,
    ):
        folder = Path(options["_temp_dir"])
        folder.mkdir()
        with (folder / "log").open("w"):
            reaper.reap(folder.name.removeprefix("tb-ray-"))
        assert processes.find(started[0].pid) is not None
        assert other.poll() is None
        other.kill()
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_reaper_stays_when_asked_politely(drivers: Drivers, number: int) -> None:
    """A Ctrl-C or a scheduler's TERM to the whole group must not remove the safety net."""
    driver, token, watcher = start_driver()
    drivers.append((driver, token))
    assert watcher is not None
    assert gone(lambda: not ignores(watcher, number)), "it never came up"
    os.kill(watcher, number)
    driver.kill()
    driver.wait()
    assert gone(lambda: family(token))


def test_the_next_start_ends_what_a_dead_driver_left(drivers: Drivers) -> None:
    """Driver and reaper were both killed, as by an out-of-memory killer."""
    driver, token, _ = start_driver(watcher="None")
    drivers.append((driver, token))
    alive, other, _ = start_driver(watcher="None")
    drivers.append((alive, other))
    driver.kill()
    driver.wait()
    assert len(family(token)) == 4

    assert reaper.sweep_leftovers() >= 4

    assert family(token) == []
    assert not reaper.ray_folder(token).exists()
    assert len(family(other)) == 4, "a living driver's processes are left alone"
    assert reaper.ray_folder(other).exists()


def test_tokens_of_other_boots_and_containers_are_left_alone() -> None:
    pid, start, tail = reaper.new_token().split("-")
    dead = f"{pid}-{int(start) - 1}-"
    assert reaper._driver_is_dead(dead + tail)
    assert not reaper._driver_is_dead(f"{pid}-{start}-{tail}")
    assert not reaper._driver_is_dead(dead + "00000000" + tail[8:])
    assert not reaper._driver_is_dead("nonsense")


@pytest.mark.root
def test_a_full_temporary_folder_is_told_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its agents would die there and say nothing."""
    with tempfile.TemporaryDirectory(prefix="tb", dir="/tmp") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("a file system of its own needs root that may mount")
        monkeypatch.setattr(tempfile, "tempdir", folder)
        try:
            with pytest.raises(
                AgentError, match=r"1 MiB left, .* or name another folder by TMPDIR"
            ):
                embedded.surroundings("local", "s").__enter__()
        finally:
            subprocess.run(["umount", folder], check=True)


def test_a_folder_whose_name_is_not_utf_8_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would say that it cannot encode a character, and not of what."""
    folder = os.fsdecode(bytes(tmp_path) + b"/b\xff")
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(AgentError, match=r"b.udcff': its name is not UTF-8, .* another folder"):
        embedded.surroundings("local", "s").__enter__()


def test_no_temporary_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no")
    with pytest.raises(AgentError, match=r"no folder for temporary files: .*; name one by TMPDIR"):
        embedded.surroundings("local", "s").__enter__()
