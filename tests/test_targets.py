"""Which Ray nodes get an agent."""

from __future__ import annotations

import itertools
import socket
from typing import Any, cast

import pytest

from topobench.agents import targets
from topobench.agents.launch import Launcher
from topobench.agents.part import Part
from topobench.agents.service import HostRequest
from topobench.errors import AgentError
from topobench.reading import Reason

BASE = HostRequest(sweep="s")


def node(id: str, address: str, name: str = "", *, alive: bool = True) -> dict[str, Any]:
    """As ``ray.nodes()`` lists one."""
    return {
        "NodeID": id,
        "Alive": alive,
        "NodeManagerAddress": address,
        "NodeManagerHostname": name or f"host-{id}",
    }


RESTARTED = [
    node("aa", "10.9.0.10"),
    node("bb", "10.9.0.11"),
    node("cc", "10.9.0.10", alive=False),
]


def chosen(nodes: list[dict[str, Any]], *wanted: str) -> tuple[list[str], list[str]]:
    """Node ids of the targets, and why hosts are none."""
    requests = [HostRequest(sweep="s", address=name) for name in wanted]
    found, missing = targets.choose(nodes, BASE, requests, "10.9.0.10:6379")
    return [t.node_id for t in found], [f.text for f in missing]


@pytest.mark.parametrize("order", list(itertools.permutations(RESTARTED)))
def test_a_dead_entry_never_hides_the_live_one_of_its_address(
    order: tuple[dict[str, Any], ...],
) -> None:
    assert sorted(chosen(list(order))[0]) == ["aa", "bb"]
    assert chosen(list(order), "10.9.0.10") == (["aa"], [])


def test_an_address_that_ray_lacks_is_told_with_those_it_knows() -> None:
    """A host with several networks may be known to Ray by another one."""
    found, told = chosen(RESTARTED, "192.168.7.20", "10.9.0.11")
    assert found == ["bb"]
    assert told == ["host 192.168.7.20 is not an alive Ray node; Ray knows 10.9.0.10, 10.9.0.11"]


def test_a_name_that_several_nodes_share_chooses_none_of_them() -> None:
    nodes = [node("aa", "10.9.0.10", "localhost"), node("bb", "10.9.0.11", "localhost")]
    found, (told,) = chosen(nodes, "localhost")
    assert found == []
    assert "several Ray nodes: 10.9.0.10, 10.9.0.11; write the address" in told


def test_a_host_named_twice_in_two_ways_has_one_agent() -> None:
    nodes = [node("aa", "10.9.0.10", "Gpu01")]
    found, (told,) = chosen(nodes, "gpu01", "10.9.0.10")
    assert found == ["aa"]
    assert told == "host 10.9.0.10 is a Ray node that another entry of hosts: names, too"


def narrowed(*only: str) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Node and id of the targets that ``--hosts`` leaves, and the hosts missed."""
    nodes = [node("aa", "10.9.0.10", "gpu01"), node("bb", "10.9.0.11", "gpu02")]
    listed = [("10.9.0.10", "h01"), ("10.9.0.11", "h02"), ("10.9.0.12", "h03")]
    requests = [HostRequest(sweep="s", address=address, id=id) for address, id in listed]
    chosen = targets.choose(nodes, BASE, requests, "10.9.0.10:6379")
    found, missing = targets.narrow(*chosen, only)
    return [(t.node_id, t.request.id) for t in found], [f.address for f in missing]


@pytest.mark.parametrize("name", ["10.9.0.11", "h02", "GPU02"])
def test_a_host_picked_by_any_of_its_names_is_the_one_that_the_file_describes(name: str) -> None:
    """Its id is its key in the database: without it, it would begin a new history."""
    assert narrowed(name) == ([("bb", "h02")], [])


def test_a_picked_host_that_is_not_alive_is_missed_and_others_are_not() -> None:
    assert narrowed("h03", "gpu01") == ([("aa", "h01")], ["10.9.0.12"])
    assert narrowed() == ([("aa", "h01"), ("bb", "h02")], ["10.9.0.12"])


def test_a_name_that_only_agents_may_know_leaves_out_nobody() -> None:
    assert narrowed("gpu01", "hca29c8a9d94e2786")[0] == [("aa", "h01"), ("bb", "h02")]


def test_hosts_are_picked_where_the_file_lists_none() -> None:
    nodes = [node("aa", "10.9.0.10", "gpu01"), node("bb", "10.9.0.11", "gpu02")]
    chosen = targets.choose(nodes, BASE, [], "10.9.0.10:6379")
    found, missing = targets.narrow(*chosen, ["gpu02"])
    assert ([t.node_id for t in found], missing) == (["bb"], [])


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (None, "has no topobench; this driver is 0.2. Install the same wheel there: /py -m pip "
         "install topobench-0.2-py3-none-any.whl, or send"),
        ("0.2", "has other sources of topobench 0.2; this driver is 0.2. Install the same wheel "
         "there: /py -m pip install --force-reinstall --no-deps topobench-0.2-py3-none-any.whl"),
    ],
)  # fmt: skip
def test_another_topobench_is_told_with_the_line_that_replaces_it(
    theirs: str | None, told: str
) -> None:
    """Without being told so, pip leaves a version alone that it has already."""
    target = targets.Target("aa", "10.9.0.10", "gpu01", BASE)
    found = targets.difference(
        target, {"topobench": "0.2"}, {"topobench": theirs, "interpreter": "/py"}
    )
    assert found.startswith(f"host gpu01 (10.9.0.10) {told}")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (1000.0, None),
        (999.2, None),
        (1006.0, None),
        (994.0, "at least 6.0 s behind the driver's"),
        (1008.5, "at least 3.5 s ahead of the driver's"),
    ],
)
def test_a_clock_that_cannot_be_right_is_told(told: float, said: str | None) -> None:
    """Asked at 1000, answered at 1005: anything between may be right, and a second beyond."""
    note = targets.clock_note("gpu01", told, 1000.0, 1005.0)
    if said is None:
        assert note is None
    else:
        assert note is not None
        assert note.startswith("clock_skew: the clock of host gpu01")
        assert said in note


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    """Ray would go on trying for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        targets.check_reachable(address)
    with pytest.raises(AgentError, match=rf"nobody answers at {address} \(Connection refused\)"):
        targets.check_reachable(address)
    with pytest.raises(AgentError, match=r"nobody answers at nowhere\.invalid:6379 .*Name or|Temp"):
        targets.check_reachable("nowhere.invalid:6379")


@pytest.mark.parametrize("address", ["127.0.1.1", "192.0.2.7"])
def test_ranks_cannot_meet_where_no_other_host_comes(address: str) -> None:
    """Ray was started on a loopback address, or on one that has gone; the site may name another."""
    part = Part(cast(Launcher, None), address)
    reason = part._interface({})
    assert isinstance(reason, Reason)
    assert f"the address {address} that Ray gave this host is on no interface" in reason.text
    assert "start Ray with --node-ip-address" in reason.text
    assert part._interface({"GLOO_SOCKET_IFNAME": "=eth2"}) == "eth2"
