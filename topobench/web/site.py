"""What every page needs: the store, opened once and only read, and what was drawn before."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from topobench.errors import NotFound, StoreError, StoreUnreachable

if TYPE_CHECKING:
    from topobench.db.store import Store

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
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._pages: OrderedDict[str, str] = OrderedDict()

    def store(self) -> Store:
        """
        The open store; opened again where it was away.

        Raises:
            StoreError: It is not there, or cannot be read; the message says what to do.
        """
        from topobench.db.store import Store

        with self._lock:
            if self._store is None:
                try:
                    self._store = Store.open(self.url, create=False, read_only=True)
                except NotFound as error:  # of a store, not of something in it
                    raise StoreError(str(error)) from error
            return self._store

    def lost(self, error: Exception) -> None:
        """Open the store anew next time, if this error says that it went away."""
        if isinstance(error, StoreUnreachable):
            self.close()

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

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
