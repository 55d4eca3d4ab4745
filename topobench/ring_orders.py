"""A ring arm's own orders, as a configuration gives them; pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Orders:
    """
    The orders of an explicit ring arm, for the channels in turn.

    Args:
        orders: Each lists positions in a cell's device list; the last joins the first.
        forced: It is run where all orders are equivalent, too.
    """

    orders: tuple[tuple[int, ...], ...]
    forced: bool = False

    @property
    def name(self) -> str:
        """As the arm is called: ``0-2-1-3``, or several of them as ``0-1-2-3:0-2-1-3``."""
        return ":".join("-".join(map(str, order)) for order in self.orders)
