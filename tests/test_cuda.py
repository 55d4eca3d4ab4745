"""What probes share of torch and a GPU, as far as it needs neither."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from topobench.probes import cuda


def test_what_is_made_for_good_is_never_looked_through() -> None:
    """Neither while it is made nor by the next full collection; then all is as before."""
    try:
        with cuda._for_good():
            assert not gc.isenabled()
            made = [[number] for number in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= len(made)
        watched = {id(found) for found in gc.get_objects()}
        assert not watched & {id(each) for each in made}
    finally:
        gc.unfreeze()


def test_a_failed_import_leaves_the_collector_as_it_was() -> None:
    gc.disable()
    try:
        with pytest.raises(ImportError), cuda._for_good():
            raise ImportError
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()


KEEPS_ITS_CALLERS = """
try:
    raise ValueError
except ValueError as error:
    kept = error
"""


class Pool:
    """What a probe measures with."""


def test_an_import_keeps_nothing_of_the_probe_that_called_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch catches exceptions while it is imported, whose frames know their callers."""
    (tmp_path / "keeps_its_callers.py").write_text(KEEPS_ITS_CALLERS)
    monkeypatch.syspath_prepend(tmp_path)

    def measure() -> Iterator[weakref.ref[Pool]]:
        cuda._import_for_good("keeps_its_callers")
        pool = Pool()
        yield weakref.ref(pool)

    try:
        (pool,) = measure()
        gc.collect()
        assert pool() is None
    finally:
        gc.unfreeze()
