"""Boots a guest of a shape, runs one command in it, and sees it off."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import registers
from lab.kernel import BUSYBOX, LabUnavailable, boot_files
from lab.shapes import SHAPES, Shape

_QEMU = "qemu-system-x86_64"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BOOT_SECONDS = 90
_DISK_BYTES = 16 << 20
_CHEAP = "mitigations=off nosmap nosmep no5lvl norandmaps clocksource=tsc tsc=reliable"
"""
What emulation makes dear and no test is about: a third of a guest's CPU time.

The kernel mistrusts the emulated TSC of itself, and then each look at the clock is one at a device.
"""


def unavailable() -> str | None:
    """Why the lab cannot run here; None if it can. Fetches the kernel on first use."""
    if shutil.which(_QEMU) is None:
        return f"{_QEMU} is not installed (Debian package qemu-system-x86)"
    if not BUSYBOX.is_file() or b"ld-linux" in BUSYBOX.read_bytes()[:4096]:
        return f"{BUSYBOX} is missing or not static (Debian package busybox-static)"
    try:
        boot_files()
    except LabUnavailable as error:
        return str(error)
    return None


def run(
    shape: str,
    command: Sequence[str],
    *,
    timeout: float = 240,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """
    Boot a guest, run one command in it as root, and wait until it is off.

    Args:
        timeout: Seconds the command may take, beside booting.
        env: Added to PATH, HOME and LANG, which is all the guest starts with.
        cwd: Where the command starts, by default the current folder.

    Returns:
        The command's exit code, standard output and standard error.

    Raises:
        subprocess.TimeoutExpired: It took too long; the guest is gone.
        LabUnavailable: The guest did not come up; its last words are in the text.
    """
    hardware = SHAPES[shape]
    with tempfile.TemporaryDirectory(prefix="topobench-lab-") as temporary:
        job = Path(temporary) / "job"
        _prepare(job, hardware, command, timeout=timeout, env=env or {}, cwd=cwd or Path.cwd())
        console = _boot(hardware, Path(temporary), job, timeout + _BOOT_SECONDS)
        out, err = (_text(job / name) for name in ("stdout", "stderr"))
        if not (job / "exit").exists():
            if console is None or (job / "stdout").exists():
                raise subprocess.TimeoutExpired(list(command), timeout, out, err)
            raise LabUnavailable(f"the guest did not reach its command: {console[-2000:]}")
        return subprocess.CompletedProcess(list(command), int(_text(job / "exit")), out, err)


@functools.cache
def run_once(
    shape: str, *command: str, timeout: float = 240, **env: str
) -> subprocess.CompletedProcess[str]:
    """
    As :func:`run`, but boots once for all who ask the same, however it ends.

    A command that took too long has the exit code 124.
    """
    try:
        return run(shape, command, timeout=timeout, env=env)
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(list(command), 124, error.output, str(error))


def _prepare(
    job: Path,
    shape: Shape,
    command: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str],
    cwd: Path,
) -> None:
    """Lay out what the guest's first process reads."""
    job.mkdir()
    settings = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", **env}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())
    (job / "command").write_text(
        f"{exports}cd {shlex.quote(str(cwd))}\nexec {shlex.join(command)}\n"
    )
    (job / "limit").write_text(f"{round(timeout)}\n")
    for name, value in shape.cpuset.items():
        (job / name).write_text(f"{value}\n")
    for name in shape.disks:
        with (job.parent / name).open("wb") as disk:
            disk.truncate(_DISK_BYTES)


def _boot(shape: Shape, folder: Path, job: Path, seconds: float) -> str | None:
    """Run the guest until it is off; its console's text, or None if it had to be killed."""
    # timeout(1) outlives us: no guest stays behind when we are killed.
    belt = ["timeout", "-s", "KILL", f"{seconds + 10:.0f}"]
    guest = subprocess.Popen(
        belt + _arguments(shape, folder, job),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        if shape.underused:
            with contextlib.suppress(PermissionError):  # the card is as slow as all others then
                registers.raise_maximum(guest.pid, shape.underused, deadline=time.monotonic() + 20)
        return guest.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        return None
    finally:
        if guest.poll() is None:
            os.killpg(guest.pid, signal.SIGKILL)
            guest.communicate()


def _arguments(shape: Shape, folder: Path, job: Path) -> list[str]:
    kernel, initial = boot_files()
    arguments = [_QEMU, "-machine", "q35", "-accel", "tcg", "-cpu", "max"]
    arguments += ["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"]
    arguments += ["-kernel", str(kernel), "-initrd", str(initial)]
    arguments += ["-append", f"console=ttyS0 quiet panic=-1 {_CHEAP}"]
    shared = (("host", Path("/"), ",readonly=on"), ("job", job, ""))
    for tag, path, more in shared:
        local = f"local,id={tag},path={path},security_model=none,multidevs=remap{more}"
        arguments += ["-fsdev", local]
        arguments += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag},bus=pcie.0"]
    return arguments + shape.options(folder)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
