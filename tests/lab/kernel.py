"""The guest's kernel and first file system, made once and kept in a cache folder."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import lzma
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

INIT = Path(__file__).with_name("init.sh")
BUSYBOX = Path("/bin/busybox")
_META_PACKAGE = "linux-image-amd64"
_MODULES = (
    "virtio_pci",  # what the shared folders hang on
    "9pnet_virtio",
    "9p",
    "overlay",
    "nvme",  # so that the devices of the shape "pcie" have names under /sys/class
    "e1000e",
)
_KERNEL = "vmlinux"
_FOLDERS = ("bin", "modules", "proc", "sys", "dev", "host", "job", "changes", "guest")


class LabUnavailable(Exception):
    """This machine lacks something the lab needs; the text says what and how to get it."""


def cache_folder() -> Path:
    """Where kernels are kept: TOPOBENCH_LAB_CACHE, or topobench-lab in the user's cache."""
    if given := os.environ.get("TOPOBENCH_LAB_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "topobench-lab"


def boot_files() -> tuple[Path, Path]:
    """
    The kernel and its initial file system, made on first use; safe to call from several processes.

    Raises:
        LabUnavailable: They are not in the cache and cannot be made.
    """
    recipe = hashlib.sha256(INIT.read_bytes() + repr((_MODULES, _KERNEL, _FOLDERS)).encode())
    cache = cache_folder()
    folder = cache / recipe.hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as temporary:
                made = _make(Path(temporary))
                made.rename(folder)  # whole or not at all
    return folder / _KERNEL, folder / "initrd.gz"


def _make(work: Path) -> Path:
    """Fetch and unpack a kernel package and build both files in ``work/made``."""
    package = _fetch(work)
    unpacked, made = work / "unpacked", work / "made"
    made.mkdir()
    _run("dpkg-deb", "-x", str(package), str(unpacked))
    image = next((unpacked / "boot").glob("vmlinuz-*")).read_bytes()
    (made / _KERNEL).write_bytes(_uncompressed(image))
    (made / "initrd.gz").write_bytes(gzip.compress(_initial_files(work / "initial", unpacked)))
    return made


def _uncompressed(image: bytes) -> bytes:
    """
    The kernel in a bzImage, since a guest takes seconds to unpack it; else the image itself.

    Source: Linux, Documentation/arch/x86/boot.rst (setup_sects, payload_offset and _length).
    """
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = ((image[0x1F1] or 4) + 1) * 512 + offset
    try:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(image[start : start + length])
    except lzma.LZMAError:  # packed in another way
        return image


def _fetch(work: Path) -> Path:
    listed = _run("apt-cache", "depends", _META_PACKAGE)
    match = re.search(r"Depends: (linux-image-\d\S+)", listed)
    if match is None:
        raise LabUnavailable(
            f"apt knows no {_META_PACKAGE}: run apt-get update, on Debian for x86-64"
        )
    _run("apt-get", "download", "-q", match[1], folder=work)
    return next(work.glob("linux-image-*.deb"))


def _initial_files(folder: Path, unpacked: Path) -> bytes:
    """A cpio archive of busybox, the modules and the first process."""
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, folder / "bin/busybox")
    shutil.copy(INIT, folder / "init")
    (folder / "init").chmod(0o755)
    order = []
    for name, content in _modules(unpacked):
        (folder / f"modules/{name}.ko").write_bytes(content)
        order.append(f"{name}\n")
    (folder / "modules/order").write_text("".join(order))
    names = "".join(f"{p.relative_to(folder)}\n" for p in sorted(folder.rglob("*")))
    packed = subprocess.run(
        [str(BUSYBOX), "cpio", "-o", "-H", "newc"],
        input=names.encode(),
        cwd=folder,
        capture_output=True,
        check=True,
    )
    return packed.stdout


def _modules(unpacked: Path) -> Iterator[tuple[str, bytes]]:
    """The modules and all they depend on, each after what it depends on; built-in ones excepted."""
    files = {
        p.name.partition(".ko")[0].replace("-", "_"): p
        for p in (unpacked / "lib/modules").rglob("*.ko*")
    }
    done: set[str] = set()

    def closure(name: str) -> Iterator[tuple[str, bytes]]:
        if name in done or name not in files:
            return
        done.add(name)
        content = files[name].read_bytes()
        if files[name].suffix == ".xz":
            content = lzma.decompress(content)
        match = re.search(rb"\0depends=([^\0]*)\0", content)
        for needed in (match[1].decode() if match else "").split(","):
            yield from closure(needed.replace("-", "_"))
        yield name, content

    for name in _MODULES:
        yield from closure(name)


def _run(*argv: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True)
    except OSError as error:
        raise LabUnavailable(f"{argv[0]} cannot be run: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or "no message").rpartition("\n")[2]
        raise LabUnavailable(f"{' '.join(argv)} failed: {last}") from error
    return done.stdout
