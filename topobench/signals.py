"""SIGINT, SIGTERM and SIGHUP as a clean end: stop the workers, store what is there, leave."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """
    A signal ended what ran.

    Args:
        number: Which one.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"ended by {signal.Signals(number).name}")


class Signals:
    """
    Turns the first signal into a wish to stop, and a second one into an exception.

    Outside :meth:`soft` a signal raises Interrupted at once, so that context managers
    close what is open; inside, it sets the event and the sweep ends by itself.

    Attributes:
        number: The signal that arrived, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._stop = threading.Event()
        self._soft = False
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int | None:
        """128 + the signal's number, or None when none arrived."""
        return None if self.number is None else 128 + self.number

    def __enter__(self) -> Signals:
        self._previous = {s: signal.getsignal(s) for s in _SIGNALS}
        self._install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def soft(self) -> Iterator[threading.Event]:
        """
        Inside, the first signal only sets the event this yields.

        Raises:
            Interrupted: One arrived before, and the exception it raised was lost on its way.
        """
        self._install()  # a library (Ray) may have put its own handlers in between
        if self.number is not None:
            raise Interrupted(self.number)
        self._soft = True
        try:
            yield self._stop
        finally:
            self._soft = False

    def _install(self) -> None:
        for number in _SIGNALS:
            if self._previous.get(number) is not signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        first = self.number is None
        if first:
            self.number = number
        if self._soft and first:
            self._stop.set()
            return
        raise Interrupted(number)
