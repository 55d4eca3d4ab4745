"""What several test files use: servers, folders, and skipping what this host lacks."""

from __future__ import annotations

import gc
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from needs import BY_MARK
from postgres import Server, start

if TYPE_CHECKING:
    from launching import Lab
    from querying import Fleet
    from topobench.db.store import Store

ROOT = Path(__file__).resolve().parents[1]

gc.set_threshold(50_000, 20, 50)  # thousands of tests stay in memory: a tenth of the time is theirs


LONGEST = (
    *("test_hosts.py", "test_lab_numa.py", "test_kill_agent.py", "test_kill_driver.py"),
    *(
        "test_kill.py",
        "test_kill_attached.py",
        "test_main_job.py",
        "test_scripts.py",
        "test_store.py",
        "test_web.py",
    ),
    *("test_upkeep.py", "test_launch_gang.py", "test_browser.py", "test_lab_guest.py"),
    *("test_launch.py", "test_launch_life.py", "test_fleet.py", "test_check.py"),
    *("test_compare.py", "test_probe_collectives.py", "test_probe_all_reduce.py"),
    *("test_serving.py", "test_import_store.py", "test_queries.py"),
    *("test_launch_hang.py", "test_launch_rings.py", "test_query_engines.py"),
    *("test_probe_ring_p2p.py", "test_report_sweep.py", "test_demo.py"),
)
"""Files that take longest, which begin first: a long one at the end would run alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Put the longest files first; the order inside a file stays.

    Before all of them come tests that need GPUs without a stranger: others use them in this
    process.
    """
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONGEST)))
    items.sort(key=lambda item: item.get_closest_marker("untouched_gpu") is None)


def pytest_collection_finish() -> None:
    """Never look again through what stays: thousands of tests, and all that torch brings."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose mark names something this host lacks, and say what."""
    for mark in item.iter_markers():
        missing = BY_MARK[mark.name]() if mark.name in BY_MARK else None
        if missing:
            pytest.skip(missing)
    _one_torch_thread()


def _one_torch_thread() -> None:
    """Let torch compute in one thread: files run side by side, and its threads wait by spinning."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Recorded machines and tool outputs kept beside the checkout, not in it."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no recorded data at {folder}")
    return folder


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A PostgreSQL server of this session's own."""
    server = start(tmp_path_factory)
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres_server: Server) -> str:
    """An empty PostgreSQL database of this test's own, owned by a plain role."""
    return postgres_server.new_database(f"t{uuid.uuid4().hex[:12]}")


BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(params=BOTH)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database; each test runs on both engines."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/topobench.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(scope="session")
def made_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without content, to be copied: to make each one is a large part of its test."""
    from topobench.db.store import Store

    path = tmp_path_factory.mktemp("made") / "topobench.db"
    Store.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def made_database(postgres_server: Server) -> str:
    """The same as a database of the session's server; its name."""
    from topobench.db.store import Store

    Store.open(postgres_server.new_database("made")).close()
    return "made"


@pytest.fixture
def postgres_store_url(postgres_server: Server, made_database: str) -> str:
    """A store without content of this test's own, in PostgreSQL."""
    return postgres_server.new_database(f"t{uuid.uuid4().hex[:12]}", template=made_database)


@pytest.fixture
def sqlite_store_url(made_file: Path, tmp_path: Path) -> str:
    """The same in SQLite, for what does not depend on the engine."""
    shutil.copyfile(made_file, tmp_path / "topobench.db")
    return f"sqlite:///{tmp_path}/topobench.db"


@pytest.fixture(params=BOTH)
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a store without content; each test runs on both engines."""
    engine = "sqlite" if request.param == "sqlite" else "postgres"
    url: str = request.getfixturevalue(f"{engine}_store_url")
    return url


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """A store without content, open; each test runs on both engines."""
    from topobench.db.store import Store

    with Store.open(store_url) as opened:
        yield opened


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Workers of one test, of which none is left when it ends."""
    from launching import Lab

    found = Lab(tmp_path)
    yield found
    found.assert_nothing_left()


def _made(url: str) -> Iterator[Fleet]:
    import made_fleet  # most sessions need no database, which is slow to import
    from querying import Fleet
    from topobench.db.store import Store

    with Store.open(url) as store:
        yield Fleet(store, url, made_fleet.fill(store))


@pytest.fixture(scope="session")
def sqlite_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The made fleet in a SQLite file; tests only read it."""
    yield from _made(f"sqlite:///{tmp_path_factory.mktemp('fleet')}/topobench.db")


@pytest.fixture(scope="session")
def postgres_fleet(postgres_server: Server) -> Iterator[Fleet]:
    """The made fleet in PostgreSQL; tests only read it."""
    yield from _made(postgres_server.new_database("fleet"))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    """The made fleet on each engine."""
    found: Fleet = request.getfixturevalue(f"{request.param}_fleet")
    return found
