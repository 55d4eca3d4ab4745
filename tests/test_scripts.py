"""
The scripts that make the environment, run for real on a checkout of a very small project.

Its lock is empty and it builds itself, so that nothing has to be downloaded.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import environment
from torch_choice import GpuHost, TorchFacts, read_host

ROOT = Path(__file__).resolve().parents[1]
VARIABLES = ("TOPOBENCH_PYTHON", "TOPOBENCH_VENV", "TOPOBENCH_TORCH", "TOPOBENCH_TORCH_INDEX")

PYPROJECT = """\
[project]
name = "topobench"
version = "0"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

BACKEND = '''\
"""Build a package whose one command prints its arguments."""
import zipfile

PROGRAM = """
import sys

def run():
    print("ran", *sys.argv[1:])
"""
METADATA = "Metadata-Version: 2.1\\nName: topobench\\nVersion: 0\\n"

def build_editable(folder, settings=None, metadata=None):
    name = "topobench-0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        info = "topobench-0.dist-info"
        wheel.writestr("small.py", PROGRAM)
        wheel.writestr(f"{info}/METADATA", METADATA)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\\ntopobench = small:run\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
'''


def torch_wheel(folder: Path, version: str) -> Path:
    """A wheel that is called torch and says that it is a CPU build."""
    path = folder / f"torch-{version}-py3-none-any.whl"
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(
            "torch/__init__.py",
            f"__version__ = {version!r}\n"
            "class version:\n    cuda = None\n"
            "class cuda:\n    def init():\n        raise AssertionError('no CUDA here')\n",
        )
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


class Checkout:
    """
    A small checkout with our scripts.

    Args:
        ready: Where Python finds a module venv that copies, see :func:`ready`; None leaves it
            its own.
    """

    def __init__(self, root: Path, ready: Path | None = None) -> None:
        self.root = root
        self.ready = ready
        root.mkdir()
        shutil.copytree(
            ROOT / "scripts", root / "scripts", ignore=shutil.ignore_patterns("__pycache__")
        )
        (root / "pyproject.toml").write_text(PYPROJECT)
        (root / "backend.py").write_text(BACKEND)
        for lock in ("requirements.lock", "requirements-dev.lock"):
            (root / lock).write_text("# nothing\n")
        self.torch = torch_wheel(root, "2.13.0")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def start(
        self, *arguments: str, script: Path | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        """Start ``scripts/topobench`` from a folder that has nothing to do with it."""
        clean = {k: v for k, v in os.environ.items() if k not in VARIABLES}
        given = {"TOPOBENCH_PYTHON": sys.executable, "TOPOBENCH_TORCH": str(self.torch)}
        if self.ready is not None:
            given["PYTHONPATH"] = str(self.ready)
        return subprocess.Popen(
            [script or self.root / "scripts/topobench", *arguments],
            cwd="/",
            env={**clean, "PIP_NO_INDEX": "1", **given, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(
        self, *arguments: str, script: Path | None = None, **variables: str
    ) -> tuple[int, str, str]:
        """Run it to its end: exit code, stdout, stderr."""
        process = self.start(*arguments, script=script, **variables)
        out, err = process.communicate(timeout=200)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout whose first call has been made."""
    made = Checkout(tmp_path_factory.mktemp("scripts") / "checkout")
    code, out, err = made.call("probe", "--format", "json")
    assert (code, out) == (0, "ran probe --format json\n"), err
    assert "topobench: making" in err
    assert "topobench: ready" in err
    return made


VENV = """\
import os, shutil, sys
shutil.copytree({ready!r}, sys.argv[1], symlinks=True, dirs_exist_ok=True, copy_function=os.link)
"""


@pytest.fixture(scope="module")
def ready(checkout: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A folder with a module venv that copies what the first call's venv made.

    To make an environment is to install pip there, which takes most of a first call. What our
    scripts and pip do in it is real, and their first call has Python's own venv.
    """
    folder = tmp_path_factory.mktemp("ready")
    ours = shutil.ignore_patterns("*topobench*", "torch*", "small.py")
    shutil.copytree(checkout.venv, folder / "empty", symlinks=True, ignore=ours)
    (folder / "venv.py").write_text(VENV.format(ready=str(folder / "empty")))
    return folder


@pytest.fixture
def unchanged(checkout: Checkout) -> Iterator[Checkout]:
    """The same; the environment is as it was when the test is over."""
    stamp = checkout.venv / ".topobench-environment"
    before = stamp.read_text()
    yield checkout
    stamp.write_text(before)


def test_later_call_only_runs_the_command(checkout: Checkout) -> None:
    """Nothing is said and no installer runs; arguments arrive untouched."""
    assert checkout.call("query", "a b", "*") == (0, "ran query a b *\n", "")


def test_choices_of_the_first_call_are_remembered(checkout: Checkout) -> None:
    """The variables need not be set again."""
    assert checkout.call("plan", TOPOBENCH_TORCH="", TOPOBENCH_PYTHON="") == (0, "ran plan\n", "")


def test_works_through_a_link(checkout: Checkout, tmp_path: Path) -> None:
    link = tmp_path / "topobench"
    link.symlink_to(checkout.root / "scripts/topobench")
    assert checkout.call("plan", script=link) == (0, "ran plan\n", "")


def test_changed_lock_is_installed_into_the_same_environment(unchanged: Checkout) -> None:
    kept = unchanged.venv / "kept"
    kept.touch()
    (unchanged.root / "requirements.lock").write_text("# still nothing\n")
    code, out, err = unchanged.call("plan")
    assert (code, out) == (0, "ran plan\n")
    assert "topobench: installing the packages of requirements.lock" in err
    assert "making" not in err
    assert kept.exists()
    (unchanged.root / "requirements.lock").write_text("# nothing\n")


def test_another_torch_replaces_the_first(unchanged: Checkout) -> None:
    other = torch_wheel(unchanged.root, "2.12.1")
    code, _, err = unchanged.call("plan", TOPOBENCH_TORCH=str(other))
    assert code == 0, err
    assert environment.facts_of(unchanged.venv / "bin/python").version == "2.12.1"
    code, _, err = unchanged.call("plan")
    assert code == 0, err
    assert environment.facts_of(unchanged.venv / "bin/python").version == "2.13.0"


def test_gpus_that_torch_cannot_use_are_looked_at_before_each_measurement(
    unchanged: Checkout,
) -> None:
    """Other commands run without another look."""
    stamp = unchanged.venv / ".topobench-environment"
    stamp.write_text(stamp.read_text().replace("gpus=none", "gpus=unusable"))
    assert unchanged.call("doctor") == (0, "ran doctor\n", "")
    code, out, err = unchanged.call("probe")
    assert (code, out) == (0, "ran probe\n")
    assert "topobench: ready" in err
    assert "gpus=none" in stamp.read_text()


def test_moved_checkout_gets_a_new_environment(
    checkout: Checkout, ready: Path, tmp_path: Path
) -> None:
    """Paths inside an environment are absolute."""
    moved = tmp_path / "moved"
    shutil.copytree(checkout.root, moved, symlinks=True)
    script = moved / "scripts/topobench"
    code, out, err = checkout.call("plan", script=script, PYTHONPATH=str(ready))
    assert (code, out) == (0, "ran plan\n"), err
    assert f"topobench: making {moved}/.venv" in err


def test_two_first_calls_at_once_make_one_environment(ready: Path, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout", ready)
    both = [checkout.start("plan"), checkout.start("plan")]
    ends = [process.communicate(timeout=200) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert [out for out, _ in ends] == ["ran plan\n", "ran plan\n"]
    said = "".join(err for _, err in ends)
    assert said.count("topobench: making") == 1
    assert said.count("waiting for it") == 1


def test_failed_installation_is_said_and_started_over(unchanged: Checkout, ready: Path) -> None:
    left = unchanged.venv / "left over"
    left.touch()
    code, out, err = unchanged.call("plan", TOPOBENCH_TORCH="torch==2.99")
    assert (code, out) == (3, "")
    assert "offline or behind a mirror: see docs/install.md" in err
    assert left.exists()
    code, out, err = unchanged.call("plan", PYTHONPATH=str(ready))
    assert (code, out) == (0, "ran plan\n"), err
    assert not left.exists()


def test_killed_installation_is_started_over(ready: Path, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout", ready)
    process = checkout.start("plan")
    deadline = time.monotonic() + 60
    while not (checkout.venv / "bin").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    left = checkout.venv / "left over"
    left.touch()
    code, out, err = checkout.call("plan")
    assert (code, out) == (0, "ran plan\n"), err
    assert not left.exists()


def torch_here(host: GpuHost) -> TorchFacts:
    """The torch of these tests; without GPUs its version says enough, and is not imported."""
    if host.has_gpus:
        return environment.facts_of(sys.executable)
    try:
        return TorchFacts(importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return TorchFacts(None)


def test_torch_of_the_interpreter_is_used(ready: Path, tmp_path: Path) -> None:
    """Also where that interpreter is itself in a virtual environment, as it is here."""
    host = read_host(Path("/"))
    facts = torch_here(host)
    if not facts.fits(host):
        pytest.skip("the interpreter of the tests has no torch that fits this host")
    checkout = Checkout(tmp_path / "checkout", ready)
    code, out, err = checkout.call("plan", TOPOBENCH_TORCH="")
    assert (code, out) == (0, "ran plan\n"), err
    assert f"topobench: using torch {facts.version} of " in err


def test_environment_made_by_hand_is_never_changed(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    (checkout.venv / "bin").mkdir(parents=True)
    (checkout.venv / "pyvenv.cfg").touch()
    code, out, err = checkout.call("plan")
    assert (code, out) == (3, "")
    assert "was made by hand and has no topobench" in err
    program = checkout.venv / "bin/topobench"
    program.write_text("#!/bin/sh\necho own $1\n")
    program.chmod(0o755)
    assert checkout.call("plan") == (0, "own plan\n", "")
    assert sorted(p.name for p in checkout.venv.rglob("*")) == ["bin", "pyvenv.cfg", "topobench"]


def test_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    other = tmp_path / "results"
    other.mkdir()
    (other / "numbers.csv").touch()
    code, _, err = checkout.call("plan", TOPOBENCH_VENV=str(other))
    assert code == 3
    assert "is not empty and not an environment of ours" in err
    assert (other / "numbers.csv").exists()


def test_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    checkout = Checkout(tmp_path / "checkout")
    code, _, err = checkout.call("plan", TOPOBENCH_PYTHON=str(old))
    assert code == 3
    assert f"TOPOBENCH_PYTHON={old} is not a Python 3.11 or newer" in err


def tools_without_python(folder: Path) -> Path:
    """A folder for PATH with what the scripts call, and no Python."""
    folder.mkdir()
    for name in ("sh", "dirname", "readlink", "cat", "sha256sum", "mkdir", "flock"):
        (folder / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    return folder


def test_host_without_python_is_told_what_to_install(tmp_path: Path) -> None:
    tools = tools_without_python(tmp_path / "bin")
    checkout = Checkout(tmp_path / "checkout")
    code, _, err = checkout.call("plan", PATH=str(tools), TOPOBENCH_PYTHON="")
    assert code == 3
    assert "no Python 3.11 or newer found" in err
    assert "apt-get install python3.11 python3.11-venv" in err


def test_newer_python_is_found_where_python3_is_old(tmp_path: Path) -> None:
    tools = tools_without_python(tmp_path / "bin")
    for name, program in (("python3", "exit 1"), ("python3.12", f'exec {sys.executable} "$@"')):
        (tools / name).write_text(f"#!/bin/sh\n{program}\n")
        (tools / name).chmod(0o755)
    done = subprocess.run(
        [tools / "sh", "-c", ". scripts/environment.sh; find_python; echo $python"],
        cwd=ROOT,
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "python3.12\n"


def test_python_without_venv_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(environment.SetupFailed, match=f"apt-get install python{version}-venv"):
        environment.check_interpreter()


def wanted(tmp_path: Path) -> environment.Wanted:
    return environment.Wanted(
        root=tmp_path,
        venv=tmp_path / ".venv",
        level="run",
        files="",
        driver="",
        python="",
        torch="",
        index="",
    )


GPU_HOST = GpuHost("580.159.04", ("NVIDIA H200",), device_files=1, container=False)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (TorchFacts("2.13.0", cuda="13.0", usable=1), "usable"),
        (TorchFacts("2.13.0+cpu"), "unusable"),
        (TorchFacts("2.13.0", cuda="13.0", error="RuntimeError: x"), "unusable"),
    ],
)
def test_state_of_gpus(tmp_path: Path, facts: TorchFacts, state: str) -> None:
    assert environment.state_of_gpus(wanted(tmp_path), GPU_HOST, facts) == state


def test_unusable_gpus_are_said_with_versions_and_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.state_of_gpus(wanted(tmp_path), GPU_HOST, TorchFacts("2.13.0+cpu"))
    said = capsys.readouterr().err
    assert "driver 580.159.04, torch 2.13.0+cpu" in said
    assert "TOPOBENCH_TORCH='torch==2.13.0' ./scripts/topobench doctor" in said


def test_torch_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    broken = TorchFacts(None, error="ImportError: libcudart.so.13")
    with pytest.raises(environment.SetupFailed, match=r"libcudart\.so\.13"):
        environment.state_of_gpus(wanted(tmp_path), GPU_HOST, broken)
