"""How packages that are no part of the plain installation are added to it."""

from __future__ import annotations

import shlex
import sys


def install_line(extra: str) -> str:
    """The line that adds the packages of an extra to the environment that runs."""
    return f"{shlex.quote(sys.executable)} -m pip install 'topobench[{extra}]'"
