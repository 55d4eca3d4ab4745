"""What a monitor has seen of a run, while it goes on and in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topobench.reading import Reason


class Seen(dict[str, Any]):
    """
    The conditions of a run; complete once its watch has ended.

    Args:
        disturbed: Why the run should not go on, as far as is known by now; None while it may.
    """

    def __init__(self, disturbed: Callable[[], Reason | None]) -> None:
        super().__init__()
        self.disturbed = disturbed
