"""
A tarball of exactly what discovery reads, to show a machine elsewhere.

Discovery runs over a tree that notes each name it is asked for. What goes into the tarball is
that and no more, and of files that say more than discovery needs only the lines it needs: no
serial number, MAC address, host name, process or user.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from topobench.agents.discover import discover, read_nvml
from topobench.agents.discover.facts import CAPTURE, captured
from topobench.agents.discover.tree import ENVIRONMENT, Tree
from topobench.agents.gather_filter import KEPT_VARIABLES, Scrubber
from topobench.errors import DiscoveryError
from topobench.topology import Topology

_MOST_LINKS = 40
_SELF = "proc/self"


@dataclass(frozen=True, slots=True)
class RecordingTree(Tree):
    """A tree that remembers what was asked of it."""

    touched: dict[str, None] = field(default_factory=dict)
    listed: dict[str, None] = field(default_factory=dict)

    @classmethod
    def open(cls, root: str | os.PathLike[str]) -> RecordingTree:
        """The tree below ``root``, which may be a link."""
        return cls(os.path.realpath(root))

    def path(self, name: str) -> str:
        """As :meth:`Tree.path`; every way to a file goes through here."""
        self.touched[posixpath.normpath(name)] = None
        return Tree.path(self, name)

    def names(self, name: str) -> tuple[str, ...]:
        """As :meth:`Tree.names`."""
        self.listed[posixpath.normpath(name)] = None
        return Tree.names(self, name)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was written: how many members, how many bytes packed, and the topology shown."""

    members: int
    bytes: int
    topology: Topology


def gather(target: Path, root: str | os.PathLike[str] = "/") -> Gathered:
    """
    Write the tarball of this host, or of a captured one.

    Raises:
        DiscoveryError: ``target`` exists or cannot be written, or there is no machine.
    """
    if os.path.lexists(target):
        raise DiscoveryError(f"{target} exists already; choose another name")
    tree = RecordingTree.open(root)
    nvml = read_nvml() if tree.live else captured(tree)
    topology = discover(tree, nvml=nvml)
    content = _Content(tree, Scrubber(tree, topology))
    content.take_all()
    if nvml is not None:
        content.files[CAPTURE] = json.dumps(nvml.to_json()).encode()
    if tree.live or tree.exists(ENVIRONMENT):
        content.files[ENVIRONMENT] = json.dumps(_environment(tree)).encode()
    try:
        with target.open("xb") as file:
            members = content.write(file)
    except OSError as error:
        raise DiscoveryError(f"{target} cannot be written: {error.strerror}") from error
    return Gathered(members, target.stat().st_size, topology)


def _environment(tree: Tree) -> dict[str, str]:
    """Variables discovery looks at; of an address only that it is there."""
    found = {k: tree.environment[k] for k in KEPT_VARIABLES if k in tree.environment}
    return {k: "" if k.endswith("_HOST") else v for k, v in found.items()}


@dataclass(slots=True)
class _Content:
    """Files, links and folders of the tarball, by name."""

    tree: RecordingTree
    scrubber: Scrubber
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: dict[str, None] = field(default_factory=dict)

    def take_all(self) -> None:
        """Everything that was asked for, and the entries of folders that were listed."""
        for name in [*self.tree.touched, *self.scrubber.made]:
            self._take(name)
        for folder in self.tree.listed:
            real = self._walk(folder)
            for entry in (
                os.listdir(self._at(real))
                if real is not None and os.path.isdir(self._at(real))
                else ()
            ):
                self._take_entry(posixpath.join(str(real), entry))
        self.files |= self.scrubber.made

    def _at(self, name: str | None) -> str:
        return Tree.path(self.tree, name or "")

    def _take(self, name: str) -> None:
        real = self._walk(name)
        if real is None:
            return
        mode = os.stat(self._at(real), follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            self.folders[real] = None
        elif stat.S_ISREG(mode):
            data = Tree.read(self.tree, real)
            kept = None if data is None else self.scrubber.content(name, data)
            if kept is not None:
                self.files[real] = kept

    def _take_entry(self, name: str) -> None:
        """An entry of a listed folder, of which only its name and kind were asked."""
        try:
            mode = os.lstat(self._at(name)).st_mode
            if stat.S_ISLNK(mode) and name != _SELF:
                self.links[name] = os.readlink(self._at(name))
            elif stat.S_ISDIR(mode):
                self.folders[name] = None
        except OSError:
            return

    def _walk(self, name: str) -> str | None:
        """The name without links, each link on the way kept; None if there is nothing."""
        left, real, followed = name.split("/"), "", 0
        while left:
            part = left.pop(0)
            step = posixpath.normpath(posixpath.join(real, part))
            if step in (".", "") or step.startswith(".."):
                real = ""
                continue
            try:
                mode = os.lstat(self._at(step)).st_mode
                target = os.readlink(self._at(step)) if stat.S_ISLNK(mode) else None
            except OSError:
                return None
            if target is None or step == _SELF:
                real = step
                continue
            followed += 1
            if followed > _MOST_LINKS:
                return None
            self.links[step] = target
            left = [*target.split("/"), *left]
            real = "" if target.startswith("/") else posixpath.dirname(step)
            left = [p for p in left if p]
        return real

    def write(self, file: IO[bytes]) -> int:
        """The tarball: the same content gives the same bytes."""
        count = 0
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as archive,
        ):
            for member, data in self._members():
                archive.addfile(member, io.BytesIO(data) if data is not None else None)
                count += 1
        return count

    def _members(self) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
        names = sorted({*self.files, *self.links, *self.folders})
        for name in names:
            member = tarfile.TarInfo(self.scrubber.name(name))
            member.mode = 0o644
            if name in self.links:
                member.type, member.linkname = (
                    tarfile.SYMTYPE,
                    self.scrubber.target(self.links[name]),
                )
                yield member, None
            elif name in self.files:
                member.size = len(self.files[name])
                yield member, self.files[name]
            else:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                yield member, None
