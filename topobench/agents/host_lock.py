"""One sweep at a time on a host: a file lock that the system frees when its holder dies."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from topobench.errors import RefusedError

RUN_DIR = "TOPOBENCH_RUN_DIR"
COMMON_FOLDER = "/run/lock/topobench"


class HostLock:
    """
    The lock ``host.lock`` of a run folder, held by the process that acquired it.

    Children that exec do not inherit it. A forked child shares it for as long as it
    lives, so fork only to exec.

    Args:
        run_dir: Folder of the lock; None takes ``TOPOBENCH_RUN_DIR``, else
            /run/lock/topobench, else a folder of this user.
        sweep: Named to whoever is refused.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, *, sweep: str) -> None:
        self._sweep = sweep
        self._handle: int | None = None
        self.run_dir, self.note = (Path(run_dir), None) if run_dir else choose_run_dir()

    @property
    def path(self) -> Path:
        """The file that is locked."""
        return self.run_dir / "host.lock"

    def acquire(self) -> HostLock:
        """
        Take the lock now.

        Raises:
            RefusedError: Another sweep holds it, or the file cannot be made.
        """
        if self._handle is not None:
            return self
        handle = self._open()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise RefusedError(self._refusal()) from error
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        content = {
            "sweep": self._sweep,
            "pid": os.getpid(),
            "started_at": started.replace("+00:00", "Z"),
        }
        os.ftruncate(handle, 0)
        with contextlib.suppress(OSError):  # on a full disk it is held without a name
            os.pwrite(handle, json.dumps(content).encode(), 0)
        self._handle = handle
        return self

    def release(self) -> None:
        """Free the lock; releasing twice does nothing."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            os.ftruncate(handle, 0)
            os.close(handle)

    def __enter__(self) -> HostLock:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _open(self) -> int:
        """
        The lock file, made if need be; never through a link, since /tmp is anyone's.

        An existing file is opened without O_CREAT: in a sticky folder the kernel refuses
        that flag for a file of another user (fs.protected_regular).
        """
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            try:
                return os.open(self.path, flags)
            except FileNotFoundError:
                handle = os.open(self.path, flags | os.O_CREAT, 0o666)
        except OSError as error:
            raise RefusedError(
                f"{self.path}: the lock of this host cannot be opened ({error.strerror}); set "
                f"{RUN_DIR} to a folder that every user of topobench on this host may write"
            ) from error
        with contextlib.suppress(OSError):  # whatever the umask, other users must lock it too
            os.fchmod(handle, 0o666)
        return handle

    def _refusal(self) -> str:
        holder = read_holder(self.run_dir)
        if not holder:
            return f"another sweep holds this host ({self.path}); it has not written its name yet"
        return (
            f"sweep {holder.get('sweep')} holds this host (pid {holder.get('pid')} since "
            f"{holder.get('started_at')}, {self.path}); wait for it or end it"
        )


def read_holder(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Who holds or last held the lock of a run folder: sweep, pid, started_at; or empty."""
    try:
        found = json.loads((Path(run_dir) / "host.lock").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def choose_run_dir() -> tuple[Path, str | None]:
    """
    The run folder of this user, and a note if it is not the host's common one.

    A folder that other users cannot use locks out only this user's sweeps.

    Raises:
        RefusedError: No folder is safe to use.
    """
    named = os.environ.get(RUN_DIR)
    if named:
        return Path(named), None
    if _usable(Path(COMMON_FOLDER), 0o1777):
        return Path(COMMON_FOLDER), None
    base = os.environ.get("XDG_RUNTIME_DIR")
    private = Path(base) / "topobench" if base else Path(f"/tmp/topobench-{os.getuid()}")
    if not _usable(private, 0o700):
        raise RefusedError(f"{private}: not a folder of this user; set {RUN_DIR} to one that is")
    note = (
        f"{COMMON_FOLDER} cannot be written by this user, so {private} is used: sweeps of other "
        f"users are not kept off; make {COMMON_FOLDER} with mode 1777 or set {RUN_DIR}"
    )
    return private, note


def _usable(folder: Path, mode: int) -> bool:
    """Make the folder if need be; whether this user may write there and it is safe to."""
    try:
        folder.mkdir(parents=True)
        folder.chmod(mode)
    except FileExistsError:
        pass
    except OSError:
        return False
    try:
        owner = folder.stat(follow_symlinks=False)
    except OSError:
        return False
    return (
        os.access(folder, os.W_OK) and not folder.is_symlink() and owner.st_uid in (0, os.getuid())
    )
