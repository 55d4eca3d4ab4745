"""Files that users name: read as far as they may be long, and never waited for in vain."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path
from typing import BinaryIO

from topobench.units import format_bytes

PIPE_SECONDS = 30.0
"""How long nobody may write to a pipe that was named."""
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: Path) -> BinaryIO:
    """
    A regular file, opened for reading; a pipe is not waited for.

    Raises:
        OSError: It cannot be read, or is none; ``strerror`` says which.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name holds a NUL character", str(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        text = f"it is {_KINDS.get(kind, 'something else')}, not a file"
        raise OSError(errno.EINVAL, text, str(path))
    return open(descriptor, "rb")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """
    The bytes of a regular file.

    Raises:
        OSError: As :func:`open_regular`; or it is longer.
    """
    with open_regular(path) as file:
        return _checked(file.read(most_bytes + 1), path, most_bytes)


def read(path: Path, most_bytes: int) -> bytes:
    """
    The bytes of a file, or of a pipe such as ``<(...)`` gives.

    Raises:
        OSError: As :func:`read_regular`; or nobody writes to the pipe.
    """
    if not path.is_fifo():
        return read_regular(path, most_bytes)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        data = b""
        while len(data) <= most_bytes:
            # One that nobody has opened yet is not ready; a read of it would say that it ended.
            if not select.select([descriptor], [], [], PIPE_SECONDS)[0]:
                text = f"nobody wrote to this pipe for {PIPE_SECONDS:g} s"
                raise OSError(errno.ETIMEDOUT, text, str(path))
            piece = file.read(most_bytes + 1 - len(data))
            if not piece:
                break
            data += piece
        return _checked(data, path, most_bytes)


def _checked(data: bytes, path: Path, most_bytes: int) -> bytes:
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {format_bytes(most_bytes)}", str(path))
    return data
