"""Fleets: when sweeps are due, what fleet.yaml says, what is news, and the real commands."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.text import Text

from documents import check
from main_job import Job
from topobench import cli, fleet, fleet_sweeps, notify
from topobench.agents.host_lock import HostLock
from topobench.commands import Outcome
from topobench.db import schedules
from topobench.db.schedules import State
from topobench.db.store import Store
from topobench.errors import ConfigError, TopobenchError
from topobench.fleet_memory import alone
from topobench.fleet_news import changes, judged
from topobench.fleet_ran import Ran, checked, exit_code
from topobench.fleet_sweeps import is_due
from topobench.fleet_times import Times, jitter, parse_cron, parse_quiet, parse_zone
from topobench.web import metrics
from topobench.web.site import Site

UTC = datetime.UTC
BERLIN = Times("30 2 * * *", "Europe/Berlin")


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "due"),
    [
        ("2026-01-10T01:29:59", None),
        ("2026-01-10T01:30", "2026-01-10T01:30"),
        ("2026-07-10T00:30", "2026-07-10T00:30"),
        ("2026-07-10T06:30", None),  # six hours late is too late
        ("2026-03-29T00:59", None),  # 02:30 does not exist: right after the gap, at 03:00
        ("2026-03-29T01:00", "2026-03-29T01:00"),
        ("2026-10-25T00:30", "2026-10-25T00:30"),  # 02:30 comes twice: the first counts
        ("2026-10-25T01:30", "2026-10-25T00:30"),
    ],
)
def test_a_time_of_a_zone_is_met_once_whatever_the_clocks_do(now: str, due: str | None) -> None:
    assert BERLIN.due(at(now)) == (None if due is None else at(due))


def test_an_hourly_sweep_comes_in_both_of_the_doubled_hours() -> None:
    hourly = Times("30 * * * *", "Europe/Berlin", late_seconds=1800)
    asked = ["2026-10-25T00:31", "2026-10-25T01:31", "2026-03-29T01:31"]
    assert [hourly.due(at(now)) for now in asked] == [
        at("2026-10-25T00:30"),
        at("2026-10-25T01:30"),
        at("2026-03-29T01:30"),
    ]


def test_of_many_missed_times_only_the_newest_is_due() -> None:
    assert Times("*/5 * * * *").due(at("2026-05-01T10:14")) == at("2026-05-01T10:10")


def test_jitter_is_the_same_each_night_and_differs_between_clusters() -> None:
    names = [f"c{i}" for i in range(200)]
    found = [jitter("prod", name, 1200) for name in names]
    assert found == [jitter("prod", name, 1200) for name in names]
    assert found != [jitter("test", name, 1200) for name in names]
    assert min(found) >= 0
    assert max(found) <= 1200
    assert 500 < sum(found) / len(found) < 700
    assert jitter("prod", "c1", 0) == 0
    shifted = Times("0 2 * * *", shift_seconds=90)
    assert shifted.due(at("2026-05-01T02:01:29")) is None
    assert shifted.due(at("2026-05-01T02:01:30")) == at("2026-05-01T02:00")


def test_in_quiet_hours_nothing_begins_and_at_their_end_it_does() -> None:
    quiet = (parse_quiet("Mon-Fri 22:00-02:30"),)
    times = Times("0 2 * * *", quiet=quiet)
    friday, sunday = at("2026-05-01T02:10"), at("2026-05-03T02:10")
    assert times.due(friday) is None
    assert times.wakes(friday) == at("2026-05-01T02:30")
    assert times.due(at("2026-05-01T02:30")) == at("2026-05-01T02:00")
    assert times.due(sunday) == at("2026-05-03T02:00")  # Saturday evening is not quiet
    assert times.wakes(sunday) == at("2026-05-04T02:00")
    always = Times("0 2 * * *", quiet=(parse_quiet("00:00-24:00"),))
    assert (always.due(friday), always.wakes(friday)) == (None, None)


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (parse_cron, "0 25 * * *", "Bad hour"),
        (parse_cron, "@daily", "minute hour day month weekday"),
        (parse_cron, "0 0 30 2 *", "Bad day-of-month"),
        (parse_zone, "Europe/Berln", "did you mean Europe/Berlin?"),
        (parse_quiet, "8-18", "such as 08:00-18:00"),
        (parse_quiet, "Mo 08:00-18:00", "'Mo' is no day"),
        (parse_quiet, "08:00-08:00", "holds no time"),
        (parse_quiet, "08:00-24:01", "no time of a day"),
    ],
)
def test_a_wrong_time_says_what_was_expected(
    parse: Callable[[str], object], text: str, says: str
) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        parse(text)
    assert says in str(error.value)


WHOLE = """\
kind: topobench-fleet/v1
name: prod
store: sqlite:///fleet.db
zone: Europe/Berlin
jitter: 20m
quiet: [Mon-Fri 08:00-18:00]
clusters:
  - cluster: lab.yaml
    schedules:
      - {name: nightly, cron: "0 2 * * *", profile: standard, budget: 30m}
      - {name: noon, cron: "0 12 * * *", quiet: [], zone: UTC, probes: [gemm, peer], hosts: "a,b"}
  - cluster: {name: solo, probes: [host_memory]}
    store: sqlite:///solo.db
    jitter: 0s
    schedules: [{name: nightly, cron: "0 3 * * *"}]
"""


def test_keys_of_a_schedule_win_over_the_cluster_s_and_the_fleet_s(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text("kind: topobench/v1\nname: lab\nstore: sqlite:///x.db\n")
    (tmp_path / "fleet.yaml").write_text(WHOLE)
    found = fleet.load(tmp_path / "fleet.yaml")
    nightly, noon, solo = found.schedules
    assert (found.name, found.store) == ("prod", "sqlite:///fleet.db")
    assert [s.label for s in found.schedules] == ["lab/nightly", "lab/noon", "solo/nightly"]
    assert (nightly.config.profile, nightly.config.budget_seconds) == ("standard", 1800)
    assert (nightly.config.store, solo.config.store) == ("sqlite:///fleet.db", "sqlite:///solo.db")
    assert [p.name for p in solo.config.probes] == ["host_memory"]
    assert [p.name for p in noon.config.probes] == ["gemm", "peer"]
    assert noon.config.only_hosts == ("a", "b")
    shift = jitter("prod", "lab", 1200)
    assert (nightly.times.shift_seconds, noon.times.shift_seconds) == (shift, shift)
    assert (nightly.times.zone, noon.times.zone) == ("Europe/Berlin", "UTC")
    assert (len(nightly.times.quiet), noon.times.quiet) == (1, ())
    assert solo.times.shift_seconds == 0
    assert fleet.chosen(found, "solo,lab/noon").schedules == (noon, solo)
    with pytest.raises(ConfigError, match="did you mean lab/noon"):
        fleet.chosen(found, "lab/noom")


def test_all_mistakes_of_a_fleet_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        WHOLE.replace("Europe/Berlin", "Europe/Berln")
        .replace("0 12", "0 99")
        .replace("jitter: 0s", "jiter: 0s")
        .replace("[host_memory]", "[host_memry]")
    )
    with pytest.raises(ConfigError) as error:
        fleet.load(file)
    told = "\n".join(error.value.mistakes)
    assert f"{file}:4: zone: 'Europe/Berln' is no time zone" in told
    assert f"{file}:11: clusters[0].schedules[1].cron: '0 99 * * *' is no cron expression" in told
    assert f"{file}:14: clusters[1].jiter: unknown key" in told
    assert "did you mean jitter?" in told
    assert f"{tmp_path}/lab.yaml: no such file" in told
    assert f"{file}:12: probes: host_memry" in told or "host_memory?" in told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("kind: topobench/v1\n", "starts with kind: topobench-fleet/v1"),
        ("kind: topobench-fleet/v1\n", "names no cluster"),
        ("kind: topobench-fleet/v1\nclusters: [{cluster: {name: a}}]\n", "and schedules:"),
        (WHOLE.replace("name: prod", "name: p q").replace("noon", "nightly"), "is given twice"),
    ],
)
def test_a_fleet_that_cannot_be_used_says_why(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "lab.yaml").write_text("kind: topobench/v1\nname: lab\n")
    (tmp_path / "fleet.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        fleet.load(tmp_path / "fleet.yaml")
    assert says in str(error.value)


def test_news_is_what_got_worse_and_what_cleared_and_silence_clears_nothing() -> None:
    before = {
        "h1": "fail",
        "h2": "degraded",
        "h3": "degraded",
        "h4": "fail",
        "incident: x": "degraded",
    }
    now = {"h1": "fail", "h2": "fail", "h3": "ok", "h5": "degraded", "h6": "watch", "h4": "unknown"}
    found = changes(before, now)
    assert found.new == {"h2": "fail", "h5": "degraded"}
    assert found.cleared == ("h3", "incident: x")
    assert found.findings == {"h1": "fail", "h2": "fail", "h4": "fail", "h5": "degraded"}
    again = changes(found.findings, now)
    assert (again.new, again.cleared, again.findings) == ({}, (), found.findings)


def test_hosts_that_are_acknowledged_are_no_news() -> None:
    subject = {"name": "h1", "device_name": None, "level": "fail", "acknowledged": None}
    link = {**subject, "device_name": "GPU0", "level": "degraded"}
    known = {**subject, "name": "h2", "acknowledged": {"ticket": "T-1"}}
    document = {"subjects": [subject, link, known], "incidents": [{"class": "driver"}]}
    assert judged(document) == {
        "h1": "fail",
        "h1 GPU0": "degraded",
        "incident: driver": "degraded",
    }


@pytest.mark.parametrize(
    ("tried", "code", "sweep", "due"),
    [
        ("2026-05-01T01:59", 0, "u", True),
        ("2026-05-01T02:00", 0, "u", False),
        ("2026-05-01T02:00", 1, "u", False),
        ("2026-05-01T02:00", 3, "u", False),  # it ran, and measured nothing: not again all night
        ("2026-05-01T02:00", 4, None, True),
        ("2026-05-01T02:00", 3, None, True),
        ("2026-05-01T02:00", None, None, True),  # killed
        ("2026-05-01T02:00", 143, "u", True),
        ("2026-05-01T02:06", 0, "u", False),  # by a host whose clock is a little ahead
        ("2027-05-01T02:00", 0, "u", True),  # the clock was wrong then
        ("2026-05-01T02:00", 2, None, True),  # a cluster file that may be mended meanwhile
        ("2026-05-01T02:00", 70, None, False),
    ],
)
def test_a_try_that_could_not_measure_is_made_again(
    tried: str, code: int | None, sweep: str | None, due: bool
) -> None:
    state = State("lab", "nightly", at(tried), exit_code=code, sweep=sweep)
    now = at("2026-05-01T02:05")
    assert is_due(state, at("2026-05-01T02:00"), now=now) is due
    assert not is_due(state, None, now=now)


def test_the_gravest_sweep_decides_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text("kind: topobench/v1\nname: lab\n")
    (tmp_path / "fleet.yaml").write_text(WHOLE)
    schedule = fleet.load(tmp_path / "fleet.yaml").schedules[0]
    ran = [Ran(schedule, exit_code=c, verdict=v) for c, v in ((0, 0), (4, 3), (1, 1))]
    assert [exit_code(ran, check=c) for c in (False, True)] == [4, 1]
    assert exit_code([*ran, Ran(schedule, exit_code=143, verdict=3)], check=True) == 143
    assert exit_code([], check=True) == 0
    late = Ran(schedule, exit_code=143, verdict=3, is_late=True)
    assert [exit_code([late], check=c) for c in (False, True)] == [1, 3]


def test_a_store_keeps_what_schedules_last_did(store_url: str) -> None:
    with Store.open(store_url) as store:
        assert schedules.of(store, "lab", "nightly") is None
        schedules.begin(store, "lab", "nightly", due_at=at("2026-05-01T02:00"))
        begun = schedules.of(store, "lab", "nightly")
        assert begun is not None
        assert (begun.due_at, begun.exit_code) == (at("2026-05-01T02:00"), None)
        schedules.end(
            *(store, "lab", "nightly"),
            tried_at=begun.tried_at,
            times="0 2 * * * UTC",
            exit_code=1,
            sweep="u",
            message="some cells failed",
            findings={"h1": "fail"},
        )
        later = schedules.begin(store, "lab", "nightly", due_at=None)
        again = schedules.of(store, "lab", "nightly")
        assert again is not None
        assert (again.exit_code, again.sweep, again.findings) == (None, None, {"h1": "fail"})
        assert again.tried_at == later >= begun.tried_at
        assert (again.served_at, again.times) == (begun.due_at, "0 2 * * * UTC")


def written(folder: Path, cluster: str, cron: str) -> Path:
    file = folder / "fleet.yaml"
    file.write_text(
        "kind: topobench-fleet/v1\nname: prod\nclusters:\n"
        f"  - cluster: {cluster}\n    schedules: [{{name: now, cron: '{cron}'}}]\n"
    )
    return file


def just_now() -> str:
    """A time of each day that came within the last two minutes."""
    past = datetime.datetime.now(UTC) - datetime.timedelta(minutes=1)
    return f"{past.minute} {past.hour} * * *"


def test_what_is_due_is_swept_once_and_a_held_host_refuses_it(tmp_path: Path) -> None:
    """The refusal names who holds the host; once that is free, the next look sweeps."""
    job = Job(tmp_path)
    probes = "{host_memory: {op: copy, bytes: 8M}}"
    written(tmp_path, f"{{name: lab, probes: [{probes}]}}", just_now())
    due = ("sweep", "--fleet", "fleet.yaml", "--due", "--trigger", "cron")
    with HostLock(tmp_path / "run", sweep="by hand"):
        refused = job.run(*due)
    assert refused.returncode == 4
    assert f"pid {os.getpid()} since 20" in refused.stdout
    assert job.sweeps() == []
    first = job.run(*due, "--check", "--format", "json")
    document = json.loads(first.stdout)
    check(document, "sweep-fleet")
    (ran,) = document["data"]["sweeps"]
    assert [ran["sweep"]] == job.sweeps()
    assert ran["verdict"] == document["exit_code"] == first.returncode
    assert ran["is_news"], "it was refused before and is not now"
    assert job.rows("SELECT trigger FROM sweep") == [("cron",)]
    again = job.run(*due, "--check", "--textfile", "topobench.prom")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert len(job.sweeps()) == 1
    lines = (tmp_path / "topobench.prom").read_text().splitlines()
    code = f"{float(ran['exit_code'])}"
    assert f'topobench_schedule_exit_code{{cluster="lab",schedule="now"}} {code}' in lines, lines
    assert [p.name for p in tmp_path.glob("*.prom*")] == ["topobench.prom"]


def test_a_text_file_has_the_metrics_of_every_store_of_a_fleet(tmp_path: Path) -> None:
    """A store that is away is told and costs none of the others; a host told twice is one."""
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
    for number, url in enumerate(urls):
        with Store.open(url) as store:
            for name in ("nightly", f"only{number}"):
                tried_at = schedules.begin(store, "lab", name, due_at=None)
                schedules.end(
                    *(store, "lab", name), tried_at=tried_at, times="",
                    exit_code=number, sweep=None, message=None, findings={},
                )  # fmt: skip
    target = tmp_path / "topobench.prom"
    sites = [Site(url) for url in (*urls, f"sqlite:///{tmp_path}/away.db")]
    for some, up in ((sites[:2], "1.0"), (sites, "0.0")):
        metrics.write_textfile(some, target)
        lines = target.read_text().splitlines()
        codes = [x for x in lines if x.startswith("topobench_schedule_exit_code")]
        assert codes == [
            'topobench_schedule_exit_code{cluster="lab",schedule="nightly"} 0.0',
            'topobench_schedule_exit_code{cluster="lab",schedule="only0"} 0.0',
            'topobench_schedule_exit_code{cluster="lab",schedule="only1"} 1.0',
        ]
        assert f"topobench_store_up {up}" in lines
    with pytest.raises(TopobenchError, match=r"cannot write .*No such file"):
        metrics.write_textfile(sites[:1], tmp_path / "none" / "x.prom")
    alone = metrics.exposition(sites[0]).decode()
    for site in sites:
        site.close()
    named = [x for x in alone.splitlines() if x.startswith("# TYPE")]
    assert [x for x in lines if x.startswith("# TYPE")] == named


def test_a_text_file_that_could_not_be_written_is_refused_before_the_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "{name: lab}", "0 0 29 2 *")
    target = str(tmp_path / "none/x.prom")
    assert cli.main(["sweep", "--fleet", str(file), "--textfile", target]) == 2
    assert "its folder must exist and be writable" in capsys.readouterr().err


def test_a_cluster_whose_ray_is_away_leaves_an_embedded_one_alone(tmp_path: Path) -> None:
    """The first asks for no token, the second does: Ray reads that once in a process."""
    job = Job(tmp_path)
    own = "{name: own, probes: [{host_memory: {op: copy, bytes: 8M}}]}"
    with socket.create_server(("127.0.0.1", 0)) as gone:
        away = f"{{name: away, ray: {{address: '127.0.0.1:{gone.getsockname()[1]}'}}}}"
    file = written(tmp_path, away, just_now())
    again = f"schedules: [{{name: now, cron: '{just_now()}'}}]"
    file.write_text(f"{file.read_text()}  - cluster: {own}\n    {again}\n")
    job.run("sweep", "--fleet", "fleet.yaml")
    codes = dict(job.rows("SELECT cluster, exit_code FROM schedule_state"))
    assert codes["away"] == 3
    assert codes["own"] in (0, 1), codes
    assert len(job.sweeps()) == 1


def test_two_looks_at_a_fleet_do_not_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOPOBENCH_RUN_DIR", str(tmp_path / "run"))
    file = written(tmp_path, "{name: lab}", "0 0 29 2 *")
    command = ["sweep", "--fleet", str(file), "--due"]
    metrics_file = tmp_path / "topobench.prom"
    with alone(file):
        assert cli.main(command) == 4
        assert f"is under way (pid {os.getpid()} since 20" in capsys.readouterr().err
        assert cli.main([*command, "--trigger", "cron", "--textfile", str(metrics_file)]) == 0
        assert capsys.readouterr() == ("", "")
    assert "topobench_store_up" in metrics_file.read_text(), "not stale while a night is long"
    assert cli.main(command) == 0
    assert capsys.readouterr().out == "fleet prod: nothing is due\n"


def test_a_store_that_is_away_is_told_once_and_so_is_its_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOPOBENCH_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("TOPOBENCH_STORE", f"sqlite:///{tmp_path}/gone/night.db")
    file = written(tmp_path, "{name: lab}", just_now())
    command = ["sweep", "--fleet", str(file), "--due", "--check", "--trigger", "cron"]
    assert cli.main(command) == 3
    assert "lab/now: no sweep; exit code 3\n" in capsys.readouterr().out
    assert cli.main(command) == 3, "the exit code says it every time"
    assert capsys.readouterr() == ("", "")
    with alone(file) as memory:
        (schedule,) = fleet.load(file).schedules
        back = Ran(schedule, sweep="u")
        told = [fleet_sweeps._told_once(back, memory).is_news for _ in range(2)]
    assert told == [True, False]


def test_a_sweep_that_is_in_the_spool_is_told_and_not_judged(tmp_path: Path) -> None:
    (schedule,) = fleet.load(written(tmp_path, "{name: lab}", "0 0 29 2 *")).schedules
    document = {"sweep": {"id": "u", "warnings": ["a"]}, "counts": {"ok": 2}}
    away, where = "full; results go to the spool", "full; the results are safe in topobench-spool"
    spooled = fleet_sweeps._ended(
        Ran(schedule),
        Outcome({**document, "store": "topobench-spool"}, Text, warnings=("a", away, where)),
    )
    assert spooled.message == f"{where}\n{fleet_sweeps._LATER}"
    assert (spooled.is_news, spooled.exit_code) == (True, 0)
    assert checked(spooled, {"h1": "fail"})[0].verdict == 3
    stored = Outcome({**document, "store": schedule.config.store}, Text, 1, warnings=("a",))
    kept = fleet_sweeps._ended(Ran(schedule), stored)
    assert (kept.message, kept.is_news, kept.spooled) == ("some cells failed", False, False)


class Supervisor:
    """What systemd is to a service: a socket that hears how it is."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(30)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def hears(self, wanted: str) -> list[str]:
        """Wait for a state; returns the datagram with it."""
        while True:
            states = self.socket.recv(4096).decode().split("\n")
            if wanted in states:
                return states


@contextlib.contextmanager
def mute() -> Iterator[int]:
    """A port of this host that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for task in Path(f"/proc/{pid}/task").iterdir():
        text += (task / "children").read_text().split()
    return sorted({int(p) for p in text})


def test_the_daemon_serves_sweeps_rereads_and_ends_with_its_child(tmp_path: Path) -> None:
    job = Job(tmp_path)
    Store.open(f"sqlite:///{job.database}").close()
    file = written(tmp_path, "{name: lab}", "0 0 29 2 *")
    job.env |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}
    command = ("daemon", "--fleet", "fleet.yaml", "--port", "0", "--format", "json")
    with (
        Supervisor(tmp_path / "notify") as supervisor,
        mute() as port,
        job.start(*command) as process,
    ):
        try:
            assert process.stderr is not None
            where = process.stderr.readline().split()[2].rstrip(",")
            supervisor.hears("READY=1")
            supervisor.hears("WATCHDOG=1")
            for path, says in (("/healthz", "ok"), ("/metrics", "topobench_store_up 1.0")):
                with urllib.request.urlopen(where + path, timeout=30) as answer:
                    assert says in answer.read().decode()
            while children(process.pid):  # the first look finds nothing due
                time.sleep(0.1)
            file.write_text("kind: wrong\n")
            process.send_signal(signal.SIGHUP)
            supervisor.hears("RELOADING=1")
            assert "is wrong, what was read before stays" in process.stderr.readline()
            assert "kind: wrong" in process.stderr.readline()
            written(tmp_path, f"{{name: lab, ray: {{address: '127.0.0.1:{port}'}}}}", just_now())
            process.send_signal(signal.SIGHUP)
            while "again, 1 schedule\n" not in process.stderr.readline():
                pass
            deadline = time.monotonic() + 60
            while not job.rows("SELECT 1 FROM schedule_state") and time.monotonic() < deadline:
                time.sleep(0.1)
            found = children(process.pid)
            assert len(found) == 1
            process.send_signal(signal.SIGTERM)
            supervisor.hears("STOPPING=1")
            out, _ = process.communicate(timeout=90)
        finally:
            process.kill()
    assert process.returncode == 0
    document = json.loads(out)
    check(document, "daemon")
    assert document["data"]["fleet"] == "prod"
    assert document["data"]["runs"] >= 2
    assert not Path(f"/proc/{found[0]}").exists()
    assert job.rows("SELECT cluster, schedule FROM schedule_state") == [("lab", "now")]


def test_a_service_without_a_supervisor_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in notify.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    notify.notify("READY=1")
    assert notify.watchdog_seconds() is None
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    assert notify.watchdog_seconds() == 30
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert notify.watchdog_seconds() is None
