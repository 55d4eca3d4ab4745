"""The report of a sweep: what a person sees first, and what must never be seen."""

from __future__ import annotations

import functools
import re

import pytest

import report_documents as documents
from golden import check_golden, printed
from report_documents import Document, binding, cell, host, reading, sweep
from topobench.report.text import render_sweep, summary_line

RATE = "bandwidth_bytes_per_second"
REPORTS = {
    "cpu_host": documents.cpu_host_sweep(),
    "troubled": documents.troubled_sweep(),
    "eight_gpus": documents.eight_gpu_sweep(),
    "fleet": documents.fleet_sweep(1000),
}


@functools.cache
def kept(name: str) -> str:
    """One of these reports as a pipe gets it; a thousand hosts take a second to draw."""
    return report(REPORTS[name])


def report(document: Document, width: int = 80, exit_code: int | None = None) -> str:
    return printed(render_sweep(document, exit_code=exit_code), width)


@pytest.mark.parametrize("name", REPORTS)
def test_the_report_reads_as_kept(name: str) -> None:
    check_golden(f"sweep_{name}", report(REPORTS[name], exit_code=0))


@pytest.mark.parametrize("name", REPORTS)
def test_no_line_is_wider_than_the_terminal_but_those_to_copy(name: str) -> None:
    lines = kept(name).splitlines()
    assert [line for line in lines if len(line) > 80 and "topobench " not in line] == []


@pytest.mark.parametrize("name", REPORTS)
def test_colour_adds_nothing_that_text_does_not_say(name: str) -> None:
    """Without colour the words are the same; a pipe gets no escape codes."""
    coloured = printed(render_sweep(REPORTS[name]), colour=True)
    plain = kept(name)
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_the_last_line_is_the_whole_sweep() -> None:
    document = documents.troubled_sweep()
    assert report(document, exit_code=130).splitlines()[-1] == (
        "23 ok, 1 invalid, 1 failed, 1 timeout, 1 planned; sweep 1a2b3c4d; exit 130"
    )
    assert summary_line(document).endswith("; sweep 1a2b3c4d")


def test_the_line_before_the_last_counts_by_probe() -> None:
    shown = report(documents.cpu_host_sweep(), width=200)
    assert shown.splitlines()[-2] == (
        "Cells by probe: host_memory 3 ok, 1 not applicable; all_reduce 3 ok; "
        "host_to_device 6 skipped."
    )


def test_sections_come_in_the_order_of_importance() -> None:
    shown = report(documents.troubled_sweep())
    titles = [line for line in shown.splitlines() if line.isupper() and line[0].isalpha()]
    assert titles == ["HOST", "MEASURED", "FAILED OR INVALID", "LEFT OUT", "NEXT"]


def test_a_value_of_an_invalid_run_is_only_shown_as_raw() -> None:
    """It was 9.31 GB/s beside good ones of 48: a reader must not take it for a result."""
    lines = [line for line in report(documents.troubled_sweep()).splitlines() if "9.310" in line]
    assert lines == ["      raw, not to be used: bandwidth 9.310 GB/s"]


def test_numbers_of_cells_that_did_not_end_well_are_not_shown_at_all() -> None:
    """Even where a document carries them by mistake."""
    for status in ("invalid", "failed", "timeout", "aborted", "skipped", "planned"):
        bad = cell("p", [reading(RATE, 77.77e9)], status=status, reason="busy: other work")
        assert "77.77" not in report(sweep([host()], [bad]))


def test_bad_cells_are_red_and_say_so_in_words() -> None:
    coloured = printed(render_sweep(documents.troubled_sweep()), colour=True)
    assert re.search(r"\x1b\[31mFAILED all_reduce, 1 cell: cuda_error", coloured.replace("  ", ""))


def test_what_was_left_out_says_why_and_what_would_enable_it() -> None:
    shown = " ".join(report(documents.cpu_host_sweep(), width=160).split())
    assert (
        "6 host_to_device the driver reports no GPU on this host "
        "a host with an NVIDIA GPU and its driver"
    ) in shown


def test_nothing_measured_is_said() -> None:
    document = sweep([host()], [cell("p", status="skipped", reason="no_gpu: no driver")])
    assert "Nothing: no cell gave a number that may be used." in report(document)


def test_one_process_never_claims_95_percent() -> None:
    shown = report(documents.eight_gpu_sweep())
    assert "95 %" not in shown
    assert "sample spread: median absolute deviation of the samples of one process" in shown


def test_arms_within_one_process_are_not_judged() -> None:
    """The sentence stands once, however many probes compare arms."""
    needs_blocks = "Differences between arms are judged from six blocks on (--profile full)."
    assert report(documents.eight_gpu_sweep()).count(needs_blocks) == 1
    assert needs_blocks not in report(documents.cpu_host_sweep())


def test_six_processes_have_an_interval() -> None:
    cells = [
        cell("p", [reading(RATE, (50 + p / 10) * 1e9)], binding=binding(arm), process_no=p)
        for arm in ("none", "local")
        for p in range(6)
    ]
    shown = report(sweep([host()], cells, profile="standard"))
    assert re.search(r"95 %\n.*interval +n\n +50\.25 +50\.25 +0\.5 % +6x20\n", shown)
    assert "Differences between arms" not in shown
    assert "plan --profile full" not in shown


def test_an_arm_called_spread_is_told_from_the_spread() -> None:
    cells = [cell("p", [reading(RATE, 5e10)], binding=binding(a)) for a in ("none", "spread")]
    assert re.search(
        r" +arm +arm +sample\n +none +spread +spread +n\n", report(sweep([host()], cells))
    )


def test_a_probe_nobody_knows_here_gets_its_tables() -> None:
    """Parameters, points and metrics are laid out from the data alone."""
    cells = [
        cell(
            "kernel_launch",
            [
                reading("latency_seconds", 2.1e-6 * n, point={"mode": mode, "n_count": n})
                for mode in ("graph", "stream")
                for n in (1, 16)
            ],
            params={"stream_count": 1, "priority": None},
        )
    ]
    shown = report(sweep([host()], cells))
    assert (
        "kernel_launch\n"
        "  stream 1, arm none\n"
        "              latency  sample\n"
        "  mode     n       us  spread   n\n"
        "  graph    1    2.100   0.4 %  20\n"
        "  graph   16   33.60    0.4 %  20\n"
        "  stream   1    2.100   0.4 %  20\n"
        "  stream  16   33.60    0.4 %  20\n"
    ) in shown


def test_what_was_really_used_stands_beside_what_was_asked_for() -> None:
    """The parameter says "auto"; a reader must know whether gloo or nccl was measured."""
    cells = [
        cell(
            "all_reduce",
            [reading(RATE, 1e9), reading("locality_ratio", share)],
            params={"backend": "auto"},
            conditions={"backend": "gloo", "samples_discarded": 0, "host": {"before": {}}},
            process_no=i,
        )
        for i, share in enumerate((1.0, 0.971))
    ]
    shown = report(sweep([host()], cells))
    assert (
        "all_reduce\n  backend auto, arm none\n  found: backend gloo\n"
        "  locality: 97.1 % to 100.0 %\n"
    ) in shown
    assert "locality" not in shown.split("100.0 %\n")[1].split("NEXT")[0]


def test_cells_that_did_not_settle_are_counted() -> None:
    """Time that ran out with a narrow interval was enough; 1.5 % is narrow for times alone."""
    wide, narrow = {"ci_lo": 0.985e9, "ci_hi": 1.015e9}, {"ci_lo": 0.995e9, "ci_hi": 1.005e9}
    ends = [("converged", wide), ("budget", wide), ("drift", narrow), ("fixed", wide)]
    ends += [("budget", narrow), ("n_max", narrow)]
    cells = [
        cell("p", [reading(RATE, 1e9, stop_reason=end, **interval)], process_no=i)
        for i, (end, interval) in enumerate(ends)
    ]
    cells.append(cell("p", [reading("latency_seconds", 1e9, stop_reason="budget", **wide)]))
    assert (
        "  not settled: 2 of 7 cells ended before the median was steady (budget, drift)\n"
    ) in report(sweep([host()], cells))


def test_host_memory_is_a_matrix_of_nodes() -> None:
    cells = [
        cell(
            "host_memory",
            [reading(RATE, (20 if c == m else 10) * 1e9 + c * 1e8)],
            params={"op": "copy", "cpu_node": c, "memory_node": m},
            binding=binding(f"cpu{c}-mem{m}", c, m),
        )
        for c in (0, 1)
        for m in (0, 1, 2)
    ]
    assert (
        "  bandwidth, GB/s\n"
        "   CPU                       sample\n"
        "  node  mem 0  mem 1  mem 2  spread   n\n"
        "     0  20.00  10.00  10.00   0.4 %  20\n"
        "     1  10.10  20.10  10.10   0.4 %  20\n"
    ) in report(sweep([host()], cells))


def test_a_slow_gpu_among_eight_is_named() -> None:
    document = documents.eight_gpu_sweep()
    slow = documents.gpu_uuid("gpu01", 5)
    for found in document["cells"]:
        if found["devices"] == [slow]:
            found["readings"][0]["median"] *= 0.5
    rows = [r for r in report(document).splitlines() if re.match(r"  [dh]2[dh]", r)][:12]
    assert rows
    assert all("GPU 5" in r.split("GPU 0")[0] for r in rows)


def test_eight_gpus_stand_side_by_side_where_they_fit() -> None:
    shown = report(documents.eight_gpu_sweep(), width=120)
    assert re.search(r"arm +GPU 0 +GPU 1 +GPU 2 +GPU 3 +GPU 4 +GPU 5 +GPU 6 +GPU 7", shown)


@pytest.mark.parametrize("hosts", [2, 5, 21])
def test_several_hosts_come_as_a_table_first(hosts: int) -> None:
    shown = report(documents.fleet_sweep(hosts), width=120)
    assert f"HOSTS ({hosts})" in shown
    if hosts <= 20:
        assert re.search(r"h0001 \(10\.9\.0\.1\) .* 0 +6 +0\n", shown)
    else:
        assert "  1 host with cells that ended badly: h0001 (10.9.0.1): 6\n" in shown


def test_a_thousand_hosts_take_one_screen() -> None:
    assert len(kept("fleet").splitlines()) < 60


def test_a_warning_of_many_hosts_is_said_once() -> None:
    hosts = [host(f"h{i}", warnings=["no numactl"]) for i in range(12)]
    hosts[3]["warnings"] = [{"code": "x", "subject": "gpu:1", "text": "lost"}]
    shown = report(sweep(hosts, []), width=200)
    assert "  warning: h0, h1, h2, h4, h5, h6, h7, h8, h9, h10 and 1 more: no numactl\n" in shown
    assert "  warning: h3: gpu:1: lost\n" in shown


def torch_host(driver_cuda: str | None, torch: str | None = "2.13.0+cu130") -> Document:
    broken = host(gpus=2)
    broken["facts"] |= {
        "torch": torch,
        "torch_gpus": [],
        "torch_error": "the driver is too old (found version 12060)",
        "interpreter": "/opt/my env/bin/python",
    }
    broken["description"]["cuda"] = driver_cuda
    return broken


@pytest.mark.parametrize(
    ("cuda", "torch", "release"),
    [
        ("12.6", "2.13.0+cu130", "2.10.0"),
        ("12.8", "2.13.0+cpu", "2.10.0"),
        ("13.1", "2.13.0+cpu", "2.13.0"),
        ("13.0", "2.13.0+cu130", None),
        ("11.4", "2.13.0+cu130", None),
        (None, None, None),
    ],
)
def test_torch_without_gpus_is_an_error_with_the_mending_line(
    cuda: str | None, torch: str | None, release: str | None
) -> None:
    shown = report(sweep([torch_host(cuda, torch)], []), width=80)
    assert "ERROR: torch cannot use the GPUs of gpu01" in shown
    assert "driver 580.159.04" in shown
    expected = (
        f"'/opt/my env/bin/python' -m pip install --force-reinstall torch=={release}"
        if release
        else "topobench doctor"
    )
    assert f"  {expected}\n" in shown


def test_the_store_is_named_and_the_next_commands_too() -> None:
    shown = report(documents.cpu_host_sweep())
    assert "\nStored in sqlite:///topobench.db\n" in shown
    assert "  topobench plan --profile full                 # what a sweep that can judge" in shown
    assert "topobench advise" not in shown  # nothing to advise without a GPU
    assert "--resume" not in shown
    assert "probe --resume 1a2b3c4d" in report(documents.troubled_sweep())


HOSTILE = "\x1b[31m[red]bad[/red]\nroot# \x07\u202e:smile:"


def test_hostile_text_is_shown_as_text() -> None:
    """Names and reasons from other machines cannot colour, move or break the terminal."""
    document = documents.troubled_sweep()
    document["cluster"] = document["sweep"]["profile"] = document["store"] = HOSTILE
    document["sweep"]["warnings"] = [HOSTILE]
    found = document["hosts"][0]
    found["name"] = found["address"] = found["sku"] = HOSTILE
    found["warnings"] = [HOSTILE, {"code": "x", "subject": HOSTILE, "text": HOSTILE}]
    found["description"] = dict.fromkeys(("cpu_model", "driver", "cuda", "kernel"), HOSTILE) | {
        "virtualization": HOSTILE,
        "gpus": [{"model": HOSTILE, "count": 1}],
    }
    found["facts"] |= dict.fromkeys(("torch", "torch_error", "python", "memory_policy"), HOSTILE)
    for each in document["cells"]:
        each["probe"] += HOSTILE
        each["arm"] = each["devices"] = HOSTILE
        each["devices"] = [HOSTILE]
        each["params"] = {HOSTILE: HOSTILE, **each["params"]}
        each["env"] = {HOSTILE: HOSTILE}
        each["warnings"] = [HOSTILE]
        each["log_tail"] = HOSTILE
        if each["reason"]:
            each["reason"] = f"internal: {HOSTILE}"
    for width in (30, 80, 200):
        shown = report(document, width)
        assert not set(shown) & {"\x1b", "\x07", "\u202e", "\r"}
        assert "root#" not in {line.strip()[:5] for line in shown.splitlines()} or width == 30
    assert r"\x1b[31m[red]bad[/red]\nroot# \x07\u202e:smile:" in report(document, 400)


def test_a_summary_counts_pairs_of_gpus_as_pairs() -> None:
    """Of 40 hosts with a pair each, two of the third: 41 pairs, on no 41 hosts."""
    hosts = [documents.host(f"gpu{i:02d}", gpus=4) for i in range(1, 41)]
    cells = [
        documents.cell(
            "peer",
            [documents.reading("bandwidth_bytes_per_second", 400e9 + 1e9 * i)],
            host=f"key-gpu{i:02d}",
            devices=[documents.gpu_uuid(f"gpu{i:02d}", g) for g in pair],
        )
        for i in range(1, 41)
        for pair in ((0, 1), *([(2, 3)] if i == 3 else []))
    ]
    shown = printed(render_sweep(documents.sweep(hosts, cells)))
    assert "  bandwidth, GB/s, over 41 GPU pairs\n" in shown
