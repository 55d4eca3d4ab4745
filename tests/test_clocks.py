"""What a clock that ran ahead told is never the latest, unless there is nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from storing import begin, cell, host, reading, run
from topobench.db import clocks, look, schema
from topobench.db.columns import unix_seconds
from topobench.db.engine import writing
from topobench.db.merge import import_store
from topobench.db.queries import run_query
from topobench.db.store import Store
from topobench.host import Host

AHEAD = "9998-01-01T00:00:00.000000Z"
BEFORE, AFTER = "2024-11-02T01:00:00.000000Z", "2024-11-03T01:00:00.000000Z"


def seen(at: str, *keys: str, width: int) -> list[Host]:
    """Hosts that each sweep finds at another address."""
    made = [host(k, gpus=1, prefix=k, width=width, health=f"{width}") for k in keys]
    return [replace(h, address=at[:10], topology=replace(h.topology, taken_at=at)) for h in made]


def swept(store: Store, started: str, *keys: str, bytes: int = 1 << 20, width: int = 16) -> str:
    """A sweep of some hosts, one case; judged, with a line fitted."""
    cells = [cell(host=key, params={"bytes": bytes}) for key in keys]
    sweep = begin(store, *cells, hosts=seen(started, *keys, width=width), started_at=started)
    for planned in cells:
        store.put_run(replace(run(planned, reading(5.0)), started_at=started))
    store.end_sweep(sweep, ended_at=started)
    with writing(store.engine) as connection:
        ids = {
            "host_id": sa.select(schema.host.c.id).where(schema.host.c.key == "k1"),
            "sweep_id": sa.select(schema.sweep.c.id).where(schema.sweep.c.uuid == sweep),
        }
        own = {name: query.scalar_subquery() for name, query in ids.items()}
        fit = {"kind": "knee", "subject": "s", "x_metric": "x", "params": "{}", "knee": 1.0}
        connection.execute(schema.fit.insert().values(**own, **fit))
        level = "fail" if started == AHEAD else "ok"
        verdict = {"check_name": "overall", "level": level, "reason": "", "action": ""}
        rules = {"as_of": started, "policy_version": "1", "inputs_digest": "d"}
        connection.execute(schema.verdict.insert().values(**own, **verdict, **rules))
    return sweep


def asked(store: Store, sql: str) -> list[Any]:
    with store.engine.connect() as connection:
        return list(connection.execute(sa.text(sql)).scalars())


def test_a_sweep_dated_ahead_is_the_latest_only_while_it_is_alone(store: Store) -> None:
    """Of a host, a cluster, its verdict, its fits: wherever the newest is asked for."""
    ahead = swept(store, AHEAD, "k1", "k2")
    assert store.resolve_sweep("latest") == ahead
    assert [s["id"] for s in look.newest_sweeps(store)] == [ahead]
    assert [h["sweep"] for h in look.fleet(store)] == [ahead, ahead]
    before = swept(store, BEFORE, "k1", "k2")
    after = swept(store, AFTER, "k1")
    warned = {s["id"]: [w.partition(":")[0] for w in s["warnings"]] for s in store.sweeps()}
    assert warned == {ahead: [], before: ["clock_step"], after: []}
    assert store.resolve_sweep("latest") == after
    assert store.info()["last_sweep"]["id"] == after
    assert [s["id"] for s in look.newest_sweeps(store)] == [after]
    assert look.newest_of_host(store, "k1") == after
    assert [s["id"] for s in look.host_sweeps(store, "lab", "k1")][::2] == [after, ahead]
    assert [h["level"] for h in look.fleet(store)] == ["ok", None]
    assert look.fleet(store)[0]["sweep"] == after
    assert asked(store, "SELECT sweep FROM v_knee") == [after]
    assert store.sweeps(limit=1)[0]["id"] == ahead  # a list by date: there it is to be seen


def test_what_a_host_measured_ahead_alone_hides_neither_its_age_nor_its_peers(store: Store) -> None:
    """A weekly case that was last measured then, beside a nightly one of all hosts."""
    keys = [f"k{n}" for n in range(1, 5)]
    swept(store, AHEAD, "k1", bytes=64)
    swept(store, AFTER, *keys)
    ages = [h["measured_unix_seconds"] for h in look.fleet(store)]
    assert ages == [unix_seconds(AFTER)] * 4
    rows = asked(store, "SELECT measured_unix_seconds FROM v_coverage")
    assert rows == ages
    swept(store, AHEAD, "k4")
    assert asked(store, "SELECT count(*) FROM v_peer WHERE n_peers = 4") == [4]


def test_a_host_s_address_is_brought_up_to_date_after_a_clock_that_ran_ahead(
    store: Store, tmp_path: Any
) -> None:
    """By the next sweep, and by what another store has."""
    swept(store, AHEAD, "k1")
    other_url = f"sqlite:///{tmp_path}/other.db"
    with Store.open(other_url) as other:
        swept(other, AFTER, "k1")
    import_store(store, other_url)
    address = "SELECT address FROM host"
    assert asked(store, address) == [AFTER[:10]]
    (device,) = asked(store, "SELECT CAST(last_seen_at AS text) FROM device WHERE kind = 'gpu'")
    assert device[:10] == AFTER[:10]
    swept(store, "2024-11-04T01:00:00.000000Z", "k1")
    assert asked(store, address) == ["2024-11-04"]


@pytest.mark.parametrize(
    ("text", "than", "later"),
    [(AFTER, BEFORE, True), (BEFORE, AFTER, False), (AHEAD, AFTER, False), (AFTER, AHEAD, True)],
)
def test_a_time_that_lies_ahead_is_later_than_none(text: str, than: str, later: bool) -> None:
    assert clocks.is_later(text, than) is later


def test_named_queries_take_no_sweep_dated_ahead_for_the_newest(store: Store) -> None:
    """A link that was narrow then is not now; the knee is that of the later night."""
    swept(store, AHEAD, "k1", width=8)
    assert len(answer(store, "degraded-links")) == 1
    swept(store, AFTER, "k1")
    assert answer(store, "degraded-links") == []
    (knee,) = answer(store, "knee")
    assert knee["age_seconds"] == 23 * 3600


def answer(store: Store, name: str) -> list[dict[str, Any]]:
    found = run_query(store, name, {"since": "1970-01-01", "now": "2024-11-04T00:00:00Z"})
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]
