"""What is shipped and what importing it costs."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
LINKS = ("agents", "probes", "db")
HEAVY = {"torch", "ray", "sqlalchemy", "pynvml", "numpy", "scipy", "pydantic"}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def imported_by(*arguments: str) -> set[str]:
    """Top-level packages that an interpreter run with these arguments has imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    names = re.findall(r"^import time:.*\|\s+([\w.]+)$", done.stderr, re.MULTILINE)
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("name", LINKS)
def test_root_link_shows_the_package(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert link.readlink() == Path("topobench", name)
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize("name", LINKS)
def test_bare_import_is_refused(name: str) -> None:
    """Imported through a link a package would exist twice."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"ImportError: import topobench.{name}, not '{name}'" in done.stderr


def test_import_is_light() -> None:
    assert imported_by("-c", "import topobench") & HEAVY == set()


def test_help_is_light() -> None:
    """A heavy import would make every command wait, also those that only print."""
    assert imported_by("-m", "topobench", "--help") & HEAVY == set()


def test_planning_is_light() -> None:
    """The pure layers stay usable, and testable, without the packages that measure or store."""
    heavy = {"torch", "ray", "sqlalchemy", "pynvml", "scipy"}
    assert imported_by("-c", "import topobench.plan, topobench.config") & heavy == set()


def module_level_imports(path: Path) -> Iterator[str]:
    """Top-level packages a file imports as soon as it is imported itself."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def test_torch_is_never_imported_at_module_level() -> None:
    """A probe is declared, planned and listed on hosts and in processes without torch."""
    files = sorted((ROOT / "topobench").rglob("*.py"))
    assert files
    assert [p for p in files if "torch" in module_level_imports(p)] == []


def pins(name: str) -> dict[str, list[Requirement]]:
    """The pinned requirements of a lock, by package."""
    found: dict[str, list[Requirement]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            pin = Requirement(line.rstrip(" \\"))
            found.setdefault(canonical(pin.name), []).append(pin)
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned_version(found: dict[str, list[Requirement]], name: str, python: str) -> str | None:
    """The version a lock gives a package on Linux and this Python."""
    here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    for pin in found.get(canonical(name), []):
        if pin.marker is None or pin.marker.evaluate(here):
            return str(pin.specifier).removeprefix("==")
    return None


def wanted(*extras: str) -> list[Requirement]:
    """Direct requirements, the build's too, without torch, which no lock holds."""
    data = project()
    texts = [*data["project"]["dependencies"], *data["build-system"]["requires"]]
    for extra in extras:
        texts += data["project"]["optional-dependencies"][extra]
    return [r for r in map(Requirement, texts) if r.name != "torch"]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("requirements.lock", ("postgres", "numba", "web")),
        ("requirements-dev.lock", ("postgres", "numba", "web", "test", "check")),
    ],
)
def test_lock_satisfies_the_ranges(lock: str, extras: tuple[str, ...], python: str) -> None:
    """Mend a failure with scripts/lock."""
    found = pins(lock)
    for requirement in wanted(*extras):
        version = pinned_version(found, requirement.name, python)
        assert version is not None, f"{requirement.name} is not in {lock}"
        assert requirement.specifier.contains(version), f"{requirement} but {lock} has {version}"


def test_development_lock_holds_the_same_versions() -> None:
    """Tests run with what users get."""
    run, dev = pins("requirements.lock"), pins("requirements-dev.lock")
    assert {name: dev[name] for name in run} == run


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_lock_is_hashed_and_names_no_host_and_no_torch(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert "torch" not in pins(lock)
    for entry in re.split(r"\n(?=[a-zA-Z])", text)[1:]:
        assert "--hash=sha256:" in entry, entry


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy of what the repository holds, so that nothing is left here."""
    pytest.importorskip("setuptools", reason="building a wheel needs setuptools")
    copy = tmp_path_factory.mktemp("copy")
    caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "topobench", copy / "topobench", ignore=caches)
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=caches)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in LINKS:
        (copy / name).symlink_to(f"topobench/{name}")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", ".", "."],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return zipfile.ZipFile(next(copy.glob("topobench-*.whl")))


def test_wheel_holds_the_package_once_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """The links at the root would bring three packages a second time."""
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert len(tops) == 2
    assert "topobench" in tops
    assert next(iter(tops - {"topobench"})).endswith(".dist-info")


def test_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    """Data files too: the type marker, profiles, migrations, queries."""
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "topobench").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"topobench/py.typed", "topobench/profiles.yaml"} <= files
    assert files - set(wheel.namelist()) == set()


def test_wheel_installs_the_command_and_its_licence(wheel: zipfile.ZipFile) -> None:
    info = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    folder = info.rpartition("/")[0]
    assert "topobench = topobench.cli:run" in wheel.read(f"{folder}/entry_points.txt").decode()
    assert "Apache License" in wheel.read(f"{folder}/licenses/LICENSE").decode()
    metadata = wheel.read(info).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata


def test_python_range_admits_what_is_tested() -> None:
    admitted = SpecifierSet(project()["project"]["requires-python"])
    assert [p for p in PYTHONS if f"{p}.0" not in admitted] == []


def readme_blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_readme_scripts_exist() -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    scripts = set(re.findall(r"\./scripts/(\w+)", text))
    assert scripts == {"topobench", "test", "check", "lock"}
    for name in scripts:
        assert (ROOT / "scripts" / name).stat().st_mode & 0o111, f"scripts/{name} cannot be run"


def test_readme_commands_exist() -> None:
    """Each subcommand that the README names answers --help."""
    text = "\n".join(readme_blocks("console"))
    commands = set(re.findall(r"\./scripts/topobench ([a-z]+)", text))
    assert {"probe", "plan"} <= commands
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "topobench", command, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}: {done.stderr[-500:]}"


def test_readme_cluster_file_loads(tmp_path: Path) -> None:
    from topobench import config

    (example,) = readme_blocks("yaml")
    file = tmp_path / "cluster.yaml"
    file.write_text(example)
    loaded = config.load(file)
    assert loaded.name == yaml.safe_load(example)["name"] == "lab"


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/install.md"])
def test_links_between_documents_resolve(document: str) -> None:
    path = ROOT / document
    targets = re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", path.read_text())
    assert [t for t in targets if not (path.parent / t).exists()] == []
