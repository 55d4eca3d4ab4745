"""
Keeps results on disk while the database is away, and brings them in later, exactly once.

A spool is a folder of JSON lines, one line a writer call, on disk (fsync) before the call
returns. A file being written ends in ``.part`` and is locked by its writer; a finished one
ends in ``.jsonl``; one that was brought in ends in ``.imported`` and may be deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from topobench.db.store import Store
from topobench.db.writer import Stored
from topobench.errors import StoreConflict, StoreError, StoreUnreachable
from topobench.host import Host
from topobench.reading import Cell, Run, to_json

FORMAT = 1
ROTATE_BYTES = 64 * 1024 * 1024
FOLDER = "topobench-spool"
CALLS = ("begin_sweep", "put_host", "plan_cells", "put_run", "resume_sweep", "end_sweep")
"""Methods of :class:`Store` that may be spooled."""


class Spool:
    """
    Writer calls of one sweep as JSON lines; a context manager.

    Args:
        folder: Made if it is not there.
        name: Beginning of the file names, such as the sweep's UUID.

    Raises:
        StoreUnreachable: The folder can't be written to either.
    """

    def __init__(self, folder: Path, name: str, *, rotate_bytes: int = ROTATE_BYTES) -> None:
        self.folder = folder
        self._name = name
        self._rotate_bytes = rotate_bytes
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, op: str, data: Mapping[str, Any]) -> None:
        """Write one call and have it on disk."""
        line = json.dumps({"topobench_spool": FORMAT, "op": op, "data": encode(data)}) + "\n"
        with self._mapped():
            file = self._file or self._open()
            start = file.tell()
            try:
                _write_all(file, line.encode())
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
            part.rename(part.with_suffix(".jsonl"))
            _sync_folder(self.folder)

    def _open(self) -> IO[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1_000_000):
            stem = f"{self._name}-{number:06d}"
            part = self.folder / f"{stem}.part"
            if any(self.folder.glob(f"{stem}.*")):
                continue
            with contextlib.suppress(FileExistsError):
                self._file = part.open("xb", buffering=0)
                fcntl.flock(self._file, fcntl.LOCK_EX)
                _sync_folder(self.folder)
                return self._file
        raise StoreUnreachable(f"spool {self.folder}: too many files of {self._name}")

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnreachable(f"spool {self.folder} cannot be written to: {error}") from error


@dataclass(slots=True)
class Imported:
    """
    What became of a spool.

    Args:
        stored: Runs that are new.
        already: Runs that were stored before.
        conflicts: Runs refused, because another one has their UUID.
        problems: ``file:line: what`` for every line that could not be brought in.
        busy: Files that a living sweep still writes to.
    """

    files: int = 0
    stored: int = 0
    already: int = 0
    conflicts: int = 0
    problems: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)


def import_spool(store: Store, path: Path) -> Imported:
    """
    Bring a spool's calls into a store; calls that are already there change nothing.

    A file all of whose lines came in is renamed to ``.imported``; one with problems stays.

    Args:
        path: A folder, or one file of it.

    Raises:
        StoreError: There is no such file or folder.
        StoreUnreachable: The store went away; what came in stays in, and again is safe.
    """
    result = Imported()
    if path.is_dir():
        files = sorted((*path.glob("*.jsonl"), *path.glob("*.part")))
    elif path.is_file():
        files = [path]
    else:
        raise StoreError(f"{path}: no such file or folder; a spool is a folder of .jsonl files")
    for file in files:
        _import_file(store, file, result)
    store.finish_rollups()
    return result


def _import_file(store: Store, path: Path, result: Imported) -> None:
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            result.busy.append(str(path))
            return
        except FileNotFoundError:  # another import was first
            return
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        result.files += 1
        before = len(result.problems)
        for number, line in enumerate(file, 1):
            _import_line(store, f"{path}:{number}", line, result)
        if len(result.problems) == before:
            path.rename(path.with_suffix(".imported"))


def _import_line(store: Store, where: str, line: bytes, result: Imported) -> None:
    try:
        call = _parse(line)
        done = perform(store, call["op"], revive(call["data"]))
    except StoreUnreachable:
        raise
    except StoreConflict as error:
        result.conflicts += 1
        result.problems.append(f"{where}: {error}")
    except StoreError as error:
        result.problems.append(f"{where}: {error}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # A line is torn when the machine stopped while it was written: it was never promised.
        if line.endswith(b"\n"):
            result.problems.append(f"{where}: not a line of a spool: {_what(error)}")
    else:
        result.stored += done is Stored.STORED
        result.already += done is Stored.ALREADY_STORED


def _what(error: Exception) -> str:
    """The error in a line; that of a wrong encoding would hold the whole line of it."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return repr(error)[:_LONGEST_PROBLEM]


_LONGEST_PROBLEM = 300


def _parse(line: bytes) -> dict[str, Any]:
    call: dict[str, Any] = json.loads(line)
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
