"""The page of a sweep: what it holds, what it says is missing, and that it needs nobody else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import report_documents as documents
import report_topologies
import sights
from test_recorded import document as recorded
from test_report_network import between
from topobench import cli
from topobench.db.store import Store
from topobench.errors import UsageError
from topobench.reading import Scalar
from topobench.report.page import (
    Sight,
    collectives,
    computing,
    fleet,
    plots,
    readings,
    render_report,
)
from topobench.report.page.page import asset
from topobench.report.page.parts import Figure
from topobench.report.records import Places
from topobench.roofline import work_of
from topobench.seeing import report_page, sight_of

HOSTILE = "<img src=x onerror=alert(1)>\"'&</script><script>alert(2)</script>"


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Sight]:
    """The page of a host with four GPUs of which one copies slowly, and what it was made of."""
    url = sights.store_at(tmp_path_factory.mktemp("rich"))
    sweep = sights.fill_rich(url)
    with Store.open(url, create=False, read_only=True) as store:
        sight = sight_of(store, sweep)
    return render_report(sight), sight


def figures(page: str) -> dict[str, dict[str, Any]]:
    """What the page's script draws, by the name of the figure."""
    found = re.findall(
        r'<figure class="chart" id="([^"]+)">.*?class="spec">(.*?)</script>', page, re.DOTALL
    )
    return {name: json.loads(spec) for name, spec in found}


def trace(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(t for t in spec["data"] if t.get("name") == name)
    return found


def anchors(page: str) -> list[str]:
    return re.findall(r'<section id="([^"]+)"', page)


def text_of(page: str) -> str:
    """What a person reads: no tags, no scripts, no styles."""
    shown = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", shown))


def test_a_rich_sweep_has_every_figure(rich: tuple[str, Sight]) -> None:
    assert [name.removesuffix("-section") for name in anchors(rich[0])] == [
        "verdicts", "hosts", "h0-wiring", "h0-copies", "h0-arms", "h0-rings", "h0-paths",
        "h0-memory", "h0-compute", "h0-roofline", "h0-published", "readings", "missing", "again",
    ]  # fmt: skip
    assert set(figures(rich[0])) == {
        "h0-paths", "h0-h2d", "h0-arms", "h0-busbw0", "h0-latency0", "h0-peer0", "h0-memory0",
        "h0-memory1", "h0-gemm", "h0-hbm", "h0-roofline", "h0-published",
    }  # fmt: skip


def test_copies_are_drawn_as_measured_with_the_line_fitted_to_them(
    rich: tuple[str, Sight],
) -> None:
    spec = figures(rich[0])["h0-h2d"]
    size = 1 << 20
    rate = size / (sights.FIXED_SECONDS + size / sights.H2D_PEAK) / 1e9
    queued = trace(spec, "GPU 0 queued")
    assert queued["y"][queued["x"].index(size)] == pytest.approx(rate, rel=2e-3)
    slow = trace(spec, f"GPU {sights.SLOW_GPU} queued")
    assert slow["y"][-1] == pytest.approx(queued["y"][-1] * sights.SLOW_SHARE, rel=2e-3)
    per_call = trace(spec, "GPU 0 per call")
    slower = size / (sights.CALL_SECONDS + size / sights.H2D_PEAK) / 1e9
    assert per_call["y"][per_call["x"].index(size)] == pytest.approx(slower, rel=2e-3)
    fitted = trace(spec, "fit a + S / B")
    assert fitted["y"][-1] == pytest.approx(55, rel=0.01)
    assert "a = 5.0" in rich[0]


def test_published_figures_stand_beside_ours_and_far_ones_stand_out(
    rich: tuple[str, Sight],
) -> None:
    """A slow GPU's copies to others are a quarter below what others measured."""
    (points,) = figures(rich[0])["h0-published"]["data"]
    at = points["y"].index(f"peer read 256 MiB (measured), GPU 0&gt;{sights.SLOW_GPU}")
    assert points["x"][at] == pytest.approx(75.5)
    assert points["marker"]["symbol"][at] == "circle-open"
    usual = points["y"].index("peer read 256 MiB (measured), GPU 0&gt;1")
    assert (points["x"][usual], points["marker"]["symbol"][usual]) == (98.2, "circle")
    table = text_of(rich[0]).partition("Against published figures")[2]
    assert "GPU 0>3 peer read 256 MiB (measured) 299.4 GB/s 396.4 GB/s 0.76" in " ".join(
        table.split()
    )


def test_what_bounds_each_work_stands_under_the_roofline(rich: tuple[str, Sight]) -> None:
    text = " ".join(text_of(rich[0]).split())
    assert "launch host_to_device h2d 4 KiB to 64 KiB" in text
    assert "host link host_to_device h2d 1 MiB to 256 MiB" in text
    assert "compute gemm bf16 8192 burst" in text


def test_sizes_and_modes_are_never_taken_for_processes_of_one_case() -> None:
    """Their median is of none of them: copies of 1 and 256 MiB, bursts and steady products."""
    gpus = [documents.gpu_uuid("gpu01", n) for n in (0, 1)]
    rate, flop = "bandwidth_bytes_per_second", "flop_per_second"
    copies = {"op": "read", "ways": "one", "p2p": "on"}
    collective = {"dtype": "float32", "bytes": 1 << 20}
    made = [
        *(("peer", rate, v, {**copies, "bytes": b}) for b, v in ((1 << 20, 1e11), (1 << 28, 4e11))),
        ("device_memory", rate, 4.0e12, {"op": "copy", "at_once": "one"}),
        ("device_memory", rate, 3.9e12, {"op": "copy", "at_once": "all"}),
        *(
            ("gemm", flop, v, {"dtype": "bf16", "size": 8192, "mode": m})
            for m, v in (("burst", 8e14), ("sustained", 6e14))
        ),
        *(
            ("all_reduce", "busbw_bytes_per_second", v, {**collective, "mode": m})
            for m, v in (("queued", 70e9), ("per_call", 20e9))
        ),
    ]
    cells = [
        {
            **documents.cell(probe, [documents.reading(metric, value)], params=params),
            "devices": gpus[: 2 if probe in ("peer", "all_reduce") else 1],
            "ranks": 2 if probe == "all_reduce" else 1,
            "path_class": "NV18",
        }
        for probe, metric, value, params in made
    ]
    page = render_report(Sight(documents.sweep([documents.host(gpus=2)], cells)))
    text = " ".join(text_of(page).split())
    for part in (
        "GPU to GPU: read, one way, P2P on, 1 MiB",
        "GPU to GPU: read, one way, P2P on, 256 MiB",
        "copy at once one 4000.00 copy at once all 3900.00",
        "bf16 burst 800.00 bf16 sustained 600.00",
        "bf16 800.0 200",  # the roof, and the ridge at 800 TFLOP/s by 4 TB/s
        "NV18 all_reduce queued float32 1 MiB arm none 1 70.00",
        "NV18 all_reduce per_call float32 1 MiB arm none 1 20.00",
    ):
        assert part in text


def test_sizes_of_host_memory_have_a_matrix_each() -> None:
    """The last size stood for all."""
    own = {"op": "copy", "cpu_node": 0, "memory_node": 0}
    cells = [
        documents.cell(
            "host_memory",
            [documents.reading("bandwidth_bytes_per_second", rate)],
            params={**own, "bytes": size},
            binding=documents.binding("cpu0-mem0", 0, 0),
        )
        for size, rate in ((1 << 20, 300e9), (1 << 30, 100e9))
    ]
    found = [*computing.memory_matrix("h0", cells, Places({}))]
    titles = [f.title for f in found if isinstance(f, Figure)]
    assert titles == ["Host memory: copy, 1 MiB", "Host memory: copy, 1 GiB"]


def test_hosts_are_held_against_others_case_by_case() -> None:
    """A short prompt is slow on one host, a long one on another; pooled, each hides the other."""
    hosts = [documents.host(name) for name in ("h1", "h2", "h3")]
    rates = {256: {"h1": 20e3, "h2": 30e3, "h3": 30e3}, 2048: {"h1": 60e3, "h2": 30e3, "h3": 60e3}}
    made: list[tuple[str, str, Mapping[str, float], dict[str, Scalar]]] = [
        ("prefill", "tokens_per_second", own, {"shape": "tiny", "dtype": "bf16", "sequence": n})
        for n, own in rates.items()
    ]
    made += [
        ("peer", "bandwidth_bytes_per_second", dict.fromkeys(("h1", "h2", "h3"), v), {"ways": w})
        for w, v in (("one", 4e11), ("both", 8e11))
    ]
    cells = [
        documents.cell(probe, [documents.reading(metric, own[h["name"]])], params=p, host=h["key"])
        for probe, metric, own, p in made
        for h in hosts
    ]
    keys = {h["name"]: h["key"] for h in hosts}
    found = {s.label: s for s in fleet.spreads(hosts, cells)}
    short, long = (f"prefill tiny bf16 1 x {n} tokens none, tokens per second" for n in rates)
    assert set(found) == {short, long, "peer none, bandwidth", "peer both ways none, bandwidth"}
    assert found[short].effects[keys["h1"]] == pytest.approx(-1 / 3)
    assert found[long].effects[keys["h2"]] == pytest.approx(-1 / 2)
    assert found["peer both ways none, bandwidth"].median == 8e11


def test_what_sharing_costs_is_a_table() -> None:
    """Two GPUs behind one switch get half each while both are busy."""
    gpus = [documents.gpu_uuid("gpu01", n) for n in (0, 1)]
    host = documents.host(gpus=2)
    path = {"kind": "PCIe switch", "name": "0000:15:00.0", "devices": gpus}
    host["description"]["shared_paths"] = [path]
    rate, fixed = (
        "bandwidth_bytes_per_second",
        {"bytes": 1 << 28, "direction": "h2d", "memory": "pinned"},
    )
    cells = [
        documents.cell(
            "host_to_device",
            [documents.reading(rate, 50e9)],
            params={**fixed, "at_once": "one"},
            devices=[gpu],
        )
        for gpu in gpus
    ]
    both = [documents.reading(rate, 25e9, point={"device": gpu}) for gpu in gpus]
    cells.append(
        documents.cell(
            "host_to_device", both, params={**fixed, "at_once": "all"}, devices=gpus, ranks=2
        )
    )
    text = " ".join(text_of(render_report(Sight(documents.sweep([host], cells)))).split())
    assert (
        "GPU 0-1 host_to_device h2d 256 MiB none 50.00 GB/s 25.00 GB/s 50.0 % 50.00 GB/s they "
        "share the PCIe switch 0000:15:00.0"
    ) in text


def test_arms_are_drawn_with_their_intervals(rich: tuple[str, Sight]) -> None:
    spec = figures(rich[0])["h0-arms"]
    remote = trace(spec, "remote")
    assert min(remote["x"]) == pytest.approx(100 * (sights.REMOTE_SHARE - 1), abs=0.3)
    at = remote["x"].index(min(remote["x"]))
    assert 0 < remote["error_x"]["array"][at] < 1
    assert remote["marker"]["symbol"][at] == "diamond"
    local = trace(spec, "local")
    assert max(map(abs, local["x"])) < 1
    assert set(local["marker"]["symbol"]) == {"circle"}


def test_rings_are_drawn_under_what_the_wiring_allows(rich: tuple[str, Sight]) -> None:
    spec = figures(rich[0])["h0-busbw0"]
    assert {t["name"] for t in spec["data"]} == {"none/auto", "none/auto_ring", "none/best"}
    best, auto = (trace(spec, f"none/{n}")["y"][-1] for n in ("best", "auto"))
    assert best / auto == pytest.approx(sights.RINGS["best"], rel=0.03)
    assert [s["y0"] for s in spec["layout"]["shapes"]] == [478, 240]
    assert "478 GB/s" in spec["layout"]["annotations"][0]["text"]


def test_matrices_show_path_classes_and_a_slow_gpu(rich: tuple[str, Sight]) -> None:
    paths = figures(rich[0])["h0-paths"]["data"][0]
    assert paths["text"][0][:4] == ["X", "NV18", "NV18", "NV17"]
    peers = figures(rich[0])["h0-peer0"]["data"][0]
    assert peers["z"][0][0] is None
    assert peers["z"][0][sights.SLOW_GPU] == pytest.approx(300, rel=3e-3)
    assert peers["z"][0][1] == pytest.approx(390, rel=3e-3)
    memory = figures(rich[0])["h0-memory0"]["data"][0]
    assert memory["z"][0] == pytest.approx([240, 120], rel=3e-3)


def test_colours_and_axes_show_no_difference_where_there_is_none() -> None:
    """One latency is not a slow one, and a tenth of a percent is no effect."""
    one = plots.heat(["a"], ["b"], [[113.3]], text=[["113"]], unit="ns", high_is_slow=True)
    assert (one["zmin"], one["zmax"], one["reversescale"]) == (113.3, 226.6, True)
    fast = plots.heat(["a"], ["b", "c"], [[240.0, None]], text=[["", ""]], unit="GB/s")
    assert (fast["zmin"], fast["zmax"], fast["reversescale"]) == (120.0, 240.0, False)
    assert plots.effect_axis("%", [0.1, -0.2])["range"] == [-1.0, 1.0]
    assert "range" not in plots.effect_axis("%", [0.1, -1.2])


def test_a_pair_that_copies_both_ways_has_its_figure_in_both_fields() -> None:
    document = recorded()["data"]
    parts = collectives.peer_matrix("h", document["cells"], Places.of(document["hosts"]))
    found = {f.title: f.table.rows for f in parts if isinstance(f, Figure)}
    both = found["GPU to GPU: read, both ways, P2P on"]
    assert both[0][2] == both[1][1]
    assert float(both[0][2]) > 700


def test_at_a_glance_all_gpus_of_a_host_stand_for_it_not_its_fastest_pair() -> None:
    gpus = [documents.gpu_uuid("gpu01", index) for index in range(4)]
    cells = [
        documents.cell(
            "all_reduce",
            [documents.reading("busbw_bytes_per_second", speed)],
            params={"bytes": 1 << 27, "ranks": ranks},
            devices=gpus[:ranks],
            ranks=ranks,
        )
        for ranks, speed in ((2, 92e9), (4, 21e9))
    ]
    (card,) = readings.glance(cells, Places.of([documents.host(gpus=4)]))
    assert (card["what"], card["value"]) == ("all-reduce bus bandwidth", "21.00 GB/s")
    assert card["note"] == "128 MiB, 4 ranks, arm none"
    (card,) = readings.glance(cells[:1], Places.of([documents.host(gpus=4)]))
    assert card["value"] == "92.00 GB/s"
    joint = documents.cell(
        "all_reduce",
        [documents.reading("busbw_bytes_per_second", 12e9)],
        params={"bytes": 1 << 27, "ranks": 8},
        devices=[*gpus, *(documents.gpu_uuid("gpu02", index) for index in range(4))],
        hosts=["gpu01", "gpu02"],
        ranks=8,
    )
    (card,) = readings.glance([*cells, joint], Places.of([documents.host(gpus=4)]))
    assert card["value"] == "21.00 GB/s", "not what crosses the network"


def test_the_roofline_is_made_of_measured_roofs(rich: tuple[str, Sight]) -> None:
    spec = figures(rich[0])["h0-roofline"]
    bf16 = trace(spec, "bf16")
    assert bf16["x"][1] == pytest.approx(700e12 / 4000e9, rel=5e-3)
    assert bf16["y"][1:] == pytest.approx([700, 700], rel=3e-3)


def test_each_place_of_the_page_has_a_name_of_its_own(rich: tuple[str, Sight]) -> None:
    """Else a link to a section leads to a figure of that name in another."""
    names = re.findall(r'<(?:section|figure)[^>]* id="([^"]+)"', rich[0])
    assert len(names) == len(set(names))
    links = re.findall(r'<a href="#([^"]+)"', rich[0])
    assert len(links) > 10
    assert set(links) <= set(names)


def test_every_chart_has_a_table_behind_it(rich: tuple[str, Sight]) -> None:
    charts = re.findall(r'<figure class="chart".*?</figure>', rich[0], re.DOTALL)
    assert len(charts) == 12
    for chart in charts:
        assert chart.count("<tbody><tr") == 1
        assert 'role="img" aria-label="' in chart


def test_the_page_loads_nothing_and_runs_only_its_own_scripts(rich: tuple[str, Sight]) -> None:
    page = rich[0]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert html.unescape(policy[1]).startswith("default-src 'none'; img-src data:")
    named = re.findall(r"sha256-([A-Za-z0-9+/=]+)", html.unescape(policy[1]))
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert digests == named
    ours = page.replace(scripts[0], "")
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', ours) == []
    assert "@import" not in ours
    assert "url(" not in asset("page.css")


def test_the_page_of_eight_gpus_stays_small(rich: tuple[str, Sight]) -> None:
    """8 MB is what a mail takes; most of it is the script that draws."""
    assert len(rich[0].encode()) < 6_000_000


def hostile(document: dict[str, Any]) -> dict[str, Any]:
    """Every text that a host, a user or a tool could have given."""
    document["cluster"] = document["sweep"]["cluster"] = HOSTILE
    document["sweep"]["warnings"] = [HOSTILE]
    for host in document["hosts"]:
        host.update(name=HOSTILE, address=HOSTILE, sku=HOSTILE)
        host["description"].update(cpu_model=HOSTILE, kernel=HOSTILE)
    for cell in document["cells"]:
        cell.update(arm=f"{cell['arm']}{HOSTILE}", warnings=[HOSTILE])
        cell["params"]["dtype"] = HOSTILE
        if cell["reason"]:
            cell["reason"] = f"throttled: {HOSTILE}"
        cell["log_tail"] = HOSTILE
    return document


def test_hostile_text_is_shown_as_text() -> None:
    document = hostile(documents.troubled_sweep())
    key = document["hosts"][0]["key"]
    verdict = {
        "host": key, "host_name": HOSTILE, "device": None, "check": "peers", "level": "fail",
        "value": 1.0, "reference": 2.0, "effect_ratio": -0.5, "ci_lo": None, "ci_hi": None,
        "mde_ratio": None, "action": HOSTILE, "reason": HOSTILE, "policy_version": HOSTILE,
        "as_of": "2026-11-29T16:00:00Z",
    }  # fmt: skip
    topology = report_topologies.hgx().to_json()
    topology["gpus"][0]["model"] = topology["nics"][0]["name"] = HOSTILE
    page = render_report(Sight(document, {key: topology}, [verdict]))
    assert "<img src=x" not in page
    assert page.count("<script>") == page.count("</script>") - page.count('class="spec">')
    assert HOSTILE in text_of(page)
    for spec in figures(page).values():
        drawn = json.dumps({"data": spec["data"], "layout": spec["layout"]})
        assert "<img" not in drawn, "Plotly reads tags in its texts"
    picture = base64.b64decode(re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page)[0])
    assert b"<img" not in picture


def test_what_an_arm_sets_stands_with_its_readings() -> None:
    busbw = [documents.reading("busbw_bytes_per_second", 3e11)]
    cells = [
        documents.cell("all_reduce", busbw, arm=arm, env=env, ranks=2)
        for arm, env in (("none", {}), ("p2p_off", {"NCCL_P2P_DISABLE": "1"}))
    ]
    page = text_of(render_report(Sight(documents.sweep([documents.host()], cells))))
    assert page.count("NCCL_P2P_DISABLE=1") == 1


def test_what_was_not_measured_is_named_with_what_fills_it() -> None:
    page = render_report(Sight(documents.cpu_host_sweep()))
    assert anchors(page)[-2:] == ["missing", "again"]
    table = text_of(page.split('id="missing"')[1].split("</section>")[0])
    assert "the driver reports no GPU on this host" in table
    assert "topobench probe --probes host_to_device --profile standard" in table
    assert "prefill was not part of this sweep" in table
    assert "topobench check 1a2b3c4d" in text_of(page)


def test_a_page_without_figures_carries_no_plotly() -> None:
    document = documents.sweep([documents.host()], [])
    page = render_report(Sight(document))
    assert len(page) < 100_000
    assert "no cells" in page


def test_lines_to_copy_stand_on_lines_of_their_own() -> None:
    page = render_report(Sight(documents.cpu_host_sweep()))
    lines = html.unescape(page.split("<pre")[1].partition(">")[2].split("</pre>")[0]).splitlines()
    store = "--store sqlite:///topobench.db"
    assert [line.partition("  #")[0] for line in lines] == [
        f"topobench probe --like 1a2b3c4d {store}",
        f"topobench report 1a2b3c4d {store}",
        f"topobench report 1a2b3c4d {store} --html report.html",
        "topobench query --list",
    ]


def test_half_a_sweep_says_what_failed_and_how_to_go_on() -> None:
    page = text_of(render_report(Sight(documents.troubled_sweep())))
    assert "interrupted" in page
    assert "topobench probe --resume 1a2b3c4d --store sqlite:///topobench.db" in page
    assert "SM clock fell to 345 MHz" in page
    assert "an illegal memory access" in page
    assert "raw, not to be used: bandwidth 9.31" in page


def test_a_fleet_shows_its_spread_and_the_hosts_that_stand_out() -> None:
    document = documents.fleet_sweep(500)
    slow = [c for c in document["cells"] if c["host"] == "key-h0321" and c["status"] == "ok"]
    for cell in slow:
        for reading in cell["readings"]:
            reading["median"] *= 0.8
    a, b, c = "key-h0001", "key-h0002", "key-h0003"
    document["cells"] += [*between(a, b), *between(a, c, into=5e9), *between(b, c, into=4e9)]
    document["cells"] += between(c, "key-h0004", out=5e9)
    page = render_report(Sight(document))
    assert "slow: h0003 (ib1) sends slowly: 5.00 GB/s at best" in page
    assert "host_network (size 16 MiB, streams 4): 8 directions between 4 hosts" in page
    assert not any("host_network" in y for y in figures(page)["fleet-spread"]["data"][0]["y"])
    spread = figures(page)["fleet-spread"]["data"][0]
    worst = spread["x"].index(min(spread["x"]))
    assert spread["text"][worst] == "h0321: -20.0 %"
    assert "h321-readings" not in anchors(page)
    assert "Copies of h0321" in page or "Arms of h0321" in page
    assert len(page.encode()) < 8_000_000


def test_named_hosts_are_shown_in_detail_and_unknown_ones_refused() -> None:
    document = documents.fleet_sweep(5)
    assert "Wiring of h0003" in render_report(Sight(document, only=["H0003"]))
    with pytest.raises(UsageError, match=r"host 'h9' is not in sweep 1a2b3c4d; it has h0000"):
        render_report(Sight(document, only=["h9"]))


def prefill_cells(rates: Mapping[int, float]) -> list[dict[str, Any]]:
    return [
        documents.cell(
            "prefill",
            [documents.reading("tokens_per_second", rate, unit="token/s")],
            params={"model": "llama3-8b", "sequence": length, "batch": 1, "dtype": "bf16"},
            devices=[documents.gpu_uuid("gpu01", 0)],
        )
        for length, rate in rates.items()
    ]


def test_prefill_is_drawn_with_its_knee() -> None:
    """Throughput that doubles up to 1024 tokens and is flat after."""
    lengths = [128 << n for n in range(9)]
    rates = {n: 20_000.0 * min(n, 1024) / 1024 for n in lengths}
    document = documents.sweep([documents.host(gpus=1)], prefill_cells(rates))
    page = render_report(Sight(document))
    spec = figures(page)["h0-prefill"]
    assert trace(spec, "none")["y"] == [rates[n] for n in lengths]
    knee = trace(spec, "knee of none")
    assert knee["x"] == [pytest.approx(1024, rel=0.05)]


def test_prefill_lies_under_the_roofs_that_its_sweep_measured() -> None:
    gpu = documents.gpu_uuid("gpu01", 0)
    params: dict[str, Scalar] = {"shape": "llama3-8b", "sequence": 2048, "batch": 1}
    params["dtype"] = "bf16"
    flop = documents.reading("flop_per_second", 5e14, unit="FLOP/s")
    cells = [
        documents.cell("prefill", [flop], params=params, devices=[gpu]),
        documents.cell(
            "gemm",
            [documents.reading("flop_per_second", 8e14, unit="FLOP/s")],
            params={"dtype": "bf16", "mode": "burst"},
            devices=[gpu],
        ),
        documents.cell(
            "device_memory",
            [documents.reading("bandwidth_bytes_per_second", 4e12)],
            params={"op": "copy"},
            devices=[gpu],
        ),
    ]
    page = render_report(Sight(documents.sweep([documents.host(gpus=1)], cells)))
    points = trace(figures(page)["h0-roofline"], "prefill bf16")
    work = work_of("prefill", params)
    assert work is not None
    assert points["x"] == [pytest.approx(work.flop / work.memory_bytes)]
    assert points["y"] == [500]
    assert points["x"][0] > 200


def test_the_command_writes_one_whole_file(
    tmp_path: Path, rich: tuple[str, Sight], capsys: pytest.CaptureFixture[str]
) -> None:
    url = sights.store_at(tmp_path)
    sights.fill(url, [sights.host(gpus=0)], probes="host_memory")
    file = tmp_path / "report.html"
    file.write_text("older")
    assert cli.main(["report", "--store", url, "--html", str(file)]) == 0
    assert "report.html" in capsys.readouterr().out
    assert file.read_text().rstrip().endswith("</html>")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    assert cli.main(["report", "--store", url, "--html", f"{tmp_path}/no/x.html"]) == 1
    assert "name another file" in capsys.readouterr().err
    assert cli.main(["report", "--store", url, "--hosts", "h1"]) == 2
    assert "--html" in capsys.readouterr().err


def test_a_missing_package_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(UsageError, match=r"plotly .* pip install 'topobench\[web\]'"):
        render_report(Sight(documents.eight_gpu_sweep()))


def test_an_imported_sweep_and_a_synthetic_one_say_so(tmp_path: Path) -> None:
    url = sights.store_at(tmp_path)
    sweep = sights.fill(url, [sights.host(gpus=0)], probes="host_memory", synthetic=True)
    page = report_page(url, sweep, tmp_path / "r.html").data
    assert page["sweep"]["synthetic"] is True
    assert "Synthetic data" in (tmp_path / "r.html").read_text()
