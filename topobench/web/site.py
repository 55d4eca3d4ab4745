"""What every page needs: the store, opened once and only read, and what was drawn before."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from topobench.errors import NotFound, RefusedError, StoreError, StoreUnreachable, TopobenchError
from topobench.web import child
from topobench.web.comparisons import Comparisons

if TYPE_CHECKING:
    from topobench.db.store import Store

REPORT_SECONDS = 300
KEPT = 24
"""Pages of ended sweeps that are kept: they never change."""


class Site:
    """
    A store and the pages made of it; used by several threads.

    Args:
        url: Of the store, as given.
        token: What visitors must know, or None where only this host can ask.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url, self.token = url, token
        self._lock, self._reports = threading.Lock(), threading.Lock()
        self._store: Store | None = None
        self._stopped = False
        self._pages: OrderedDict[str, str] = OrderedDict()
        self.comparisons = Comparisons(url)

    def store(self) -> Store:
        """
        The open store; opened again where it was away, or another file took its place.

        Raises:
            StoreError: It is not there, or cannot be read; the message says what to do.
        """
        from topobench.db.store import Store

        with self._lock:
            if self._store is not None and not _is_there(self._store):
                self._store.close()
                self._store = None
                self._pages.clear()  # the same ids may mean something else now
                self.comparisons.forget()
            if self._store is None:
                try:
                    self._store = Store.open(self.url, create=False, read_only=True)
                except NotFound as error:  # of a store, not of something in it
                    raise StoreError(str(error)) from error
            return self._store

    def lost(self, error: Exception) -> None:
        """
        Open the store anew next time, if this error is the store's.

        A copy that is laid over a damaged file stays the same file: SQLite would tell for ever
        of the damage that it read.
        """
        if isinstance(error, StoreError):
            self._let_go()

    def stop(self) -> None:
        """End what takes long, without waiting: nobody will see it any more."""
        self._stopped = True
        self.comparisons.stop()

    def close(self) -> None:
        """Close the store and end what is under way."""
        self.stop()
        self.comparisons.close()
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            store, self._store = self._store, None
            self._pages.clear()  # what comes next may be another copy
        if store is not None:
            store.close()

    def report(self, sweep: str) -> str:
        """
        The whole report of a sweep as one file, made by a process of its own, one at a time.

        What that takes of memory is given back with the process.

        Args:
            sweep: UUID.

        Raises:
            RefusedError: Another one is being made.
            TopobenchError: It could not be made; the message says why.
        """
        if not self._reports.acquire(blocking=False):  # nobody waits: waiting takes a thread
            raise RefusedError("another report is being made; ask again in a moment")
        try:
            return self._made_report(sweep)
        finally:
            self._reports.release()

    def _made_report(self, sweep: str) -> str:
        begun = time.monotonic()

        def check() -> None:
            if self._stopped:
                raise RefusedError("the server is ending")
            if time.monotonic() > begun + REPORT_SECONDS:
                raise TopobenchError(
                    f"the report took longer than {REPORT_SECONDS} s; topobench report "
                    f"{sweep[:8]} --html FILE has no such limit"
                )

        environment = {**os.environ, "TOPOBENCH_STORE": self.url}  # it may hold a password
        with tempfile.TemporaryDirectory(prefix="topobench-") as folder:
            file = Path(folder) / "report.html"
            command = [sys.executable, "-m", "topobench", "report", sweep, "--html", str(file)]
            ended = child.run(command, check, environment=environment)
            if ended.code:
                raise TopobenchError(ended.last_words() or "the report was not written")
            return file.read_text(encoding="utf-8")

    def kept(self, key: str, make: Callable[[], str]) -> str:
        """A part of a page that never changes: kept, or made now."""
        with self._lock:
            if key in self._pages:
                self._pages.move_to_end(key)
                return self._pages[key]
        made = make()
        with self._lock:
            self._pages[key] = made
            while len(self._pages) > KEPT:
                self._pages.popitem(last=False)
        return made


def _is_there(store: Store) -> bool:
    try:
        store.check_file()
    except StoreUnreachable:
        return False
    return True
