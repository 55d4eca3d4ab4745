"""Whether the kernel lets this process set a memory policy: it is asked, not guessed."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading

_NUMBERS = {  # set_mempolicy, get_mempolicy
    "x86_64": (238, 239),
    "aarch64": (237, 236),
    "riscv64": (237, 236),
    "ppc64le": (261, 260),
    "s390x": (270, 269),
}
_BIND, _F_MEMS_ALLOWED = 2, 4
_BITS = 4096
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)
_MENDING = {
    errno.EPERM: "EPERM; a container needs --cap-add SYS_NICE or a seccomp profile that allows it",
    errno.ENOSYS: "ENOSYS; the kernel is built without NUMA, or the sandbox lacks the call",
}


def memory_policy() -> str:
    """
    ``ok`` if set_mempolicy(2) and get_mempolicy(2) work here, else ``denied: ...``.

    A memory policy belongs to a thread, so a thread of its own binds itself to a node
    and reads the policy back; it ends with the thread.
    """
    answer = "denied: the thread that asked died"

    def ask() -> None:
        nonlocal answer
        try:
            answer = _ask()
        except OSError as error:
            text = _MENDING.get(error.errno or 0, errno.errorcode.get(error.errno or 0, "?"))
            answer = f"denied: {error.strerror}: {text}"

    thread = threading.Thread(target=ask, name="memory-policy")
    thread.start()
    thread.join()
    return answer


def _ask() -> str:
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        return f"denied: the system call numbers of {platform.machine()} are not known here"
    set_number, get_number = numbers
    nodes = (ctypes.c_ulong * (_BITS // _WORD))()
    _call(get_number, None, nodes, _BITS, None, _F_MEMS_ALLOWED)
    word = next(i for i, value in enumerate(nodes) if value)
    nodes = _only_lowest_bit(nodes, word)
    _call(set_number, _BIND, nodes, _BITS)
    mode = ctypes.c_int(-1)
    found = (ctypes.c_ulong * (_BITS // _WORD))()
    _call(get_number, ctypes.byref(mode), found, _BITS, None, 0)
    if mode.value != _BIND or list(found) != list(nodes):
        return "denied: set_mempolicy succeeds without effect (a sandbox's kernel?)"
    return "ok"


def _only_lowest_bit(
    nodes: ctypes.Array[ctypes.c_ulong], word: int
) -> ctypes.Array[ctypes.c_ulong]:
    kept = (ctypes.c_ulong * len(nodes))()
    kept[word] = nodes[word] & -nodes[word]
    return kept


def _call(number: int, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    typed = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    if libc.syscall(ctypes.c_long(number), *typed) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
