"""The main job on a host with two NUMA nodes: one command, and a row for every arm."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.guest import run_once, unavailable

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent
STORE = "/root/lab.db"
PROBE = (
    *(sys.executable, "-m", "topobench", "probe", "--format", "json"),
    *("--probes", "host_memory", "--set", "host_memory.op=copy"),
    *("--set", "host_memory.bytes=16M"),
)
ROWS = """
import json, sqlite3, sys
rows = sqlite3.connect(sys.argv[1]).execute(
    "SELECT cell.arm, cell.binding, run.status, metric.name, reading.median, reading.n"
    " FROM cell JOIN run ON run.cell_id = cell.id"
    " JOIN reading ON reading.run_id = run.id JOIN metric ON metric.id = reading.metric_id"
    " ORDER BY cell.arm, metric.name"
)
print(json.dumps(list(rows)))
"""
ARMS = ["cpu0-mem0", "cpu0-mem1", "cpu1-mem0", "cpu1-mem1"]


def boot() -> tuple[dict[str, Any], list[list[Any]]]:
    """The document that probe printed, and the rows it left in the database."""
    if reason := unavailable():
        pytest.skip(f"no lab: {reason}")
    script = 'set -e; cd /root; "${@:4}"; exec "$1" -c "$2" "$3"'
    done = run_once(
        "two",
        *("bash", "-c", script, "lab", sys.executable, ROWS, STORE, *PROBE),
        timeout=600,
        PYTHONPATH=str(ROOT),
        TOPOBENCH_STORE=f"sqlite:///{STORE}",
    )
    if "could not start an embedded Ray" in done.stderr and "timed out" in done.stderr:
        pytest.skip("this machine is too busy to start Ray in a guest in the 30 s Ray allows")
    assert done.returncode == 0, done.stderr
    document, end = json.JSONDecoder().raw_decode(done.stdout)
    return document, json.loads(done.stdout[end:])


def test_every_arm_of_the_numa_matrix_is_measured() -> None:
    document, _ = boot()
    assert document["exit_code"] == 0
    assert document["data"]["counts"] == {"ok": 4}
    (host,) = document["data"]["hosts"]
    assert host["description"]["numa_nodes"] == 2
    assert sorted(c["arm"] for c in document["data"]["cells"]) == ARMS


def test_members_are_where_their_arm_says() -> None:
    document, _ = boot()
    for cell in document["data"]["cells"]:
        (member,) = cell["members"]
        assert cell["arm"] == f"cpu{member['cpu_node']}-mem{member['memory_node']}"
        assert member["memory_policy"] == f"bind:{member['memory_node']}"


def test_every_arm_has_its_rows_in_the_database() -> None:
    """The same medians as the document, with the locality that makes them valid."""
    document, rows = boot()
    shown = {
        (cell["arm"], reading["metric"]): reading["median"]
        for cell in document["data"]["cells"]
        for reading in cell["readings"]
    }
    assert {(arm, metric): median for arm, _, _, metric, median, _ in rows} == shown
    assert sorted(shown) == [
        (arm, metric) for arm in ARMS for metric in ("bandwidth_bytes_per_second", "locality_ratio")
    ]
    for arm, binding, status, metric, median, n in rows:
        assert (binding, status) == (arm, "ok")
        assert n >= 1
        assert median >= (0.99 if metric == "locality_ratio" else 1e6)
