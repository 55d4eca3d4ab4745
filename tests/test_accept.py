"""accept, on stores with known values: each answer, its numbers, the sheet, exit codes."""

from __future__ import annotations

import dataclasses
import html.parser
import json
from pathlib import Path
from typing import Any

import pytest

import storing
from documents import check
from judging import Fleet
from topobench import cli
from topobench.accept_criteria import KIND
from topobench.ceilings import Measurement, limit
from topobench.db.store import Store
from topobench.reading import Case, Reason, ReasonCode, Scalar, Status
from topobench.topology import PciLink

GPUS = (("GPU-0",), ("GPU-1",))
H2D = """\
  - name: h2d
    probe: host_to_device
    metric: bandwidth_bytes_per_second
    where: {bytes: 256M, direction: h2d}
    each: gpu
    op: at_least
    value: VALUE
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "t.db")


class Sheet:
    """What ``accept --format json`` said."""

    def __init__(self, code: int, document: dict[str, Any]) -> None:
        self.code, self.document = code, document
        self.data: dict[str, Any] = document["data"] or {}
        self.error: str = document.get("error", {}).get("message", "")

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The answers of the first rule."""
        return list(self.data["rules"][0]["answers"])

    @property
    def words(self) -> list[str]:
        """Their words."""
        return [a["answer"] for a in self.answers]


@pytest.fixture
def accept(fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def accepted(rules: str, *arguments: str) -> Sheet:
        (tmp_path / "c.yaml").write_text(f"kind: {KIND}\nrules:\n{rules}")
        common = ["--criteria", str(tmp_path / "c.yaml"), "--store", fleet.url]
        code = cli.main(["accept", *arguments, *common, "--format", "json"])
        document = json.loads(capsys.readouterr().out)
        check(document, "accept" if document["data"] else "error")
        assert document["exit_code"] == code
        return Sheet(code, document)

    return accepted


def h2d(value: str, *, each: str = "gpu", **more: str) -> str:
    rule = H2D.replace("VALUE", value).replace("each: gpu", f"each: {each}")
    return rule + "".join(f"    {k}: {v}\n" for k, v in more.items())


def test_every_gpu_above_the_floor_passes(fleet: Fleet, accept: Any) -> None:
    fleet.sweep([storing.host(gpus=2)], devices=GPUS)
    found = accept(h2d("49 GB/s"))
    assert (found.code, found.document["status"]) == (0, "pass")
    first, second = found.answers
    assert (first["subject"], second["subject"]) == ("k1 gpu:0", "k1 gpu:1")
    assert first["lo"] < 50e9 < first["hi"]
    assert first["lo"] >= 49e9
    assert (first["n"], first["unit_of"], len(first["runs"])) == (6, "processes", 6)
    assert 0 < first["mde"] < 0.02
    assert (first["ceiling"], first["ceiling_source"]) == (6.3e10, "PCIe link, 63.0 GB/s")


def test_one_gpu_below_the_floor_fails_the_delivery(fleet: Fleet, accept: Any) -> None:
    host = storing.host(gpus=2)
    fleet.sweep([host], devices=GPUS, effect=-0.05)
    found = accept(h2d("49 GB/s"))
    assert (found.code, found.words) == (2, ["fail", "fail"])
    assert found.answers[0]["hi"] < 49e9


def test_a_limit_inside_the_interval_is_inconclusive(fleet: Fleet, accept: Any) -> None:
    fleet.sweep([storing.host(gpus=1)], devices=GPUS[:1], level=50e9)
    found = accept(h2d("50 GB/s"))
    assert (found.code, found.words) == (1, ["inconclusive"])
    assert found.answers[0]["lo"] < 50e9 < found.answers[0]["hi"]


def test_two_processes_decide_nothing(fleet: Fleet, accept: Any) -> None:
    fleet.sweep([storing.host(gpus=1)], devices=GPUS[:1], processes=2)
    found = accept(h2d("10 GB/s"))
    assert (found.code, found.words, found.answers[0]["lo"]) == (1, ["inconclusive"], None)
    assert found.answers[0]["reason"] == "2 of the 6 processes that are needed to decide"


def test_a_gpu_without_a_number_is_not_measured_and_does_not_pass(
    fleet: Fleet, accept: Any
) -> None:
    fleet.sweep([storing.host(gpus=2)], devices=GPUS[:1])
    found = accept(h2d("49 GB/s"))
    assert (found.code, found.words) == (1, ["not measured", "pass"])
    assert found.answers[0]["subject"] == "k1 gpu:1"
    assert found.answers[0]["reason"] == "the sweep planned no such cell"


def test_why_a_cell_has_no_number_is_told(fleet: Fleet, accept: Any) -> None:

    reason = Reason(ReasonCode.TORCH_CANNOT_USE_GPU, "driver too old")
    params: dict[str, Scalar] = {"bytes": 256 << 20, "direction": "h2d"}
    skipped = storing.cell(
        probe="host_to_device",
        params=params,
        devices=GPUS[0],
        status=Status.SKIPPED,
        reason=reason,
    )
    with Store.open(fleet.url) as store:
        storing.begin(store, skipped, hosts=[storing.host(gpus=1)])
    found = accept(h2d("49 GB/s"))
    assert found.answers[0]["reason"] == "skipped: torch_cannot_use_gpu: driver too old"
    assert "the sweep is running" in found.document["warnings"][0]


def test_a_probe_that_was_left_out_as_a_whole_says_why(fleet: Fleet, accept: Any) -> None:
    """As a collective on a host with one GPU, whose one cell has no parameters."""
    few = Reason(ReasonCode.NEEDS_2_GPUS, "needs 2 GPUs, 1 usable")
    planned = storing.cell(probe="all_reduce", status=Status.SKIPPED, reason=few)
    skipped = dataclasses.replace(planned, case=Case("all_reduce", 1, {}))
    with Store.open(fleet.url) as store:
        storing.begin(store, skipped, hosts=[storing.host(gpus=1)])
    rule = H2D.replace("host_to_device", "all_reduce").replace("bandwidth_", "busbw_")
    rule = rule.replace("direction: h2d", "ranks: 2").replace("each: gpu", "each: host")
    (answer,) = accept(rule.replace("VALUE", "1 GB/s")).answers
    assert answer["reason"] == "skipped: needs_2_gpus: needs 2 GPUs, 1 usable"


def test_more_than_the_slot_can_carry_is_impossible(fleet: Fleet, accept: Any) -> None:
    fleet.sweep([storing.host(gpus=2)], devices=GPUS[:1])
    found = accept(h2d("70 GB/s"))
    assert (found.code, found.words) == (2, ["impossible", "impossible"])
    assert found.answers[0]["reason"] == ("beyond what this hardware can do: PCIe link, 63.0 GB/s")


def test_a_number_beyond_the_hardware_passes_nothing(fleet: Fleet, accept: Any) -> None:
    fleet.sweep([storing.host(gpus=1)], devices=GPUS[:1], level=90e9)
    found = accept(h2d("49 GB/s"))
    assert (found.code, found.words) == (1, ["inconclusive"])
    assert "measured beyond what the hardware can do" in found.answers[0]["reason"]


def test_hosts_of_a_cluster_are_its_values(fleet: Fleet, accept: Any) -> None:
    hosts = [f"h{n}" for n in range(7)]
    fleet.sweep(hosts, processes=3)
    found = accept(h2d("49 GB/s", each="cluster"))
    assert (found.code, found.words) == (0, ["pass"])
    assert (found.answers[0]["n"], found.answers[0]["unit_of"]) == (7, "hosts")
    each = accept(h2d("49 GB/s", each="host"))
    assert each.words == ["inconclusive"] * 7


def test_what_hosts_measured_together_passes_and_fails_no_host(fleet: Fleet, accept: Any) -> None:
    """The pair is stored under its first host, and whose fault its speed is it does not say."""
    fleet.sweep(["k1", "k2"], together=("k1", "k2"), level=1e9, ranks=2)
    found = accept(h2d("50 GB/s", each="host"))
    assert found.words == ["not measured"] * 2
    assert {a["reason"] for a in found.answers} == {
        "several hosts measured it together, which tells nothing of one alone; write each: cluster"
    }
    assert [a["n_samples"] for a in accept(h2d("50 GB/s", each="cluster")).answers] == [6]


def test_a_rule_of_another_sku_measures_nothing(fleet: Fleet, accept: Any) -> None:
    a100 = storing.host("a", labels={"sku": "a100"})
    h200 = storing.host("h", labels={"sku": "h200"})
    fleet.sweep([a100, h200])
    found = accept(h2d("49 GB/s", each="host", sku="H200"))
    assert (found.code, [a["subject"] for a in found.answers]) == (0, ["h"])
    none = accept(h2d("49 GB/s", each="host", sku="b200"))
    assert (none.code, none.words) == (1, ["not measured"])


def test_pairs_answer_one_by_one(fleet: Fleet, accept: Any) -> None:
    host = storing.host(gpus=2)
    pairs = (("GPU-0", "GPU-1"), ("GPU-1", "GPU-0"))
    params: dict[str, Scalar] = {"bytes": 256 << 20, "op": "write", "ways": "one", "p2p": "on"}
    fleet.sweep([host], probe="peer", params=params, devices=pairs, level=380e9)
    rule = """\
  - probe: peer
    metric: bandwidth_bytes_per_second
    where: {ways: one}
    each: pair
    op: at_least
    value: 370 GB/s
"""
    found = accept(rule)
    assert [a["subject"] for a in found.answers] == ["k1 gpu:0-gpu:1", "k1 gpu:1-gpu:0"]
    assert (found.words, found.answers[0]["ceiling"]) == (["pass", "pass"], 4.78e11)
    assert accept(rule.replace("370", "500")).words == ["impossible", "impossible"]


def test_a_gang_of_all_gpus_answers_for_a_host_not_one_of_some(fleet: Fleet, accept: Any) -> None:
    """Unless the rule names how many ranks it means."""
    names = tuple(f"GPU-{n}" for n in range(4))
    params: dict[str, Scalar] = {"bytes": 128 << 20, "ranks": 4, "backend": "nccl"}
    fleet.sweep(
        [storing.host(gpus=4)], probe="all_reduce", params=params, devices=(names, names[:2]),
        ranks=4, metric="busbw_bytes_per_second", level=300e9,
    )  # fmt: skip
    rule = """\
  - probe: all_reduce
    metric: busbw_bytes_per_second
    where: {bytes: 128M}
    each: host
    op: at_least
    value: 290 GB/s
"""
    found = accept(rule)
    assert [(a["answer"], a["n_samples"]) for a in found.answers] == [("pass", 6)]
    whole = accept(rule.replace("each: host", "each: cluster"))
    assert [(a["answer"], a["n_samples"]) for a in whole.answers] == [("pass", 6)]
    named = accept(rule.replace("128M", "128M, ranks: 4"))
    assert [(a["answer"], a["n_samples"]) for a in named.answers] == [("pass", 12)]


def test_a_p99_needs_its_samples(fleet: Fleet, accept: Any) -> None:
    host = storing.host(gpus=1)
    made: dict[str, Any] = {
        "probe": "kernel_launch",
        "params": {"mode": "synchronised", "at_once": "one"},
        "metric": storing.LATENCY,
        "level": 5e-6,
        "devices": GPUS[:1],
    }
    rule = """\
  - {probe: kernel_launch, metric: latency_seconds, where: {mode: synchronised}, each: gpu,
     statistic: p99, op: at_most, value: 6us}
"""
    fleet.sweep([host], day=2, samples=20, **made)
    few = accept(rule)
    assert (few.code, few.words) == (1, ["not measured"])
    assert "299 samples" in few.answers[0]["reason"]
    fleet.sweep([host], day=3, samples=300, **made)
    many = accept(rule)
    assert (many.code, many.words, many.answers[0]["n_samples"]) == (0, ["pass"], 1800)
    assert accept(rule.replace("6us", "4us")).words == ["fail"]


@pytest.mark.parametrize(
    ("effect", "word", "code"),
    [(0.0, "pass", 0), (-0.08, "fail", 2), (-0.03, "inconclusive", 1)],
)
def test_not_worse_than_the_sample(
    fleet: Fleet, accept: Any, effect: float, word: str, code: int
) -> None:
    sample = fleet.sweep([storing.host("lent", gpus=2, prefix="L")], devices=(("L-0",), ("L-1",)))
    fleet.sweep([storing.host(gpus=1)], devices=GPUS[:1], day=3, effect=effect)
    rule = H2D.replace("op: at_least", f"non_inferior_to: {sample[:8]}")
    found = accept(rule.replace("value: VALUE", "margin: 3 %"))
    answer = found.answers[0]
    assert (found.code, answer["answer"]) == (code, word)
    assert answer["effect_ratio"] == pytest.approx(effect, abs=0.005)
    assert answer["lo"] < answer["effect_ratio"] < answer["hi"]
    assert found.data["rules"][0]["non_inferior_to"] == sample


def test_a_sample_of_another_probe_version_decides_nothing(fleet: Fleet, accept: Any) -> None:
    host = storing.host(gpus=1)
    sample = fleet.sweep([host], devices=GPUS[:1])
    fleet.sweep([host], devices=GPUS[:1], day=3, version=2)
    rule = H2D.replace("op: at_least", f"non_inferior_to: {sample}")
    found = accept(rule.replace("value: VALUE", "margin: 3 %"))
    assert (found.code, found.words) == (1, ["inconclusive"])
    assert "version 1 against 2" in found.answers[0]["reason"]


def test_facts_are_exact(fleet: Fleet, accept: Any) -> None:
    fleet.sweep([storing.host(gpus=2)])
    rules = """\
  - {probe: discovered, metric: gpus_count, each: host, op: at_least, value: 2}
  - {probe: discovered, metric: gpu_memory_bytes, each: gpu, op: at_least, value: 139GiB}
  - {probe: discovered, metric: nvlinks_count, each: gpu, op: at_least, value: 18}
  - {probe: discovered, metric: pcie_bytes_per_second, each: gpu, op: at_least, value: 60 GB/s}
  - {probe: discovered, metric: memory_bytes, each: host, op: at_least, value: 1TB}
"""
    found = accept(rules)
    assert [r["answer"] for r in found.data["rules"]] == [*["pass"] * 4, "not measured"]
    assert found.data["rules"][3]["answers"][0]["value"] == 6.3e10
    assert accept(rules.replace("value: 18", "value: 20")).code == 2


def test_other_arms_than_asked_are_named(fleet: Fleet, accept: Any) -> None:
    fleet.sweep([storing.host(gpus=1)], devices=GPUS[:1], binding="local")
    found = accept(h2d("49 GB/s"))
    assert found.answers[0]["reason"] == (
        "the sweep has no arm none of it, only local; name one in where"
    )
    named = accept(h2d("49 GB/s").replace("direction: h2d", "direction: h2d, arm: local"))
    assert (named.code, named.answers[0]["arm"]) == (0, "local")


def test_conditions_of_the_runs_are_told(fleet: Fleet, accept: Any) -> None:
    host = storing.host(gpus=1)
    fleet.sweep([host], devices=GPUS[:1], warnings=["power_limit_below_default: 500 W"])
    found = accept(h2d("49 GB/s"))
    assert found.answers[0]["notes"] == ["the power limit was below its default (6 of 6)"]


def test_made_up_and_foreign_results_are_refused_unless_asked(fleet: Fleet, accept: Any) -> None:
    made = fleet.sweep([storing.host(gpus=1)], devices=GPUS[:1], synthetic=True)
    refused = accept(h2d("49 GB/s"), made)
    assert (refused.code, "--synthetic judges them" in refused.error) == (3, True)
    asked = accept(h2d("49 GB/s"), made, "--synthetic")
    assert (asked.code, asked.document["warnings"]) == (
        0,
        ["these results were made by demo, not measured"],
    )
    rule = H2D.replace("op: at_least", f"non_inferior_to: {made}")
    fleet.sweep([storing.host(gpus=1)], devices=GPUS[:1], day=4)
    held = accept(rule.replace("value: VALUE", "margin: 3 %"))
    assert (held.code, f"sweep {made[:8]} holds made-up" in held.error) == (3, True)
    foreign = fleet.sweep([storing.host(gpus=1)], day=3, source="import:nvbandwidth")
    assert "--imported judges them" in accept(h2d("49 GB/s"), foreign).error


def test_what_is_no_verdict_is_three(
    fleet: Fleet, accept: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accept(h2d("49 GB/s")).code == 3  # no sweep
    fleet.sweep([storing.host(gpus=1)], devices=GPUS[:1])
    assert accept(h2d("49 GB/s"), "ffff").code == 3
    assert accept("  - nothing\n").code == 3
    assert accept(h2d("49 GB/s"), "--html", str(tmp_path / "no/such/x.html")).code == 3
    assert cli.main(["accept", "--store", fleet.url]) == 3
    assert "--criteria" in capsys.readouterr().err


def test_the_same_input_has_the_same_digest(fleet: Fleet, accept: Any) -> None:
    fleet.sweep([storing.host(gpus=1)], devices=GPUS[:1])
    one, other = accept(h2d("49 GB/s")), accept(h2d("49 GB/s"))
    assert one.data == other.data
    changed = accept(h2d("48 GB/s")).data
    assert changed["inputs_digest"] != one.data["inputs_digest"]


class _Page(html.parser.HTMLParser):
    """Tags and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_and_text_from_outside_stays_text(
    fleet: Fleet, accept: Any, tmp_path: Path
) -> None:
    evil = "<script>alert(1)</script>"
    host = dataclasses.replace(storing.host(gpus=1), name=evil)
    fleet.sweep([host], devices=GPUS[:1])
    page = tmp_path / "sheet.html"
    found = accept(
        h2d("49 GB/s").replace("name: h2d", f"name: '{evil}\\x1b[2J'"), "--html", str(page)
    )
    assert found.code == 0
    read = _Page(page.read_text())
    assert not {t for t, _ in read.tags} & {"script", "img", "link", "iframe"}
    assert not [
        a for _, attrs in read.tags for a in attrs if a.startswith("on") or a in ("src", "href")
    ]
    assert read.text.count("alert(1)") == 3
    assert found.data["inputs_digest"] in read.text
    assert "median >= 49.00 GB/s for each gpu" in read.text
    assert "default-src 'none'" in str(read.tags)


def test_people_read_the_answer_last(fleet: Fleet, tmp_path: Path, capsys: Any) -> None:
    fleet.sweep([storing.host(gpus=2)], devices=GPUS[:1])
    (tmp_path / "c.yaml").write_text(f"kind: {KIND}\nrules:\n{h2d('49 GB/s')}")
    assert cli.main(["accept", "--criteria", str(tmp_path / "c.yaml"), "--store", fleet.url]) == 1
    out = capsys.readouterr().out
    assert "NOT MEASURED  h2d" in out
    assert "k1 gpu:1: the sweep planned no such cell" in out
    assert out.splitlines()[-1] == "inconclusive: 1 not measured, 1 pass"
    assert all(len(line) <= 100 for line in out.splitlines())


def measurement(probe: str, metric: str, **more: Any) -> Measurement:
    devices = more.pop("devices", ("GPU-0", "GPU-1"))
    extra = {k: more.pop(k) for k in ("n_ranks", "n_hosts", "peak_bytes_per_second") if k in more}
    return Measurement(probe, metric, more, devices, **extra)


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (measurement("host_to_device", storing.BANDWIDTH, devices=("GPU-0",)), 6.3e10),
        (measurement("host_to_device", storing.BANDWIDTH), 12.6e10),
        (measurement("host_to_device", storing.BANDWIDTH, direction="both"), 25.2e10),
        (measurement("host_to_device", storing.BANDWIDTH, devices=("other",)), None),
        (measurement("peer", storing.BANDWIDTH, ways="both"), 9.56e11),
        (measurement("peer", storing.BANDWIDTH, ways="all"), 9.56e11),
        (measurement("peer", storing.BANDWIDTH, p2p="off"), 6.3e10),
        (measurement("all_reduce", "busbw_bytes_per_second", n_ranks=2), 4.78e11),
        (measurement("all_reduce", "busbw_bytes_per_second", n_ranks=8), 1.75 * 4.78e11),
        (measurement("all_gather", "busbw_bytes_per_second", n_ranks=8), 4.78e11),
        (measurement("all_reduce", "busbw_bytes_per_second", n_hosts=2), None),
        (measurement("all_reduce", "latency_seconds", bytes=1 << 30), (1 << 30) / 4.78e11),
        (measurement("device_memory", storing.BANDWIDTH, devices=("GPU-0",)), None),
        (
            measurement(
                "device_memory", storing.BANDWIDTH, devices=("GPU-0",), peak_bytes_per_second=4.9e12
            ),
            4.9e12,
        ),
        (measurement("gemm", "flop_per_second"), None),
    ],
    ids=lambda v: f"{v.probe} {dict(v.params)}" if isinstance(v, Measurement) else None,
)
def test_what_the_hardware_can_do(wanted: Measurement, value: float | None) -> None:
    found = limit(wanted, storing.topology(gpus=2))
    assert (found.value if found else None) == (value and pytest.approx(value))


def test_in_a_guest_only_the_gpus_own_end_of_a_link_counts() -> None:
    topology = dataclasses.replace(storing.topology(gpus=1), trust="low")
    link = PciLink(2.5, 1, 32.0, 16, 2.5e8, 2.5e8)
    pci = (dataclasses.replace(topology.pci[0], link=link),)
    wanted = measurement("host_to_device", storing.BANDWIDTH, devices=("GPU-0",))
    found = limit(wanted, dataclasses.replace(topology, pci=pci))
    assert found is not None
    assert found.value == pytest.approx(63.0e9, rel=0.001)
