"""What the report says of slow hosts and paths between hosts."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, Group

from report_documents import cell, reading
from topobench.report.network import network_section
from topobench.report.records import Places

PLACES = Places(hosts={f"k{n}": f"gpu0{n}" for n in range(1, 5)})
FAST = 5e10


def between(first: str, second: str, *, out: float = FAST, into: float = FAST) -> list[Any]:
    """Both directions of a pair."""
    conditions = {"interface": "ib0", "hosts": {second: {"interface": "ib1"}}}
    return [
        cell(
            "host_network",
            [reading("bandwidth_bytes_per_second", median)],
            params={"direction": direction, "bytes": 1 << 24, "streams": 4},
            hosts=[first, second],
            host=first,
            ranks=2,
            conditions=conditions,
        )
        for direction, median in (("out", out), ("in", into))
    ]


def shown(*pairs: list[Any]) -> str:
    text = io.StringIO()
    cells = [c for pair in pairs for c in pair]
    Console(width=200, file=text).print(Group(*network_section(cells, PLACES)))
    return text.getvalue()


def test_a_slow_host_is_named_with_its_interface_and_what_it_explains() -> None:
    text = shown(between("k1", "k2"), between("k1", "k3", into=5e9), between("k2", "k3", into=4e9))
    assert "6 directions between 3 hosts" in text
    assert "2 slow" in text
    assert (
        "slow: gpu03 (ib1) sends slowly: 5.00 GB/s at best, 10.0% of the typical 50.0 GB/s; "
        "explains 2 slow directions: its NIC, its cable or its switch port"
    ) in " ".join(text.split())
    assert "gpu01" not in text
    assert "gpu02" not in text


def test_a_slow_path_names_both_ends() -> None:
    pairs = [between(f"k{a}", f"k{b}") for a, b in ((1, 3), (1, 4), (2, 3), (2, 4), (3, 4))]
    text = " ".join(shown(between("k1", "k2", out=1e10), *pairs).split())
    assert "slow: gpu01 to gpu02: 10.0 GB/s at best" in text
    assert "each is fast with others, so look at the path between them" in text


def test_two_hosts_alone_are_not_told_apart() -> None:
    text = " ".join(shown(between("k1", "k2", out=1e10)).split())
    assert "one of them is slow; a pair with a good host would tell which" in text


def test_where_all_are_alike_nobody_is_named() -> None:
    text = shown(between("k1", "k2"), between("k1", "k3"), between("k2", "k3"))
    assert "no host stands out" in text
    assert "slow:" not in text


def test_without_pairs_nothing_is_said() -> None:
    assert list(network_section([cell("host_memory")], PLACES)) == []
