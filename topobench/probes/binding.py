"""
Where the kernel really put this process: threads, memory policy, pages.

System calls by number through ctypes, so that nothing has to be installed: numaif.h has
no wrapper in the C library. CPU and memory binding are separate facts, since containers
often allow the one and forbid the other.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from topobench.reading import MemoryPolicy
from topobench.units import format_cpu_list, parse_cpu_list

DENIED = "denied"
UNSUPPORTED = "unsupported"

_NUMBERS = {  # set_mempolicy, get_mempolicy, move_pages
    "x86_64": (238, 239, 279),
    "aarch64": (237, 236, 239),
}
_MODES = {MemoryPolicy.DEFAULT: 0, MemoryPolicy.BIND: 2, MemoryPolicy.INTERLEAVE: 3}
_NAMES = {
    0: "default",
    1: "preferred",
    2: "bind",
    3: "interleave",
    4: "local",
    5: "preferred_many",
    6: "weighted_interleave",
}
_MODE_FLAGS = 0xE000  # MPOL_F_STATIC_NODES, _RELATIVE_NODES, _NUMA_BALANCING
_MAX_NODES = 1024
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_MASK = ctypes.c_ulong * (_MAX_NODES // _WORD_BITS)
_MAX_PAGES = 16384


def set_cpus(cpus: Iterable[int] | None) -> None:
    """
    Set the affinity of every thread of this process.

    Args:
        cpus: None resets it to all that the cpuset allows.

    Raises:
        OSError: EINVAL if none of them is allowed.
    """
    wanted = range(_possible_cpus()) if cpus is None else tuple(cpus)
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), wanted)


def thread_cpus() -> dict[int, frozenset[int]]:
    """Affinity of every thread of this process, by thread id."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            found[int(thread)] = frozenset(os.sched_getaffinity(int(thread)))
        except ProcessLookupError:
            continue  # it ended between the two calls
    return found


def set_policy(policy: MemoryPolicy, nodes: Sequence[int]) -> None:
    """
    Set the memory policy of this thread and of threads it starts later.

    Raises:
        OSError: EPERM where a container forbids it, EINVAL if no node is allowed,
            ENOSYS on a kernel or machine without it.
    """
    mask = _MASK()
    for node in nodes:
        if not 0 <= node < _MAX_NODES:
            raise OSError(errno.EINVAL, f"NUMA node {node} cannot exist")
        mask[node // _WORD_BITS] |= 1 << (node % _WORD_BITS)
    # The kernel reads one bit less than it is told.
    given = (mask, _MAX_NODES + 1) if nodes else (None, 0)
    _call(0, ctypes.c_int(_MODES[policy]), given[0], ctypes.c_ulong(given[1]))


def get_policy() -> str:
    """
    The memory policy of this thread as the kernel says.

    Returns:
        ``default``, ``bind:0``, ``interleave:0-1`` ..., ``denied`` or ``unsupported``.
    """
    mode, mask = ctypes.c_int(), _MASK()
    try:
        _call(1, ctypes.byref(mode), mask, ctypes.c_ulong(_MAX_NODES + 1), None, ctypes.c_ulong(0))
    except OSError as error:
        return refusal(error)
    number = mode.value & ~_MODE_FLAGS
    name = _NAMES.get(number, str(number))
    words = enumerate(mask)
    nodes = [w * _WORD_BITS + b for w, word in words for b in range(_WORD_BITS) if word >> b & 1]
    return f"{name}:{format_cpu_list(nodes)}" if nodes else name


def policy_text(policy: MemoryPolicy, nodes: Sequence[int]) -> str:
    """How :func:`get_policy` would print that policy."""
    if policy is MemoryPolicy.DEFAULT:
        return policy.value
    return f"{policy.value}:{format_cpu_list(nodes)}"


def refusal(error: OSError) -> str:
    """``unsupported`` or ``denied``: what it means that a policy call failed so."""
    return UNSUPPORTED if error.errno == errno.ENOSYS else DENIED


def page_nodes(address: int, size_bytes: int) -> Counter[int]:
    """
    On which NUMA node the pages of a buffer lie.

    Args:
        address: Of its first byte; the pages must have been touched.
        size_bytes: Large buffers are sampled evenly (16384 pages).

    Returns:
        Pages by NUMA node; pages without a node (untouched) are left out.

    Raises:
        OSError: The kernel refuses to say.
    """
    page = os.sysconf("SC_PAGESIZE")
    first = address // page
    count = (address + size_bytes - 1) // page - first + 1 if size_bytes > 0 else 0
    step = max(1, -(-count // _MAX_PAGES))
    asked = range(first, first + count, step)
    addresses = (ctypes.c_void_p * len(asked))(*(p * page for p in asked))
    nodes = (ctypes.c_int * len(asked))()
    _call(2, ctypes.c_int(0), ctypes.c_ulong(len(asked)), addresses, None, nodes, ctypes.c_int(0))
    return Counter(node for node in nodes if node >= 0)


def node_of(cpus: Iterable[int]) -> int | None:
    """The NUMA node that has all these CPUs; None if several have, or unknown."""
    wanted = frozenset(cpus)
    for path in Path("/sys/devices/system/node").glob("node[0-9]*/cpulist"):
        if wanted and wanted <= frozenset(parse_cpu_list(path.read_text())):
            return int(path.parent.name.removeprefix("node"))
    return None


def _possible_cpus() -> int:
    """One more than the highest CPU number this kernel can have."""
    try:
        return parse_cpu_list(Path("/sys/devices/system/cpu/possible").read_text())[-1] + 1
    except (OSError, IndexError):
        return os.cpu_count() or 1


def _call(which: int, *arguments: object) -> None:
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        raise OSError(errno.ENOSYS, f"no system call numbers known for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(numbers[which]), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
