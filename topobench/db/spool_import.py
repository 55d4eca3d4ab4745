"""
Brings what was spooled into a store, each call exactly once.

One import at a time works in a folder; a file that a living sweep writes to is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from topobench.db.engine import place_of
from topobench.db.spool import (
    END_SCHEDULE,
    OF_STORE,
    PROBLEMS,
    Call,
    files_of,
    is_still,
    parse,
    perform,
    place_told,
    revive,
)
from topobench.db.store import Store
from topobench.db.writer import Stored
from topobench.errors import StoreConflict, StoreError, StoreUnreachable


@dataclass(slots=True)
class Imported:
    """
    What became of a spool.

    Args:
        stored: Runs that are new.
        already: Runs that were stored before.
        conflicts: Runs refused, because another one has their UUID.
        problems: ``file:line: what`` for every line that could not be brought in.
        busy: Files that a living sweep still writes to; the folder, where another import works.
        elsewhere: Files of other stores, by the place of those.
    """

    files: int = 0
    stored: int = 0
    already: int = 0
    conflicts: int = 0
    problems: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    elsewhere: dict[str, list[str]] = field(default_factory=dict)


def import_spool(store: Store, path: Path) -> Imported:
    """
    Bring a spool's calls into a store; calls that are already there change nothing.

    A file all of whose lines came in is renamed to ``.imported``; one with problems stays. Of a
    folder, files of other stores stay, too.

    Args:
        path: A folder, or one file of it.

    Raises:
        StoreError: There is no such file or folder.
        StoreUnreachable: The store went away; what came in stays in, and again is safe.
    """
    if path.is_file():
        return import_files(store, path.parent, [path])
    if not path.is_dir():
        raise StoreError(f"{path}: no such file or folder; a spool is a folder of .jsonl files")
    own = place_of(store.url)
    files: list[Path] = []
    elsewhere: dict[str, list[str]] = {}
    for file in files_of(path):
        place = place_told(file) or own
        if place == own:
            files.append(file)
        else:
            elsewhere.setdefault(place, []).append(str(file))
    result = import_files(store, path, files)
    result.elsewhere = elsewhere
    return result


def import_files(
    store: Store, folder: Path, files: Iterable[Path], ended: Callable[[Call], None] | None = None
) -> Imported:
    """
    As :func:`import_spool`, of some files; one import at a time works in a folder.

    Args:
        ended: Is told each try of a schedule that has ended, before its file counts as brought
            in: what it raises keeps the file for the next time.
    """
    result = Imported()
    with _alone_in(folder) as alone:
        if not alone:
            result.busy.append(str(folder))
            return result
        for file in files:
            _import_file(store, file, result, ended)
    return result


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[bool]:
    """Whether no other process imports from a folder, and none does until this ends."""
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        yield False
        return
    try:
        yield True
    finally:
        os.close(number)


def _import_file(
    store: Store, path: Path, result: Imported, ended: Callable[[Call], None] | None
) -> None:
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
        if not is_still(path, file):  # its writer, or another import, was quicker
            return
        result.files += 1
        before = len(result.problems)
        for number, line in enumerate(file, 1):
            call = _import_line(store, f"{path}:{number}", line, result)
            if call is not None and ended is not None:
                ended(call)
        store.finish_rollups()
        _close_file(path, result.problems[before:])


def _close_file(path: Path, problems: Sequence[str]) -> None:
    note = path.with_suffix(PROBLEMS)
    if problems:
        with contextlib.suppress(OSError):  # the file itself stays, which matters
            note.write_text("\n".join(problems) + "\n", encoding="utf-8")
        return
    try:
        path.rename(path.with_suffix(".imported"))
        note.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"{path}: was brought in, but cannot be renamed to .imported: {error.strerror}; make "
            "its folder writable"
        ) from error


def _import_line(store: Store, where: str, line: bytes, result: Imported) -> Call | None:
    """Do the call of a line; its arguments if it ends a try of a schedule."""
    try:
        call = parse(line)
        if call["op"] == OF_STORE:
            return None
        done = perform(store, call["op"], revive(call["data"]))
    except StoreUnreachable:
        raise
    except StoreConflict as error:
        result.conflicts += 1
        result.problems.append(f"{where}: {error}")
    except StoreError as error:
        result.problems.append(f"{where}: {error}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # A line is torn when the machine stopped while it was written: it was never promised. What
        # can be read is no part of a line.
        if line.endswith(b"\n") or not isinstance(error, ValueError):
            result.problems.append(f"{where}: not a line of a spool: {_what(error)}; {_ADVICE}")
    else:
        result.stored += done is Stored.STORED
        result.already += done is Stored.ALREADY_STORED
        return call["data"] if call["op"] == END_SCHEDULE else None
    return None


def _what(error: Exception) -> str:
    """The error in a line; that of a wrong encoding would hold the whole line of it."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON: {error}"
    text = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return text[:_LONGEST_PROBLEM]


_LONGEST_PROBLEM = 300
_ADVICE = "take it out, or restore the file"
