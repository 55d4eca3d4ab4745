"""What pages read of a store, on both engines."""

from __future__ import annotations

import datetime

import sqlalchemy as sa

import storing
from topobench.db import look, schema
from topobench.db.engine import writing
from topobench.db.store import Store
from topobench.reading import Reason, ReasonCode, Status


def judge(store: Store, sweep: str, host: str, check: str, level: str, as_of: str) -> None:
    with writing(store.engine) as connection:
        ids = sa.select(schema.host.c.id).where(schema.host.c.key == host).scalar_subquery()
        of = sa.select(schema.sweep.c.id).where(schema.sweep.c.uuid == sweep).scalar_subquery()
        connection.execute(
            schema.verdict.insert().values(
                host_id=ids,
                sweep_id=of,
                as_of=as_of,
                check_name=check,
                level=level,
                reason="why",
                policy_version="1",
                inputs_digest="d",
                action="scontrol",
            )
        )


def test_an_empty_store_has_no_fleet(store: Store) -> None:
    assert look.fleet(store) == []
    assert look.newest_sweeps(store) == []
    assert look.host_sweeps(store, "lab", "k1") == []
    assert look.newest_of_host(store, "k1") is None


def test_the_fleet_has_each_host_with_its_newest_sweep_age_and_verdict(store: Store) -> None:
    one, two = (storing.host(k, gpus=1, prefix=k) for k in ("k1", "k2"))
    cell, later = storing.cell(), storing.cell()
    first = storing.begin(store, cell, hosts=[one, two], day=2)
    store.put_run(storing.run(cell, storing.reading(5.0), day=2))
    store.end_sweep(first)
    second = storing.begin(store, later, hosts=[one], day=3)
    store.put_run(storing.run(later, storing.reading(5.0), day=3))
    store.end_sweep(second)
    judge(store, first, "k1", "overall", "fail", storing.at(0, 2))
    judge(store, second, "k1", "overall", "ok", storing.at(0, 3))
    judge(store, second, "k1", "peers", "unknown", storing.at(0, 3))
    judge(store, first, "k2", "peers", "watch", storing.at(0, 2))
    judge(store, first, "k2", "history", "learning", storing.at(0, 2))
    fleet = {h["key"]: h for h in look.fleet(store)}
    assert (fleet["k1"]["sweep"], fleet["k2"]["sweep"]) == (second, first)
    assert (fleet["k1"]["level"], fleet["k2"]["level"]) == ("ok", "watch")
    at = datetime.datetime.fromisoformat(storing.at(5, 3)).timestamp()
    assert fleet["k1"]["measured_unix_seconds"] == at
    assert fleet["k2"]["measured_unix_seconds"] is None
    assert fleet["k1"]["synthetic"] is False
    assert look.newest_of_host(store, "K1") == second
    assert [s["id"] for s in look.newest_sweeps(store)] == [second]
    assert [s["id"] for s in look.host_sweeps(store, "lab", "k1")] == [second, first]
    assert look.host_sweeps(store, "lab", "k1")[0]["counts"] == {"ok": 1}
    (overall,) = [v for v in look.verdicts(store, first, "k1") if v["check"] == "overall"]
    assert (overall["level"], overall["action"], overall["device"]) == ("fail", "scontrol", None)


def test_a_sweep_under_way_has_its_progress_and_its_hosts(store: Store) -> None:
    cells = [storing.cell() for _ in range(3)]
    other = storing.cell(host="k2")
    sweep = storing.begin(store, *cells, other, hosts=[storing.host("k1"), storing.host("k2")])
    store.put_run(storing.run(cells[0], storing.reading(5.0)))
    failed = Reason(ReasonCode.SIGNAL, "killed")
    store.put_run(storing.run(cells[1], status=Status.FAILED, reason=failed))
    found = look.progress(store, sweep[:8])
    assert (found["id"], found["status"]) == (sweep, "running")
    assert found["counts"] == {"ok": 1, "failed": 1, "planned": 2}
    hosts = look.sweep_hosts(store, sweep)
    assert [(h["key"], h["counts"]) for h in hosts] == [
        ("k1", {"ok": 1, "failed": 1, "planned": 1}),
        ("k2", {"planned": 1}),
    ]
    assert look.newest_of_host(store, "k1") is None, "it has not ended"


def test_a_document_of_one_host_holds_nothing_of_others(store: Store) -> None:
    mine, other = storing.cell(), storing.cell(host="k2")
    hosts = [storing.host("k1"), storing.host("k2")]
    sweep = storing.begin(store, mine, other, hosts=hosts)
    for cell in (mine, other):
        store.put_run(storing.run(cell, storing.reading(5.0)))
    document = store.sweep_document(sweep, host="k2")
    assert [h["key"] for h in document["hosts"]] == ["k2"]
    assert [(c["id"], c["host"]) for c in document["cells"]] == [(other.id, "k2")]
    assert document["cells"][0]["readings"][0]["median"] == 5.0
    assert document["counts"] == {"ok": 1}
    assert set(look.topologies(store, sweep, ["k2"])) == {"k2"}
    assert set(look.topologies(store, sweep)) == {"k1", "k2"}
