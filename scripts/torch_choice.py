"""
Which torch fits this host: pure functions over what the kernel driver shows.

Run as a script it prints the choice for this host and changes nothing. Standard library
only, as it runs before anything is installed.
"""

from __future__ import annotations

import dataclasses
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

OLDEST_TORCH = (2, 6)
DEFAULT_TORCH = "2.13.0"

# The oldest driver that runs programs of a CUDA major version: within one major version
# newer toolkits run on older drivers ("minor version compatibility").
OLDEST_DRIVER: Mapping[int, int] = {11: 450, 12: 525, 13: 580}

# GPUs older than Turing (compute capability 7.5) are left out of newer builds. The driver
# shows names, not capabilities, so names it is.
PRE_TURING = (
    (70, re.compile(r"\b(V100S?|TITAN V|GV100)\b")),
    (50, re.compile(r"\b(P100|P40|P4|P6|GP100|GTX 10\d\d|TITAN Xp?|Quadro P\d+)\b")),
    (50, re.compile(r"\b(M4|M6|M10|M40|M60|GTX 9\d\d|Quadro M\d+)\b")),
)


class NoTorchFits(Exception):
    """No known torch release fits the host; the message says what would."""


@dataclasses.dataclass(frozen=True, slots=True)
class GpuHost:
    """
    What the kernel driver says of a host.

    Args:
        driver: Its version, such as "580.159.04"; None if there is none or it does not say.
        models: Product names, one per GPU the driver lists.
        device_files: GPUs with a device file that programs here can open.
        container: Whether this is a container, which cannot make missing device files.
    """

    driver: str | None
    models: tuple[str, ...]
    device_files: int
    container: bool

    @property
    def has_gpus(self) -> bool:
        """Whether torch must be able to use GPUs here."""
        return self.device_files > 0 or bool(self.models and not self.container)

    @property
    def driver_major(self) -> int | None:
        """580 for "580.159.04"."""
        return int(self.driver.split(".")[0]) if self.driver else None

    @property
    def oldest_capability(self) -> int:
        """Compute capability x 10 of the oldest GPU; 75 stands for 7.5 and everything newer."""
        old = [c for m in self.models for c, name in PRE_TURING if name.search(m)]
        return min(old, default=75)


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """
    A torch build.

    Args:
        cuda: Version of the CUDA libraries that come with it.
        oldest_capability: Oldest compute capability x 10 it has kernels for.
        newest_python: Newest Python it has a wheel for.
        download_gb: What pip downloads on x86-64, CUDA libraries included, in GB (1e9 bytes).
        line: Folder of the build under the PyTorch wheel index.
    """

    version: str
    cuda: tuple[int, int]
    oldest_capability: int
    newest_python: tuple[int, int]
    download_gb: float
    line: str

    def runs_on(self, host: GpuHost, python: tuple[int, int]) -> bool:
        """Whether this build can use the host's GPUs; an unknown driver is taken as new."""
        driver = host.driver_major
        return (
            (driver is None or OLDEST_DRIVER[self.cuda[0]] <= driver)
            and self.oldest_capability <= host.oldest_capability
            and python <= self.newest_python
        )


# Newest first. On the default package index each release has one build for x86-64; those
# for aarch64 are CPU builds before 2.11.
PLAIN: Mapping[str, tuple[Release, ...]] = {
    "x86_64": (
        Release(DEFAULT_TORCH, (13, 0), 75, (3, 14), 2.7, "cu130"),
        Release("2.10.0", (12, 8), 70, (3, 14), 4.1, "cu128"),
        Release("2.7.1", (12, 6), 50, (3, 13), 3.0, "cu126"),
    ),
    "aarch64": (Release(DEFAULT_TORCH, (13, 0), 75, (3, 14), 2.7, "cu130"),),
}
# The PyTorch wheel index has a folder for each CUDA version.
INDEXED = (
    Release(DEFAULT_TORCH, (13, 0), 75, (3, 14), 2.7, "cu130"),
    Release("2.10.0", (12, 8), 70, (3, 14), 4.1, "cu128"),
    Release("2.10.0", (12, 6), 50, (3, 14), 3.5, "cu126"),
    Release("2.7.1", (11, 8), 50, (3, 13), 2.9, "cu118"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A torch to install: what pip is asked for, what it costs, and why this one."""

    requirement: str
    line: str
    size: str
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class TorchFacts:
    """
    What ``torch_facts.py`` found in an interpreter.

    Args:
        version: As torch reports it; None if it cannot be imported.
        cuda: CUDA version it was built for; None for a CPU build.
        usable: GPUs that ran a kernel.
        error: Why it cannot be imported, or why a GPU cannot be used.
        folders: Site folders of the interpreter, in import order.
    """

    version: str | None
    cuda: str | None = None
    usable: int = 0
    error: str | None = None
    folders: tuple[str, ...] = ()

    def fits(self, host: GpuHost) -> bool:
        """Whether topobench can work with it on this host."""
        if self.version is None or version_tuple(self.version) < OLDEST_TORCH:
            return False
        return self.usable > 0 or not host.has_gpus


def version_tuple(text: str) -> tuple[int, ...]:
    """(2, 13, 0) for "2.13.0+cpu"."""
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])


def read_host(root: Path) -> GpuHost:
    """Read what the NVIDIA driver shows under a root directory; no driver is no error."""
    folder = root / "proc/driver/nvidia"
    found = re.search(r"\b\d{3,}(\.\d+)+\b", _text(folder / "version"))
    information = sorted(folder.glob("gpus/*/information"))
    names = (re.search(r"(?m)^Model:\s*(.+?)\s*$", _text(path)) for path in information)
    return GpuHost(
        driver=found.group() if found else None,
        models=tuple(name.group(1) if name else "unknown" for name in names),
        device_files=sum(1 for p in root.glob("dev/nvidia[0-9]*") if p.name[6:].isdigit()),
        container=any((root / p).exists() for p in (".dockerenv", "run/.containerenv")),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def choose(host: GpuHost, *, machine: str, python: tuple[int, int], indexed: bool) -> Choice:
    """
    Pick the torch to install.

    Args:
        machine: As ``uname -m``.
        indexed: Whether the user named a PyTorch wheel index, which has more builds.

    Raises:
        NoTorchFits: No known release can use this host's GPUs.
    """
    if not host.has_gpus:
        return _for_cpu(host, machine=machine, indexed=indexed)
    releases = INDEXED if indexed else PLAIN.get(machine, ())
    for release in releases:
        if release.runs_on(host, python):
            return _chosen(release, host)
    raise NoTorchFits(_why_none(host, machine=machine, python=python, indexed=indexed))


def _for_cpu(host: GpuHost, *, machine: str, indexed: bool) -> Choice:
    small = indexed or machine != "x86_64"
    why = "no NVIDIA GPU here"
    if host.models:
        why = "the driver lists GPUs, but this container has no /dev/nvidia0"
    size = "about 0.2 GB" if small else "0.2 GB as a CPU build; 2.7 GB if the index has only CUDA"
    return Choice(f"torch=={DEFAULT_TORCH}", "cpu", size, why)


def _chosen(release: Release, host: GpuHost) -> Choice:
    cuda = f"CUDA {release.cuda[0]}.{release.cuda[1]}"
    if host.driver is None:
        why = f"GPUs here, driver version unknown: the newest, {cuda}"
    else:
        oldest = OLDEST_DRIVER[release.cuda[0]]
        why = f"driver {host.driver} runs {cuda} (drivers from {oldest} on)"
    return Choice(f"torch=={release.version}", release.line, f"about {release.download_gb} GB", why)


def _why_none(host: GpuHost, *, machine: str, python: tuple[int, int], indexed: bool) -> str:
    models = ", ".join(sorted(set(host.models))) or "unknown GPUs"
    wish = "a newer driver (525 or later; on aarch64 580 or later)"
    if not indexed:
        wish += ", or TOPOBENCH_TORCH_INDEX set to a PyTorch wheel index, which has more builds"
    if python > (3, 13):
        wish += ", or TOPOBENCH_PYTHON set to Python 3.13 or older, which older builds need"
    return (
        f"no known torch >= 2.6 fits driver {host.driver or 'unknown'} with {models} on {machine} "
        f"and Python {python[0]}.{python[1]}. It takes {wish}; or name one yourself with "
        "TOPOBENCH_TORCH (docs/install.md)"
    )


def mend(host: GpuHost, facts: TorchFacts, *, choice: str | None) -> str:
    """
    Why torch cannot use this host's GPUs, with versions and the command that mends it.

    Args:
        choice: Requirement :func:`choose` gives for the host, or None.
    """
    seen = f"driver {host.driver or 'unknown'}, torch {facts.version}, CUDA {facts.cuda or 'none'}"
    again = f"TOPOBENCH_TORCH='{choice or f'torch=={DEFAULT_TORCH}'}' ./scripts/topobench doctor"
    if facts.cuda is None:
        return (
            f"this host has GPUs, but torch is a CPU build ({seen}). pip took it from "
            "PIP_FIND_LINKS, PIP_INDEX_URL or its configuration; with a source of CUDA builds: "
            + again
        )
    oldest = OLDEST_DRIVER.get(version_tuple(facts.cuda)[0])
    if oldest and host.driver_major and host.driver_major < oldest:
        return f"the driver is too old for this torch ({seen}; it needs {oldest}). Run: {again}"
    return (
        f"torch cannot use this host's GPUs ({seen}): {facts.error or 'no GPU found'}. "
        "Check with: nvidia-smi && systemctl status nvidia-fabricmanager; then call again"
    )


def main() -> int:
    """Print the choice for this host."""
    host = read_host(Path("/"))
    print(f"driver {host.driver}, {len(host.models)} GPUs listed, {host.device_files} device files")
    try:
        choice = choose(
            host, machine=platform.machine(), python=sys.version_info[:2], indexed=False
        )
    except NoTorchFits as error:
        print(error)
        return 1
    print(f"{choice.requirement} ({choice.size}): {choice.why}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
