"""Reading sysfs and procfs below a root directory: ``/`` or an unpacked capture."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from topobench.pcie import parse_cpu_mask
from topobench.topology import format_cpu_list, parse_cpu_list

_LARGEST = 4 << 20
ENVIRONMENT = "topobench/environment.json"
"""Where a capture keeps the variables that discovery looks at."""
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""A capture may hold anything: no link is followed, no pipe is waited for."""


@dataclass(frozen=True, slots=True)
class Tree:
    """
    A file system whose ``sys`` and ``proc`` are read.

    What cannot be read is None: absent, denied, empty and "invalid argument" (sysfs
    answers so for a NIC that is down) mean the same to a reader.

    Args:
        root: Absolute path without links, as :meth:`open` makes it.
    """

    root: str

    @classmethod
    def open(cls, root: str | os.PathLike[str]) -> Tree:
        """The tree below ``root``, which may be a link."""
        return cls(os.path.realpath(root))

    @property
    def live(self) -> bool:
        """Whether this is the running system, not a capture."""
        return self.root == "/"

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of this process; of a capture, those that were kept in it."""
        if self.live:
            return os.environ
        try:
            kept = json.loads(self.text(ENVIRONMENT) or "{}")
        except (ValueError, RecursionError):
            kept = {}
        return {str(k): str(v) for k, v in kept.items()} if isinstance(kept, dict) else {}

    def path(self, name: str) -> str:
        """Absolute path of ``name`` ("sys/bus/pci")."""
        return f"/{name}" if self.root == "/" else f"{self.root}/{name}"

    def read(self, name: str, limit: int = _LARGEST) -> bytes | None:
        """Content of a file; its last path component may not be a link."""
        try:
            handle = os.open(self.path(name), READ_FLAGS)
        except OSError:
            return None
        try:
            chunks = []
            while limit > 0 and (chunk := os.read(handle, min(limit, 1 << 16))):
                chunks.append(chunk)
                limit -= len(chunk)
            return b"".join(chunks)
        except OSError:
            return None
        finally:
            os.close(handle)

    def text(self, name: str) -> str | None:
        """Stripped text of a file, or None where there is none."""
        data = self.read(name)
        return (data.decode("utf-8", "replace").strip(" \t\r\n\0") or None) if data else None

    def integer(self, name: str) -> int | None:
        """A file that holds one decimal or 0x number."""
        try:
            return int(self.text(name) or "", 0)
        except ValueError:
            return None

    def cpus(self, name: str) -> tuple[int, ...] | None:
        """A file that holds a list ("0-3,8"); blank is an empty set, absent is None."""
        data = self.read(name)
        try:
            return None if data is None else parse_cpu_list(data.decode("ascii").strip(" \n\0"))
        except ValueError:
            return None

    def cpu_mask(self, name: str) -> tuple[int, ...] | None:
        """A file that holds a hexadecimal mask ("00000000,000000ff")."""
        data = self.read(name)
        try:
            return None if data is None else parse_cpu_mask(data.decode("ascii"))
        except ValueError:
            return None

    def names(self, name: str) -> tuple[str, ...]:
        """Sorted entries of a directory; none where it does not exist."""
        try:
            return tuple(sorted(os.listdir(self.path(name))))
        except OSError:
            return ()

    def exists(self, name: str) -> bool:
        """Whether anything has this name, be it a dangling link."""
        return os.path.lexists(self.path(name))

    def link_name(self, name: str) -> str | None:
        """Last component of what a link points to (the driver of ``.../driver``)."""
        try:
            return os.path.basename(os.readlink(self.path(name)))
        except OSError:
            return None

    def resolve(self, name: str) -> str | None:
        """
        Path without links, relative to the root; None if absent or outside the root.

        An absolute link is taken as written on the captured machine.
        """
        path = self.path(name)
        try:
            target = os.readlink(path)
        except OSError:
            target = ""
        if target.startswith("/"):
            path = self.path(target.lstrip("/"))
        real = _real_path(path)
        prefix = self.root.rstrip("/") + "/"
        return real[len(prefix) :] if real and real.startswith(prefix) else None

    def numbered(self, name: str, prefix: str) -> tuple[int, ...]:
        """Numbers N of the entries ``<prefix>N`` of a directory, ascending."""
        found = (re.fullmatch(rf"{prefix}(\d+)", n) for n in self.names(name))
        return tuple(sorted(int(m[1]) for m in found if m))


def _real_path(path: str) -> str | None:
    """Path without links, or None if there is nothing; the kernel is asked, as it is fastest."""
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    except OSError:  # no procfs is mounted
        return os.path.realpath(path)
    finally:
        os.close(handle)


def cpu_list(cpus: tuple[int, ...] | None) -> str | None:
    """A list string, or None for an unknown set."""
    return None if cpus is None else format_cpu_list(cpus)
