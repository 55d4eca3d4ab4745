"""
Make or update the environment of this checkout; called by ``environment.sh`` under its lock.

Standard library only. Everything is said on stderr, as stdout belongs to the command that
runs afterwards. An interrupted call leaves no stamp, and the next one starts afresh.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_choice import (
    GpuHost,
    NoTorchFits,
    TorchFacts,
    choose,
    mend,
    read_host,
)

MADE = ".made-by-topobench"
STAMP = ".topobench-environment"
BORROWED = "topobench_borrowed_torch.pth"
LOCKS = {"run": "requirements.lock", "dev": "requirements-dev.lock"}
FAILED = 3


class SetupFailed(Exception):
    """The environment could not be made; the message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller asks for; see ``docs/install.md`` for the variables."""

    root: Path
    venv: Path
    level: str
    files: str
    driver: str
    python: str
    torch: str
    index: str

    @property
    def interpreter(self) -> Path:
        """The Python inside the environment."""
        return self.venv / "bin" / "python"


def say(text: str) -> None:
    """Tell the user, beside the command's own output."""
    print(f"topobench: {text}", file=sys.stderr, flush=True)


def read_stamp(venv: Path) -> Mapping[str, str]:
    """What a complete environment was made from; empty if it is not complete."""
    try:
        lines = (venv / STAMP).read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def write_stamp(wanted: Wanted, *, gpus: str) -> None:
    """Mark the environment complete."""
    values = {
        "files": wanted.files,
        "root": str(wanted.root),
        "interpreter": os.path.realpath(wanted.interpreter),
        "driver": wanted.driver,
        "level": wanted.level,
        "python": wanted.python,
        "torch": wanted.torch,
        "index": wanted.index,
        "gpus": gpus,
    }
    new = wanted.venv / f"{STAMP}.new"
    new.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    new.replace(wanted.venv / STAMP)


def with_earlier_choices(wanted: Wanted, stamp: Mapping[str, str]) -> Wanted:
    """A variable that is not set now keeps the value the environment was made with."""
    return dataclasses.replace(
        wanted,
        level="dev" if stamp.get("level") == "dev" else wanted.level,
        python=wanted.python or stamp.get("python", ""),
        torch=wanted.torch or stamp.get("torch", ""),
        index=wanted.index or stamp.get("index", ""),
    )


def can_update(wanted: Wanted, stamp: Mapping[str, str]) -> bool:
    """Whether the folder can be updated in place: complete, same place, same Python."""
    return (
        stamp.get("root") == str(wanted.root)
        and stamp.get("python") == wanted.python
        and stamp.get("interpreter") == os.path.realpath(wanted.interpreter)
        and wanted.interpreter.exists()
    )


def check_interpreter() -> None:
    """
    Refuse a Python without the parts that make an environment.

    Raises:
        SetupFailed: Names the command that adds them.
    """
    if all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        return
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise SetupFailed(
        f"{sys.executable} cannot make environments (no venv or ensurepip module). Run\n"
        f"    apt-get install python{version}-venv    (Debian, Ubuntu)\n"
        f"    dnf install python{version} python3-pip    (Fedora, RHEL)\n"
        "and call again, or set TOPOBENCH_PYTHON to another Python"
    )


def create(venv: Path) -> None:
    """Make an empty environment in place of an unfinished or outdated one of ours."""
    check_interpreter()
    if venv.exists() and any(venv.iterdir()) and not (venv / MADE).exists():
        raise SetupFailed(f"{venv} is not empty and not an environment of ours; name another one")
    shutil.rmtree(venv, ignore_errors=True)
    venv.mkdir(parents=True)
    (venv / MADE).touch()
    say(f"making {venv} with Python {platform.python_version()}")
    run([sys.executable, "-m", "venv", str(venv)], hint="the lines above say why")


def run(command: Sequence[str], *, hint: str, environment: Mapping[str, str] | None = None) -> None:
    """
    Run a command with its output on stderr.

    Raises:
        SetupFailed: It failed.
    """
    # A user-wide or prefix install setting would take packages past the environment.
    clean = {
        k: v for k, v in os.environ.items() if k not in ("PIP_USER", "PIP_TARGET", "PIP_PREFIX")
    }
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env={**clean, **(environment or {})}
    )
    if done.returncode:
        raise SetupFailed(f"{shlex.join(command)} failed ({done.returncode}); {hint}")


def pip(wanted: Wanted, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
    """Run the environment's pip; its own settings (index, mirror, wheel folder) hold."""
    command = [str(wanted.interpreter), "-m", "pip", *arguments]
    hint = "offline or behind a mirror: see docs/install.md"
    run(
        [*command, "--disable-pip-version-check", "--no-input"],
        hint=hint,
        environment=environment,
    )


def install_locked(wanted: Wanted) -> None:
    """Install the locked packages, then this checkout itself, linked rather than copied."""
    lock = wanted.root / LOCKS[wanted.level]
    say(f"installing the packages of {lock.name}")
    # The lock pins every package; constraints that a machine sets for other work must not
    # contradict it.
    pip(wanted, "install", "-qq", "-r", str(lock), environment={"PIP_CONSTRAINT": os.devnull})
    pip(wanted, "install", "-qq", "--no-deps", "--no-build-isolation", "-e", str(wanted.root))


def facts_of(python: Path | str) -> TorchFacts:
    """What torch an interpreter has; GPUs hidden by the caller's environment count too."""
    visible = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    script = Path(__file__).with_name("torch_facts.py")
    try:
        done = subprocess.run(
            [str(python), str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            env=visible,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError) as error:
        return TorchFacts(version=None, error=f"{type(error).__name__}: {error}")
    return TorchFacts(**{**found, "folders": tuple(found["folders"])})


def install_torch(wanted: Wanted, host: GpuHost, *, asked_anew: bool) -> TorchFacts:
    """
    See to it that the environment has a torch that fits the host.

    Args:
        asked_anew: Whether ``TOPOBENCH_TORCH`` or the index differs from last time.

    Raises:
        SetupFailed: None could be installed.
    """
    present = facts_of(wanted.interpreter)
    if not asked_anew and (present.fits(host) or (wanted.torch and present.version)):
        return present
    remove_torch(wanted, present)
    if wanted.torch:
        say(f"installing torch as TOPOBENCH_TORCH says: {wanted.torch}")
        pip_torch(wanted, shlex.split(wanted.torch))
    elif not borrow_torch(wanted, host):
        try:
            choice = choose(
                host,
                machine=platform.machine(),
                python=sys.version_info[:2],
                indexed=bool(wanted.index),
            )
        except NoTorchFits as error:
            raise SetupFailed(str(error)) from None
        source = f"{wanted.index.rstrip('/')}/{choice.line}" if wanted.index else ""
        say(f"installing {choice.requirement}, {choice.size}: {choice.why}")
        say(f"    source: {source or 'pip as it is set up here'}")
        extra = ["--extra-index-url", source] if source else []
        requirement = choice.requirement + (f"+{choice.line}" if source else "")
        pip_torch(wanted, [requirement, *extra])
    return facts_of(wanted.interpreter)


def remove_torch(wanted: Wanted, present: TorchFacts) -> None:
    """Take away a torch that does not fit; 2.13.0+cpu would satisfy ``torch==2.13.0``."""
    for borrowed in wanted.venv.glob(f"lib/python*/site-packages/{BORROWED}"):
        borrowed.unlink()
    if next(wanted.venv.glob("lib/python*/site-packages/torch/__init__.py"), None):
        say(f"removing torch {present.version or ''}, which does not fit")
        pip(wanted, "uninstall", "-q", "-y", "torch")


def borrow_torch(wanted: Wanted, host: GpuHost) -> bool:
    """Use the torch that the base interpreter already has, if it fits."""
    found = facts_of(sys.executable)
    if not found.fits(host):
        return False
    say(f"using torch {found.version} of {sys.executable}")
    # Not --system-site-packages: where that Python is itself a virtual environment, it
    # would show the packages of its base instead.
    folder = next(wanted.venv.glob("lib/python*/site-packages"))
    (folder / BORROWED).write_text("".join(f"{path}\n" for path in found.folders))
    return True


def pip_torch(wanted: Wanted, arguments: Sequence[str]) -> None:
    """Install torch without moving the locked packages."""
    lock = (wanted.root / LOCKS[wanted.level]).read_text().splitlines()
    # Hashes in a constraint would be asked of torch as well.
    pins = [line.rstrip(" \\") for line in lock if line and not line.startswith((" ", "#"))]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(pins) + "\n")
        constraints.flush()
        pip(wanted, "install", "-c", constraints.name, *arguments)


def state_of_gpus(wanted: Wanted, host: GpuHost, facts: TorchFacts) -> str:
    """
    Judge the installed torch: "none" without GPUs, else "usable" or "unusable".

    Raises:
        SetupFailed: torch cannot even be imported.
    """
    if facts.version is None:
        raise SetupFailed(f"torch was installed but cannot be imported: {facts.error}")
    if not host.has_gpus:
        return "none"
    if facts.usable:
        return "usable"
    try:
        choice = choose(
            host,
            machine=platform.machine(),
            python=sys.version_info[:2],
            indexed=bool(wanted.index),
        ).requirement
    except NoTorchFits:
        choice = None
    say(mend(host, facts, choice=choice))
    return "unusable"


def make(wanted: Wanted) -> str:
    """Bring the environment to what is wanted; returns the state of the GPUs."""
    stamp = read_stamp(wanted.venv)
    asked_anew = any(
        value not in ("", stamp.get(name, ""))
        for name, value in (("torch", wanted.torch), ("index", wanted.index))
    )
    wanted = with_earlier_choices(wanted, stamp)
    if can_update(wanted, stamp):
        (wanted.venv / STAMP).unlink()
    else:
        create(wanted.venv)
    install_locked(wanted)
    host = read_host(Path("/"))
    facts = install_torch(wanted, host, asked_anew=asked_anew)
    gpus = state_of_gpus(wanted, host, facts)
    write_stamp(wanted, gpus=gpus)
    return gpus


def parse(arguments: Sequence[str]) -> tuple[Wanted, bool]:
    """The caller's wishes, and whether its command measures."""
    parser = argparse.ArgumentParser(description="Make or update the environment.")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--level", choices=sorted(LOCKS), required=True)
    parser.add_argument("--files", required=True)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--measure", action="store_true")
    given = parser.parse_args(arguments)
    wanted = Wanted(
        root=given.root,
        venv=given.venv,
        level=given.level,
        files=given.files,
        driver=given.driver,
        python=os.environ.get("TOPOBENCH_PYTHON", ""),
        torch=os.environ.get("TOPOBENCH_TORCH", ""),
        index=os.environ.get("TOPOBENCH_TORCH_INDEX", ""),
    )
    return wanted, given.measure


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 ready, 3 not, 130 interrupted."""
    wanted, measure = parse(arguments)
    try:
        gpus = make(wanted)
    except SetupFailed as error:
        say(str(error))
        return FAILED
    except KeyboardInterrupt:
        say("interrupted; the next call starts over")
        return 130
    say("ready")
    return FAILED if measure and gpus == "unusable" else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
