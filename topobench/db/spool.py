"""
Keeps results on disk while the database is away; :mod:`spool_import` brings them in later.

A spool is a folder of JSON lines, one line a writer call, on disk (fsync) before the call
returns; the first line of a file says of which store it is. A file being written ends in
``.part`` and is locked by its writer; a finished one ends in ``.jsonl``; one that was brought
in ends in ``.imported`` and may be deleted. What was wrong with one is in ``.problems`` beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from topobench.db import schedules
from topobench.db.engine import place_of
from topobench.db.files import identity
from topobench.db.store import Store
from topobench.db.writer import Stored
from topobench.errors import StoreUnreachable
from topobench.host import Host
from topobench.reading import Cell, Run, to_json

FORMAT = 1
ROTATE_BYTES = 64 * 1024 * 1024
FOLDER = "topobench-spool"
CALLS = ("begin_sweep", "put_host", "plan_cells", "put_run", "resume_sweep", "end_sweep")
"""Methods of :class:`Store` that may be spooled."""
END_SCHEDULE = "end_schedule"
"""The call of ``schedules.end_late``: a try of a schedule ended while the store was away."""
OF_STORE = "of_store"
"""The first line of a file, no call: of which store it is."""
PROBLEMS = ".problems"
"""Ending of what is told of a file beside it."""
_NOT_YET = (".jsonl", ".part")
_AGAIN_SECONDS = 86400.0
_LONGEST_HEAD = 16384

Call = Mapping[str, Any]
"""The arguments of a call."""


class Spool:
    """
    Writer calls of one sweep as JSON lines; a context manager.

    Args:
        folder: Made if it is not there.
        name: Beginning of the file names, such as the sweep's UUID.
        url: Of the store that the calls are for.

    Attributes:
        finished: Files that are whole.

    Raises:
        StoreUnreachable: The folder can't be written to either.
    """

    def __init__(
        self, folder: Path, name: str, *, url: str, rotate_bytes: int = ROTATE_BYTES
    ) -> None:
        self.folder = folder
        self.finished: list[Path] = []
        self._name = name
        self._head = _line(OF_STORE, {"place": place_of(url)})
        self._rotate_bytes = rotate_bytes
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, op: str, data: Mapping[str, Any]) -> None:
        """Write one call and have it on disk."""
        line = _line(op, encode(data))
        with self._mapped():
            file = self._file or self._open()
            start = file.tell()
            try:
                _write_all(file, line if start else self._head + line)
            except OSError:
                # What did get written must not spoil the next line.
                file.truncate(start)
                file.seek(start)
                raise
            if file.tell() >= self._rotate_bytes:
                self.close()

    def close(self) -> None:
        """Finish the file; the next call begins another."""
        if self._file is None:
            return
        file, self._file = self._file, None
        with self._mapped(), file:
            part = Path(file.name)
            self.finished.append(part.rename(part.with_suffix(".jsonl")))
            _sync_folder(self.folder)

    def _open(self) -> IO[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1_000_000):
            stem = f"{self._name}-{number:06d}"
            part = self.folder / f"{stem}.part"
            if any(self.folder.glob(f"{stem}.*")):
                continue
            with contextlib.suppress(FileExistsError):
                file = part.open("xb", buffering=0)
                fcntl.flock(file, fcntl.LOCK_EX)
                if not is_still(part, file):  # an import took it, empty, for one of a dead sweep
                    file.close()
                    continue
                self._file = file
                _sync_folder(self.folder)
                return file
        raise StoreUnreachable(f"spool {self.folder}: too many files of {self._name}")

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnreachable(f"spool {self.folder} cannot be written to: {error}") from error


def files_of(folder: Path) -> list[Path]:
    """The files of a spool that were not brought in, those of one sweep in their order."""
    return sorted(f for kind in _NOT_YET for f in folder.glob(f"*{kind}"))


def files_for(folder: Path, url: str) -> list[Path]:
    """
    Those of one store that an import without a person's asking takes.

    One with problems is tried again after a day: a store's rights, or our version, may be mended.
    """
    own = place_of(url)
    return [f for f in files_of(folder) if place_told(f) == own and not _failed_of_late(f)]


def place_told(file: Path) -> str | None:
    """The place of the store that a file is of (``place_of``); None if that is not told."""
    told = _told(file, 0, OF_STORE)
    return None if told is None else str(told.get("place"))


def schedule_told(file: Path) -> tuple[str, str] | None:
    """Cluster and schedule whose try has ended, of a file that says that and no more."""
    told = _told(file, 1, END_SCHEDULE)
    return None if told is None else (str(told.get("cluster")), str(told.get("schedule")))


def _told(file: Path, line: int, op: str) -> Call | None:
    """The arguments of a call near the beginning of a file, if it is that call."""
    try:
        with file.open("rb") as opened:
            for _ in range(line):
                opened.readline(_LONGEST_HEAD)
            call = parse(opened.readline(_LONGEST_HEAD))
        return dict(call["data"]) if call["op"] == op else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def problems_told(file: Path) -> str:
    """What was wrong with a file when it was last tried; empty for nothing, or not yet."""
    try:
        return file.with_suffix(PROBLEMS).read_text(encoding="utf-8")
    except OSError:
        return ""


def _failed_of_late(file: Path) -> bool:
    try:
        age = time.time() - file.with_suffix(PROBLEMS).stat().st_mtime
    except OSError:
        return False
    return 0 <= age < _AGAIN_SECONDS


def parse(line: bytes) -> dict[str, Any]:
    """
    A line of a spool: ``op`` and ``data`` of a call.

    Raises:
        ValueError: It is none, or of another format; KeyError where it lacks that.
    """
    call: Any = json.loads(line)
    if not isinstance(call, dict):
        raise ValueError("no JSON object")
    if call["topobench_spool"] != FORMAT:
        raise ValueError(f"spool format {call['topobench_spool']!r}; this topobench reads {FORMAT}")
    return call


def perform(store: Store, op: str, data: Mapping[str, Any]) -> Stored | None:
    """
    Do one call on a store.

    Args:
        data: The call's arguments, as :func:`revive` gives them.

    Raises:
        ValueError: No such call.
    """
    if op == END_SCHEDULE:
        schedules.end_late(store, **data)
        return None
    if op not in CALLS:
        raise ValueError(f"unknown call {op!r}")
    done: Stored | None = getattr(store, op)(**data)
    return done


def encode(data: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments as plain JSON types."""
    plain = {k: v for k, v in data.items() if k not in ("host", "hosts")}
    encoded: dict[str, Any] = to_json(plain)
    if "host" in data:
        encoded["host"] = data["host"].to_json()
    if "hosts" in data:
        encoded["hosts"] = [h.to_json() for h in data["hosts"]]
    return encoded


def revive(data: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`encode` encoded."""
    revived = dict(data)
    for key, one in (("host", Host.from_json), ("run", Run.from_json)):
        if key in data:
            revived[key] = one(data[key])
    for key, each in (("hosts", Host.from_json), ("cells", Cell.from_json)):
        if key in data:
            revived[key] = [each(v) for v in data[key]]
    return revived


def _line(op: str, data: Mapping[str, Any]) -> bytes:
    return (json.dumps({"topobench_spool": FORMAT, "op": op, "data": data}) + "\n").encode()


def is_still(path: Path, file: IO[bytes]) -> bool:
    """Whether a file that was opened, and locked since, still has its name."""
    found = os.fstat(file.fileno())
    return identity(path) == (found.st_dev, found.st_ino)


def _write_all(file: IO[bytes], data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make new and changed names in a folder survive a power cut."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
