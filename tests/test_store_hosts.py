"""Cells that span hosts in the database: who took part, what is resumed, what readers see."""

from __future__ import annotations

import dataclasses

from storing import BANDWIDTH, begin, cell, host, reading, run
from topobench.db.readonly import run_sql
from topobench.db.store import Store
from topobench.reading import Cell, Member, Reason, ReasonCode, Run, Status

HOSTS = ("k1", "k2", "k3")


def pair(first: str, second: str) -> Cell:
    """A pair of hosts without a GPU."""
    made = cell(host=first, probe="host_network", params={"direction": "out"}, ranks=2)
    return dataclasses.replace(made, hosts=(first, second))


def measured(joint: Cell, median: float = 2e9) -> Run:
    members = tuple(Member(n, h, pid=100 + n) for n, h in enumerate(joint.hosts))
    return dataclasses.replace(run(joint, reading(median)), members=members)


def test_a_pair_is_stored_with_both_hosts_and_read_back_so(store_url: str) -> None:
    with Store.open(store_url) as store:
        alone, joint = cell(), pair("k1", "k2")
        sweep = begin(store, alone, joint, hosts=[host(h) for h in HOSTS])
        store.put_run(measured(joint))
        document = store.sweep_document(sweep)
    by_id = {c["id"]: c for c in document["cells"]}
    assert by_id[alone.id]["hosts"] == []
    shown = by_id[joint.id]
    assert (shown["host"], shown["hosts"], shown["devices"]) == ("k1", ["k1", "k2"], [])
    assert [(m["rank"], m["host"], m["device"]) for m in shown["members"]] == [
        (0, "k1", None),
        (1, "k2", None),
    ]


def test_what_is_left_of_joint_cells_is_resumed_on_the_same_hosts(store_url: str) -> None:
    with Store.open(store_url) as store:
        done, lost, never = pair("k1", "k2"), pair("k1", "k3"), pair("k2", "k3")
        sweep = begin(store, done, lost, never, hosts=[host(h) for h in HOSTS])
        store.put_run(measured(done))
        reason = Reason(ReasonCode.HOST_LOST, "host k3: gone")
        store.put_run(run(lost, status=Status.FAILED, reason=reason))
        cells, attempts = store.cells_to_resume(sweep)
        everything, seed, profile = store.cells_of(sweep)
    assert [c.hosts for c in cells] == [("k1", "k3"), ("k2", "k3")]
    assert attempts == {lost.id: 2, never.id: 1}
    assert [(c.id, c.hosts) for c in everything] == [(c.id, c.hosts) for c in (done, lost, never)]
    assert (seed, profile) == (7, "quick")


def test_each_pair_has_a_history_of_its_own(store_url: str) -> None:
    with Store.open(store_url) as store:
        for day, faster in ((2, 1.0), (3, 1.1)):
            joint = [pair("k1", "k2"), pair("k1", "k3")]
            begin(store, *joint, hosts=[host(h) for h in HOSTS], day=day)
            for number, one in enumerate(joint):
                store.put_run(
                    dataclasses.replace(
                        measured(one, faster * (number + 1) * 1e9),
                        started_at=f"2026-11-{day:02d}T01:00:05.000000Z",
                    )
                )
    answer = run_sql(
        store_url,
        "SELECT devices, n_devices, n_hosts, median FROM v_latest "
        f"WHERE metric = '{BANDWIDTH}' ORDER BY devices",
    )
    assert [tuple(row) for row in answer.rows] == [
        ("k1,k2", 0, 2, 1.1e9),
        ("k1,k3", 0, 2, 2.2e9),
    ]


def test_a_gang_over_gpus_knows_each_ranks_host_by_its_gpu(store_url: str) -> None:
    hosts = [host("k1", gpus=2, prefix="A"), host("k2", gpus=2, prefix="B")]
    made = cell(devices=("A-0", "A-1", "B-0", "B-1"), ranks=4, params={"ranks": 4})
    joint = dataclasses.replace(made, hosts=("k1", "k1", "k2", "k2"))
    with Store.open(store_url) as store:
        sweep = begin(store, joint, hosts=hosts)
        (shown,) = store.sweep_document(sweep)["cells"]
        ((again,), _) = store.cells_to_resume(sweep)
    assert shown["hosts"] == ["k1", "k1", "k2", "k2"]
    assert shown["devices"] == ["A-0", "A-1", "B-0", "B-1"]
    assert (again.hosts, again.devices) == (joint.hosts, joint.devices)
