"""What probes share of torch and a GPU, as far as it needs neither."""

from __future__ import annotations

import gc

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
