"""Ranks that cannot reach each other are told apart from lost ones, with both addresses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from probing import Listener
from topobench.errors import ProbeError
from topobench.probes import collective, reach

dist = pytest.importorskip("torch.distributed", reason="torch is not installed")

HERE, NOBODY = "127.0.0.1", "127.0.0.1 1"


@pytest.fixture
def store() -> Any:
    made = dist.HashStore()
    made.set_timeout(timedelta(seconds=10))
    return made


def test_ranks_that_reach_each_other_say_nothing(store: Any) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(reach.require_both_ways, store, r, 3, HERE) for r in range(3)]
    assert [f.result() for f in found] == [None] * 3


def test_a_rank_that_rank_0_cannot_call_is_told_to_all(store: Any) -> None:
    """Rank 1 itself could call rank 0."""
    store.set("reach/1", NOBODY)
    store.set("reached/1", "")
    told = (
        r"rank 0 \(127.0.0.1\) cannot reach rank 1 \(127.0.0.1 port 1\): Connection refused; open"
    )
    with pytest.raises(ProbeError, match=told) as caught:
        reach.require_both_ways(store, 0, 2, HERE)
    assert caught.value.code == "unreachable"
    assert b"cannot reach rank 1" in store.get("reached")


def test_a_rank_that_cannot_call_rank_0_says_so_through_it(store: Any) -> None:
    store.set("reach/0", NOBODY)
    store.set("reached", "rank 1 is not heard")
    with pytest.raises(ProbeError, match="unreachable: rank 1 is not heard; open"):
        reach.require_both_ways(store, 1, 2, HERE)
    said = store.get("reached/1").decode()
    assert said.startswith("rank 1 (127.0.0.1) cannot reach rank 0 (127.0.0.1 port 1): ")


def test_a_rank_on_another_network_neither_calls_nor_is_called(store: Any) -> None:
    """Whichever it is; the others still call each other."""
    for away in (0, 1):
        kept = dist.PrefixStore(str(away), store)
        with ThreadPoolExecutor(3) as pool:
            found = [
                pool.submit(reach.require_both_ways, kept, r, 3, HERE, elsewhere=r == away)
                for r in range(3)
            ]
        assert [f.result() for f in found] == [None] * 3
        assert kept.get(f"reach/{away}") == b""
        assert kept.get("reach/2").startswith(b"127.0.0.1 ")


@pytest.mark.parametrize(
    ("backend", "named", "elsewhere"),
    [
        ("nccl", None, False),
        ("nccl", "=ib0", False),
        ("nccl", "ib0", False),
        ("nccl", "ib", True),
        ("nccl", "^docker0", True),
        ("gloo", "ib1", False),
    ],
)
def test_nccl_may_be_told_to_talk_elsewhere(
    backend: str, named: str | None, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    if named:
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", named)
    assert collective._elsewhere(backend, "ib0") is elsewhere


def test_a_meeting_place_that_cannot_be_called_is_told_at_once() -> None:
    """It would be called for a minute by torch."""
    context = Listener().context(rank=1, ranks=2, wait=lambda: "127.0.0.1:1")
    with pytest.raises(ProbeError, match=r"rank 1 \(127.0.0.1\) cannot reach rank 0") as caught:
        collective.join(context, "gloo")
    assert caught.value.code == "unreachable"
