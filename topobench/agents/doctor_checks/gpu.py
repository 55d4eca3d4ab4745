"""Checks on NVIDIA GPUs: driver, library, torch, clocks, memory errors."""

from __future__ import annotations

import re
import shlex

from topobench.agents.doctor_checks.common import (
    Outcome,
    Subject,
    check,
    count,
    engine,
    error,
    install,
    ok,
    unknown,
    warn,
)
from topobench.errors import DiscoveryError
from topobench.topology import Gpu, PciDevice
from topobench.torch_builds import mending_line

_LIBRARY_FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
)


def _gpu_functions(subject: Subject) -> list[PciDevice]:
    """NVIDIA display and 3D controllers on the bus, with or without a driver."""
    return [
        d
        for d in subject.topology.pci
        if d.vendor == "0x10de" and d.pci_class.startswith(("0x0300", "0x0302"))
    ]


def _gpus(subject: Subject) -> list[Gpu]:
    """GPUs that NVML named: the ones nvidia-smi can be asked about."""
    return [gpu for gpu in subject.gpus if gpu.uuid]


@check(
    wanted="the NVIDIA kernel module drives every GPU",
    why="without it no probe that needs a GPU can run",
)
def gpu_driver(subject: Subject) -> Outcome:
    """Whether the GPUs on the bus have their driver."""
    on_bus = _gpu_functions(subject)
    version = subject.topology.machine.driver
    if version:
        return ok(f"driver {version}, {len(subject.gpus)} GPUs")
    if not on_bus:
        return ok("no NVIDIA GPU")
    held = count([d.driver or "no driver" for d in on_bus])
    found = f"{len(on_bus)} GPUs on the bus, held by {held}"
    if subject.container:
        start = f"{engine(subject)} run"
        return error(found, f"{start} --gpus all IMAGE", f"{start} IMAGE")
    kernel = subject.topology.machine.kernel
    modules = subject.read(f"/lib/modules/{kernel}/modules.dep") or ""
    if re.search(r"(^|/)nvidia\.ko", modules, re.MULTILINE):
        return error(found, "sudo modprobe nvidia", "sudo modprobe -r nvidia")
    return error(found, *install(subject, {"debian": "nvidia-driver", "fedora": "nvidia-driver"}))


@check(
    wanted="the management library (NVML) answers and has the driver's version",
    why="UUIDs, NVLinks, clocks and error counts come from it; "
    "after an update of the driver's packages it refuses to talk to the older module",
)
def gpu_library(subject: Subject) -> Outcome | None:
    """Whether NVML works, and whether its version is the module's."""
    module = subject.topology.machine.driver
    if module is None:
        return None
    library, version = _library(subject)
    if version and version != module:
        return _mismatch(subject, f"library {version}, kernel module {module}")
    if _gpus(subject) or not subject.gpus:
        return ok(f"library {version or 'of unknown version'}, kernel module {module}")
    if library is None:
        return _no_library(subject, module)
    told = [w.text for w in subject.topology.warnings if w.code == "nvml"]
    if any("versions differ" in text for text in told):
        return _mismatch(subject, f"{told[0]}; kernel module {module}")
    return error(told[0]) if told else unknown("NVML named no GPU")


def _mismatch(subject: Subject, found: str) -> Outcome:
    if subject.container:
        return error(found, f"{engine(subject)} restart CONTAINER")
    return error(found, "sudo systemctl reboot")


def _no_library(subject: Subject, module: str) -> Outcome:
    found = f"libnvidia-ml.so.1 not found, kernel module {module}"
    if subject.container:
        start = f"{engine(subject)} run --gpus all"
        capabilities = "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return error(found, f"{start} {capabilities} IMAGE", f"{start} IMAGE")
    ubuntu = "ubuntu" in (subject.topology.machine.os or "").lower()
    branch = module.partition(".")[0]
    packages = {
        "debian": f"libnvidia-compute-{branch}" if ubuntu else "libnvidia-ml1",
        "fedora": "nvidia-driver-cuda",
    }
    return error(found, *install(subject, packages))


def _library(subject: Subject) -> tuple[str | None, str | None]:
    """Path of the NVML library and the version in its file's name."""
    given = [f for f in subject.env.get("LD_LIBRARY_PATH", "").split(":") if f.startswith("/")]
    for folder in (*given, *_LIBRARY_FOLDERS):
        path = f"{folder}/libnvidia-ml.so.1"
        if real := subject.tree.resolve(path.lstrip("/")):
            match = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", real)
            return path, match[1] if match else None
    return None, None


@check(
    wanted="torch can use every GPU of the driver",
    why="GPU probes run in torch; those it cannot use are skipped",
)
def torch(subject: Subject) -> Outcome:
    """Whether the torch at hand fits the driver."""
    facts = subject.facts
    pip = f"{shlex.quote(facts.interpreter)} -m pip"
    if facts.torch is None:
        reason = facts.torch_error or "not installed"
        return error(reason, f"{pip} install torch", f"{pip} uninstall -y torch")
    if facts.torch_error is None:
        return ok(facts.torch)
    found = facts.torch_error
    fix = mending_line(facts.interpreter, subject.topology.machine.cuda, facts.torch)
    if fix is None:
        return error(found, note="install a newer driver, or see what holds the GPUs")
    return error(found, fix, f"{pip} install --force-reinstall torch=={facts.torch}")


def _smi(subject: Subject, what: str, *fields: str) -> list[list[str]]:
    """
    A row of values for each GPU, as ``nvidia-smi --query-<what>`` prints them.

    Raises:
        DiscoveryError: It cannot be run, or does not know a field.
    """
    answer = subject.ask(
        "nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"
    )
    if answer.returncode:
        first = (answer.stdout + answer.stderr).strip().partition("\n")[0]
        raise DiscoveryError(f"nvidia-smi: {first}")
    rows = [[v.strip() for v in line.split(",")] for line in answer.stdout.splitlines() if line]
    if any(len(row) != len(fields) for row in rows):
        raise DiscoveryError(f"nvidia-smi printed something else than {', '.join(fields)}")
    return rows


def _only(uuids: list[str], rows: list[list[str]]) -> str:
    """The option that names GPUs; nothing where it is all of them."""
    return f"-i {','.join(uuids)} " if len(uuids) < len(rows) else ""


@check(
    wanted="Enabled on every GPU",
    why="the driver puts an unused GPU to sleep; the first worker after a pause waits seconds",
)
def gpu_persistence(subject: Subject) -> Outcome | None:
    """Whether the driver keeps idle GPUs initialised."""
    if not _gpus(subject):
        return None
    rows = _smi(subject, "gpu", "uuid", "persistence_mode")
    off = [uuid for uuid, mode in rows if mode == "Disabled"]
    found = count([mode for _, mode in rows])
    if not off:
        return ok(found)
    fix, undo = (f"sudo nvidia-smi {_only(off, rows)}-pm {v}" for v in (1, 0))
    return warn(found, fix, undo)


@check(
    wanted="SM clocks locked for comparisons between nights",
    why="a GPU that clocks itself by load and temperature measures its cooling, too; "
    "the driver does not tell whether clocks are locked",
)
def gpu_clocks(subject: Subject) -> Outcome | None:
    """How to lock the clocks; whether they are locked cannot be read."""
    if not _gpus(subject):
        return None
    rows = _smi(subject, "gpu", "uuid", "clocks.sm", "clocks.max.sm")
    by_most: dict[str, list[str]] = {}
    for uuid, _, most in rows:
        by_most.setdefault(most, []).append(uuid)
    now = count([f"{clock} of {most} MHz" for _, clock, most in rows])
    fixes = [
        f"sudo nvidia-smi {_only(uuids, rows)}-lgc {most},{most}"
        for most, uuids in by_most.items()
        if most.isdigit()
    ]
    return unknown(f"SM clock now {now}", "; ".join(fixes) or None, "sudo nvidia-smi -rgc")


@check(
    wanted="ECC on where the GPU has it, and no uncorrected error",
    why="without ECC a flipped bit goes unseen and bandwidth differs from GPUs that have it",
)
def gpu_ecc(subject: Subject) -> Outcome | None:
    """Whether GPU memory is guarded, and whether errors got through since the last reset."""
    if not _gpus(subject):
        return None
    total = "ecc.errors.uncorrected.volatile.total"
    rows = _smi(subject, "gpu", "uuid", "ecc.mode.current", total)
    bad = [uuid for uuid, _, errors in rows if errors.isdigit() and int(errors)]
    off = [uuid for uuid, mode, _ in rows if mode == "Disabled"]
    if bad:
        return error(
            f"uncorrected errors on {', '.join(bad)}",
            "; ".join(f"sudo nvidia-smi --gpu-reset -i {uuid}" for uuid in bad),
            note="no process may use the GPU while it is reset",
        )
    found = count([mode for _, mode, _ in rows])
    if not off:
        return ok(found)
    fix, undo = (f"sudo nvidia-smi {_only(off, rows)}-e {v}" for v in (1, 0))
    return warn(found, fix, undo, note="it takes effect after a reset of the GPU")


@check(
    wanted="no error (Xid) in the kernel's log that calls for a reset or a reboot",
    why="sweeps leave such a GPU out (health: in cluster.yaml)",
)
def gpu_errors(subject: Subject) -> Outcome | None:
    """What the driver wrote to the kernel's log, or asks for."""
    if not subject.gpus:
        return None
    if "xid" in subject.facts.health_unread:
        reason = subject.facts.health_unread["xid"]
        fix, undo = (f"sudo sysctl -w kernel.dmesg_restrict={v}" for v in (0, 1))
        return unknown(reason, fix, undo)
    found = [t for t in subject.facts.health if t.kind == "xid"]
    if not found:
        return ok("none")
    text = "; ".join(t.text for t in found)
    level = error if any(t.grave for t in found) else warn
    return level(text, note="; ".join(dict.fromkeys(t.fix for t in found)))


@check(
    wanted="no row remapping pending or failed",
    why="a GPU that waits for a remapping still uses bad memory; one that failed must be replaced",
)
def gpu_remapped_rows(subject: Subject) -> Outcome | None:
    """Whether a GPU has memory rows to retire."""
    if not _gpus(subject):
        return None
    rows = _smi(
        subject,
        "remapped-rows",
        "gpu_uuid",
        "remapped_rows.pending",
        "remapped_rows.failure",
    )
    failed = [uuid for uuid, _, failure in rows if failure in ("Yes", "1")]
    pending = [uuid for uuid, waits, _ in rows if waits in ("Yes", "1")]
    if failed:
        return error(f"failed on {', '.join(failed)}")
    if pending:
        resets = (f"sudo nvidia-smi --gpu-reset -i {uuid}" for uuid in pending)
        return error(f"pending on {', '.join(pending)}", "; ".join(resets))
    return ok("none")
