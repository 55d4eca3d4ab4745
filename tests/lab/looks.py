"""What ``inside.py`` found in a shape; each guest boots once for all tests of a process."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.guest import run_once, unavailable
from lab.inside import PARTS

_ROOT = Path(__file__).parents[2]
_INSIDE = Path(__file__).with_name("inside.py")


def look(shape: str) -> dict[str, Any]:
    """
    The document of ``inside.py`` on a shape, from a guest that is one.

    Skips the calling test, with the reason, where there is no lab.
    """
    if reason := unavailable():
        pytest.skip(f"no lab: {reason}")
    for program, package in (("numactl", "numactl"), ("lstopo-no-graphics", "hwloc-nox")):
        if shutil.which(program) is None:
            pytest.skip(f"no lab: {program} is not installed (Debian package {package})")
    guest = next((name for name, parts in PARTS.items() if shape in parts), shape)
    command = [sys.executable, str(_INSIDE), guest]
    done = run_once(guest, *command, timeout=600, PYTHONPATH=f"{_ROOT}:{_ROOT / 'tests'}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)[shape]
    return found
