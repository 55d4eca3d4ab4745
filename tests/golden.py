"""
Exact texts kept in tests/data/golden.

After a wanted change, write them anew and read the difference before committing it::

    TOPOBENCH_REFRESH_GOLDEN=1 pytest tests/test_report_*.py
    git diff tests/data/golden
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from rich.console import Console, RenderableType

from topobench.report.show import show

GOLDEN = Path(__file__).parent / "data" / "golden"


def printed(renderable: RenderableType, width: int = 80, *, colour: bool = False) -> str:
    """What a terminal of this width would get; without colour, what a pipe gets."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    show(console, renderable)
    return file.getvalue()


def check_golden(name: str, text: str) -> None:
    """Compare with the text kept under ``name``."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("TOPOBENCH_REFRESH_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
