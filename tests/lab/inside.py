"""
Runs in the guest: what discovery and the launcher say there, and what others say.

Its argument is the shape. Prints one JSON document for each name that it is looked at under
(``PARTS``): ``topology``, and as witnesses ``numactl`` (--hardware) and ``lstopo`` (XML). For
some there are ``cells`` too, each with its binding, its run, and what was ``seen`` of the
worker from outside while it measured; and ``jobs``, those of ``workers.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.shapes import SHAPES
from lab.workers import run_jobs
from topobench.agents import preflight
from topobench.agents.discover import discover
from topobench.agents.launch import Launcher, Limits
from topobench.bindings import numa_matrix, resolve
from topobench.config import BindingChoice
from topobench.host import Host, HostFacts
from topobench.reading import Arm, Binding, Case, Cell, to_json
from topobench.topology import Topology

ARRAY_BYTES = 16 << 20
ARMS = {
    "two": ("none", "cpu0-mem1", "cpu1-mem1", "spread"),
    "four": ("cpu3-mem0", "spread"),
    "memless": ("cpu0-mem1", "spread"),
}
"""Arms that are measured, by shape: emulation makes each of them slow."""
_ARRAY_PAGES = ARRAY_BYTES // 4096
"""A mapping with that many pages is an array, or several side by side."""


PARTS = {"classes": ("classes", "two", "cpuset")}
"""Shapes that are looked at in the guest of another, which has all that they have."""


def main() -> None:
    """Print the documents, by name."""
    shape = sys.argv[1]
    parts = PARTS.get(shape, (shape,))
    found = {}
    if "cpuset" in parts:  # first: threads of ours would not be in the child
        found["cpuset"] = _in_cpuset(SHAPES["cpuset"].cpuset, lambda: _document("cpuset"))
    found |= {part: _document(part) for part in parts if part not in found}
    print(json.dumps(found))  # noqa: T201


def _document(part: str) -> dict[str, Any]:
    topology = discover()
    found: dict[str, Any] = {
        "topology": topology.to_json(),
        "numactl": _ask("numactl", "--hardware"),
    }
    if part == "classes":
        found["lstopo"] = _ask("lstopo-no-graphics", "--of", "xml", "--filter", "io:all")
    if part in ARMS:
        found["cells"] = list(_measure(topology, ARMS[part]))
    found["jobs"] = run_jobs(part)
    return found


def _in_cpuset(settings: Mapping[str, str], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` gives in a child that is confined to that control group."""
    group = Path("/sys/fs/cgroup/narrow")
    group.mkdir()
    for name, value in settings.items():
        (group / name).write_text(value)
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        os.close(read_end)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        with open(write_end, "w") as pipe:
            json.dump(work(), pipe)
        os._exit(0)
    os.close(write_end)
    with open(read_end) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"the child in the cpuset ended with wait status {status}")
    found: dict[str, Any] = json.loads(text)
    return found


def _ask(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def _measure(topology: Topology, arms: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Host memory under some of its arms."""
    facts = preflight.facts(topology)
    bindings = {b.name: b for b in _bindings(topology)}
    for arm in arms:
        yield _run(topology, facts, bindings[arm])


def _bindings(topology: Topology) -> Iterator[Binding]:
    """Arm none, the NUMA matrix, arm spread."""
    yield Binding("none")
    yield from (a.resolved for a in numa_matrix(topology) if isinstance(a.resolved, Binding))
    spread = resolve(BindingChoice("spread"), topology, None)
    if isinstance(spread, Binding):
        yield spread


def _run(topology: Topology, facts: HostFacts, binding: Binding) -> dict[str, Any]:
    host = Host("lab", "id", facts.hostname, "127.0.0.1", facts, topology)
    case = Case("host_memory", 1, {"op": "copy", "bytes": ARRAY_BYTES})
    cell = Cell(str(uuid.uuid4()), case, host.key, Arm(binding), estimated_seconds=5.0)
    with tempfile.TemporaryDirectory() as logs, _watching() as seen:
        launcher = Launcher(
            sweep=uuid.uuid4().hex,
            host=host,
            env={},
            log_dir=Path(logs),
            limits=Limits(least=60.0, start=120.0),  # emulated CPUs are slow
        )
        (run,) = launcher.run([cell], stop=threading.Event())
    return {
        "binding": to_json(binding),
        "run": to_json(run),
        "seen": seen,
    }


@contextlib.contextmanager
def _watching() -> Iterator[dict[str, Any]]:
    """
    Note where our workers are, from outside.

    ``cpus``: the affinity lists of threads while arrays were mapped; ``pages``: pages of the
    arrays by NUMA node, when there were most; ``policies``: the policies of those mappings.
    """
    seen: dict[str, Any] = {"cpus": [], "pages": {}, "policies": []}
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            for pid in _children():
                with contextlib.suppress(OSError):  # it ended meanwhile
                    _look(pid, seen)
            time.sleep(0.2)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def _children() -> Iterator[int]:
    for path in Path("/proc/self/task").glob("*/children"):
        yield from (int(pid) for pid in path.read_text().split())


def _look(pid: int, seen: dict[str, Any]) -> None:
    resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    if int(resident) - int(shared) < _ARRAY_PAGES:  # no array yet; the rest takes CPU time
        return
    pages: dict[str, int] = {}
    policies = set()
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if " anon=" not in line:
            continue
        _, policy, *fields = line.split()
        values = dict(f.split("=", 1) for f in fields if "=" in f)
        if "file" in values or int(values["anon"]) < _ARRAY_PAGES:
            continue
        policies.add(policy)
        for name, value in values.items():
            if name[0] == "N" and name[1:].isdigit():
                pages[name[1:]] = pages.get(name[1:], 0) + int(value)
    if sum(pages.values()) <= sum(seen["pages"].values()):
        return
    status = [p.read_text() for p in Path(f"/proc/{pid}/task").glob("*/status")]
    lists = {t.partition("Cpus_allowed_list:")[2].split()[0] for t in status}
    seen.update(pages=pages, policies=sorted(policies), cpus=sorted(lists))


if __name__ == "__main__":
    main()
