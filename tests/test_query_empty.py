"""What a named query says when its answer has no rows."""

from __future__ import annotations

import pytest

from storing import begin, cell, host, reading, run
from topobench import cli
from topobench.db.store import Store
from topobench.reading import Status


@pytest.fixture
def measured(sqlite_store_url: str) -> str:
    """A store with one reading of host ``gpu01``."""
    planned = cell(host="k1")
    with Store.open(sqlite_store_url) as store:
        begin(store, planned, hosts=[host("k1", name="gpu01")])
        store.put_run(run(planned, reading(10e9)))
    return sqlite_store_url


@pytest.mark.parametrize(
    ("param", "told"),
    [
        ("host=gpu1", "no host of this store is called 'gpu1' (did you mean 'gpu01'?)"),
        ("probe=host_memry", "is called 'host_memry' (did you mean 'host_memory'?)"),
        ("metric=speed", "no metric of this store is called 'speed'"),
    ],
)
def test_a_name_that_nothing_has_is_told(
    measured: str, param: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["query", "latest", "--param", param, "--store", measured]) == 0
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("param", ["host=GPU%", "host=gpu01", "cluster=%"])
def test_a_name_that_something_has_is_no_reason(
    measured: str, param: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["query", "what-failed", "--param", param, "--since", "1m", "--store", measured]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert "0 rows" in out
    assert "is called" not in err


def test_a_store_without_a_sweep_says_so(
    sqlite_store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["query", "latest", "--store", sqlite_store_url]) == 0
    assert "no sweep is stored yet; `topobench probe` makes one" in capsys.readouterr().err


def test_names_that_nobody_asked_for_are_no_reason(
    sqlite_store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All cells were skipped, so the store knows no metric."""
    with Store.open(sqlite_store_url) as store:
        begin(store, cell(host="k1", status=Status.SKIPPED), hosts=[host("k1")])
    words = ["query", "latest", "--param", "metric=%", "--store", sqlite_store_url]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert "0 rows" in out
    assert "is called" not in err
