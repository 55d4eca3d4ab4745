"""
Wrappers of nvbandwidth and nccl-tests: real processes that replay what those tools printed.

The recordings are of a machine with two H200; a replay cuts them down to what was asked for.
"""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from planning import dual, host
from probing import Listener, measure
from topobench import config
from topobench.config import Overrides
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.plan import make_plan
from topobench.probes.nccl_tests import NcclTests
from topobench.probes.nvbandwidth import Nvbandwidth
from topobench.reading import Reading, ReasonCode, Status

DATA = Path(__file__).parent / "data/h200x2"
GPUS = ("GPU-a", "GPU-b")

REPLAY = r"""#!{python}
import json, os, re, sys
words = sys.argv[1:]
given = lambda flag: words[words.index(flag) + 1] if flag in words else None
with open({calls!r}, "a") as file:
    file.write(json.dumps([words, dict(os.environ)]) + "\n")
"""
NVBANDWIDTH = (
    REPLAY
    + r"""
if "--help" in words:
    print("  -j [ --json ]   Print output in json format")
    sys.exit()
document = json.load(open({recording!r}))
cases = document["nvbandwidth"]["testcases"]
document["nvbandwidth"]["testcases"] = [c for c in cases if c["name"] == given("-t")] or [
    {{"name": given("-t"), "status": "Not Found"}}
]
print("noise before")
print(json.dumps(document, indent=2))
"""
)
NCCL = (
    REPLAY
    + r"""
if "--help" in words:
    print("[-J,--output_file <file> write output to file]" if {json!r} else "[-b,--minbytes]")
    sys.exit()
size, out = given("-b"), given("-J")
for line in open({recording!r} + ".txt"):
    line = re.sub(r"minBytes \d+ maxBytes \d+", f"minBytes {{size}} maxBytes {{size}}", line)
    if line.startswith("# Writing JSON") and not out:
        continue
    if not re.match(r"\s+\d", line) or line.split()[0] == size:
        print(line, end="")
if out:
    document = json.load(open({recording!r} + ".json"))
    document["config"]["minimum_bytes"] = document["config"]["maximum_bytes"] = int(size)
    rows = [r for r in document["results"] if str(r["size"]) == size]
    document["results"] = rows
    if {wrong!r}:
        rows[0]["out_of_place"]["nwrong"] = 3
        document["out_of_bounds"] = {{"count": 3, "okay": "false"}}
    json.dump(document, open(out, "w"))
sys.exit(7 if {wrong!r} else 0)
"""
)


class Tool:
    """An executable in a folder of its own, and what it was called with."""

    def __init__(self, folder: Path, name: str, source: str, **values: object) -> None:
        self.calls = folder / "calls"
        self.path = folder / name
        filled = {"python": sys.executable, "calls": str(self.calls), **values}
        self.path.write_text(source.format(**filled))
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    def last(self) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment of the last call."""
        words, env = json.loads(self.calls.read_text().splitlines()[-1])
        return words, env


def nvbandwidth(folder: Path) -> Tool:
    recording = str(DATA / "nvbandwidth_0.8.json")
    return Tool(folder, "nvbandwidth", NVBANDWIDTH, recording=recording)


def all_reduce(folder: Path, *, json: bool = True, wrong: bool = False) -> Tool:
    recording = str(DATA / "nccl_tests_2.19.6_all_reduce")
    return Tool(folder, "all_reduce_perf", NCCL, recording=recording, json=json, wrong=wrong)


def run(probe: Any, **settings: Any) -> tuple[list[Reading], Listener]:
    listener = Listener()
    return measure(probe, listener.context(devices=GPUS, deadline_seconds=30, **settings)), listener


class TestNvbandwidth:
    def test_its_matrix_becomes_readings(self, tmp_path: Path) -> None:
        tool = nvbandwidth(tmp_path)
        found, listener = run(Nvbandwidth(samples=5, program=str(tool.path)))
        told: list[Any] = [(r.metric, dict(r.point), r.summary.median) for r in found]
        assert told == [
            ("bandwidth_bytes_per_second", {"row": 0, "column": 0}, pytest.approx(55.4111e9)),
            ("bandwidth_bytes_per_second", {"row": 0, "column": 1}, pytest.approx(55.4425e9)),
        ]
        words, _ = tool.last()
        flags = ["-t", "host_to_device_memcpy_ce", "-b", "512", "-i", "5", "-d", "-j"]
        assert words == flags
        assert listener.notes["tool"] == {
            "name": "nvbandwidth",
            "version": "0.8",
            "argv": " ".join([str(tool.path), *flags]),
            "output": "json",
        }

    def test_latencies_are_seconds(self, tmp_path: Path) -> None:
        tool = nvbandwidth(tmp_path)
        found, _ = run(Nvbandwidth(testcase="host_device_latency_sm", program=str(tool.path)))
        assert {r.metric for r in found} == {"latency_seconds"}
        assert all(1e-7 < r.summary.median < 1e-5 for r in found)

    def test_an_unknown_test_case_is_left_out(self, tmp_path: Path) -> None:
        tool = nvbandwidth(tmp_path)
        with pytest.raises(ProbeUnavailable, match="has no test case nothing"):
            run(Nvbandwidth(testcase="nothing", program=str(tool.path)))

    def test_a_tool_that_prints_nonsense_is_no_result(self, tmp_path: Path) -> None:
        tool = Tool(tmp_path, "nvbandwidth", "#!/bin/sh\necho CUDA driver is too old\nexit 1\n")
        with pytest.raises(ProbeError, match="crashed: nvbandwidth ended with exit code 1"):
            run(Nvbandwidth(program=str(tool.path)))

    def test_without_the_tool(self) -> None:
        with pytest.raises(ProbeUnavailable, match="no_binary: /no/tool is no program"):
            run(Nvbandwidth(program="/no/tool"))


class TestNcclTests:
    @pytest.mark.parametrize("json", [True, False])
    def test_both_placements_become_readings(self, tmp_path: Path, json: bool) -> None:
        tool = all_reduce(tmp_path, json=json)
        found, listener = run(NcclTests(bytes=33554432, folder=str(tmp_path)))
        busbw = {
            bool(r.point["in_place"]): r.summary.median
            for r in found
            if r.metric == "busbw_bytes_per_second"
        }
        expected = {False: pytest.approx(235.58e9, rel=1e-4), True: pytest.approx(240.41e9, 1e-4)}
        assert busbw == expected
        assert len(found) == 6
        words, env = tool.last()
        assert " ".join(words[:12]) == "-b 33554432 -e 33554432 -g 2 -w 5 -n 20 -c 1"
        assert ("-J" in words) is json
        assert env["NCCL_DEBUG_FILE"].endswith("/nccl.%h.%p.log")
        told = listener.notes["tool"]
        assert (told["version"], told["nccl"], told["ranks"]) == ("2.19.6", "2.28.9", 2)
        assert listener.notes["version"] == "2.19.6"  # the report shows it

    def test_nothing_of_the_environment_is_stored(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """nccl-tests writes its whole environment into its JSON."""
        monkeypatch.setenv("OWN_MARK", "mark-of-the-environment")
        tool = all_reduce(tmp_path)
        found, listener = run(NcclTests(bytes=8192, folder=str(tmp_path)))
        assert "OWN_MARK" in tool.last()[1]
        assert "mark-of-the-environment" not in repr((found, listener))

    def test_wrong_data_is_invalid(self, tmp_path: Path) -> None:
        all_reduce(tmp_path, wrong=True)
        with pytest.raises(ResultInvalid) as error:
            run(NcclTests(bytes=8192, folder=str(tmp_path)))
        assert error.value.code == ReasonCode.WRONG_DATA

    def test_one_process_for_each_gpu_by_mpirun(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        all_reduce(tmp_path)
        mpirun = Tool(tmp_path, "mpirun", REPLAY + "os.execv(words[2], words[2:])\n")
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        run(NcclTests(bytes=8192, processes="each"))
        lines = [json.loads(line)[0] for line in mpirun.calls.read_text().splitlines()]
        started = next(words for words in lines if words[0] == "-np")
        assert started[:3] == ["-np", "2", str(tmp_path / "all_reduce_perf")]
        assert started[started.index("-g") + 1] == "1"

    def test_fewer_ranks_than_asked_for_is_no_result(self, tmp_path: Path) -> None:
        all_reduce(tmp_path)
        listener = Listener()
        context = listener.context(devices=(*GPUS, "GPU-c"), deadline_seconds=30)
        with pytest.raises(ProbeError, match="rank_lost: 2 ranks took part, not 3"):
            measure(NcclTests(bytes=8192, folder=str(tmp_path)), context)


class TestPlan:
    def planned(self, *sets: str, **facts: Any) -> dict[str, tuple[Status, int]]:
        flags = Overrides(probes="nvbandwidth,nccl_tests", bindings="none", sets=sets)
        chosen = config.load(None, environ={}, overrides=flags)
        cells = make_plan(chosen, [host(dual(2), **facts)], seed=1).cells
        return {c.case.probe: (c.status, len(c.devices)) for c in cells}

    def test_without_the_tools_both_are_skipped(self) -> None:
        skipped = (Status.SKIPPED, 0)
        assert self.planned() == {"nvbandwidth": skipped, "nccl_tests": skipped}

    def test_one_worker_sees_all_gpus(self) -> None:
        there = {"nvbandwidth": "/usr/bin/x", "all_reduce_perf": "/usr/bin/y"}
        both = (Status.PLANNED, 2)
        assert self.planned(binaries=there) == {"nvbandwidth": both, "nccl_tests": both}

    def test_a_path_of_the_users_needs_nothing_on_path(self) -> None:
        found = self.planned("nvbandwidth.program=/opt/nvbandwidth", "nccl_tests.folder=/opt")
        assert set(found.values()) == {(Status.PLANNED, 2)}
