"""The probe serving against a real server over HTTP, whose times and faults are set."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import socket
import sqlite3
import ssl
import statistics
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from launching import Lab, cell
from openai_server import Options, free_port, serve, serving, stop
from openai_server import Server as OpenAiServer
from probing import Listener
from storing import begin, host
from topobench import stats
from topobench.db.store import Store
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes import serving_session, serving_windows
from topobench.probes.serving import Serving
from topobench.probes.serving_client import Target
from topobench.probes.serving_servers import Running
from topobench.reading import Reading, Status
from topobench.server_definition import Server

HERE = Path(__file__).parent
STARTED = (sys.executable, str(HERE / "openai_server.py"), "{port}")
KEY, WRONG_KEY = "sk-do-not-store-4711", "sk-nor-this-one-0815"


@pytest.fixture(autouse=True)
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a second on a shared machine are not as steady as those of a minute."""
    monkeypatch.setattr(serving_windows, "LITTLE_TOLERANCE", 0.5)


@dataclasses.dataclass
class Result:
    """What a probe gave: readings by metric (of the first point), notes and warnings."""

    readings: list[Reading]
    told: dict[str, Any]
    warnings: list[str]
    error: ProbeError | None = None

    def samples(self, metric: str, **point: Any) -> tuple[float, ...]:
        (found,) = [r for r in self.readings if (r.metric, dict(r.point)) == (metric, point)]
        return found.samples

    def value(self, metric: str, **point: Any) -> float:
        return statistics.median(self.samples(metric, **point))


def loaded(
    base: str, *, key_env: str | None = None, ca_file: str | None = None, **more: Any
) -> Result:
    """Load a running server; quick windows, and a client that may be late: the host is shared."""
    asked = {name: more.pop(name) for name in ("model", "body") if name in more}
    definition = Server("t", url=base, key_env=key_env, ca_file=ca_file, **asked)
    seconds = more.pop("deadline", 60.0)
    settings: dict[str, Any] = {
        "window": 0.4,
        "requests": 1,
        "ramp": 0.1,
        "lag_limit": 10.0,
        "input_tokens": "48",
        "output_tokens": "8",
        **more,
    }
    probe = Serving(server="t", server_definition=definition.text, **settings)
    listener, found = Listener(), Result([], {}, [])
    found.told, found.warnings = listener.notes, listener.warnings
    try:
        for reading in probe.measure(listener.context(deadline_seconds=seconds)):
            found.readings.append(reading)
    except ProbeError as error:
        found.error = error
    return found


class TestTruth:
    """Numbers against what the server itself measured of the same requests."""

    @pytest.mark.parametrize(
        "load_", [{"arrivals": "poisson", "rate": 220.0}, {"concurrency": 100}]
    )
    def test_quantiles_are_those_of_the_server(self, load_: dict[str, Any]) -> None:
        """
        Within 2 %, of the very same requests, in a window that the client does not call late.

        Client and server share an event loop, so that a busy machine is late for both.
        """
        for _ in range(3):
            window, times = asyncio.run(_side_by_side(load_))
            if window.health.lag_seconds > 0.008:  # 2 % of the median
                continue
            names = ("arrival_seconds", "ttft_seconds", "e2e_seconds")
            seen = sorted(zip(*(window.samples[n] for n in names), strict=True))
            assert len(seen) >= 300
            assert window.exact_ratio == window.whole_ratio == 1.0
            true = sorted(times)[2 : 2 + len(seen)]  # after the two of the first contact
            errors = [
                abs(stats.percentile(mine, share) / stats.percentile(theirs, share) - 1)
                for n in (1, 2)
                # Many connections are made at once; what comes after them is compared.
                for mine, theirs in [([x[n] for x in seen[100:]], [x[n] for x in true[100:]])]
                for share in (0.5, 0.9, 0.95, 0.99)
            ]
            assert max(errors) <= 0.02, errors
            return
        pytest.skip("this machine is too busy: the client was late in three windows")

    def test_an_open_loop_does_not_hide_a_stall(self) -> None:
        """
        For 1 s of 3 nothing is begun: a third of all users wait, most of them above 0.3 s.

        The closed loop has two requests in the stall, whatever the number of users was.
        """
        options = Options(ttft=0.01, tpot=0.0, stall_at=1.0, stall=1.0)
        loads: tuple[dict[str, Any], ...] = (
            {"arrivals": "constant", "rate": 100.0},
            {"concurrency": 2},
        )
        with (
            serving(options) as (one, _),
            serving(options) as (other, _),
            ThreadPoolExecutor() as pool,
        ):
            tasks = [
                pool.submit(loaded, base, window=3.0, ramp=0.0, **load_)
                for base, load_ in zip((one, other), loads, strict=True)
            ]
            open_, closed = (task.result() for task in tasks)
        waited = open_.samples("ttft_from_schedule_seconds")
        assert sum(x > 0.3 for x in waited) / len(waited) == pytest.approx(0.23, abs=0.06)
        assert stats.percentile(waited, 0.9) == pytest.approx(0.7, abs=0.15)
        assert sum(x > 0.3 for x in closed.samples("ttft_seconds")) == 2

    def test_a_slow_client_is_told_from_a_slow_server(self) -> None:
        """What blocks its event loop makes the window invalid, and is in no latency silently."""
        with serving(Options()) as (base, _), _hog() as hog:
            hog.set()
            found = loaded(base, concurrency=2, lag_limit=0.02)
        assert isinstance(found.error, ResultInvalid)
        assert found.error.code == "client_overloaded"

    def test_the_largest_load_is_found_against_a_real_server(self) -> None:
        """Four slots of 50 ms: the wait reaches the limit at 24, or sooner on a busy machine."""
        options = Options(ttft=0.05, tpot=0.0, slots=4)
        with serving(options) as (base, _):
            found = loaded(
                base, mode="search", limit=0.3, window=0.3, in_a_row=2, requests=20, most_errors=0
            )
        assert found.error is None
        best = found.value("most_concurrency_count")
        assert 6 <= best <= 25
        assert found.value("first_over_concurrency_count") <= max(best + 1, 1.05 * best)
        search = found.told["search"]
        assert (search["ended"], search["best"]) == ("found", best)
        assert 0 < search["over_share_upper"] < 0.3
        purposes = [w["purpose"] for w in found.told["windows"]]
        assert purposes[-2:] == ["confirm", "confirm"]
        assert search["windows"] == len(purposes)
        assert found.value("in_flight_count") == pytest.approx(best, rel=0.1)

    def test_a_ladder_holds_each_rate_and_tells_both_shares(self) -> None:
        options = Options(ttft=0.2, spread=0.5, tpot=0.0)
        with serving(options) as (base, _):
            found = loaded(
                base,
                mode="ladder",
                ladder="40 80",
                arrivals="constant",
                limit=0.25,
                window=0.8,
                ramp=0.3,
            )
        assert found.error is None
        for rate in (40.0, 80.0):
            point = {"rate_requests_per_second": rate}
            assert found.value("requests_per_second", **point) == pytest.approx(rate, rel=0.1)
            assert 0.3 < found.value("goodput_ratio", **point) < 0.95
            assert found.samples("windows_within_ratio", **point) == (0.0,)
        assert {w["concurrency"] for w in found.told["windows"]} == {None}


async def _side_by_side(
    load_: dict[str, Any],
) -> tuple[serving_windows.Window, list[tuple[float, float, float]]]:
    """A window of load on a server in the same event loop; what the server saw of it."""
    server, port = OpenAiServer(Options(ttft=0.4, spread=0.4, tpot=0.01)), free_port()
    runner = await serve(server, port)
    probe = Serving(
        window=1.5,
        requests=300,
        ramp=0.0,
        lag_limit=10.0,
        input_tokens="48",
        output_tokens="3",
        **load_,
    )
    base = f"http://127.0.0.1:{port}"
    job, target = probe.job(), Target(base, "")
    try:
        result = await serving_session.measure(job, Server("t", url=base), Running(base), target)
    finally:
        await stop(runner)
    return result.windows[0], server.log.times


@contextlib.contextmanager
def _hog() -> Iterator[threading.Event]:
    """A thread that keeps the interpreter from everybody else, again and again."""
    go, stop = threading.Event(), threading.Event()
    switch = sys.getswitchinterval()

    def burn() -> None:
        go.wait()
        sys.setswitchinterval(0.05)
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=burn, daemon=True)
    thread.start()
    try:
        yield go
    finally:
        stop.set()
        go.set()
        thread.join()
        sys.setswitchinterval(switch)


class TestTokens:
    def test_prompts_are_exact_by_the_servers_count_and_never_the_same(self) -> None:
        """As words where ids are refused, with a template of 7 tokens around each."""
        options = Options(overhead=7, refused=("ids", "ignore_eos"))
        with serving(options) as (base, server):
            found = loaded(base, concurrency=4, input_tokens="uniform:30-90")
        assert found.error is None
        told = found.told["server"]
        assert (told["prompts"], told["ignore_eos"], told["tokens_from"]) == (
            "words",
            False,
            "server",
        )
        assert found.told["windows"][0]["exact_prompts_ratio"] == 1.0
        assert min(found.samples("input_tokens_count")) >= 30
        beginnings = {tuple(p.split()[:4]) for p in server.log.prompts}
        assert len(beginnings) == len(server.log.prompts)

    def test_chat_and_completions_ask_for_what_was_set(self) -> None:
        with serving(Options()) as (base, server):
            for api in ("chat", "completions"):
                found = loaded(base, api=api, concurrency=2, window=0.5, output_tokens="5")
                assert found.error is None
                assert set(found.samples("output_tokens_count")) == {5.0}
                last = server.log.bodies[-1]
                assert (last["max_tokens"], last["stream"], last["ignore_eos"]) == (5, True, True)
                assert ("messages" in last) == (api == "chat")
        ids = [p for p in server.log.prompts if not isinstance(p, str)]
        assert {len(p) for p in ids} == {24, 48, 88}

    def test_fields_that_a_chat_server_refuses_are_left_out_or_named_anew(self) -> None:
        options = Options(refused=("max_tokens", "ignore_eos", "temperature"))
        with serving(options) as (base, server):
            found = loaded(base, api="chat", body={"temperature": None})
        assert found.error is None
        last = server.log.bodies[-1]
        assert last["max_completion_tokens"] == 8
        assert not last.keys() & set(options.refused)

    @pytest.mark.parametrize("metrics", [True, False])
    def test_a_prefix_cache_that_helps_spoils_the_window(self, metrics: bool) -> None:
        """By the server's counters, or by what it says of each answer."""
        with serving(Options(cached=0.2, metrics=metrics)) as (base, _):
            found = loaded(base, concurrency=2)
            again = loaded(base, concurrency=2, reuse=0.5)
        assert isinstance(found.error, ResultInvalid)
        assert "of the prompt tokens came from a prefix cache" in found.error.text
        assert again.error is None
        facts = again.told["windows"][0]["server_metrics"]
        assert ("prefix_cache_hit_ratio" in facts) is metrics

    def test_each_request_has_a_trace_and_the_slowest_are_kept(self) -> None:
        with serving(Options(spread=0.5)) as (base, server):
            found = loaded(base, concurrency=4)
        parts = [re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01", t) for t in server.log.traces]
        traces = {p[1] for p in parts if p}
        assert len(traces) == len(server.log.traces)
        (slowest, *_) = found.told["windows"][0]["slowest"]
        assert slowest["trace"] in traces
        assert slowest["e2e_seconds"] == max(found.samples("e2e_seconds"))


class TestFaults:
    """Every one ends within its time-out, with a reason that says what to do."""

    @pytest.mark.parametrize(
        ("options", "more", "code", "said"),
        [
            ({"fault": "not_streaming"}, {}, "not_streaming", "does not stream"),
            ({"fault": "endless", "tpot": 0.0001}, {}, "endless_stream", "more than 80 chunks"),
            ({"fault": "silent"}, {"request_timeout": 0.5}, "deadline", "within 0.5 s"),
            ({"fault": "malformed"}, {}, "wrong_data", "is malformed"),
            ({"fault": "breaks_off"}, {}, "wrong_data", "the stream broke off"),
            (
                *({"fault": "server_error"}, {"key_env": "TEST_KEY"}),
                *("wrong_data", "is server_error: no room for Bearer ***"),
            ),
            ({"fault": "wrong_usage", "tpot": 0.0}, {}, "wrong_data", "12 tokens told"),
            ({"fault": "http_500"}, {}, "endpoint_refused", "answered 500"),
            ({"fault": "http_429"}, {}, "endpoint_refused", "answered 429"),
            ({}, {"model": "other"}, "wrong_model", "it lists tiny"),
            ({"listed": 404}, {}, "wrong_model", "is that the address before /v1?"),
            ({"listed": 308}, {}, "endpoint_refused", "it leads to another address"),
            ({"fault": "http_307"}, {}, "endpoint_refused", "it leads to another address"),
            ({"listed": 429}, {}, "endpoint_refused", "is it ready, and not too busy?"),
            ({"key": "right"}, {}, "endpoint_refused", "look at key_env"),
        ],
    )
    def test_a_server_that_cannot_be_loaded_is_told_why(
        self,
        monkeypatch: pytest.MonkeyPatch,
        options: dict[str, Any],
        more: dict[str, Any],
        code: str,
        said: str,
    ) -> None:
        monkeypatch.setenv("TEST_KEY", KEY)
        with serving(Options(**options)) as (base, _):
            found = loaded(base, **more)
        assert found.error is not None
        assert found.error.code == code
        assert said in found.error.text
        assert found.readings == []

    def test_no_cause_shows_what_a_server_repeats(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cut in the middle of the key, where no mask of a whole key would find it."""
        monkeypatch.setenv("TEST_KEY", KEY)
        said = f"HTTX/1.1 {'x' * 40}{KEY} and so on\r\n\r\n".encode()

        def answer(one: socket.socket) -> None:
            with one.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(said)

        with socket.create_server(("127.0.0.1", 0)) as one:
            thread = threading.Thread(target=answer, args=(one,), daemon=True)
            thread.start()
            found = loaded(f"http://127.0.0.1:{one.getsockname()[1]}", key_env="TEST_KEY")
            thread.join(10.0)
        assert found.error is not None
        assert found.error.code == "wrong_data"
        log = "".join(traceback.format_exception(found.error))
        assert "***" in log
        assert KEY[:10] not in log

    def test_nobody_at_the_address(self) -> None:
        found = loaded(f"http://127.0.0.1:{free_port()}")
        assert found.error is not None
        assert found.error.code == "no_endpoint"
        assert "is the server up" in found.error.text

    def test_a_certificate_that_nobody_vouches_for(self, tmp_path: Path) -> None:
        """Refused; trusted once its file is named."""
        pair = tmp_path / "key.pem", tmp_path / "cert.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-keyout", str(pair[0]), "-out", str(pair[1]), "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=IP:127.0.0.1"),
            ],
            check=True,
            capture_output=True,
        )
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pair[1], pair[0])
        with serving(Options(), tls) as (base, _):
            found = loaded(base)
            trusted = loaded(base, ca_file=str(pair[1]))
            plain = loaded(base.replace("https:", "http:"))
        with serving(Options()) as (base, _):
            without = loaded(base.replace("http:", "https:"))
        assert plain.error is not None
        assert plain.error.code in ("wrong_data", "no_endpoint")
        assert without.error is not None
        assert without.error.code == "tls_error"
        assert "or is it http:?" in without.error.text
        assert found.error is not None
        assert found.error.code == "tls_error"
        assert "name its certificate by ca_file" in found.error.text
        assert trusted.error is None

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            *(("reset", "reset"), ("malformed", "malformed"), ("http_429", "http_429")),
            *(("breaks_off", "incomplete"), ("wrong_usage", "wrong_usage"), ("silent", "timeout")),
        ],
    )
    def test_faults_are_counted_by_class_and_kept_out_of_latencies(
        self, fault: str, kind: str
    ) -> None:
        """One request in five fails: too many for the others to say anything."""
        options = Options(fault=fault, share=0.2, tpot=0.0, spared=2)
        with serving(options) as (base, _):
            seconds = 1.5 if fault == "silent" else 0.4
            found = loaded(base, concurrency=4, window=seconds, requests=40, request_timeout=0.5)
        (window,) = found.told["windows"]
        assert set(window["error_classes"]) == {kind}
        assert window["n"] - window["errors"] == len(found.samples("ttft_seconds")) > 0
        assert isinstance(found.error, ResultInvalid)
        assert found.error.code == ("wrong_data" if kind == "wrong_usage" else "requests_failed")

    def test_what_fails_while_a_load_is_held_is_not_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise MemoryError("no room")

        monkeypatch.setattr(serving_windows.Collected, "finish", full)
        for load_ in ({"concurrency": 2}, {"arrivals": "constant", "rate": 50.0}):
            with serving(Options()) as (base, _), pytest.raises(MemoryError, match="no room"):
                loaded(base, window=30.0, **load_)

    def test_the_whole_probe_ends_by_its_deadline(self) -> None:
        with serving(Options()) as (base, _):
            found = loaded(base, window=30.0, most_window=40.0, deadline=16.0)
        assert found.error is not None
        assert found.error.code == "deadline"


class TestStarted:
    """Servers started by the probe."""

    @pytest.mark.parametrize(
        ("argv", "code", "said"),
        [
            (("/no/such/program", "{port}"), "no_binary", "is not on this host"),
            ((*STARTED, "broken"), "crashed", "ended with exit code 1"),
            ((*STARTED, '{"slow_start": 1000}'), "deadline", "own was not ready after 1 s"),
        ],
    )
    def test_one_that_does_not_come_up_says_why(
        self, argv: tuple[str, ...], code: str, said: str
    ) -> None:
        limit = 1.0 if code == "deadline" else 60.0
        server = Server("own", argv=argv, timeout_seconds=limit)
        with pytest.raises(ProbeError) as error:
            list(
                Serving(server_definition=server.text).measure(
                    Listener().context(deadline_seconds=60)
                )
            )
        assert error.value.code == code
        assert said in error.value.text
        assert isinstance(error.value, ProbeUnavailable) is (code == "no_binary")

    def test_under_a_worker_it_is_measured_stored_and_ended(self, lab: Lab, tmp_path: Path) -> None:
        """One is loaded, one refuses our key and repeats it: the keys are stored nowhere."""
        keys = {"SERVER_API_KEY": KEY, "WRONG_API_KEY": WRONG_KEY}
        options = {"slow_start": 0.3, "key_env": "SERVER_API_KEY", "open_list": True}
        argv = (*STARTED, json.dumps(options))
        version = (*STARTED[:2], "--version")
        own = Server("own", argv=argv, version=version, key_env="SERVER_API_KEY")
        shut = dataclasses.replace(own, name="shut", key_env="WRONG_API_KEY")
        small = {"window": 1.5, "requests": 10, "ramp": 0.2, "lag_limit": 10.0, "concurrency": 2}
        more: dict[str, Any] = {**small, "output_tokens": "8"}
        cells = [
            cell("serving", estimate=2.0, server=s.name, server_definition=s.text, **more)
            for s in (own, shut)
        ]
        good, bad = lab.run(*cells, env=keys)
        assert good.status in (Status.OK, Status.INVALID)  # a shared machine may not be steady
        told = good.conditions["server"]
        assert (told["name"], told["version"]) == ("own", "test server 4.5.6")
        assert told["argv"][2] == told["address"].rpartition(":")[2]
        assert {r.metric for r in good.readings} >= {"ttft_seconds", "tpot_seconds", "itl_seconds"}
        assert str(bad.reason).startswith("endpoint_refused")
        assert "Incorrect API key provided: Bearer ***" in str(bad.reason)
        with Store.open(f"sqlite:///{tmp_path / 'one.db'}") as store:
            begin(store, *cells, hosts=[host("key")])
            for run in (good, bad):
                store.put_run(run)
        with contextlib.closing(sqlite3.connect(tmp_path / "one.db")) as connection:
            (window,) = connection.execute(
                "SELECT concurrency, offered_per_second, limit_seconds, purpose FROM slo_window"
            )
            assert window == (2.0, None, 0.35, "measure")
            cases = connection.execute("SELECT backend, batch FROM probe_case ORDER BY backend")
            assert list(cases) == [("own", 2), ("shut", 2)]
        for file in (p for p in tmp_path.rglob("*") if p.is_file()):
            for key in keys.values():
                assert key.encode() not in file.read_bytes(), file
