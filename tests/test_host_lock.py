"""The host lock, with real processes that take it, die with it, and start others."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from topobench.agents.host_lock import (
    RUN_DIR,
    HostLock,
    choose_run_dir,
    read_holder,
)
from topobench.errors import RefusedError

HOLDER = """
import sys
from topobench.agents.host_lock import HostLock
HostLock(sys.argv[1], sweep="s-holder").acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of ``tmp_path``."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_second_sweep_is_refused_and_told_who_holds_the_host(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(RefusedError) as caught:
        HostLock(tmp_path, sweep="s-2").acquire()
    text = str(caught.value)
    assert "sweep s-holder holds this host" in text
    assert f"pid {holder.pid}" in text
    assert re.search(r"since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text)
    assert caught.value.exit_code == 4


def test_lock_is_free_when_its_holder_was_killed(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait(timeout=10)
    with HostLock(tmp_path, sweep="s-2") as lock:
        assert read_holder(tmp_path)["sweep"] == "s-2"
        assert lock.path == tmp_path / "host.lock"


def test_child_that_outlives_its_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Programs started by the holder do not inherit the file."""
    program = (
        "import subprocess, sys\n"
        "from topobench.agents.host_lock import HostLock\n"
        "HostLock(sys.argv[1], sweep='s-1').acquire()\n"
        "child = subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(60)'],\n"
        "    close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(child.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    child = int(done.stdout)
    try:
        assert os.path.exists(f"/proc/{child}")
        HostLock(tmp_path, sweep="s-2").acquire().release()
    finally:
        os.kill(child, signal.SIGKILL)


def test_holder_is_written_as_json(tmp_path: Path) -> None:
    with HostLock(tmp_path, sweep="s-1"):
        found = json.loads((tmp_path / "host.lock").read_text())
        assert sorted(found) == ["pid", "started_at", "sweep"]
        assert (found["sweep"], found["pid"]) == ("s-1", os.getpid())
    assert read_holder(tmp_path) == {}


def test_same_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    with HostLock(tmp_path, sweep="s-1"), pytest.raises(RefusedError, match="s-1"):
        HostLock(tmp_path, sweep="s-2").acquire()


def test_lock_can_be_taken_again_after_release(tmp_path: Path) -> None:
    lock = HostLock(tmp_path, sweep="s-1")
    for _ in range(2):
        lock.acquire()
        assert lock.acquire() is lock
        lock.release()
        lock.release()


def test_each_run_folder_has_its_own_lock(tmp_path: Path) -> None:
    with HostLock(tmp_path / "a", sweep="s-1"), HostLock(tmp_path / "b", sweep="s-2"):
        assert read_holder(tmp_path / "a")["sweep"] == "s-1"


def test_run_folder_of_the_environment_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_DIR, str(tmp_path / "run"))
    with HostLock(sweep="s-1") as lock:
        assert lock.path == tmp_path / "run/host.lock"
        assert lock.note is None


def test_other_users_may_lock_the_file_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        HostLock(tmp_path, sweep="s-1").acquire().release()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "host.lock").stat().st_mode) == 0o666


def test_on_a_full_disk_the_lock_is_held_without_a_name(tmp_path: Path) -> None:
    HostLock(tmp_path, sweep="s-0").acquire().release()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with HostLock(tmp_path, sweep="s-1") as lock:
            assert lock.path.read_bytes() == b""
            with pytest.raises(RefusedError, match="has not written its name yet"):
                HostLock(tmp_path, sweep="s-2").acquire()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    """Nobody can have a file of ours overwritten through a planted link."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "host.lock").symlink_to("victim")
    with pytest.raises(RefusedError, match="cannot be opened"):
        HostLock(tmp_path, sweep="s-1").acquire()
    assert (tmp_path / "victim").read_text() == "precious"


def test_unreadable_holder_is_still_a_refusal(tmp_path: Path) -> None:
    with HostLock(tmp_path, sweep="s-1") as lock:
        lock.path.write_bytes(b"\xff{")
        with pytest.raises(RefusedError, match="has not written its name yet"):
            HostLock(tmp_path, sweep="s-2").acquire()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user; needs root")

AS_NOBODY = """
import os, sys
import topobench.agents.host_lock as host_lock  # before the interpreter is out of reach
host_lock.COMMON_FOLDER = sys.argv[1]
os.setgid(65534)
os.setuid(65534)
lock = host_lock.HostLock(sweep="s-nobody").acquire()
print(lock.path, oct(lock.run_dir.stat().st_mode & 0o7777), lock.note, sep="|")
"""


def as_nobody(common: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Another user takes the lock; ``common`` stands for /run/lock/topobench."""
    kept = {k: v for k, v in os.environ.items() if k not in (RUN_DIR, "XDG_RUNTIME_DIR")}
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(common)],
        env={**kept, **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that every user may reach."""
    base = Path(tempfile.gettempdir())
    for folder in (tmp_path, *(p for p in tmp_path.parents if base in p.parents)):
        folder.chmod(folder.stat().st_mode | 0o055)
    return tmp_path


@needs_root
def test_user_who_cannot_make_the_common_folder_gets_a_private_one(open_folder: Path) -> None:
    runtime = open_folder / "runtime"
    runtime.mkdir()
    os.chown(runtime, 65534, 65534)
    done = as_nobody(open_folder / "common", XDG_RUNTIME_DIR=str(runtime))
    path, mode, note = done.stdout.strip().split("|")
    assert (path, mode) == (str(runtime / "topobench/host.lock"), "0o700")
    assert "sweeps of other users are not kept off" in note


@needs_root
def test_common_folder_is_made_for_every_user(open_folder: Path) -> None:
    shared = open_folder / "made"
    os.chmod(open_folder, 0o1777)
    done = as_nobody(shared)
    assert done.stdout.strip().split("|")[1:] == ["0o1777", "None"]
    HostLock(shared, sweep="s-root").acquire().release()


@needs_root
def test_users_share_a_lock_in_a_sticky_folder(open_folder: Path) -> None:
    """A file that root made is locked, and its holder read, by another user."""
    shared = open_folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with HostLock(shared, sweep="s-root"):
        assert "sweep s-root holds this host" in as_nobody(shared).stderr
    assert as_nobody(shared).stdout.startswith(f"{shared}/host.lock|")


@needs_root
def test_private_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topobench").mkdir()
    os.chown(tmp_path / "topobench", 65534, 65534)
    monkeypatch.delenv(RUN_DIR, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("topobench.agents.host_lock.COMMON_FOLDER", "/proc/nowhere")
    with pytest.raises(RefusedError, match="not a folder of this user"):
        choose_run_dir()
