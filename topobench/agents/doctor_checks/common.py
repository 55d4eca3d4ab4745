"""What every check works with: the host as it was found, the finding it gives, shared lines."""

from __future__ import annotations

import enum
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from topobench.agents.discover.tree import Tree
from topobench.errors import DiscoveryError
from topobench.host import HostFacts
from topobench.topology import Gpu, Topology

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a program that only reads; raises DiscoveryError when it cannot be run."""


class Level(enum.StrEnum):
    """How bad a finding is; ``error`` means that some probe cannot give a right number."""

    OK = "ok"
    WARN = "warn"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One thing about a host that matters to its numbers.

    Args:
        check: Name of the check, stable.
        found: What is there now; for ``unknown``, why it could not be read.
        wanted: What would be right.
        why: What it does to a measurement.
        fix: One line for a shell, or for the file that ``why`` names; never run by us.
            Words in capitals (IMAGE) stand for what only the reader knows.
        undo: The line that brings back what was found; None when nothing is left to undo.
    """

    check: str
    level: Level
    found: str
    wanted: str
    why: str
    fix: str | None = None
    undo: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """
    The host under examination, live or captured; paths are absolute, as on that host.

    Args:
        run: None when no program may be run (a captured tree).
    """

    tree: Tree
    topology: Topology
    facts: HostFacts
    env: Mapping[str, str]
    run: Run | None

    def read(self, name: str) -> str | None:
        """The stripped text of a file, or None if there is none to read."""
        return self.tree.text(name.lstrip("/"))

    def path(self, name: str) -> Path:
        """Where a path of the host is found here."""
        return Path(self.tree.path(name.lstrip("/")))

    def glob(self, pattern: str) -> list[str]:
        """The paths that match, in natural order."""
        found = self.path("/").glob(pattern.lstrip("/"))
        return sorted((f"/{p.relative_to(self.tree.root)}" for p in found), key=_natural)

    def ask(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """
        What a reading program answers.

        Raises:
            DiscoveryError: It may not or cannot be run.
        """
        if self.run is None:
            raise DiscoveryError(f"{argv[0]} is not run for a captured tree")
        return self.run(argv)

    @property
    def container(self) -> str | None:
        """``kubernetes``, ``docker`` or another engine; None on the host itself."""
        if "KUBERNETES_SERVICE_HOST" in self.env:
            return "kubernetes"
        return self.topology.machine.container

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Whole GPUs, without their MIG slices."""
        return tuple(g for g in self.topology.gpus if not g.is_slice)

    @property
    def has_rdma(self) -> bool:
        """Whether an RDMA device is there."""
        return bool(self.tree.names("sys/class/infiniband"))

    def runs_program(self, name: str) -> bool:
        """Whether a process of that name is in sight; the kernel keeps 15 letters of it."""
        return any(self.read(path) == name[:15] for path in self.glob("/proc/[0-9]*/comm"))

    def cgroup_files(self, controller: str, name: str) -> Iterator[str]:
        """
        A control file of this process's cgroup and of those above it.

        Args:
            controller: Of cgroup v1 (``cpu``), or empty for cgroup v2.
        """
        for line in (self.read("/proc/self/cgroup") or "").splitlines():
            _, controllers, own = line.split(":", 2)
            if controller not in controllers.split(","):
                continue
            for folder in (PurePosixPath(own), *PurePosixPath(own).parents):
                path = str(PurePosixPath("/sys/fs/cgroup", controller, f".{folder}", name))
                if self.path(path).is_file():
                    yield path


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What a check found; its name, wish and reason are the check's own.

    Args:
        note: What this case adds to the reason.
    """

    level: Level
    found: str
    fix: str | None = None
    undo: str | None = None
    note: str | None = None


def ok(found: str) -> Outcome:
    """As wanted."""
    return Outcome(Level.OK, found)


def unknown(reason: str, fix: str | None = None, undo: str | None = None) -> Outcome:
    """Not readable; the fix, if any, makes it right whatever it is now."""
    return Outcome(Level.UNKNOWN, reason, fix, undo)


def warn(
    found: str, fix: str | None = None, undo: str | None = None, *, note: str | None = None
) -> Outcome:
    """Numbers are right, but slower, noisier or fewer than they could be."""
    return Outcome(Level.WARN, found, fix, undo, note)


def error(
    found: str, fix: str | None = None, undo: str | None = None, *, note: str | None = None
) -> Outcome:
    """Some probe cannot give a right number here."""
    return Outcome(Level.ERROR, found, fix, undo, note)


@dataclass(frozen=True, slots=True)
class Check:
    """A named question about a host; ``look`` gives None where it does not apply."""

    name: str
    wanted: str
    why: str
    look: Callable[[Subject], Outcome | None]

    def __call__(self, subject: Subject) -> Finding | None:
        """The finding; a value that cannot be read or understood is ``unknown``."""
        try:
            outcome = self.look(subject)
        except (DiscoveryError, OSError, ValueError, IndexError) as failure:
            outcome = unknown(str(failure))
        if outcome is None:
            return None
        why = f"{self.why}; {outcome.note}" if outcome.note else self.why
        return Finding(
            self.name, outcome.level, outcome.found, self.wanted, why, outcome.fix, outcome.undo
        )


def check(*, wanted: str, why: str) -> Callable[[Callable[[Subject], Outcome | None]], Check]:
    """Turn a function into the check that carries its name."""

    def named(look: Callable[[Subject], Outcome | None]) -> Check:
        return Check(look.__name__, wanted, why, look)

    return named


def engine(subject: Subject) -> str:
    """The program that starts this kind of container."""
    return "podman" if subject.container == "podman" else "docker"


def install(subject: Subject, package: Mapping[str, str]) -> tuple[str | None, str | None]:
    """
    The line that installs a system package, and the one that removes it.

    Args:
        package: Package name by family: ``debian``, ``fedora``, ``suse``, ``alpine``, ``arch``.
    """
    lines = {
        "debian": ("sudo apt-get install -y {}", "sudo apt-get remove -y {}"),
        "fedora": ("sudo dnf install -y {}", "sudo dnf remove -y {}"),
        "suse": ("sudo zypper install -y {}", "sudo zypper remove -y {}"),
        "alpine": ("sudo apk add {}", "sudo apk del {}"),
        "arch": ("sudo pacman -S --noconfirm {}", "sudo pacman -R --noconfirm {}"),
    }
    family = _family(subject)
    if family not in lines or family not in package:
        return None, None
    fix, undo = lines[family]
    return fix.format(package[family]), undo.format(package[family])


def _family(subject: Subject) -> str | None:
    """The package family of the host, by /etc/os-release."""
    text = subject.read("/etc/os-release") or subject.read("/usr/lib/os-release") or ""
    values = dict(re.findall(r'^(ID|ID_LIKE)="?([^"\n]*)"?$', text, re.MULTILINE))
    names = [values.get("ID", ""), *values.get("ID_LIKE", "").split()]
    families = {
        "debian": ("debian", "ubuntu"),
        "fedora": ("fedora", "rhel", "centos", "amzn", "rocky", "almalinux"),
        "suse": ("suse", "sles", "opensuse"),
        "alpine": ("alpine",),
        "arch": ("arch",),
    }
    return next((f for n in names for f, known in families.items() if n in known), None)


def write_line(value: str, *paths: str) -> str:
    """The shell line that writes a kernel setting."""
    quoted = value if re.fullmatch(r"[\w.-]+", value) else f"'{value}'"
    return f"echo {quoted} | sudo tee {' '.join(paths)}"


def restore_line(found: Mapping[str, str], pattern: str) -> str:
    """
    The shell line that writes back what was found.

    Args:
        found: Path -> value.
        pattern: Glob that stands for all the paths when they hold one value.
    """
    by_value: dict[str, list[str]] = {}
    for path, value in found.items():
        by_value.setdefault(value, []).append(path)
    if len(by_value) == 1:
        return write_line(next(iter(by_value)), pattern)
    return "; ".join(write_line(value, *paths) for value, paths in by_value.items())


def count(values: Sequence[str]) -> str:
    """Equal values with how often they occur: "powersave x62, performance x2"."""
    return ", ".join(f"{v} x{n}" if n > 1 else v for v, n in Counter(values).most_common())


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", text)]
