"""Where a SQLite file may be: local disks, folders that exist and may be written to."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from topobench.errors import NotFound, StoreError

NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "lustre", "beegfs", "gpfs"),
        *("pvfs2", "ocfs2", "gfs2", "glusterfs", "fuse.sshfs", "fuse.glusterfs", "fuse.cephfs"),
        *("fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.juicefs", "fuse.blobfuse2"),
        *("fuse.goofys", "fuse.mount-s3"),
    )
)
"""Types in /proc/self/mountinfo whose locks or shared memory SQLite can't rely on."""


def identity(path: Path | None) -> tuple[int, int] | None:
    """Device and inode of a file; None if it is not there."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_place(path: Path, *, create: bool) -> None:
    """
    Refuse a path where SQLite can't work.

    Raises:
        NotFound: There is no file, and none is to be made.
        StoreError: The message says why, and what to do.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise StoreError(f"{path}: folder {folder} does not exist; make it, or name another file")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; name another file") from error
    if mode is not None and stat.S_ISDIR(mode):
        raise StoreError(f"{path}: is a folder; name a file in it")
    if mode is not None and not stat.S_ISREG(mode):
        raise StoreError(f"{path}: is no file but a device, a pipe or a socket; name a file")
    if not path.exists() and not create:
        where = "" if path.is_absolute() else f" in {folder}"
        raise NotFound(
            f"{path}: no such file{where}; `topobench probe` makes a store there, --store URL or "
            "TOPOBENCH_STORE names another"
        )
    kind = network_file_system(path)
    if kind is not None:
        raise StoreError(
            f"{path}: on a network file system ({kind}), where SQLite loses data; put it on a "
            "local disk, or use PostgreSQL (postgresql+psycopg://HOST/DATABASE)"
        )
    if create and path.exists() and not os.access(path, os.W_OK):
        raise StoreError(f"{path}: may not be written to; check its owner and mode")
    if path.exists() and not os.access(path, os.R_OK):
        raise StoreError(f"{path}: may not be read; check its owner and mode")
    if create and not os.access(folder, os.W_OK):
        raise StoreError(f"{path}: folder {folder} may not be written to; name another file")


def network_file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """
    The type of the network file system a path is on, or None.

    Args:
        mounts: The kernel's list of mounts; a parameter for tests.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    target = Path(os.path.realpath(path))
    best, kind = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), before.split()[4]))
        if target.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind if kind in NETWORK_FILE_SYSTEMS else None
