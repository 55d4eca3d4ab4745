"""The bodies of ``topobench topo``: topologies from hosts, captures and files, and to formats."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from topobench import user_files
from topobench.agents import capture
from topobench.agents.discover import discover
from topobench.agents.discover.fingerprint import fingerprints
from topobench.agents.gather import gather
from topobench.errors import DiscoveryError, ImportFailed, UsageError
from topobench.exporters import dot, hwloc_xml, matrix, nccl_xml, svg
from topobench.exporters.exported import Exported
from topobench.importers import hwloc_xml as hwloc_in
from topobench.importers import nccl_xml as nccl_in
from topobench.importers import own_json, smi_matrix
from topobench.importers.document import clean
from topobench.paths import find_paths
from topobench.sweep import utc_now
from topobench.topology import Path as Way
from topobench.topology import PathClass, Topology
from topobench.topology_diff import TopologyDiff, diff

EXPORTERS: dict[str, Callable[[Topology], Exported]] = {
    "matrix": matrix.export,
    "svg": svg.export,
    "dot": dot.export,
    "nccl": nccl_xml.export,
    "hwloc": hwloc_xml.export,
}
"""Format -> what writes it."""
IMPORTERS: dict[str, Callable[[str], Topology]] = {
    "smi": smi_matrix.parse,
    "hwloc": hwloc_in.parse,
    "nccl": nccl_in.parse,
    "json": own_json.parse,
}
"""Format -> what reads it."""
LIVE = "live"
"""What a user calls this host."""
MAX_BYTES = 64 << 20


def captured_or_live(root: Path) -> Topology:
    """
    The wiring of this host, or of a captured one: a folder, or a tarball of one.

    Raises:
        UsageError: There is nothing of that name.
        DiscoveryError: It holds no machine.
    """
    if root == Path("/"):
        return discover()
    if not root.exists():
        raise UsageError(f"{root}: there is no such folder or tarball")
    with capture.opened(root) as folder:
        return replace(discover(str(folder)), root=str(root))


def from_file(kind: str, file: Path) -> Topology:
    """
    The topology in a file of another tool, with the paths that follow from it.

    Args:
        kind: A key of :data:`IMPORTERS`.
        file: ``-`` is standard input.

    Raises:
        ImportFailed: It cannot be read; the message names the file.
    """
    try:
        topology = IMPORTERS[kind](_text(file))
    except ImportFailed as error:
        raise ImportFailed(f"{clean(str(file))}: {error}") from error
    return _completed(kind, topology)


def _completed(kind: str, topology: Topology) -> Topology:
    """With a date, and with what discovery, too, derives from the rest."""
    if kind == "json":
        return topology
    topology = replace(topology, taken_at=utc_now())
    if kind != "smi":  # whose text is nothing but paths
        found = find_paths(topology)
        paths = found.paths if kind != "nccl" else _without_ports(topology, found.paths)
        topology = replace(topology, paths=paths, warnings=(*topology.warnings, *found.warnings))
    return replace(topology, fingerprints=fingerprints(topology))


def _without_ports(topology: Topology, paths: Sequence[Way]) -> tuple[Way, ...]:
    """
    Paths of a tree in which one bridge stands for a whole switch, as NCCL has it.

    Only devices below the very same one are PIX to each other.
    """
    parents = {d.address: d.parent for d in topology.pci}
    ends = {g.name: parents.get(g.pci_address or "") for g in topology.gpus}
    ends |= {f"nic:{n.name}": parents.get(n.pci_address or "") for n in topology.nics}

    def amended(path: Way) -> Way:
        if path.smi_pcie != PathClass.PIX or ends.get(path.a) == ends.get(path.b):
            return path
        smi = PathClass.PXB if path.smi == path.smi_pcie else path.smi
        return replace(path, smi=smi, smi_pcie=PathClass.PXB)

    return tuple(map(amended, paths))


def _text(file: Path) -> str:
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            data = user_files.read(file, MAX_BYTES)
    except OSError as error:
        raise ImportFailed(f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ImportFailed(f"more than {MAX_BYTES >> 20} MiB; no topology is that large")
    return data.decode("utf-8", "replace")


def side(name: str) -> Topology:
    """
    One side of a comparison: ``live``, a captured machine, or a document of our own.

    Raises:
        UsageError: There is nothing of that name.
    """
    place = Path("/" if name == LIVE else name)
    if not place.exists():
        raise UsageError(f"{name}: there is no such file or folder; give one, or {LIVE}")
    if place.is_file() and _is_document(place):
        return from_file("json", place)
    return captured_or_live(place)


def _is_document(file: Path) -> bool:
    """Whether a file begins as JSON does, not as a tarball."""
    try:
        with file.open("rb") as opened:
            start = opened.read(256)
    except OSError as error:
        raise DiscoveryError(f"{file} cannot be read: {error.strerror}") from error
    return start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"")


def compared(a: str, b: str) -> tuple[dict[str, Any], TopologyDiff]:
    """The ``data`` of ``topo diff``, and the differences."""
    sides = {"a": (a, side(a)), "b": (b, side(b))}
    found = diff(sides["a"][1], sides["b"][1])
    ends = {
        key: {
            "name": clean(name),
            "taken_at": topology.taken_at,
            "fingerprints": dict(topology.fingerprints),
        }
        for key, (name, topology) in sides.items()
    }
    return {**ends, **found.to_json()}, found


def gathered(target: Path, root: Path) -> dict[str, Any]:
    """
    Write a capture; the ``data`` of ``topo gather``.

    Raises:
        UsageError: ``root`` is neither a folder nor a tarball.
    """
    if root == Path("/"):
        done = gather(target)
    else:
        if not root.exists():
            raise UsageError(f"--root: {root}: there is no such folder or tarball")
        with capture.opened(root) as folder:
            done = gather(target, folder)
    return {
        "file": str(target),
        "members": done.members,
        "bytes": done.bytes,
        "fingerprints": dict(done.topology.fingerprints),
    }
