"""compare, on stores with known effects: the word, the interval, each refusal, exit codes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import storing
from documents import check
from judging import Fleet
from topobench import cli
from topobench.db.store import Store
from topobench.reading import Binding

Case = dict[str, Any]
GPUS = tuple((f"GPU-{n}",) for n in range(2))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "t.db")


class Asked:
    """What ``compare --format json`` said."""

    def __init__(self, code: int, document: dict[str, Any], error: str) -> None:
        self.code, self.document, self.error = code, document, error
        self.data: dict[str, Any] = document["data"] or {}

    @property
    def case(self) -> Case:
        """The only case."""
        (found,) = self.data["cases"]
        return dict(found)


@pytest.fixture
def ask(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> Any:
    def asked(*arguments: str) -> Asked:
        code = cli.main(["compare", *arguments, "--store", fleet.url, "--format", "json"])
        out, err = capsys.readouterr()
        document = json.loads(out)
        check(document, "compare" if document["data"] else "error")
        assert document["exit_code"] == code
        told = document.get("error", {}).get("message", "")
        return Asked(code, document, told + err)

    return asked


ORDER = ("k1", "k2", "k3")


def test_the_same_twice_is_equivalent_and_never_regressed(fleet: Fleet, ask: Any) -> None:
    found = ask(fleet.sweep(day=2), fleet.sweep(day=3))
    assert (found.code, found.data["verdict"]) == (0, "equivalent")
    assert found.case["unit_of"] == "processes"
    assert (found.case["n_a"], found.case["n_b"]) == (6, 6)
    assert -0.02 < found.case["lo"] < 0 < found.case["hi"] < 0.02
    assert found.data["as_of"] == storing.at(10, 3)
    assert "one night a side" in found.case["notes"][0]


def test_noise_as_large_as_the_tolerance_is_never_a_regression(tmp_path: Path) -> None:
    """Ten comparisons of equal groups with 1 % between processes: no false alarm."""
    from topobench.comparing import Wanted, compare

    noisy = Fleet(tmp_path / "n.db", spread=0.01)
    sweeps = [noisy.sweep(day=d) for d in range(2, 7)]
    pairs = [(a, b) for i, a in enumerate(sweeps) for b in sweeps[i + 1 :]]
    words = [compare(noisy.url, a, b, Wanted()).data["verdict"] for a, b in pairs]
    assert set(words) <= {"equivalent", "inconclusive"}


def test_five_percent_less_is_regressed_and_inside_the_interval(fleet: Fleet, ask: Any) -> None:
    a, b = fleet.sweep(day=2), fleet.sweep(day=3, effect=-0.05)
    found = ask(a, b)
    assert (found.code, found.document["status"]) == (1, "regressed")
    assert found.case["lo"] < -0.05 < found.case["hi"] < -0.02
    assert found.case["mde"] < 0.05
    back = ask(b, a)
    assert (back.code, back.data["verdict"]) == (0, "improved")


def test_more_latency_is_worse(fleet: Fleet, ask: Any) -> None:
    made: dict[str, Any] = {"metric": storing.LATENCY, "level": 5e-6, "probe": "kernel_launch"}
    found = ask(fleet.sweep(day=2, **made), fleet.sweep(day=3, effect=0.08, **made))
    assert found.code == 1
    assert found.case["effect_ratio"] == pytest.approx(-0.08, abs=0.01)
    assert found.case["tolerance"] == 0.04


@pytest.mark.parametrize("processes", [1, 2])
def test_few_processes_decide_nothing(fleet: Fleet, ask: Any, processes: int) -> None:
    a, b = (fleet.sweep(day=d, processes=processes, effect=-0.3 * (d - 2)) for d in (2, 3))
    found = ask(a, b)
    assert (found.code, found.case["verdict"], found.case["mde"]) == (3, "inconclusive", None)
    assert f"{processes} against {processes} processes" in found.case["reason"]


def test_many_processes_of_few_nights_count_as_nights(fleet: Fleet, ask: Any) -> None:
    for day in (2, 3, 9, 10):
        fleet.sweep(day=day, effect=0.0 if day < 5 else -0.05)
    found = ask("date:2026-11-02..2026-11-03", "date:2026-11-09..")
    assert (found.code, found.case["unit_of"]) == (3, "nights")
    assert "2 against 2 nights" in found.case["reason"]


def test_six_nights_of_one_process_decide(fleet: Fleet, ask: Any) -> None:
    for day in range(2, 14):
        fleet.sweep(day=day, processes=1, effect=0.0 if day < 8 else -0.05)
    found = ask("host:k1,date:..2026-11-07", "host:k1,date:2026-11-08..")
    assert (found.code, found.case["unit_of"], found.case["n_a"]) == (1, "nights", 6)
    early = ask("host:k1,date:..2026-11-07", "2026-11-08..", "--as-of", "2026-11-10")
    assert early.case["n_b"] == 3


def test_devices_of_one_host_are_compared_one_by_one(fleet: Fleet, ask: Any) -> None:
    host = storing.host(gpus=2)
    a = fleet.sweep([host], devices=GPUS, day=2)
    b = fleet.sweep([host], devices=GPUS[:1], day=3)
    c = fleet.sweep([host], devices=GPUS[1:], day=4, effect=-0.06)
    found = ask(a, f"sweep:{b},sweep:{c}")
    words = {c["devices"][0]: c["verdict"] for c in found.data["cases"]}
    assert words == {"GPU-0": "equivalent", "GPU-1": "regressed"}
    same, slow = sorted(found.data["cases"], key=lambda c: c["devices"])
    assert slow["p"] == pytest.approx(2 / math.comb(12, 6))  # of 924 orders the two most extreme
    assert slow["p_adjusted"] == pytest.approx(2 * slow["p"])
    assert same["p_adjusted"] == same["p"] > 0.05


def test_ranks_of_one_case_are_told_apart(fleet: Fleet, ask: Any, capsys: Any) -> None:
    made: dict[str, Any] = {"metric": storing.LATENCY, "probe": "all_reduce", "ranks": 2}
    for day, effect in ((2, 0.0), (3, 0.06)):
        for rank in (0, 1):
            fleet.sweep(day=day, effect=rank * effect, point={"rank": rank}, **made)
    sides = ("date:2026-11-02", "date:2026-11-03")
    words = {c["point"]["rank"]: c["verdict"] for c in ask(*sides).data["cases"]}
    assert words == {0: "equivalent", 1: "regressed"}
    cli.main(["compare", *sides, "--store", fleet.url])
    shown = capsys.readouterr().out
    rows = re.findall(r"^ +([01]) .* (regressed|equivalent)$", shown, re.MULTILINE)
    assert rows == [("1", "regressed"), ("0", "equivalent")]


def test_other_orders_of_ranks_between_hosts_are_refused_unless_forced(
    fleet: Fleet, ask: Any
) -> None:
    made: dict[str, Any] = {"probe": "all_reduce", "ranks": 3}
    a = fleet.sweep(ORDER, together=ORDER, **made)
    b = fleet.sweep(ORDER, together=ORDER, day=3, **made)
    assert [c["verdict"] for c in ask(a, b).data["cases"]] == ["equivalent"]
    for day, order in ((4, ("k1", "k3", "k2")), (5, ("k3", "k1", "k2"))):
        other = fleet.sweep(ORDER, together=order, day=day, **made)
        found = ask(a, other)
        assert "in another order (hosts: of the cluster file)" in found.case["refused"]
        assert found.data["a"]["hosts"] == 3
        forced = ask(a, other, "--force")
        assert forced.case["verdict"] == "equivalent"
        assert "in another order" in forced.case["notes"][0]
    both = ask(f"sweep:{a},sweep:{b}", "date:2026-11-04..2026-11-05")
    assert "in another order" in both.case["refused"], "two rings are not two hosts"


def test_a_pair_of_hosts_is_compared_with_the_same_pair(fleet: Fleet, ask: Any) -> None:
    made: dict[str, Any] = {"probe": "host_network", "ranks": 2}
    a = fleet.sweep(ORDER, together=("k1", "k2"), **made)
    b = fleet.sweep(ORDER, together=("k1", "k3"), day=3, effect=-0.5, **made)
    c = fleet.sweep(ORDER, together=("k1", "k2"), day=4, **made)
    assert [c["verdict"] for c in ask(a, c).data["cases"]] == ["equivalent"]
    assert ask(a, b).data["cases"] == []


def test_many_hosts_are_paired_with_themselves(fleet: Fleet, ask: Any) -> None:
    hosts = [f"h{n:02d}" for n in range(8)]
    levels = {h: 0.02 * n for n, h in enumerate(hosts)}
    fallen = {h: (1 + x) * 0.95 - 1 for h, x in levels.items()}
    a = fleet.sweep(hosts, processes=1, effect=levels, day=2)
    b = fleet.sweep([*hosts[:7], "new"], processes=1, effect=fallen, day=3)
    found = ask(a, b)
    assert (found.code, found.data["design"]) == (1, "same_hosts_pooled")
    assert (found.case["n_a"], found.case["unit_of"]) == (7, "hosts")
    assert found.case["effect_ratio"] == pytest.approx(-0.05, abs=0.004)
    assert "7 of 7 hosts are worse" in found.case["notes"][0]
    assert found.data["left_out"] == [
        "on side A only: 1 host: h07",
        "on side B only: 1 host: new",
    ]


def test_clusters_are_compared_host_by_host(fleet: Fleet, ask: Any) -> None:
    fleet.sweep([f"a{n}" for n in range(6)], day=2, cluster="lab")
    fleet.sweep([f"b{n}" for n in range(6)], day=3, cluster="prod", effect=-0.05)
    found = ask("lab", "cluster:prod")
    assert (found.code, found.data["design"], found.case["n_b"]) == (1, "other_hosts", 6)
    assert found.data["a"]["meaning"] == "cluster:lab"
    one = ask("host:a0", "prod")
    assert (one.code, one.case["reason"]) == (
        3,
        "1 against 6 hosts; at least 6 a side are needed",
    )


def test_a_driver_is_judged_against_hosts_that_kept_theirs(fleet: Fleet, ask: Any) -> None:
    """All hosts lost 4 % over the weeks; those with the new driver lost 3 % more."""
    hosts = [f"h{n:02d}" for n in range(14)]
    after = {h: "580.95.05" if n < 7 else "570.86" for n, h in enumerate(hosts)}
    fallen = {h: 0.96 * (0.97 if n < 7 else 1) - 1 for n, h in enumerate(hosts)}
    fleet.sweep(hosts, processes=1, driver="570.86", day=2)
    fleet.sweep(hosts, processes=1, driver="570.86", day=3)
    fleet.sweep(hosts, processes=1, driver=after, effect=fallen, day=9)
    fleet.sweep(hosts, processes=1, driver=after, effect=fallen, day=10)
    plain = ask("driver:570.86,date:..2026-11-05", "driver:580.95")
    assert plain.case["effect_ratio"] == pytest.approx(-0.069, abs=0.004)
    found = ask("driver:570.86", "driver:580.95", "--control", "unchanged")
    assert (found.code, found.data["design"]) == (1, "against_control")
    assert (found.case["n_a"], found.case["n_b"]) == (7, 7)
    assert found.case["effect_ratio"] == pytest.approx(-0.03, abs=0.004)
    assert found.case["lo"] < -0.03 < found.case["hi"]
    assert found.case["control_ratio"] == pytest.approx(-0.04, abs=0.003)
    assert plain.case["control_ratio"] is None


def test_without_control_hosts_there_is_no_answer(fleet: Fleet, ask: Any) -> None:
    fleet.sweep(["a", "b"], driver="570.86", day=2)
    fleet.sweep(["a", "b"], driver="580.95", day=3)
    found = ask("driver:570.86", "driver:580.95", "--control", "unchanged")
    assert (found.code, "no other host" in found.error) == (2, True)
    found = ask("host:a", "host:b", "--control", "unchanged")
    assert (found.code, "needs driver:VERSION" in found.error) == (2, True)


def test_versions_of_a_probe_are_never_compared(fleet: Fleet, ask: Any) -> None:
    a, b = fleet.sweep(day=2), fleet.sweep(day=3, version=2)
    for more in ((), ("--force",)):
        found = ask(a, b, *more)
        assert (found.code, found.case["effect_ratio"]) == (3, None)
        assert "version 1 against 2" in found.case["refused"]
        assert "--force" not in found.case["refused"]


def test_bytes_counted_otherwise_are_never_compared(fleet: Fleet, ask: Any) -> None:
    counted = [{"bytes_convention": f"{n} x chunk"} for n in (1, 2)]
    a, b = (fleet.sweep(day=2 + n, environment=e) for n, e in enumerate(counted))
    assert "counted differently" in ask(a, b, "--force").case["refused"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": [storing.host(shape="tfp1:other")]}, "hardware of the host changed"),
        ({"env": {"NCCL_ALGO": "Ring"}}, "settings of arm none differ: none against NCCL_ALGO"),
        ({"binding": Binding("none", threads=4)}, "arm none is defined otherwise"),
        ({"warnings": ["power_limit_below_default: 500 W"]}, "power limit was below its default"),
        ({"warnings": ["steal: 5 %"]}, "hypervisor took CPU time on side B"),
    ],
    ids=["hardware", "settings", "definition", "power", "steal"],
)
def test_other_conditions_are_refused_unless_forced(
    fleet: Fleet, ask: Any, change: dict[str, Any], words: str
) -> None:
    a, b = fleet.sweep(day=2), fleet.sweep(day=3, **change)
    found = ask(a, b)
    assert (found.code, found.case["verdict"], found.case["n_a"]) == (3, "inconclusive", 0)
    assert words in found.case["refused"]
    assert "--force compares them" in found.case["refused"]
    forced = ask(a, b, "--force")
    assert (forced.code, forced.case["refused"], forced.data["forced"]) == (0, None, True)


def test_what_disturbed_both_sides_alike_is_told(fleet: Fleet, ask: Any) -> None:
    a, b = (fleet.sweep(day=d, warnings=["host_busy: 90 threads"]) for d in (2, 3))
    assert "other programs kept the CPUs busy on both sides" in ask(a, b).case["notes"]


def test_links_that_degraded_and_new_software_are_told_not_refused(fleet: Fleet, ask: Any) -> None:
    a = fleet.sweep(day=2, environment={"host_settings": {"governor": "performance"}})
    b = fleet.sweep(
        [storing.host(health="tfp1:worse")],
        day=3,
        effect=-0.05,
        driver="580.95",
        environment={"host_settings": {"governor": "powersave"}},
    )
    found = ask(a, b)
    assert found.code == 1
    assert set(found.case["notes"]) >= {
        "driver 570.86 against 580.95",
        "the state of the links differs (health fingerprint)",
        "governor performance against powersave",
    }


def test_other_hardware_is_compared_where_it_was_asked_for(fleet: Fleet, ask: Any) -> None:
    one, other = storing.host("a"), storing.host("b", shape="tfp1:other")
    fleet.sweep([one], day=2, cluster="lab")
    fleet.sweep([other], day=3, cluster="prod")
    by_host = ask("host:a", "host:b")
    assert "wired otherwise" in by_host.case["refused"]
    by_cluster = ask("cluster:lab", "cluster:prod")
    assert (by_cluster.code, by_cluster.case["refused"]) == (0, None)
    assert "the wiring differs (shape fingerprint)" in by_cluster.case["notes"]


def test_imported_and_synthetic_results_stay_out_unless_asked(fleet: Fleet, ask: Any) -> None:
    a = fleet.sweep(day=2)
    b = fleet.sweep(day=3, source="import:nvbandwidth")
    c = fleet.sweep(day=4, synthetic=True)
    found = ask(a, b)
    assert (found.code, "6 imported readings are left out" in found.error) == (2, True)
    assert "--synthetic takes them" in ask(a, c).error
    assert ask(a, c, "--synthetic").data["b"]["synthetic"] is True
    assert ask(a, b, "--imported").data["b"]["sources"] == ["import:nvbandwidth"]


def test_sides_with_runs_in_common_are_a_usage_error(fleet: Fleet, ask: Any) -> None:
    a = fleet.sweep(day=2)
    for b in ("latest", "lab", "host:k1"):
        found = ask(a, b)
        assert (found.code, "6 runs in common" in found.error) == (2, True)


def test_nothing_in_common_is_inconclusive_and_said(fleet: Fleet, ask: Any) -> None:
    a = fleet.sweep(day=2)
    b = fleet.sweep(day=3, params={"bytes": 1, "direction": "h2d"})
    found = ask(a, b)
    assert (found.code, found.data["cases"]) == (3, [])
    assert found.data["left_out"] == [
        "on side A only: 1 case of host_to_device",
        "on side B only: 1 case of host_to_device",
    ]


@pytest.mark.parametrize(
    ("a", "words"),
    [
        ("host:h7", "did you mean 'h07'"),
        ("sku:H900", "no sku of this store"),
        ("cluster:labs", "did you mean 'lab'"),
        ("driver:999", "no driver of this store is called so; there are 570.86"),
        ("sweep:ffff", "no sweep begins with"),
        ("nonsense", "is no sweep, host, cluster, SKU or driver"),
        ("twin", "can mean host:twin, cluster:twin"),
        ("host:twin", "one in each of lab, twin"),
        ("date:2025-01-01", "selects no usable reading"),
    ],
)
def test_a_word_that_means_nothing_is_told(fleet: Fleet, ask: Any, a: str, words: str) -> None:
    fleet.sweep(["h07", "twin"], day=2, processes=1)
    fleet.sweep(["twin"], day=3, processes=1, cluster="twin")
    found = ask(a, "latest")
    assert found.code == 2
    assert words in found.error


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ("soon", "is no time"),
        ("2026-11-07T06:00:00", "has no zone|is no time"),
        ("0001-01-01T00:00:00+23:00", "is no time"),
        ("2026-11-01", "A .* selects no usable reading by 2026-11-02"),
        ("9999-12-31", "selects no usable reading"),
    ],
)
def test_a_time_that_leaves_nothing_is_told(fleet: Fleet, ask: Any, time: str, words: str) -> None:
    a = fleet.sweep(day=2)
    found = ask(a, "date:9999-12-31", "--as-of", time)
    assert found.code == 2
    assert re.search(words, found.error)


def test_the_same_input_gives_the_same_answer(fleet: Fleet, ask: Any) -> None:
    a, b = fleet.sweep(day=2), fleet.sweep(day=3)
    first, second = ask(a, b).data, ask(a, b).data
    assert first == second
    assert len(first["inputs_digest"]) == 64


@pytest.mark.postgres
def test_the_answer_is_the_same_from_postgresql(
    fleet: Fleet, postgres_url: str, tmp_path: Path
) -> None:
    from topobench.comparing import Wanted, compare

    Store.open(postgres_url).close()
    answers = []
    for store in (fleet, Fleet(tmp_path, url=postgres_url)):
        for day in (2, 3, 9, 10):
            store.sweep(["h07", "h08"], day=day, driver="570.86" if day < 5 else "580.95.05")
        wanted = Wanted(as_of="2026-11-09")
        found = compare(store.url, "driver:570.86", "h07,driver:580.95,2026-11-01..", wanted)
        answers.append((found.data["cases"], found.data["left_out"], found.data["as_of"]))
    assert answers[0] == answers[1]
    assert answers[0][0][0]["unit_of"] == "nights"
    assert answers[0][0][0]["n_b"] == 1


def test_a_metric_without_tolerance_is_left_out_and_said(fleet: Fleet, ask: Any) -> None:
    made: dict[str, Any] = {"metric": "overlap_ratio", "level": 0.9, "probe": "weight_load"}
    found = ask(fleet.sweep(day=2, **made), fleet.sweep(day=3, **made))
    assert (found.code, found.data["cases"]) == (3, [])
    assert found.data["left_out"] == ["not judged, for want of a tolerance: overlap_ratio"]


def test_a_policy_of_ones_own_moves_the_tolerance(fleet: Fleet, ask: Any, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("bandwidth_delta: 0.10\n")
    a, b = fleet.sweep(day=2), fleet.sweep(day=3, effect=-0.05)
    found = ask(a, b, "--policy", str(tmp_path / "p.yaml"))
    assert (found.code, found.case["tolerance"]) == (0, 0.10)
    assert found.data["policy"].startswith("1+")


def test_people_read_units_words_and_what_was_refused(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = fleet.sweep(day=2), fleet.sweep(day=3, effect=-0.05)
    assert cli.main(["compare", a, b, "--store", fleet.url]) == 1
    out = capsys.readouterr().out
    assert f"sweep:{a[:8]}: 1 host, 1 sweep, 6 runs" in out
    assert "GB/s" in out
    assert out.splitlines()[-1] == "regressed: 1 regressed"
    assert all(len(line) <= 100 for line in out.splitlines())
    c = fleet.sweep(day=4, version=2)
    assert cli.main(["compare", a, c, "--store", fleet.url]) == 3
    assert "REFUSED" in capsys.readouterr().out


def test_without_a_store_nothing_is_called_regressed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", "a", "b", "--store", f"sqlite:///{tmp_path}/no.db"]) == 2
    assert "no such file" in capsys.readouterr().err
