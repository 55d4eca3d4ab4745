"""The lab itself: what a guest sees, what it leaves, and how it ends."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import lab
from lab.kernel import boot_files
from topobench import processes

guest = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def available() -> None:
    if reason := lab.unavailable():
        pytest.skip(f"no lab: {reason}")


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that a guest sees: /dev/shm, where those of tests may lie, is its own there."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def guests() -> list[str]:
    """Command lines of emulators that are running."""
    found = []
    for process in processes.running():
        line = Path(f"/proc/{process.pid}/cmdline")
        text = line.read_text().replace("\0", " ") if line.exists() else ""
        if "qemu-system" in text:
            found.append(text)
    return found


@pytest.mark.usefixtures("available")
class TestGuest:
    pytestmark = guest

    def test_command_has_its_own_exit_code_streams_and_environment(self, outside: Path) -> None:
        """It reads this machine's files, and what it writes stays in the guest, in its cpuset."""
        (outside / "here").write_text("from outside")
        script = 'cat here; nproc; echo "$TOLD" > there; cat there >&2; exit 7'
        done = lab.run("cpuset", ["bash", "-c", script], env={"TOLD": "a b"}, cwd=outside)
        assert (done.returncode, done.stdout, done.stderr) == (7, "from outside3\n", "a b\n")
        assert [p.name for p in outside.iterdir()] == ["here"]

    def test_guest_that_takes_too_long_is_ended_with_what_it_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its emulator is told by the folder that it serves."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        script = f"echo {tmp_path.name}; sleep 600"
        with pytest.raises(subprocess.TimeoutExpired) as raised:
            lab.run("two", ["bash", "-c", script], timeout=3)
        assert raised.value.output == f"{tmp_path.name}\n"
        assert not [line for line in guests() if str(tmp_path) in line]
        assert list(tmp_path.iterdir()) == []


def test_missing_emulator_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    reason = lab.unavailable()
    assert reason == "qemu-system-x86_64 is not installed (Debian package qemu-system-x86)"


def test_kernel_that_cannot_be_fetched_is_no_lab_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOPOBENCH_LAB_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(lab.LabUnavailable, match="apt-cache cannot be run: No such file"):
        boot_files()
    assert [p.name for p in tmp_path.iterdir()] == ["lock"]
