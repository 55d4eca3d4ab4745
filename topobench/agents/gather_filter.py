"""What of a machine's files may go into a capture, and what is left out of them."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Mapping

from topobench.agents.discover.tree import Tree
from topobench.topology import Topology

KEPT_VARIABLES = (
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "KUBERNETES_SERVICE_HOST",
    "container",
)
_BOOT_FLAGS = ("iommu", "intel_iommu", "amd_iommu", "pci", "numa", "isolcpus", "nohz_full")
_CGROUP_MARKS = ("kubepods", "docker", "containerd", "libpod", "lxc")
_CARD_BY_ADDRESS = re.compile(r"\b(en|wl)x[0-9a-f]{12}\b")
"""Interfaces that udev names by their MAC address."""
_KEPT_CAPABILITIES = {0x10: 60}
"""Of a configuration space: the PCI Express capability; of the others only where they are."""
_EXTENDED_ACS, _ACS_SIZE = 0x000D, 8


class Scrubber:
    """
    Decides what is kept of each file and how names are written.

    Attributes:
        made: Files that the tree has in another form, or not at all.
    """

    def __init__(self, tree: Tree, topology: Topology) -> None:
        self.groups = _groups(tree)
        self.mounts = _cgroup_mounts(tree)
        self.cards: dict[str, str] = {}
        self.made = _made(tree, topology)

    def content(self, name: str, data: bytes) -> bytes | None:
        """What of a file may be kept; None leaves it out."""
        if posixpath.basename(name) == "config":
            return _config(data)
        if name in ("proc/self/mounts", "proc/mounts"):
            return _lines(data, _mount)
        if name in ("proc/self/cgroup", "proc/self/cpuset"):
            return self._cgroup(data.decode("utf-8", "replace")).encode()
        for pattern, keep in _LINES.items():
            if re.fullmatch(pattern, name):
                return _lines(data, keep)
        return data

    def name(self, name: str) -> str:
        """A member's name: groups and cards that are called by an id get another."""
        for mount in self.mounts:
            if name.startswith(f"{mount}/"):
                inside = name.removeprefix(f"{mount}/").split("/")
                name = "/".join([mount, *(self.groups.get(part, part) for part in inside)])
                break
        return self.target(name)

    def target(self, text: str) -> str:
        """What a link leads to."""
        return _CARD_BY_ADDRESS.sub(self._card, text)

    def _card(self, match: re.Match[str]) -> str:
        return self.cards.setdefault(match[0], f"{match[1]}x{len(self.cards):012x}")

    def _cgroup(self, text: str) -> str:
        lines = []
        for line in text.splitlines():
            head, colon, path = line.rpartition(":")
            parts = [self.groups.get(part, part) for part in path.split("/")]
            lines.append(f"{head}{colon}{'/'.join(parts)}")
        return "\n".join(lines) + "\n"


def _made(tree: Tree, topology: Topology) -> dict[str, bytes]:
    """What a live host tells by other ways than files."""
    lists = {"Cpus_allowed_list": topology.cpus.allowed}
    status = tree.text("proc/self/status") or ""
    nodes = re.search(r"^Mems_allowed_list:\s*(\S+)", status, re.MULTILINE)
    lists["Mems_allowed_list"] = nodes[1] if nodes else None
    made = {
        "proc/self/status": "".join(f"{k}:\t{v}\n" for k, v in lists.items() if v),
        "proc/sys/kernel/osrelease": f"{topology.machine.kernel or ''}\n",
        "proc/sys/kernel/arch": f"{topology.machine.arch or ''}\n",
    }
    if tree.live and (named := os.environ.get("TOPOBENCH_NUMA_FILE")):
        with open(named, encoding="utf-8") as file:
            made["etc/topobench/numa.yaml"] = _uncommented(file.read())
    return {name: text.encode() for name, text in made.items() if text.strip()}


def _groups(tree: Tree) -> dict[str, str]:
    """Parts of control groups' paths -> names that keep only what tells of a container."""
    found: dict[str, str] = {}
    texts = [tree.text("proc/self/cgroup") or "", tree.text("proc/self/cpuset") or ""]
    for line in "\n".join(texts).splitlines():
        for part in line.rpartition(":")[2].split("/"):
            if part:
                marks = "-".join(mark for mark in _CGROUP_MARKS if mark in part)
                found.setdefault(part, f"{marks or 'group'}{len(found)}")
    return found


def _cgroup_mounts(tree: Tree) -> list[str]:
    text = tree.text("proc/self/mounts") or tree.text("proc/mounts") or ""
    fields = [line.split() for line in text.splitlines() if _mount(line)]
    return sorted((f[1].lstrip("/") for f in fields), key=len, reverse=True)


def _lines(data: bytes, keep: Callable[[str], str | None]) -> bytes:
    lines = data.decode("utf-8", "replace").splitlines()
    kept = (keep(line) for line in lines)
    return "".join(f"{line}\n" for line in kept if line is not None).encode()


def _mount(line: str) -> str | None:
    fields = line.split()
    if len(fields) < 4 or fields[2] not in ("cgroup", "cgroup2", "cpuset"):
        return None
    return " ".join([fields[2], *fields[1:4], "0", "0"])


def _only(pattern: str) -> Callable[[str], str | None]:
    return lambda line: line if re.match(pattern, line) else None


def _without(pattern: str) -> Callable[[str], str | None]:
    return lambda line: None if re.match(pattern, line) else line


def _version(line: str) -> str:
    """Without who built the kernel, and where."""
    return " ".join(line.split()[:3])


def _boot_line(line: str) -> str:
    return " ".join(w for w in line.split() if w.partition("=")[0] in _BOOT_FLAGS)


def _uncommented(text: str) -> str:
    return "".join(f"{line.partition('#')[0].rstrip()}\n" for line in text.splitlines())


_LINES: Mapping[str, Callable[[str], str | None]] = {
    "proc/self/status": _only(r"(Cpus|Mems)_allowed_list:"),
    "proc/cpuinfo": _without(r"Serial\b"),
    "proc/version": _version,
    "proc/cmdline": _boot_line,
    "(etc|usr/lib)/os-release": _only("PRETTY_NAME="),
    "etc/topobench/numa.yaml": lambda line: line.partition("#")[0].rstrip(),
    r"proc/driver/nvidia/gpus/[^/]+/information": _only("(Model|GPU UUID|Bus Location):"),
    "proc/driver/nvidia/version": _only("NVRM version:"),
}
"""Files of which only some lines are kept: each line as it is kept, or None."""


def _config(data: bytes) -> bytes:
    """
    A configuration space with what discovery looks at; the rest is zero.

    Devices keep their serial number in it, network cards their address.
    """
    kept = bytearray(len(data))
    kept[:64] = data[:64]
    offset = data[0x34] & ~3 if len(data) > 0x34 and data[6] & 0x10 else 0
    seen: set[int] = set()
    while 64 <= offset < min(len(data), 256) - 1 and offset not in seen:
        seen.add(offset)
        size = _KEPT_CAPABILITIES.get(data[offset], 2)
        kept[offset : offset + size] = data[offset : offset + size]
        offset = data[offset + 1] & ~3
    offset = 256
    while 256 <= offset <= len(data) - 4 and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(data[offset : offset + 4], "little")
        size = _ACS_SIZE if header & 0xFFFF == _EXTENDED_ACS else 4
        kept[offset : offset + size] = data[offset : offset + size]
        offset = header >> 20
    return bytes(kept)
