"""Nights of a fleet that go wrong: wrong files, spooled results, times that were missed."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from documents import check
from storing import begin, cell, count, host, reading, run
from topobench import cli, fleet, fleet_missed, fleet_spool
from topobench.db import look, schedules, spool
from topobench.db.engine import place_of
from topobench.db.recorder import Recorder
from topobench.db.spool_import import Imported, import_files, import_spool
from topobench.db.store import Store
from topobench.errors import ConfigError, StoreUnreachable
from topobench.fleet_ran import Ran
from topobench.fleet_times import Times, parse_quiet

UTC = datetime.UTC
NEVER = "0 0 29 2 *"
CRON = ["sweep", "--fleet", "fleet.yaml", "--due", "--trigger", "cron"]


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=UTC)


@dataclass
class Nights:
    """A folder with fleet.yaml and a store, in which ``sweep`` is called as cron does."""

    folder: Path
    url: str
    capture: pytest.CaptureFixture[str]

    def write(self, *clusters: str, cron: str = NEVER) -> fleet.Fleet:
        entries = "".join(
            f"  - cluster: {c}\n    schedules: [{{name: now, cron: '{cron}'}}]\n" for c in clusters
        )
        file = self.folder / "fleet.yaml"
        file.write_text(f"kind: topobench-fleet/v1\nname: prod\nclusters:\n{entries}")
        return fleet.load(file)

    def look(self, *more: str) -> tuple[int, str]:
        code = cli.main([*CRON, *more])
        out, err = self.capture.readouterr()
        assert err == ""
        return code, out

    def document(self, *more: str) -> dict[str, Any]:
        found = json.loads(self.look("--format", "json", *more)[1])
        check(found, "sweep-fleet")
        data: dict[str, Any] = found["data"]
        return data

    def metrics(self) -> list[str]:
        return (self.folder / "topobench.prom").read_text().splitlines()


@pytest.fixture
def nights(
    tmp_path: Path,
    sqlite_store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Nights:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")  # no path is longer than a line and broken in two
    monkeypatch.setenv("TOPOBENCH_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("TOPOBENCH_STORE", sqlite_store_url)
    monkeypatch.setattr("topobench.db.engine.BUSY_SECONDS", 0.2)
    return Nights(tmp_path, sqlite_store_url, capsys)


@contextlib.contextmanager
def away(nights: Nights) -> Any:
    """Another process holds the store's write lock."""
    holder = sqlite3.connect(nights.folder / "topobench.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with contextlib.closing(holder):
        yield


ONE = """\
kind: topobench-fleet/v1
clusters:
  - cluster: typo.yaml
    store: sqlite:///typo.db
    schedules: [{name: now, cron: "0 2 * * *"}]
  - cluster: {name: lab}
    schedules: [{name: now, cron: "0 2 * * *"}]
  - cluster: {name: edge}
    schedules: [{name: now, cron: "0 25 * * *"}, {name: then, cron: "0 2 * * *"}]
  - cluster: gone.yaml
    schedules: [{name: now, cron: "0 2 * * *"}]
  - cluster: torn.yaml
    schedules: [{name: now, cron: "0 2 * * *"}]
  - {cluster: {name: bare}}
  - {cluster: {name: none}, schedules: []}
"""


def test_each_wrong_cluster_is_named_and_leaves_the_others(nights: Nights) -> None:
    """Whatever the mistake: a key, no file, no YAML, a time, an entry that lacks something."""
    (nights.folder / "typo.yaml").write_text("kind: topobench/v1\nname: far\nprobs: [gemm]\n")
    (nights.folder / "torn.yaml").write_text("kind: [\n")
    file = nights.folder / "fleet.yaml"
    file.write_text(ONE)
    found = fleet.load(file)
    assert [s.label for s in found.schedules] == ["lab/now"]
    typo, edge, gone, torn, bare, none = found.wrong
    assert [w.cluster for w in (typo, edge, bare, none)] == ["far", "edge", "bare", "none"]
    assert [w.cluster for w in (gone, torn)] == ["gone.yaml", "torn.yaml"]
    (said,) = typo.mistakes
    assert f"{nights.folder}/typo.yaml:3: probs: unknown key" in said
    assert "did you mean probes?" in said
    assert f"{file}:9: clusters[2].schedules[0].cron: '0 25 * * *'" in edge.mistakes[0]
    assert gone.mistakes == (f"{nights.folder}/gone.yaml: no such file",)
    assert f"{nights.folder}/torn.yaml:2: not YAML" in torn.mistakes[0]
    assert "needs cluster: (a file, or keys of one) and schedules:" in bare.mistakes[0]
    assert "schedules: holds none, so it is never swept" in none.mistakes[0]
    assert found.stores == (nights.url, "sqlite:///typo.db")
    assert fleet.chosen(found, "lab").wrong == ()
    assert fleet.chosen(found, "far/now,lab").wrong == (typo,)
    with pytest.raises(ConfigError, match="did you mean edge"):
        fleet.chosen(found, "edg")
    file.write_text(ONE.replace("  - cluster: {name: lab}", "  - cluster: {nam: lab}"))
    with pytest.raises(ConfigError) as error:  # no cluster is left
        fleet.load(file)
    assert len(error.value.mistakes) == 7


def test_a_wrong_cluster_is_told_once_and_by_every_exit_code(nights: Nights) -> None:
    (nights.folder / "far.yaml").write_text("kind: topobench/v1\nname: far\nprobs: [gemm]\n")
    nights.write("far.yaml", "{name: lab}")
    code, told = nights.look("--textfile", "topobench.prom")
    assert (code, told.splitlines()[0]) == (2, "far: not swept until this is mended")
    assert "far.yaml:3: probs: unknown key" in told
    assert 'topobench_cluster_wrong{cluster="far"} 1.0' in nights.metrics()
    assert nights.look() == (2, "")
    assert nights.look("--check") == (3, "")
    assert nights.look("--only", "lab") == (0, "")
    assert nights.look() == (2, ""), "it stays told"
    assert nights.document()["wrong"][0]["is_news"] is False
    (nights.folder / "far.yaml").write_text("kind: topobench/v1\nname: far\n")
    assert nights.look("--textfile", "topobench.prom") == (0, "")
    assert not any(line.startswith("topobench_cluster_wrong{") for line in nights.metrics())
    (nights.folder / "far.yaml").write_text("kind: topobench/v1\nname: far\nprobs: [gemm]\n")
    assert "probs: unknown key" in nights.look()[1], "it was mended meanwhile"


def test_a_fleet_that_cannot_be_used_is_told_once_too(nights: Nights) -> None:
    nights.write("{name: lab}")
    file = nights.folder / "fleet.yaml"
    good = file.read_text()
    for _ in range(2):
        file.write_text(good.replace("{name: lab}", "{nam: lab}"))
        assert cli.main(CRON) == 2
        assert "fleet.yaml:4: nam: unknown key" in nights.capture.readouterr().err
        assert nights.look() == (2, "")
        assert nights.look("--check") == (3, "")
        assert len(nights.document()["wrong"][0]["mistakes"]) == 1
        file.write_text(good)
        assert nights.look() == (0, "")


def spooled_night(nights: Nights, found: fleet.Fleet) -> str:
    """A night whose store went away after its first run; its try and its end are spooled, too."""
    cells = [cell(process_no=n) for n in range(3)]
    due = at("2026-11-02T01:00:00")
    with Store.open(nights.url) as store:
        tried = schedules.begin(store, "lab", "now", due_at=due)
    with Recorder.open(nights.url, warn=lambda _: None) as recorder:
        sweep = begin(recorder, *cells, trigger="cron")
        recorder.put_run(run(cells[0], reading(1.0)))
        with away(nights):
            for planned in cells[1:]:
                recorder.put_run(run(planned, reading(2.0)))
            recorder.end_sweep(sweep)
    ran = Ran(found.schedules[0], due, exit_code=1, sweep=sweep, message="away", spooled=True)
    fleet_spool.keep_end(ran, tried)
    return sweep


def suffixes(nights: Nights) -> list[str]:
    return sorted(f.suffix for f in (nights.folder / spool.FOLDER).iterdir())


def test_a_spooled_night_is_brought_in_and_judged_by_the_next_look(nights: Nights) -> None:
    """Once: told, with its own verdict, and not swept anew."""
    sweep = spooled_night(nights, nights.write("{name: lab}"))
    nights.write("{name: other}")
    assert nights.look("--check")[0] == 0, "another fleet in this folder takes what is measured,"
    assert suffixes(nights) == [".imported", ".jsonl"], "and leaves whose night it was"
    (end,) = (nights.folder / spool.FOLDER).glob("*-schedule-*.jsonl")
    os.utime(end, (0, 0))
    (told,) = nights.document()["spool"]
    assert "ends a night of lab/now, which is no schedule of this fleet" in told["problems"][0]
    assert f"`topobench check {sweep} --store URL`" in told["problems"][0]
    assert nights.look()[1] == "", "nobody took it in a day, which is told once"
    nights.write("{name: lab}")
    with away(nights):
        nights.look("--check", "--textfile", "topobench.prom")
    assert 'topobench_spool_files{state="waiting"} 1.0' in nights.metrics()
    found = nights.document("--check")
    (ran,) = found["sweeps"]
    assert (ran["sweep"], ran["exit_code"], ran["counts"]) == (sweep, 1, {"ok": 3})
    assert (ran["due_at"], ran["is_news"]) == ("2026-11-02T01:00:00Z", True)
    assert ran["message"] == "came in from the spool\nsome cells failed"
    with Store.open(nights.url) as store:
        state = schedules.of(store, "lab", "now")
        assert state is not None
        assert (state.exit_code, state.sweep) == (1, sweep)
        assert state.served_at == at("2026-11-02T01:00:00")
        assert {v["check"] for v in look.verdicts(store, sweep)} >= {"overall"}
        assert count(store, "run") == 3
    assert suffixes(nights) == [".imported"] * 2
    assert nights.look("--check", "--textfile", "topobench.prom") == (0, "")
    assert 'topobench_spool_files{state="waiting"} 0.0' in nights.metrics()


def test_an_older_night_from_the_spool_changes_nothing_of_a_later_try(nights: Nights) -> None:
    sweep = spooled_night(nights, nights.write("{name: lab}"))
    with Store.open(nights.url) as store:
        tried = schedules.begin(store, "lab", "now", due_at=at("2026-11-03T01:00:00"))
        schedules.end(
            *(store, "lab", "now"), tried_at=tried, times="", exit_code=1, sweep="later",
            message=None, findings={"k1": "fail"},
        )  # fmt: skip
        before = schedules.of(store, "lab", "now")
    found = nights.document("--check")
    (ran,) = found["sweeps"]
    assert (ran["sweep"], ran["due_at"], ran["cleared"]) == (sweep, None, [])
    assert found["spool"] == [
        {"store": nights.url, "files": 2, "stored": 2, "already_stored": 0, "problems": []}
    ]
    with Store.open(nights.url) as store:
        assert schedules.of(store, "lab", "now") == before


def test_a_broken_spool_is_told_once_kept_and_stops_nothing(nights: Nights) -> None:
    """So is one of a store that is none of the fleet's."""
    spooled_night(nights, nights.write("{name: lab}"))
    folder = nights.folder / spool.FOLDER
    with spool.Spool(folder, "0-bad", url=nights.url) as broken:
        broken.append("put_run", {"run": run(cell(), reading(1.0))})
    with spool.Spool(folder, "0-other", url="postgresql://u:secret@db/far") as other:
        other.append("put_run", {"run": run(cell(), reading(1.0))})
    code, told = nights.look("--textfile", "topobench.prom")
    words = " ".join(told.split())
    assert code == 1
    assert f"spool: 3 files, 2 new runs, into {nights.url}" in words
    assert "0-bad-000001.jsonl:2: run" in words
    assert "which is not stored; plan_cells comes first" in words
    assert "1 of postgresql://db:5432/far, which is none of this fleet" in words
    assert "topobench db import topobench-spool/0-other-000001.jsonl --store URL" in words
    assert "secret" not in words
    assert suffixes(nights) == [".imported"] * 2 + [".jsonl"] * 2 + [".problems"]
    assert 'topobench_spool_files{state="broken"} 1.0' in nights.metrics()
    assert nights.look() == (0, "")
    assert (folder / "0-bad-000001.jsonl").exists()


def test_a_store_that_goes_away_during_an_import_loses_nothing(nights: Nights) -> None:
    """What came in stays in; the night is judged when all of it could be."""
    found = nights.write("{name: lab}")
    sweep = spooled_night(nights, found)
    folder = nights.folder / spool.FOLDER

    def lost(_call: spool.Call) -> None:
        raise StoreUnreachable("gone")

    with Store.open(nights.url) as store:
        with pytest.raises(StoreUnreachable, match="gone"):
            import_files(store, folder, spool.files_for(folder, nights.url), lost)
        assert count(store, "run") == 3
    assert suffixes(nights) == [".imported", ".jsonl"]
    assert [s["sweep"] for s in nights.document("--check")["sweeps"]] == [sweep]
    assert suffixes(nights) == [".imported"] * 2


def test_two_imports_at_once_bring_each_run_in_once(nights: Nights) -> None:
    """The second finds the folder taken, and later nothing; a writer's own file is left."""
    cells = [cell(process_no=n) for n in range(40)]
    folder = nights.folder / spool.FOLDER
    with Store.open(nights.url) as store, spool.Spool(folder, "s", url=nights.url) as living:
        begin(store, *cells)
        with spool.Spool(folder, "a", url=nights.url, rotate_bytes=1) as written:
            for planned in cells:
                written.append("put_run", {"run": run(planned, reading(1.0))})
        living.append("put_run", {"run": run(cells[0], reading(1.0))})
    with spool.Spool(folder, "t", url=nights.url) as living:
        living.append("put_run", {"run": run(cells[0], reading(1.0))})
        found: list[Imported] = []

        def bring_in() -> None:
            with Store.open(nights.url) as own:
                found.append(import_spool(own, folder))

        threads = [threading.Thread(target=bring_in) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bring_in()
        assert found[-1].busy == [str(folder / "t-000001.part")]
    assert sum(f.stored for f in found) == 41
    assert [f.already for f in found] == [0, 0, 0]
    assert [p for f in found for p in f.problems] == []
    with Store.open(nights.url) as store:
        assert count(store, "run") == 41


def test_a_folder_s_files_of_another_store_stay(nights: Nights) -> None:
    folder = nights.folder / spool.FOLDER
    far = f"sqlite:///{nights.folder}/far.db"
    for url, name in ((nights.url, "near"), (far, "far")):
        with spool.Spool(folder, name, url=url) as written:
            written.append("begin_sweep", {"id": name, **START})
    assert cli.main(["db", "import", spool.FOLDER, "--format", "json"]) == 1
    document = json.loads(nights.capture.readouterr().out)
    check(document, "db-import")
    assert document["data"]["elsewhere"] == {far: [f"{spool.FOLDER}/far-000001.jsonl"]}
    assert "give that with --store" in document["warnings"][0]
    with Store.open(nights.url) as store:
        assert [s["id"] for s in store.sweeps()] == ["near"]
    assert cli.main(["db", "import", spool.FOLDER, "--store", far]) == 0


START: dict[str, Any] = {
    "cluster": "lab", "profile": "quick", "trigger": "cron", "seed": 1, "tool_version": "0.1.0",
    "started_at": "2026-11-02T01:00:00.000000Z", "hosts": [host()],
}  # fmt: skip


def test_a_store_is_the_same_whoever_asks_and_whatever_the_password() -> None:
    role = "postgresql+psycopg://topobench_write:geheim@db.example/topobench?sslmode=require"
    assert place_of(role) == "postgresql://db.example:5432/topobench"
    assert place_of("postgresql://me@db.example:5432/topobench") == place_of(role)
    assert place_of("postgresql://me@db.example:5433/topobench") != place_of(role)
    assert place_of("sqlite:///x.db") == f"sqlite:///{Path('x.db').resolve()}"


def missed(times: Times, since: str, now: str) -> list[str]:
    return [f"{t:%d %H:%M}" for t in times.missed(at(since), at(now))]


@pytest.mark.parametrize(
    ("times", "since", "now", "expected"),
    [
        (Times("0 2 * * *"), "2026-05-01T02:00", "2026-05-02T01:59", []),
        (Times("0 2 * * *"), "2026-05-01T02:00", "2026-05-02T07:59", []),  # not too late yet
        (Times("0 2 * * *"), "2026-05-01T02:00", "2026-05-02T08:00", ["02 02:00"]),
        (Times("0 2 * * *"), "2026-05-01T02:00", "2026-05-04T02:05", ["02 02:00", "03 02:00"]),
        (Times("0 * * * *"), "2026-05-01T02:00", "2026-05-01T04:30", ["01 03:00"]),  # superseded
        (Times("0 2 * * *", shift_seconds=900), "2026-05-01T02:00", "2026-05-02T08:14", []),
        (
            Times("0 2 * * *", quiet=(parse_quiet("Sat,Sun 00:00-24:00"),)),
            "2026-05-01T02:00",  # a Friday: the week-end was not meant
            "2026-05-05T12:00",
            ["04 02:00", "05 02:00"],
        ),
    ],
)
def test_a_time_is_missed_once_its_sweep_can_no_longer_begin(
    times: Times, since: str, now: str, expected: Sequence[str]
) -> None:
    assert missed(times, since, now) == expected


TONIGHT = {"due_at": at("2026-05-04T02:00"), "tried_at": at("2026-05-04T02:00")}


def state(**more: Any) -> schedules.State:
    given: dict[str, Any] = {
        "tried_at": at("2026-05-01T02:00"),
        "exit_code": 0,
        "served_at": at("2026-05-01T02:00"),
        "times": "0 2 * * * UTC",
        **more,
    }
    return schedules.State("lab", "now", **given)


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 3),
        ({"missed_until": at("2026-05-03T02:00")}, 3),  # one is new: all of them are told
        ({"missed_until": at("2026-05-04T02:00")}, None),
        ({"missed_until": at("2027-05-04T02:00")}, 3),  # told by a clock that was ahead
        ({"served_at": at("2027-05-01T02:00")}, None),
        ({"served_at": None}, None),
        ({"times": "0 2 * * Sun UTC"}, None),  # the expression was another one then
        ({**TONIGHT, "exit_code": None}, 2),  # another host may be at it
        ({**TONIGHT, "exit_code": 4}, 3),  # refused until it was too late
    ],
)
def test_what_was_missed_is_what_no_sweep_served_and_nobody_told(
    nights: Nights, more: dict[str, Any], count: int | None
) -> None:
    (schedule,) = nights.write("{name: lab}", cron="0 2 * * *").schedules
    found = fleet_missed.missed(schedule, state(**more), at("2026-05-04T09:00"))
    assert (None if found is None else found.count) == count


def test_the_first_look_after_tells_what_was_missed_once(nights: Nights) -> None:
    """Every hour but the next: none is due, so nothing is measured here."""
    now = datetime.datetime.now(UTC)
    hours = [(now - datetime.timedelta(hours=h)).hour for h in (7, 8, 9)]
    cron = f"0 {','.join(map(str, hours))} * * *"
    nights.write("{name: lab}", cron=cron)
    served = now.replace(minute=0, second=0, microsecond=0) - datetime.timedelta(hours=9)
    with Store.open(nights.url) as store:
        tried = schedules.begin(store, "lab", "now", due_at=served)
        schedules.end(
            *(store, "lab", "now"), tried_at=tried, times=f"{cron} UTC", exit_code=0,
            sweep="u", message=None, findings={},
        )  # fmt: skip
    code, told = nights.look("--check", "--textfile", "topobench.prom")
    first, last = (served + datetime.timedelta(hours=h) for h in (1, 2))
    assert code == 0
    assert " ".join(told.split()) == (
        f"lab/now: missed 2 times since the sweep of {served:%Y-%m-%d %H:%M}: "
        f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
    )
    line = 'topobench_schedule_missed_times{cluster="lab",schedule="now"} 2.0'
    assert line in nights.metrics()
    assert nights.look() == (0, "")
    assert nights.document()["missed"] == []
