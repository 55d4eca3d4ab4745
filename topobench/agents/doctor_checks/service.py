"""Checks on what Ray and topobench stand on: shared memory, folders, ports, disk."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import PurePosixPath

from topobench.agents.doctor_checks.common import (
    Outcome,
    Subject,
    check,
    engine,
    error,
    ok,
    unknown,
    warn,
)
from topobench.agents.host_lock import COMMON_FOLDER, RUN_DIR

_MIB, _GIB = 2**20, 2**30
_SHM_WANTED = _GIB
_DISK_LEAST, _DISK_WANTED = _GIB, 10 * _GIB
_RAY_PORT = 6379


@check(
    wanted=f"at least {_SHM_WANTED // _GIB} GiB in /dev/shm",
    why="NCCL fails to set up its shared-memory transport, and Ray's objects go to disk",
)
def shared_memory(subject: Subject) -> Outcome:
    """Whether /dev/shm holds NCCL's buffers and Ray's objects."""
    size = subject.facts.shm_bytes
    if size is None:
        return unknown("the size of /dev/shm could not be read")
    found = f"{size / _MIB:.0f} MiB"
    if size >= _SHM_WANTED:
        return ok(found)
    bad = error if len(subject.gpus) > 1 else warn
    if subject.container == "kubernetes":
        volume = "{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}"
        return bad(found, volume, note="the line belongs under the pod's volumes, for /dev/shm")
    if subject.container:
        start = f"{engine(subject)} run"
        return bad(found, f"{start} --shm-size 8g IMAGE", f"{start} IMAGE")
    remount = "sudo mount -o remount,size={} /dev/shm"
    return bad(found, remount.format("8G"), remount.format(_shm_option(subject)))


def _shm_option(subject: Subject) -> str:
    """The size /dev/shm was mounted with; half the memory where none was given."""
    mounts = subject.read("/proc/self/mounts") or ""
    sizes = re.findall(r"^\S+ /dev/shm tmpfs (?:\S*,)?size=(\w+)", mounts, re.MULTILINE)
    return sizes[-1] if sizes else "50%"


@check(
    wanted="the folder of the host lock is the host's own",
    why="sweeps in two containers of one host do not see each other's lock and disturb each other",
)
def lock_folder(subject: Subject) -> Outcome | None:
    """Whether the lock that keeps two sweeps apart is seen by the whole host."""
    if subject.container is None:
        return None
    text = subject.read("/proc/self/mountinfo")
    if text is None:
        return unknown("/proc/self/mountinfo could not be read")
    folder = subject.env.get(RUN_DIR) or COMMON_FOLDER
    point, origin = _mount_over(text, folder)
    if point != "/" and origin != "/" and "kubernetes.io~empty-dir" not in origin:
        return ok(f"{folder} is mounted from {origin}")
    found = f"{folder} is private to this container"
    if subject.container == "kubernetes":
        volume = f"{{name: lock, hostPath: {{path: {folder}, type: DirectoryOrCreate}}}}"
        return warn(found, volume, note=f"the line belongs under the pod's volumes, for {folder}")
    start = f"{engine(subject)} run"
    volume = shlex.quote(f"{folder}:{folder}")
    return warn(found, f"{start} -v {volume} IMAGE", f"{start} IMAGE")


def _mount_over(mountinfo: str, folder: str) -> tuple[str, str]:
    """The mount a folder lies on: where it is mounted, and what part of its file system."""
    above = {str(p) for p in (PurePosixPath(folder), *PurePosixPath(folder).parents)}
    best = ("/", "/")
    for line in mountinfo.splitlines():
        origin, point = line.split()[3:5]
        if point in above and len(point) >= len(best[0]):
            best = (point, origin)
    return best


@check(
    wanted="HOME is a folder that can be written",
    why="Ray keeps ~/.ray/auth_token there, and its private cluster does not start without one",
)
def ray_home(subject: Subject) -> Outcome:
    """Whether embedded Ray can write the token that guards it."""
    if "RAY_AUTH_TOKEN" in subject.env or "RAY_AUTH_TOKEN_PATH" in subject.env:
        return ok("the environment gives a token")
    home = subject.env.get("HOME")
    fix = 'export HOME="$(mktemp -d)"'
    if not home:
        return error("HOME is not set", fix, "unset HOME")
    folders = (subject.path(f"{home}/.ray"), subject.path(home))
    folder = next((f for f in folders if f.is_dir()), None)
    undo = f"export HOME={shlex.quote(home)}"
    if folder is None:
        return error(f"{home} does not exist", fix, undo)
    if not os.access(folder, os.W_OK):
        return error(f"{home} cannot be written", fix, undo)
    return ok(home)


@check(
    wanted=f"port {_RAY_PORT} is free, or held by a Ray head",
    why="`ray start --head` needs it; the embedded Ray of `address: local` does not",
)
def ray_port(subject: Subject) -> Outcome:
    """Whether Ray's usual port is free, or Ray's own."""
    tables = [text for name in ("tcp", "tcp6") if (text := subject.read(f"/proc/net/{name}"))]
    if not tables:
        return unknown("/proc/net/tcp could not be read")
    listening = re.compile(rf"^\s*\d+: [0-9A-F]+:{_RAY_PORT:04X} \S+ 0A ", re.MULTILINE)
    if not any(listening.search(text) for text in tables):
        return ok("free")
    if subject.runs_program("gcs_server"):
        return ok("held by a Ray head on this host")
    other = f"ray start --head --port={_RAY_PORT + 1}"
    return warn("held by a program that is not Ray", other, "ray start --head")


@check(
    wanted=f"at least {_DISK_WANTED // _GIB} GiB free for temporary files",
    why="Ray refuses objects on a nearly full disk, and a full one loses results",
)
def disk(subject: Subject) -> Outcome:
    """Whether there is room for Ray, logs and the store."""
    free = subject.facts.free_disk_bytes
    if free is None:
        return unknown("the free space could not be read")
    found = f"{free / _GIB:.1f} GiB free"
    if free >= _DISK_WANTED:
        return ok(found)
    bad = error if free < _DISK_LEAST else warn
    before = subject.env.get("RAY_TMPDIR")
    undo = f"export RAY_TMPDIR={shlex.quote(before)}" if before else "unset RAY_TMPDIR"
    return bad(found, "export RAY_TMPDIR=/FOLDER/WITH/SPACE", undo)
