"""What one host remembers of its looks at a fleet: that one is under way, and what was told."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from topobench.errors import RefusedError


class UnderWay(RefusedError):
    """Another process sees to what is due."""


@dataclass(frozen=True, slots=True)
class Memory:
    """
    What was told, by what it is about; told too often is better than no sweep.

    Args:
        folder: Where that is kept; None: nowhere, and everything is new.
    """

    folder: Path | None

    def is_new(self, about: str, text: str) -> bool:
        """Whether this was not what was told last; it is from now on."""
        file = self._file(about)
        if file is None:
            return True
        with contextlib.suppress(OSError):
            if file.exists() and file.read_text(encoding="utf-8") == text:
                return False
            file.write_text(text, encoding="utf-8")
        return True

    def forget(self, about: str) -> bool:
        """Nothing is to be told any more; whether something was."""
        file = self._file(about)
        if file is None:
            return False
        try:
            file.unlink()
        except OSError:
            return False
        return True

    def new_of(self, about: str, told: Mapping[str, str], still: Collection[str]) -> set[str]:
        """
        As :meth:`is_new`, of several: the names of those that were not told last.

        Args:
            told: What is told of each name now.
            still: Names that are not forgotten, though nothing is told of them now.
        """
        file = self._file(about)
        if file is None:
            return set(told)
        before: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            before = json.loads(file.read_text(encoding="utf-8"))
        kept = {name: text for name, text in before.items() if name in still}
        with contextlib.suppress(OSError):
            file.write_text(json.dumps({**kept, **told}), encoding="utf-8")
        return {name for name, text in told.items() if kept.get(name) != text}

    def _file(self, about: str) -> Path | None:
        digest = hashlib.blake2b(about.encode(), digest_size=8).hexdigest()
        return None if self.folder is None else self.folder / f"told-{digest}"


@contextlib.contextmanager
def alone(path: Path) -> Iterator[Memory]:
    """
    Only one ``sweep --due`` of a fleet file on this host; freed when its process dies.

    Raises:
        UnderWay: Another one is.
        RefusedError: The lock cannot be made.
    """
    from topobench.agents.host_lock import HostLock, choose_run_dir, read_holder

    digest = hashlib.blake2b(f"{os.getuid()} {path.resolve()}".encode(), digest_size=8)
    folder = choose_run_dir()[0] / f"fleet-{digest.hexdigest()}"
    lock = HostLock(folder, sweep=f"fleet {path.name}")
    try:
        lock.acquire()
    except RefusedError as error:
        holder = read_holder(folder)
        if not holder:
            raise
        raise UnderWay(
            f"another sweep --due of {path} is under way (pid {holder.get('pid')} since "
            f"{holder.get('started_at')}); wait for it or end it"
        ) from error
    with lock:
        yield Memory(folder)
