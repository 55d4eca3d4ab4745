"""Which torch of a plain package index runs on which NVIDIA driver; see docs/install.md."""

from __future__ import annotations

import re
import shlex

RELEASES = (((13, 0), "2.13.0"), ((12, 0), "2.10.0"))
"""
Least CUDA version of the driver -> newest release that runs on it (x86-64, Turing or newer).

Within a CUDA major version newer toolkits run on older drivers, so one release serves all of
CUDA 12. ``scripts/torch_choice.py`` knows the older GPUs, too.
"""


def mending_line(interpreter: str, cuda: str | None, torch: str | None) -> str | None:
    """
    The line that installs a torch the driver can run.

    Args:
        cuda: Newest CUDA version the driver supports ("12.8").
        torch: Version installed now, with its build ("2.13.0+cpu").

    Returns:
        A shell line; None if no release fits, or the right one is installed already, so that
        something else is wrong.
    """
    match = re.match(r"(\d+)\.(\d+)", cuda or "")
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    release = next((release for least, release in RELEASES if version >= least), None)
    installed, _, build = (torch or "").partition("+")
    if release is None or (installed == release and build != "cpu"):
        return None
    return f"{shlex.quote(interpreter)} -m pip install --force-reinstall torch=={release}"
