"""`check`, `ack` and the change ledger, on stored sweeps of both engines."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import storing
from documents import check as valid
from topobench import cli, commands, judging, policy
from topobench.db import evidence, look, schema, selecting, verdicts
from topobench.db.engine import reading, writing
from topobench.db.merge import import_store
from topobench.db.store import Store
from topobench.errors import ConfigError, NotFound, UsageError
from topobench.host import Host

HOSTS = 9
CASES = 2
NOW = datetime.datetime(2026, 11, 10, tzinfo=datetime.UTC)


def night(
    store: Store,
    day: int,
    *,
    slow: Mapping[str, float] | None = None,
    only: int = HOSTS,
    hosts: Mapping[int, Host] | None = None,
    second: float = 0,
) -> str:
    """A sweep of some hosts of one class; speeds are equal but for the slow ones."""
    found = [(hosts or {}).get(n) or machine(n) for n in range(only)]
    cells = [
        storing.cell(host=h.key, params={"bytes": 1 << (20 + c)}, binding="local")
        for h in found
        for c in range(CASES)
    ]
    sweep = storing.begin(store, *cells, hosts=found, day=day, started_at=storing.at(second, day))
    for cell in cells:
        share = 1 - (slow or {}).get(cell.host, 0.0)
        made = storing.run(cell, storing.reading(5e10 * share), day=day, second=second + 5)
        store.put_run(made)
    store.end_sweep(sweep, ended_at=storing.at(second + 60, day))
    return sweep


def machine(number: int, **wiring: Any) -> Host:
    return storing.host(
        f"k{number}", name=f"h{number}", **{"gpus": 2, "prefix": f"G{number}", **wiring}
    )


def test_cases_that_differ_have_names_that_differ(tmp_path: Path) -> None:
    """A verdict names the case that is slow: a graph, 2048 tokens, a model that two GPUs share."""
    model: dict[str, Any] = {"shape": "tiny", "dtype": "bf16", "mode": "graph", "batch": 1}
    cases: list[tuple[str, dict[str, Any], str]] = [
        *(("kernel_launch", {"mode": m}, m) for m in ("graph", "back_to_back")),
        *(("gemm", {"dtype": "bf16", "size": 8192, "mode": m}, f"bf16 {m} 8192")
          for m in ("burst", "sustained")),
        ("prefill", {**model, "sequence": 256}, "bf16 tiny graph 256 tokens"),
        ("prefill", {**model, "sequence": 256, "batch": 8}, "bf16 tiny graph 256 tokens x 8"),
        ("prefill", {**model, "sequence": 256, "tensor_parallel": 2},
         "bf16 tiny graph 256 tokens 2 GPUs"),
    ]  # fmt: skip
    cells = [storing.cell(host="k0", probe=p, params=params) for p, params, _ in cases]
    with Store.open(f"sqlite:///{tmp_path / 'own.db'}") as store:
        sweep = storing.begin(store, *cells, hosts=[machine(0)])
        for made in cells:
            store.put_run(storing.run(made, storing.reading(1e9)))
        tracks = evidence.load(store, sweep, None, policy.default()).evidence.tracks
    assert {t.label for t in tracks} == {f"{p} {words} none bandwidth" for p, _, words in cases}


def with_driver(host: Host, version: str) -> Host:
    machine = replace(host.topology.machine, driver=version)
    prints = {**host.topology.fingerprints, "config": f"tfp1:{version}"}
    return replace(host, topology=replace(host.topology, machine=machine, fingerprints=prints))


def rows(store: Store, table: sa.Table) -> list[Any]:
    with reading(store.engine) as connection:
        return list(connection.execute(sa.select(table).order_by(table.c.id)))


def levels(data: Mapping[str, Any]) -> dict[str, str]:
    return {s["name"]: s["level"] for s in data["subjects"] if s["device"] is None}


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What a command prints as JSON, its exit code checked against the document."""
    code = cli.main([*arguments, "--format", "json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code
    valid(told, "error" if told["status"] == "error" else arguments[0])
    return told


@pytest.fixture
def url(sqlite_store_url: str) -> str:
    return sqlite_store_url


def test_a_slow_host_is_learning_then_degraded_and_its_verdict_is_stored(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(store_url) as store:
        night(store, 2, slow={"k4": 0.05})
        first = document(capsys, "check", "--store", store_url)
        assert (first["exit_code"], set(levels(first["data"]).values())) == (0, {"learning"})
        last = night(store, 3, slow={"k4": 0.05})
        found = document(capsys, "check", "--store", store_url)
        assert (found["exit_code"], found["status"]) == (1, "degraded")
        assert {h: v for h, v in levels(found["data"]).items() if v != "learning"} == {
            "h4": "degraded"
        }
        stored = [r for r in rows(store, schema.verdict) if r.superseded_by is None]
        told = [r for r in stored if r.check_name == "overall" and r.level == "degraded"]
        assert len(told) == 1
        assert told[0].policy_version == "1"
        assert told[0].action.startswith("scontrol update NodeName=h4")
        assert told[0].as_of == found["data"]["as_of"] == storing.at(60, 3)
        peers = next(r for r in stored if r.level == "degraded" and r.check_name == "peers")
        assert (peers.value, peers.reference) == (pytest.approx(4.75e10), pytest.approx(5e10))
        assert peers.effect_ratio == pytest.approx(-0.05)
        assert peers.confirmed_count == 2
        assert found["data"]["sweep"] == last


def test_the_same_check_again_adds_nothing_and_other_rules_supersede(
    url: str, tmp_path: Path
) -> None:
    with Store.open(url) as store:
        for day in (2, 3):
            night(store, day, slow={"k4": 0.05})
        once = judging.check(url).data
        count = len(rows(store, schema.verdict))
        assert judging.check(url).data == once
        assert len(rows(store, schema.verdict)) == count
        lax = tmp_path / "policy.yaml"
        lax.write_text("bandwidth_delta: 0.06\n")
        other = judging.check(url, policy=lax)
        assert levels(other.data)["h4"] == "learning"
        assert other.data["policy"].startswith("1+")
        stored = rows(store, schema.verdict)
        assert len(stored) == 2 * count
        assert all(v.superseded_by is not None for v in stored[:count])
        assert all(v.superseded_by is None for v in stored[count:])


def test_as_of_judges_what_was_known_then_and_when_data_are_old(url: str) -> None:
    with Store.open(url) as store:
        first = night(store, 2, slow={"k4": 0.05})
        night(store, 3, slow={"k4": 0.05})
    assert levels(judging.check(url, first).data)["h4"] == "learning"
    late = judging.check(url, as_of="2026-11-30")
    assert (set(levels(late.data).values()), late.exit_code) == ({"unknown"}, 3)
    with pytest.raises(UsageError, match="lies before sweep"):
        judging.check(url, as_of="2026-11-01")
    with pytest.raises(UsageError, match="is no time; write 2026-11-29"):
        judging.check(url, as_of="yesterday")
    with pytest.raises(UsageError, match="'' is no time"):  # a script's variable was empty
        judging.check(url, as_of="")


def test_a_check_as_of_a_late_day_does_not_outlast_the_next_one(url: str) -> None:
    """The fleet shows what stands of its newest sweep, however late a day was asked about."""
    with Store.open(url) as store:
        first = night(store, 2, slow={})
        judging.check(url, as_of="2099-11-30")
        assert {h["level"] for h in look.fleet(store)} == {"unknown"}
        judging.check(url)
        assert {h["level"] for h in look.fleet(store)} == {"learning"}
        night(store, 3, slow={})
        judging.check(url)
        judging.check(url, first, as_of="2099-11-30")
        assert {h["level"] for h in look.fleet(store)} == {"learning"}


def test_a_report_as_of_a_day_shows_the_sweep_and_the_verdicts_of_then(url: str) -> None:
    with Store.open(url) as store:
        first = night(store, 2, slow={"k4": 0.05})
        judging.check(url, first)
        last = night(store, 3, slow={"k4": 0.05})
        judging.check(url, first, as_of="2026-11-30")  # replaces the verdict of the first night
        for as_of, wanted in (("2026-11-02", first), ("2026-11-03", last), (None, last)):
            shown = commands.report(url, "latest", as_of)
            assert shown.data["sweep"]["id"] == wanted
        until = selecting.moment("2026-11-02")
        assert {v["level"] for v in verdicts.overall(store, first, until)} == {"learning"}
        assert {v["level"] for v in verdicts.overall(store, first)} == {"unknown"}
        shown_then = {v["as_of"] for v in look.verdicts(store, first, as_of=until)}
        assert shown_then == {storing.at(60, 2)}
    with pytest.raises(NotFound, match="no sweep had begun by 2026-11-01"):
        commands.report(url, "latest", "2026-10-31")


def test_the_last_sweep_of_a_day_counts_so_a_repair_shows_at_once(url: str) -> None:
    with Store.open(url) as store:
        for day in (2, 3, 4):
            night(store, day, slow={"k0": 0.05})
        night(store, 4, only=1, second=1200)
    again = judging.check(url)
    assert levels(again.data) == {"h0": "degraded"}  # two bad nights, one good
    assert again.warnings == [
        "8 of the cluster's hosts that were measured in the last 14 days are not in this sweep, "
        "and are not judged: h1, h2, h3, h4, h5, h6, h7, h8"
    ]
    with Store.open(url) as store:
        night(store, 5)
    assert levels(judging.check(url).data)["h0"] == "ok"


def test_a_halved_link_fails_and_is_written_into_the_ledger(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(url) as store:
        night(store, 2, only=4)
        night(store, 3, only=4, hosts={1: machine(1, width=8, health="tfp1:bad")})
        found = document(capsys, "check", "--store", url)
        assert found["exit_code"] == 2
        assert levels(found["data"]) == {
            "h0": "learning",
            "h1": "fail",
            "h2": "learning",
            "h3": "learning",
        }
        events = [(e.kind, e.key, e.old, e.new, e.source) for e in rows(store, schema.change_event)]
        assert events == [("link_narrower", f"gpu:{n}", "16", "8", "auto") for n in (0, 1)]
        assert rows(store, schema.change_event)[0].at == storing.at(0, 3)
    assert cli.main(["check", "--store", url]) == 2
    text = capsys.readouterr().out
    assert "FAIL h1 gpu:0 (G1-0)" in text
    assert "the PCIe link of gpu:0 runs at x8 of x16" in " ".join(text.split())
    assert "kubectl cordon h1" in text
    assert cli.main(["report", "--store", url]) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "fail: h1 gpu:0: the PCIe link of gpu:0 runs at x8 of x16" in report
    assert "Hosts: 1 fail, 3 learning (policy 1; more with topobench check)." in report


def test_changes_of_software_and_swapped_gpus_are_recorded_once(url: str) -> None:
    swapped = machine(0, prefix="NEW")
    newer = with_driver(machine(1), "580.95")
    with Store.open(url) as store:
        night(store, 2, only=2)
        sweep = night(store, 3, only=2, hosts={0: swapped, 1: newer})
        store.put_host(sweep, newer)
        night(store, 4, only=2, hosts={0: swapped, 1: newer})
        events = [(e.kind, e.key, e.old, e.new) for e in rows(store, schema.change_event)]
    assert events == [
        ("gpu_replaced", "0000:01:00.0", "G0-0", "NEW-0"),
        ("gpu_replaced", "0000:02:00.0", "G0-1", "NEW-1"),
        ("driver", "host", "570.86", "580.95"),
    ]


def test_a_recorded_change_or_another_version_begins_a_new_history(url: str) -> None:
    def history(name: str) -> str:
        data = judging.check(url).data
        told = next(s for s in data["subjects"] if s["name"] == name and s["device"] is None)
        return str(next(c["reason"] for c in told["checks"] if c["name"] == "history"))

    with Store.open(url) as store:
        for day in range(2, 9):
            night(store, day, only=3)
        assert history("h0") == "2 figures, none beyond the gates"
        changed = {1: with_driver(machine(1), "580.95")}
        night(store, 9, only=3, hosts=changed)
    assert history("h0") == "2 figures, none beyond the gates"
    assert history("h1") == "learning (1 of 6 nights)"


def test_a_fall_is_a_changepoint_and_the_next_check_replaces_it(url: str) -> None:
    with Store.open(url) as store:
        for day in range(2, 12):
            night(store, day, only=1, slow={"k0": 0.06} if day >= 8 else {})
            judging.check(url)
        points = rows(store, schema.changepoint)
        told = {(p.at_lo[:10], p.at_hi[:10], p.method) for p in points}
        assert told == {("2026-11-07", "2026-11-08", "potts")}
        assert len(points) == CASES
        assert points[0].effect_ratio == pytest.approx(-0.06)
        assert levels(judging.check(url).data) == {"h0": "degraded"}


def test_a_gpu_fewer_than_before_fails(url: str) -> None:
    with Store.open(url) as store:
        night(store, 2, only=1)
        night(store, 3, only=1, hosts={0: machine(0, gpus=1, shape="tfp1:less")})
        kinds = [e.kind for e in rows(store, schema.change_event)]
    data = judging.check(url).data
    assert levels(data) == {"h0": "fail"}
    assert "1 GPUs work, 2 are expected" in json.dumps(data)
    assert kinds == ["gpu_missing"]


def test_an_acknowledged_host_is_shown_and_decides_no_exit_code(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(url) as store:
        night(store, 2, only=4, hosts={1: machine(1, width=8)})
    assert judging.check(url).exit_code == 2
    until = "2099-12-24"
    made = document(
        capsys,
        "ack",
        "h1",
        "--ticket",
        "OPS-4",
        "--until",
        until,
        "--text",
        "riser",
        "--store",
        url,
    )
    assert made["data"]["acks"][0]["expires_at"] == "2099-12-24T23:59:59.999999Z"
    found = document(capsys, "check", "--store", url)
    assert found["exit_code"] == 0
    bad = next(s for s in found["data"]["subjects"] if s["name"] == "h1")
    assert (bad["level"], bad["acknowledged"]["ticket"]) == ("fail", "OPS-4")
    assert cli.main(["check", "--store", url]) == 0
    assert "FAIL h1  acknowledged: OPS-4 until 2099-12-24" in capsys.readouterr().out
    listed = document(capsys, "ack", "--store", url)["data"]["acks"]
    assert [(a["name"], a["text"], a["active"]) for a in listed] == [("h1", "riser", True)]


def test_an_acknowledgement_ends(url: str) -> None:
    with Store.open(url) as store:
        night(store, 2, only=4, hosts={1: machine(1, width=8)})
    judging.ack(url, "k1", ticket="T", until="2026-11-11", now=NOW)
    assert judging.check(url, as_of="2026-11-11T12:00:00Z").exit_code == 0
    assert judging.check(url, as_of="2026-11-12").exit_code == 2
    later = judging.acks(url, now=NOW + datetime.timedelta(days=3)).data["acks"]
    assert [a["active"] for a in later] == [False]


def test_a_later_acknowledgement_takes_the_place_of_an_earlier_one(url: str) -> None:
    """Else a year mistyped would silence a host for good."""
    with Store.open(url) as store:
        night(store, 2, only=4, hosts={1: machine(1, width=8)})
    judging.ack(url, "k1", ticket="T", until="2062-11-11", now=NOW)
    judging.ack(url, "k1", ticket="T", until="2026-11-11", now=NOW)
    assert judging.check(url, as_of="2026-11-11T12:00:00Z").exit_code == 0
    assert judging.check(url, as_of="2026-11-12").exit_code == 2
    shown = judging.acks(url, now=NOW).data["acks"]
    assert [(a["expires_at"][:4], a["active"]) for a in shown] == [("2026", True), ("2062", False)]
    with pytest.raises(NotFound, match="no host 'k1' is stored in a cluster 'lap'"):
        judging.ack(url, "k1", ticket="T", until="2026-12-24", cluster="lap", now=NOW)


@pytest.mark.parametrize(
    ("host", "until", "message"),
    [
        ("h9", "2026-12-24", "no host 'h9' is stored; did you mean h0"),
        ("h0", "2026-11-09", "has passed"),
        ("h0", "soon", "is no date; write 2026-12-24"),
        ("h0", "2026-12-24T06:00:00", "has no zone"),
    ],
)
def test_a_wrong_acknowledgement_says_what_to_do(
    url: str, host: str, until: str, message: str
) -> None:
    with Store.open(url) as store:
        night(store, 2, only=1)
    with pytest.raises((NotFound, UsageError), match=message):
        judging.ack(url, host, ticket="T", until=until, now=NOW)


def test_whatever_keeps_check_from_judging_is_three(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--store", url]) == 3
    Store.open(url).close()
    assert document(capsys, "check", "--store", url)["error"]["type"] == "NotFound"
    with Store.open(url) as store:
        store.begin_sweep(
            id=storing.new_id(), cluster="lab", profile="quick", trigger="cron", seed=1,
            tool_version="0.1.0", started_at=storing.at(0),
        )  # fmt: skip
    empty = document(capsys, "check", "--store", url)
    assert (empty["exit_code"], empty["data"]["subjects"]) == (3, [])
    rules = tmp_path / "p.yaml"
    rules.write_text("z: none\nnight: 3\n")
    assert cli.main(["check", "--store", url, "--policy", str(rules)]) == 3
    told = capsys.readouterr().err
    assert "p.yaml:1: z: 'none' is no number" in told
    assert "p.yaml:2: night: unknown key" in told
    assert "did you mean nights?" in told


def test_a_sweep_that_is_under_way_or_foreign_is_said_to_be(url: str) -> None:
    with Store.open(url) as store:
        sweep = night(store, 2, slow={})
        assert judging.check(url).warnings == []
        store.resume_sweep(sweep)
        (told,) = judging.check(url).warnings
        assert told == "the sweep is running: its hosts are judged by what it measured so far"
        store.end_sweep(sweep, "interrupted")
        with writing(store.engine) as connection:
            connection.execute(schema.sweep.update(), {"source": "import:nccl-tests"})
        (cut, foreign) = judging.check(url, sweep).warnings
        assert (cut.split(":")[0], foreign) == (
            "the sweep is interrupted",
            "these are another tool's results (import:nccl-tests)",
        )


def test_the_rules_can_be_read_and_changed_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--print-policy"]) == 0
    shown = capsys.readouterr().out
    assert "bandwidth_delta: 0.02" in shown
    assert "# A case is flagged" in shown
    own = tmp_path / "own.yaml"
    own.write_text("z: 4\n")
    told = document(capsys, "check", "--print-policy", "--policy", str(own))["data"]["policy"]
    assert (told["z"], told["bandwidth_delta"]) == (4.0, 0.02)
    own.write_text("confirm: 4\n")
    with pytest.raises(ConfigError, match="confirm must not be above nights"):
        judging.print_policy(own)
    own.write_text("z: 1e308\nnights: 99999999999999999999\n")
    with pytest.raises(ConfigError) as refused:
        judging.print_policy(own)
    assert "1e308 must be a number above 0, and at most 100" in str(refused.value)
    assert "must be a whole number from 1 to 366" in str(refused.value)


def test_an_import_and_a_synthetic_sweep_do_not_mix_with_what_was_measured(url: str) -> None:
    with Store.open(url) as store:
        night(store, 2, only=1)
        storing.begin(store, hosts=[with_driver(machine(0), "580.95")], day=3, synthetic=True)
        night(store, 4, only=1)
        assert rows(store, schema.change_event) == []


def test_the_planted_faults_of_a_demo_fleet_are_found_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nine hosts and six nights: a slow host from the fifth on, a slow GPU, half a link tonight."""
    effects = "slow-host=h03:4%@5,slow-gpu=h06/2:14%@1,degraded-link=h09@6"
    made = tmp_path / "demo.db"
    flags = ["--hosts", "9", "--days", "6", "--effects", effects, "--store", str(made)]
    assert cli.main(["demo", *flags]) == 0
    capsys.readouterr()
    with Store.open(f"sqlite:///{made}") as store:
        sweep = next(s for s in store.sweeps(50) if s["cluster"] == "synthetic-sxm")["id"]
        judging.check(f"sqlite:///{made}", sweep, as_of="2099-01-01")
    found = document(capsys, "check", sweep, "--store", f"sqlite:///{made}")
    assert found["data"]["synthetic"]
    bad = {n: v for n, v in levels(found["data"]).items() if v not in ("ok", "learning")}
    assert bad == {"h03": "fail", "h06": "fail", "h09": "fail"}
    told = next(s for s in found["data"]["subjects"] if s["name"] == "h03")
    assert "peers and its own history agree on" in told["checks"][-1]["reason"]
    named = {(s["name"], s["device_name"]) for s in found["data"]["subjects"] if s["device"]}
    assert named == {("h06", "gpu:2"), ("h09", "gpu:0")}
    with Store.open(f"sqlite:///{made}") as store:  # the device of h09 has two of one check
        standing = sum(v.superseded_by is None for v in rows(store, schema.verdict))
        with reading(store.engine) as connection:
            overall = connection.exec_driver_sql(
                "SELECT host, level FROM v_verdict WHERE check_name = 'overall' AND device IS NULL"
            ).all()
    assert sorted(map(tuple, overall)) == sorted(levels(found["data"]).items())
    subjects = found["data"]["subjects"]
    assert standing == sum(1 + len(s["checks"]) for s in subjects)
    with Store.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        import_store(copy, f"sqlite:///{made}")
        assert sum(v.superseded_by is None for v in rows(copy, schema.verdict)) == standing
