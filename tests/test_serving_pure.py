"""The parts of the probe serving that need no server: load, windows, search, facts, config."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planning import dual, host
from topobench import config
from topobench.config import ClusterConfig, Overrides
from topobench.errors import ConfigError, ResultInvalid
from topobench.plan import make_plan
from topobench.probes import serving_checks, serving_facts, serving_windows
from topobench.probes.serving import Serving
from topobench.probes.serving_gpu import GpuMeter, metered
from topobench.probes.serving_load import BLOCK, Lengths, Prompts, Scale, arrivals
from topobench.probes.serving_results import level_readings
from topobench.probes.serving_search import BRACKET, CONFIRM, Search, Seen, upper_share
from topobench.probes.serving_session import Result
from topobench.probes.serving_windows import Collected, Flow, Health, Limits, Served, Window
from topobench.reading import ReasonCode, Status
from topobench.server_definition import Server

QUICK = Health(0.001, 0.002, 0.3)


class TestLoad:
    @pytest.mark.parametrize(
        ("kind", "burstiness", "variation"),
        [("constant", 1.0, 0.0), ("poisson", 1.0, 1.0), ("gamma", 0.25, 2.0)],
    )
    def test_arrivals_have_their_rate_and_their_spread(
        self, kind: str, burstiness: float, variation: float
    ) -> None:
        """Every block has the mean rate exactly; gaps vary as the distribution says."""
        count = 4 * BLOCK
        found = list(itertools.islice(arrivals(kind, 50.0, burstiness, random.Random(3)), count))
        for block in range(1, 5):
            assert found[block * BLOCK - 1] == pytest.approx(block * BLOCK / 50.0)
        gaps = [b - a for a, b in itertools.pairwise([0.0, *found])]
        assert min(gaps) >= 0
        spread = statistics.stdev(gaps) / statistics.fmean(gaps)
        assert spread == pytest.approx(variation, abs=0.15)

    @pytest.mark.parametrize(
        ("spec", "low", "high"),
        [
            ("512", 512, 512),
            ("uniform:100-300", 100, 300),
            ("lognormal:200,0.5,400", 1, 400),
            ("zipf:1.2,50", 1, 50),
        ],
    )
    def test_lengths_keep_their_range_and_mean(self, spec: str, low: int, high: int) -> None:
        lengths, rng = Lengths.parse(spec), random.Random(1)
        drawn = [lengths.draw(rng) for _ in range(20_000)]
        assert low <= min(drawn) <= max(drawn) <= high
        if "lognormal" not in spec:
            assert statistics.fmean(drawn) == pytest.approx(lengths.mean, rel=0.03)
        else:
            assert statistics.median(drawn) == pytest.approx(200, rel=0.03)

    def test_lengths_come_from_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "lengths"
        file.write_text("10\n30\n")
        lengths = Lengths.parse(f"file:{file}")
        assert lengths.mean == 20
        assert {lengths.draw(random.Random(n)) for n in range(20)} == {10, 30}

    @pytest.mark.parametrize(
        "spec", ["", "0", "-5", "ten", "uniform:9-3", "zipf:1", "lognormal:100,9", "file:/no/file"]
    )
    def test_other_lengths_are_refused(self, spec: str) -> None:
        with pytest.raises(ValueError, match=r"is no length.*expected 512, uniform:LOW-HIGH"):
            Lengths.parse(spec)

    @pytest.mark.parametrize("as_ids", [True, False])
    def test_prompts_are_exact_and_differ_from_their_first_units_on(self, as_ids: bool) -> None:
        made = Prompts(as_ids=as_ids, vocabulary=1000, nonce=7)
        texts = [json.loads(made.make(200)) for _ in range(3000)]
        units = [tuple(t if as_ids else t.split()) for t in texts]
        assert {len(u) for u in units} == {200}
        assert len({u[:4] for u in units}) == 3000
        longest = json.loads(made.make(100_000))
        assert len(longest if as_ids else longest.split()) == 100_000

    def test_a_set_share_of_prompts_is_sent_again(self) -> None:
        made = Prompts(as_ids=True, vocabulary=1000, nonce=7, reuse=0.3, pool=4)
        texts = [made.make(20) for _ in range(5000)]
        assert 1 - len(set(texts)) / 5000 == pytest.approx(0.3, abs=0.03)

    def test_a_server_that_counts_more_is_met_half_way(self) -> None:
        """Three tokens of a template, and two tokens a word."""
        scale = Scale.between((24, 51), (88, 179))
        assert (scale.fixed, scale.each) == (3.0, 2.0)
        assert scale.units(103) == 50
        with pytest.raises(ValueError, match="51 and 51 tokens"):
            Scale.between((24, 51), (88, 51))


def window(
    count: int = 400,
    *,
    ttft: float = 0.1,
    over: int = 0,
    errors: int = 0,
    flow: Flow | None = None,
    health: Health = QUICK,
    facts: dict[str, Any] | None = None,
    unique: bool = True,
    open_loop: bool = False,
    given_up: bool = False,
    counted: bool = False,
    change: Callable[[Served], None] = lambda served: None,
    **limits: Any,
) -> Window:
    """A window of 60 s: requests of 1.1 s with 11 tokens, ``over`` of them 0.5 s later."""
    collected = Collected(100.0)
    for number in range(count):
        due = 101.0 + number * 60 / count
        first = due + 0.001 + ttft + (0.5 if number < over else 0.0)
        served = Served(number, due, due + 0.001, 64, 11, first, first + 1.0, 11, 64, 11)
        served.arrivals = 11
        if number >= count - errors:
            served.error = "http_500"
        change(served)
        collected.finish(served)
    busy = count * (1.0 + ttft) + 0.5 * over
    return serving_windows.judge(
        collected,
        flow or Flow(60.0, busy, count, busy),
        health,
        Limits(**limits),
        purpose="measure",
        load=8,
        open_loop=open_loop,
        started_at="2026-01-01T00:00:00+00:00",
        unique=unique,
        counted=counted,
        facts=facts or {},
        given_up=given_up,
    )


def _untold(count: int) -> Callable[[Served], None]:
    """Of so many answers the server told no counts."""

    def change(served: Served) -> None:
        if served.trace < count:
            served.input_tokens = served.output_tokens = None

    return change


class TestWindows:
    def test_each_metric_is_by_its_definition(self) -> None:
        found = window(open_loop=True)
        first = {name: values[0] for name, values in found.samples.items()}
        assert first["ttft_seconds"] == pytest.approx(0.1)
        assert first["ttft_from_schedule_seconds"] == pytest.approx(0.101)
        assert first["client_queue_seconds"] == pytest.approx(0.001)
        assert first["tpot_seconds"] == pytest.approx(0.1)
        assert first["e2e_seconds"] == pytest.approx(1.1)
        assert first["e2e_from_schedule_seconds"] == pytest.approx(1.101)
        assert first["arrival_seconds"] == pytest.approx(1.0)
        assert found.rate("output_tokens_count") == pytest.approx(400 * 11 / 60)
        assert found.meets

    def test_an_answer_of_one_token_has_no_time_per_token(self) -> None:
        def one_token(served: Served) -> None:
            served.output_tokens = served.chunks = 1 if served.trace else 11

        assert len(window(change=one_token).samples["tpot_seconds"]) == 1

    def test_tokens_that_came_at_once_have_no_time_per_token(self) -> None:
        """Neither 0 nor the time to the stream's end; they keep each limit of it, and are told."""

        def at_once(served: Served) -> None:
            served.arrivals = 1 if served.trace < 100 else 11

        found = window(change=at_once, tpot=0.09)
        assert list(found.samples["tpot_seconds"]) == [pytest.approx(0.1)] * 300
        assert (found.at_once, found.good) == (100, 100)

    @pytest.mark.parametrize(("of", "counted"), [(5, False), (5, True), (400, True)])
    def test_chunks_are_not_counted_among_tokens(self, of: int, counted: bool) -> None:
        """A server that told its counts, then or at first, tells them of 99 of 100 answers."""
        assert window(change=_untold(4), counted=counted).valid
        ((code, text),) = window(change=_untold(of), counted=counted).faults
        assert code == "wrong_data"
        assert text == f"{of} of 400 answers lack the token count that others have"

    @pytest.mark.parametrize(
        ("count", "over", "errors", "meets"),
        [
            *((400, 4, 0, True), (400, 5, 0, False), (299, 0, 0, None), (299, 3, 0, False)),
            *((1000, 0, 1, True), (1000, 0, 2, False)),
        ],
    )
    def test_the_limit_is_kept_by_99_of_100_and_300_requests(
        self, count: int, over: int, errors: int, meets: bool | None
    ) -> None:
        assert window(count, over=over, errors=errors).meets is meets

    def test_percentiles_wait_for_enough_requests(self) -> None:
        values = [float(n) for n in range(1, 301)]
        assert serving_windows.percentiles(values) == {
            "n": 300,
            "mean": 150.5,
            "std": statistics.stdev(values),
            "p50": 150.0,
            "p90": 270.0,
            "p95": 285.0,
            "p99": 297.0,
        }
        few = serving_windows.percentiles(values[:58])
        assert (few["p90"], few["p95"], few["p99"]) == (53.0, None, None)
        assert serving_windows.percentiles([]) == {"n": 0}

    def test_goodput_counts_requests_within_every_limit(self) -> None:
        found = window(over=100, errors=10, tpot=0.11, e2e=1.2)
        assert found.good == 290
        assert window(tpot=0.09).good == 0
        assert window(over=100).good == 300  # the limit itself, where none is set

    @pytest.mark.parametrize(
        ("more", "code", "said"),
        [
            ({"health": Health(0.03, 0.1, 0.3)}, "client_overloaded", "30.0 ms late"),
            ({"health": Health(0.001, 0.1, 0.95)}, "client_overloaded", "95% of a CPU"),
            ({"flow": Flow(60.0, 440.0, 380, 410.0)}, "unsteady", "93.2%"),
            ({"flow": Flow(60.0, 0.0, 0, 0.0)}, "unsteady", "nothing was in flight"),
            ({"facts": {"prefix_cache_hit_ratio": 0.02}}, "wrong_data", "2.0% of the prompt"),
            ({"change": lambda s: setattr(s, "cached", 16)}, "wrong_data", "25.0% of the prompt"),
        ],
    )
    def test_a_window_that_may_not_be_believed_says_why(
        self, more: dict[str, Any], code: str, said: str
    ) -> None:
        found = window(**more)
        assert not found.valid
        assert found.meets is None
        ((found_code, text),) = found.faults
        assert found_code == ReasonCode(code)
        assert said in text

    def test_prompts_sent_again_on_purpose_may_come_from_a_cache(self) -> None:
        assert window(facts={"prefix_cache_hit_ratio": 0.4}, unique=False).valid

    def test_an_overloaded_server_is_over_the_limit_though_never_steady(self) -> None:
        assert window(over=50, flow=Flow(60.0, 900.0, 400, 465.0)).meets is False

    def test_a_load_that_was_given_up_is_over_unless_the_client_was_late(self) -> None:
        assert window(20, given_up=True).meets is False
        assert window(20, given_up=True, health=Health(2.5, 2.5, 0.3)).meets is None

    def test_the_slowest_hundredth_keeps_its_trace(self) -> None:
        found = window(over=3)
        assert [(trace, round(e2e, 3)) for trace, e2e, _ in found.slowest][:3] == [
            (n, 1.6) for n in range(3)
        ]
        assert len(found.slowest) == 4

    def test_gaps_are_thinned_evenly_and_take_no_more_memory(self) -> None:
        collected = Collected(0.0)
        for number in range(3 * serving_windows.MOST_GAPS):
            collected.gap(float(number))
        kept = list(collected.gaps)
        assert serving_windows.MOST_GAPS / 2 <= len(kept) <= serving_windows.MOST_GAPS
        assert {b - a for a, b in itertools.pairwise(kept)} == {4.0}


def test_a_load_without_a_window_that_may_be_used_has_no_numbers() -> None:
    """Its neighbours in the ladder have; if none has any, all of them are kept as not valid."""
    good, late = window(), window(health=Health(0.03, 0.1, 0.3))
    windows = [dataclasses.replace(w, load=n) for n, w in enumerate((good, late, late), 1)]
    for given, loads in ((windows, {1}), (windows[1:], {2, 3})):
        found = list(level_readings(given, GpuMeter([]), ladder=True))
        assert {r.point["concurrency"] for r in found} == loads


def test_windows_over_the_limit_count_in_the_shares_though_never_steady() -> None:
    """Of two loads: one was over in one of two windows, the other failed a tenth of them."""
    over = window(over=200, flow=Flow(60.0, 900.0, 400, 465.0))
    failed = dataclasses.replace(window(errors=40), load=16)
    windows = [window(), over, window(health=Health(0.03, 0.1, 0.3)), failed]
    found = {
        (r.metric, r.point["concurrency"]): r.samples
        for r in level_readings(windows, GpuMeter([]), ladder=True)
    }
    assert found["windows_within_ratio", 8] == (0.5,)
    assert found["goodput_ratio", 8] == (1.0, 0.5)
    assert len(found["ttft_seconds", 8]) == 400
    assert (found["goodput_ratio", 16], found["error_ratio", 16]) == ((0.9,), (0.1,))
    assert ("ttft_seconds", 16) not in found
    serving_checks.refuse(Result(tuple(windows), {}, 0))
    with pytest.raises(ResultInvalid, match="40 of 400 requests failed"):
        serving_checks.refuse(Result((failed,), {}, 0))


def closed_server(slots: int, noise: random.Random) -> Callable[[float], Seen]:
    """Requests of 0.5 s in so many slots; the others wait in order."""

    def serve(load: float) -> Seen:
        wait = max(0.0, (load - slots) / slots * 0.5)
        p99 = (0.05 + wait) * (1 + abs(noise.gauss(0, 0.01)))
        return Seen(p99 <= 0.35, p99, 0.5 + wait, min(load, slots) / 0.5 * noise.gauss(1, 0.002))

    return serve


def open_server(rate: float, noise: random.Random) -> Callable[[float], Seen]:
    """A queue in front of one server, as seen in windows of 60 s."""

    def serve(load: float) -> Seen:
        use = load / rate
        if use >= 1:
            return Seen(False, 1 + 60 * (use - 1), 5.0, rate * noise.gauss(1, 0.002))
        p99 = (0.05 + 0.003 * math.log(100) / (1 - use)) * noise.gauss(1, 0.01)
        return Seen(p99 <= 0.35, p99, 0.5, load)

    return serve


def searched(serve: Callable[[float], Seen], *, whole: bool, **more: Any) -> Search:
    search = Search(
        **{"start": 8, "most": 100_000, "tolerance": 0.05, "in_a_row": 3, "limit": 0.35, **more},
        whole=whole,
    )
    while (step := search.next()) is not None:
        search.tell(step, [serve(step.load) for _ in range(step.windows)])
    return search


class TestSearch:
    @pytest.mark.parametrize("slots", [3, 10, 30, 64, 100, 333, 1000])
    def test_the_largest_concurrency_is_found_in_ten_windows(self, slots: int) -> None:
        """The wait reaches the limit at 1.6 x slots; within 5 %, or one where they are few."""
        truth = 1.6 * slots
        for seed in range(20):
            search = searched(closed_server(slots, random.Random(seed)), whole=True)
            assert search.ended == "found"
            assert search.best is not None
            assert search.first_over is not None
            assert abs(search.best - truth) <= max(1.0, 0.05 * truth)
            assert search.best < search.first_over <= max(search.best + 1, 1.05 * search.best)
            assert search.windows <= 10

    @pytest.mark.parametrize("rate", [10.0, 50.0, 200.0, 500.0])
    def test_the_largest_rate_is_found_in_ten_windows(self, rate: float) -> None:
        truth = rate * (1 - 0.003 * math.log(100) / 0.30)
        for seed in range(20):
            search = searched(open_server(rate, random.Random(seed)), whole=False)
            assert search.best is not None
            assert search.best == pytest.approx(truth, rel=0.05)
            assert search.windows <= 10

    def test_a_winner_that_does_not_hold_gives_way_to_a_smaller_one(self) -> None:
        """It passes once at 100 by luck; held, it shows what it is."""
        lucky = iter([True])

        def serve(load: float) -> Seen:
            meets = load <= 80 or (load <= 100 and next(lucky, False))
            return Seen(meets, 0.1 if meets else 0.9, 0.5, min(load, 80) / 0.5)

        search = searched(serve, whole=True, start=100)
        assert search.ended == "found"
        assert search.best is not None
        assert 76 <= search.best <= 80

    def test_a_server_too_slow_for_one_request_has_no_load(self) -> None:
        search = searched(lambda _: Seen(False, 1.0, 1.0, 1.0), whole=True)
        assert (search.ended, search.best, search.first_over) == ("none", None, 1.0)

    def test_the_largest_load_tried_has_no_upper_end(self) -> None:
        search = searched(lambda load: Seen(True, 0.1, 0.5, load), whole=True, most=64)
        assert (search.best, search.first_over) == (64.0, None)

    def test_windows_that_cannot_be_judged_end_it(self) -> None:
        search = searched(lambda _: Seen(None, None, 0.5, 1.0), whole=True)
        assert (search.ended, search.windows) == ("not judged", 3)

    def test_a_server_that_changes_all_the_time_is_given_up(self) -> None:
        rng = random.Random(1)
        search = searched(
            lambda load: Seen(rng.random() < 0.5, 0.3, 0.5, load), whole=False, in_a_row=20
        )
        assert search.ended in ("not settled", "none")

    def test_one_window_brackets_and_several_confirm(self) -> None:
        search = Search(start=1, most=2, tolerance=0.05, in_a_row=3, limit=1.0, whole=True)
        steps = []
        while (step := search.next()) is not None:
            steps.append((step.load, step.purpose, step.windows))
            search.tell(step, [Seen(True, 0.9, 1.0, step.load)] * step.windows)
        assert steps == [(1, BRACKET, 1), (2, BRACKET, 1), (2, CONFIRM, 3)]

    def test_what_the_winning_windows_prove(self) -> None:
        """299 without one over show a P99 at 95 %; with one 473 are needed, with five 1049."""
        for over, n in ((0, 299), (1, 473), (5, 1049)):
            assert upper_share(over, n) <= 0.01 < upper_share(over, n - 1)
        assert upper_share(3, 3) == 1.0


def test_facts_of_known_servers_are_read_and_others_left_alone() -> None:
    before = serving_facts.read(
        '# HELP x y\nvllm:num_requests_waiting{engine="0"} 2\n'
        'vllm:num_requests_waiting{engine="1"} 3.0\nvllm:kv_cache_usage_perc 0.5\n'
        "vllm:prefix_cache_queries_total 1000\nvllm:prefix_cache_hits_total 10\nother 7\nbroken\n"
    )
    assert before == {
        "waiting_requests": 5.0,
        "kv_cache_ratio": 0.5,
        "prefix_cache_queries": 1000.0,
        "prefix_cache_hits": 10.0,
    }
    after = {**before, "waiting_requests": 1.0, "prefix_cache_queries": 2000.0}
    found = serving_facts.between([before, {**after, "prefix_cache_hits": 60.0}])
    assert (found["waiting_requests_mean"], found["waiting_requests_most"]) == (3.0, 5.0)
    assert found["prefix_cache_hit_ratio"] == 0.05
    assert serving_facts.read("tgi_queue_size NaN\n") == {}


def test_power_is_of_all_gpus_together_and_only_while_asked() -> None:
    meter = GpuMeter(["GPU-a", "GPU-b"])
    for at, line in (
        *((1.0, "GPU-a, 100.0, 10"), (1.01, "GPU-b, 200.0, 20"), (2.0, "GPU-a, 110.0, 11")),
        *((2.01, "GPU-b, [N/A], 20"), (3.0, "GPU-a, 120.0, 12"), (3.01, "GPU-b, 230.5, 30")),
    ):
        meter.line(line, at)
    meter.line("GPU-c, 500.0, 99", 3.2)
    meter.line("No devices were found", 3.3)
    assert meter.watts(0.0, 10.0) == [300.0, 350.5]
    assert meter.watts(0.0, 2.0) == [300.0]
    assert meter.peak_bytes(0.0, 2.5) == 20 << 20
    assert meter.peak_bytes(5.0, 6.0) is None


def test_a_gpu_that_tells_nothing_mixes_no_two_rounds() -> None:
    """It says N/A, it is gone for a round, or the window begins inside a round."""
    meter = GpuMeter(["GPU-a", "GPU-b"])
    for number, (a, b) in enumerate([("1", "2"), ("[N/A]", "20"), ("100", "nan"), ("", "2000")]):
        for at, line in ((0.0, f"GPU-a, {a}, 1"), (0.01, f"GPU-b, {b}, 1")):
            if not line.startswith("GPU-a, ,"):
                meter.line(line, number + at)
    meter.line("GPU-a, 10000, 1", 4.0)
    meter.line("GPU-b, 20000, 1", 4.01)
    assert meter.watts(0.0, 9.0) == [3.0, 30_000.0]
    assert meter.watts(0.005, 4.005) == []


def test_a_server_on_gpus_is_read_by_nvidia_smi_as_long_as_it_is_loaded(tmp_path: Path) -> None:
    """
    With a program of that name that notes what it was asked; it ends with the block.

    It leaves its lines to the buffer of the C library, which keeps them back from a pipe.
    """
    asked = tmp_path / "asked"
    script = (
        "import sys, time\n"
        f"open({str(asked)!r}, 'w').write(' '.join(sys.argv[1:]))\n"
        "while True:\n    print('GPU-a, 250.5, 1024'); time.sleep(0.05)\n"
    )
    env = _program(tmp_path, f"#!{sys.executable} -S\n{script}")
    with metered(["GPU-a"], env) as meter:
        until = time.monotonic() + 20
        while len({r.at for r in meter.readings}) < 3 and time.monotonic() < until:
            time.sleep(0.01)
    assert set(meter.watts(0.0, math.inf)) == {250.5}
    assert meter.peak_bytes(0.0, math.inf) == 1 << 30
    assert "--query-gpu=uuid,power.draw,memory.used --id=GPU-a" in asked.read_text()
    times = [r.at for r in meter.readings]
    assert len(set(times)) >= 3  # out of a buffer they would come together, each 20 s
    assert meter.problem is None
    time.sleep(0.05)
    assert len(meter.readings) == len(times)
    with metered([], env) as none:
        assert (none.readings, none.problem) == ([], None)


def test_gpus_that_are_not_read_say_why(tmp_path: Path) -> None:
    with metered(["GPU-a"], {"PATH": str(tmp_path)}) as meter:
        pass
    assert meter.problem == "there is no nvidia-smi on this host"
    before = os.listdir("/proc/self/fd")
    with metered(["GPU-a"], _program(tmp_path, "")) as meter:  # as in a container without a GPU
        pass
    assert meter.problem == "nvidia-smi cannot be started: Exec format error"
    assert os.listdir("/proc/self/fd") == before
    with metered(
        ["GPU-a"], _program(tmp_path, "#!/bin/sh\necho 'No devices were found'\n")
    ) as meter:
        until = time.monotonic() + 20
        while meter.problem is None and time.monotonic() < until:
            time.sleep(0.01)
    assert meter.problem == "nvidia-smi said: No devices were found"


def _program(folder: Path, text: str) -> dict[str, str]:
    """An environment whose nvidia-smi is this one."""
    program = folder / "nvidia-smi"
    program.write_text(text)
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


SERVERS = r"""
kind: topobench/v1
probes: [{serving: {mode: ladder, ladder: [1, 4, 8], limit: 200ms, rate: 0.5}}]
bindings: [none, local]
servers:
  mine:
    url: "https://10.9.0.20:8000/v1/"
    key_env: MY_API_KEY
    body: {top_k: 1, user: "7", seed: null}
  engine:
    argv: [serve, --port, "{port}", --block, "{block}", --seqs, "{seqs}"]
    grid: {block: [16, 32], seqs: [64, 256]}
    version: [serve, --version]
    gpus: all
    start: 90s
"""


def load(tmp_path: Path, text: str, **overrides: Any) -> ClusterConfig:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    return config.load(file, environ={}, overrides=Overrides(**overrides))


class TestConfig:
    def test_servers_are_read_and_written_back(self, tmp_path: Path) -> None:
        found = load(tmp_path, SERVERS)
        mine, engine = found.servers
        assert (mine.url, mine.key_env) == ("https://10.9.0.20:8000", "MY_API_KEY")
        assert dict(mine.body) == {"top_k": 1, "user": "7", "seed": None}
        assert dict(engine.grid) == {"block": ("16", "32"), "seqs": ("64", "256")}
        assert (engine.gpus, engine.start_seconds, engine.timeout_seconds) == ("all", 90.0, 600.0)
        assert load(tmp_path, config.to_yaml(found)) == found

    def test_each_point_of_a_grid_is_a_server_and_a_ladder_is_one_case(
        self, tmp_path: Path
    ) -> None:
        choices = load(tmp_path, SERVERS).probes
        assert {p.params["ladder"] for p in choices} == {("1 4 8",)}
        points = [p.params["arguments"] for p in choices]
        grid = [(f"block={b} seqs={s}",) for b in ("16", "32") for s in ("64", "256")]
        assert points == [(None,), *grid]
        last = Server.from_text(str(choices[-1].params["server_definition"][0]))
        assert last.command(7) == ("serve", "--port", "7", "--block", "32", "--seqs", "256")
        assert len({p.params["digest"] for p in choices}) == 5
        only = SERVERS.replace("mode: ladder,", "mode: ladder, server: mine,")
        assert [p.params["server"] for p in load(tmp_path, only).probes] == [("mine",)]

    def test_it_is_laid_out_under_every_binding_with_its_gpus(self, tmp_path: Path) -> None:
        cells = make_plan(load(tmp_path, SERVERS), [host(dual(2))], seed=1).cells
        planned = [c for c in cells if c.status is Status.PLANNED]
        assert {(c.case.params["server"], len(c.devices), c.arm.name) for c in planned} == {
            (name, gpus, arm)
            for name, gpus in (("mine", 0), ("engine", 2))
            for arm in ("none", "local")
        }
        assert all("window" not in c.case.params for c in planned)
        assert all(c.case.params["limit"] == 0.2 for c in planned)

    @pytest.mark.parametrize(
        ("wrong", "right", "said"),
        [
            ("probes: [{serving", "probes: [{servin", "no probe named 'servin'"),
            ("{mode: ladder,", "{server: myne,", "did you mean mine?"),
            ("{mode: ladder,", "{digest: a,", "digest: not set here but under servers:"),
            ("{mode: ladder,", "{mode: stairs,", "'stairs' is not known"),
            ("rate: 0.5", "rate: 5k", "has the unit 'k'"),
            ('url: "https://10.9.0.20:8000/v1/"', "model: x", "needs either url: of a running"),
            ('url: "https://', 'url: "ftp://', "is no address"),
            ('url: "https://', 'url: "https://me:secret@', "holds a secret"),
            (":8000/v1/", ":8000/v1/chat/completions", "expected the part before /v1"),
            (":8000/v1", ":0/v1", "is no address: Port out of range"),
            (":8000/v1", ":80000/v1", "is no address: Port out of range"),
            (":8000/v1", ":http/v1", "is no address: Port could not be cast"),
            ("MY_API_KEY", "sk-verysecret", "must be the name of a variable"),
            ("MY_API_KEY", "MINE", "with KEY (not PKEY), TOKEN or SECRET in it"),
            ("MY_API_KEY", "APPKEY", "with KEY (not PKEY), TOKEN or SECRET in it"),
            ("top_k: 1", "api_key: 1", "looks like a secret"),
            ('"{port}"', '"8000"', "argv names no port; write {port}"),
            ("seqs: [64, 256]", "seq: [64, 256]", "{seq} stands nowhere in argv"),
            ("version: [serve", "timeout: 1h\n    version: [serve", "is above 10 times start"),
            ("key_env: MY_API_KEY", "gpus: all", "gpus: only of a server that is started"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path: Path, wrong: str, right: str, said: str) -> None:
        assert wrong in SERVERS
        with pytest.raises(ConfigError) as error:
            load(tmp_path, SERVERS.replace(wrong, right, 1))
        assert said in str(error.value)

    @pytest.mark.parametrize(
        ("written", "base"),
        [
            ("http://[2001:db8::20]:8000", "http://[2001:db8::20]:8000"),
            ("http://10.9.0.20/", "http://10.9.0.20"),
            ("https://gate/team/v1", "https://gate/team"),
        ],
    )
    def test_an_address_may_end_as_its_server_shows_it(
        self, tmp_path: Path, written: str, base: str
    ) -> None:
        found = load(tmp_path, SERVERS.replace("https://10.9.0.20:8000/v1/", written))
        assert found.servers[0].url == base

    def test_a_started_server_is_given_up_after_ten_times_its_start(self, tmp_path: Path) -> None:
        engine = load(tmp_path, SERVERS.replace("start: 90s", "start: 5s")).servers[1]
        assert (engine.start_seconds, engine.timeout_seconds) == (5.0, 50.0)

    def test_a_key_comes_from_where_the_command_is_called(self, tmp_path: Path) -> None:
        """The section env wins; other variables stay out, and the value is shown nowhere."""
        file, environ = tmp_path / "cluster.yaml", {"MY_API_KEY": "sk-4711", "OTHER_KEY": "sk-0815"}
        file.write_text(SERVERS)
        found = config.load(file, environ=environ)
        assert dict(found.env) == {"MY_API_KEY": "sk-4711"}
        assert "sk-" not in config.to_yaml(found)
        file.write_text(SERVERS + "env: {MY_API_KEY: sk-file}\n")
        assert dict(config.load(file, environ=environ).env) == {"MY_API_KEY": "sk-file"}

    def test_without_a_server_there_is_nothing_to_load(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="describe one under servers:"):
            load(tmp_path, "kind: topobench/v1\n", probes="serving")

    @pytest.mark.parametrize(
        ("params", "said"),
        [
            ({"input_tokens": "many"}, "is no length"),
            ({"mode": "ladder", "ladder": "1 2.5"}, "a concurrency is a whole number"),
            ({"mode": "ladder", "ladder": "0"}, "loads above 0"),
            ({"mode": "ladder", "ladder": "x"}, "could not convert"),
            ({"window": 60.0, "most_window": 30.0}, "most_window is shorter than window"),
        ],
    )
    def test_parameters_that_contradict_themselves_are_refused(
        self, params: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(ValueError, match=said):
            Serving(**params)

    def test_the_estimate_counts_every_window_and_the_start(self) -> None:
        text = dataclasses.replace(Server("a", argv=("x", "{port}")), start_seconds=100.0).text
        assert Serving(server_definition=text).estimated_seconds() == 167.0
        ladder = Serving(mode="ladder", ladder="1 2 4", windows=2, window=10.0, ramp=1.0)
        assert ladder.estimated_seconds() == 2 + 3 * 21
        assert Serving(mode="search").estimated_seconds() == 652.0

    def test_the_estimate_of_a_rate_counts_the_requests_of_a_window(self) -> None:
        slow: dict[str, Any] = {"arrivals": "poisson", "ramp": 0.0}
        assert Serving(rate=4.0, **slow).estimated_seconds() == 2 + 75
        assert Serving(rate=0.5, **slow).estimated_seconds() == 2 + 300
        assert Serving(rate=100.0, **slow).estimated_seconds() == 2 + 60
