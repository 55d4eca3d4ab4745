"""
A system call filter as container runtimes use it: memory policy calls give EPERM.

``python seccomp.py PROGRAM ...`` runs a program under it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

CALLS = {"x86_64": (237, 238, 239), "aarch64": (235, 236, 237)}  # mbind, set_, get_mempolicy
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def forbid_memory_policy() -> None:
    """From now on this process and its children get EPERM."""
    calls = CALLS[platform.machine()]
    steps = [(_LOAD, 0, 0, 0)]  # the call's number
    steps += [(_EQUALS, len(calls) - i, 0, number) for i, number in enumerate(calls)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *s) for s in steps))
    program = _Program(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_SECCOMP, _FILTER, ctypes.byref(program))):
        if libc.prctl(*arguments, *[0] * (5 - len(arguments))) != 0:
            raise OSError(ctypes.get_errno(), "the filter was refused")


if __name__ == "__main__":
    forbid_memory_policy()
    os.execvp(sys.argv[1], sys.argv[1:])
