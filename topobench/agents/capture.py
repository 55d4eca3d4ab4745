"""
Captured machines: a folder, or a tarball of one, opened for reading.

A tarball comes from anywhere. Its members are written below a fresh folder and nowhere else,
links last and never out of it, and sizes are bounded while it is decompressed.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import os
import posixpath
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from topobench import user_files
from topobench.errors import DiscoveryError

MOST_BYTES = 512 << 20
"""Decompressed; captures hold many small files."""
MOST_MEMBERS = 150_000
LARGEST_MEMBER = 16 << 20
LONGEST_NAME = 1024
_DEEPEST = 64
_GZIP, _BZIP2 = b"\x1f\x8b", b"BZh"


@contextlib.contextmanager
def opened(place: Path) -> Iterator[Path]:
    """
    The folder of a captured machine.

    Args:
        place: A folder, or a tarball (plain, gzip or bzip2), which is unpacked while in use.

    Raises:
        DiscoveryError: It is neither, or not a sane tarball.
    """
    if place.is_dir():
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="topobench-capture-") as folder:
        root = Path(folder)
        try:
            with user_files.open_regular(place) as file:
                _unpack(file, root)
        except _Insane as error:
            raise DiscoveryError(f"{place}: {error}") from error
        except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError) as error:
            raise DiscoveryError(
                f"{place}: it cannot be read as a tarball: {error}; give what `topobench topo "
                "gather` wrote; another tool's file is read by `topobench topo import`"
            ) from error
        yield _machine(root, place)


def _machine(root: Path, place: Path) -> Path:
    """The folder with ``sys`` in it: the top one, or the only one in it."""
    if (root / "sys").is_dir():
        return root
    inner = [p for p in root.iterdir() if p.is_dir() and not p.is_symlink()]
    if len(inner) == 1 and (inner[0] / "sys").is_dir():
        return inner[0]
    raise DiscoveryError(f"{place}: it holds no folder sys, so no machine")


class _Insane(Exception):
    """No honest capture looks like this."""


class _Bounded:
    """Reads a stream, and no more of it than :data:`MOST_BYTES`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.left = stream, MOST_BYTES

    def read(self, size: int) -> bytes:
        if size > self.left:
            raise _Insane(f"more than {MOST_BYTES >> 20} MiB when unpacked")
        data = self.stream.read(size)
        self.left -= len(data)
        return data


def _unpack(file: IO[bytes], root: Path) -> None:
    links: dict[str, str] = {}
    with _decompressed(file) as stream:
        bounded: Any = _Bounded(stream)
        with tarfile.open(fileobj=bounded, mode="r|") as archive:
            for count, member in enumerate(archive):
                if count >= MOST_MEMBERS:
                    raise _Insane(f"more than {MOST_MEMBERS} members")
                name = _safe_name(member.name)
                if not name:
                    continue
                if member.issym():
                    links[name] = member.linkname
                elif member.isdir():
                    (root / name).mkdir(parents=True, exist_ok=True)
                elif member.isreg():
                    _write(archive, member, root / name)
    for name, target in links.items():
        _link(root, name, target)


def _decompressed(file: IO[bytes]) -> contextlib.AbstractContextManager[Any]:
    start = file.read(3)
    file.seek(0)
    if start.startswith(_GZIP):
        return gzip.open(file)
    if start == _BZIP2:
        return bz2.open(file)
    return contextlib.nullcontext(file)


def _safe_name(name: str) -> str:
    """A path below the folder, without dots."""
    clean = posixpath.normpath(name)
    parts = clean.split("/")
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise _Insane(f"member {name[:80]!r} leads out of the capture")
    if len(name) > LONGEST_NAME or len(parts) > _DEEPEST:
        raise _Insane(f"member {name[:40]!r}... has too long a name")
    return "" if clean == "." else clean


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.size > LARGEST_MEMBER:
        raise _Insane(f"member {member.name[:80]!r} has {member.size} bytes")
    source = archive.extractfile(member)
    if source is None or path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as target:
        target.write(source.read())


def _link(root: Path, name: str, target: str) -> None:
    """
    A link, which stays inside: an absolute one counts from the capture's own root.

    One that would lead out is left out, as one that hangs in the air there.
    """
    above = posixpath.dirname(name)
    if target.startswith("/"):
        inside = posixpath.normpath(target.lstrip("/") or ".")
        target = posixpath.relpath(inside, above or ".")
    led = posixpath.normpath(posixpath.join(above, target))
    path = root / name
    if led.startswith("..") or len(target) > LONGEST_NAME or os.path.lexists(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, path)
