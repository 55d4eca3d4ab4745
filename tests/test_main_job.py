"""``topobench probe`` as a user runs it: embedded Ray, real workers, a SQLite file."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from documents import check
from main_job import SMALL, Job, agent_of, descendants, gone_within, stolen, title
from topobench.agents.host_lock import HostLock
from topobench.topology import Topology


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, dict[str, Any]]:
    """A folder with one sweep of the quick profile and a shared model, and its document."""
    job = Job(tmp_path_factory.mktemp("main"))
    sizes = "all_reduce.bytes=8K,32K,128K,1M,8M"
    shared = "prefill.tensor_parallel=1,2"
    done = job.run("probe", "--set", shared, "--set", sizes, "--format", "json")
    assert done.returncode == 0, done.stderr
    return job, json.loads(done.stdout)


def cells_of(document: dict[str, Any], probe: str) -> list[dict[str, Any]]:
    return [c for c in document["data"]["cells"] if c["probe"] == probe]


def test_a_host_without_gpus_measures_memory_and_all_reduce(
    swept: tuple[Job, dict[str, Any]],
) -> None:
    job, document = swept
    check(document, "probe")
    assert document["status"] == "done"
    copies = [c for c in cells_of(document, "host_memory") if c["params"]["op"] == "copy"]
    assert copies
    for cell in copies:
        assert cell["status"] == "ok"
        bandwidth = {r["metric"]: r for r in cell["readings"]}["bandwidth_bytes_per_second"]
        assert 1e8 < bandwidth["median"] < 1e13
        assert bandwidth["unit"] == "B/s"
        assert bandwidth["n"] >= 2
    measured = [c for c in cells_of(document, "all_reduce") if c["status"] == "ok"]
    sizes = {8 << 10, 32 << 10, 128 << 10, 1 << 20, 8 << 20}
    assert {c["params"]["bytes"] for c in measured} == sizes
    for cell in measured:
        values = {r["metric"]: r["median"] for r in cell["readings"] if not r["point"]}
        ranks = cell["ranks"]
        factor = 2 * (ranks - 1) / ranks
        assert values["busbw_bytes_per_second"] == pytest.approx(
            factor * values["algbw_bytes_per_second"], rel=1e-6
        )
        # Sample by sample: a median of an even number lies between two, for t and 1 / t apart.
        times, rates = (
            sorted(_samples(job, cell["id"], metric))
            for metric in ("latency_seconds", "algbw_bytes_per_second")
        )
        assert [cell["params"]["bytes"] / t for t in reversed(times)] == pytest.approx(rates)
        assert [m["rank"] for m in cell["members"]] == list(range(ranks))


def _samples(job: Job, cell: str, metric: str) -> list[float]:
    """What was measured of a cell, in order."""
    ((data, warmups),) = job.rows(
        "SELECT s.data, x.warmups FROM sample s JOIN reading x USING (run_id, seq) "
        "JOIN metric m ON m.id = x.metric_id JOIN run r ON r.id = x.run_id "
        f"JOIN cell c ON c.id = r.cell_id WHERE c.uuid = '{cell}' AND m.name = '{metric}'"
    )
    return list(np.frombuffer(data, "<f4")[warmups:])


def test_a_host_without_gpus_prefills_a_tiny_model(swept: tuple[Job, dict[str, Any]]) -> None:
    _, document = swept
    if document["data"]["hosts"][0]["description"]["gpus"]:
        pytest.skip("this host has GPUs")
    cells = [c for c in cells_of(document, "prefill") if c["params"] and c["ranks"] == 1]
    assert [(c["params"]["shape"], c["params"]["mode"]) for c in cells] == [("tiny", "eager")]
    values = {r["metric"]: r for r in cells[0]["readings"] if not r["point"]}
    assert values["work_flop_count"]["raw_value" if stolen(cells[0]) else "median"] == 184_680_448
    assert {r["point"]["stage"] for r in cells[0]["readings"] if "stage" in r["point"]} == {
        "qkv", "attention", "output", "mlp", "head",
    }  # fmt: skip


def test_two_processes_share_a_model_in_the_gang_of_the_collectives(
    swept: tuple[Job, dict[str, Any]],
) -> None:
    _, document = swept
    (cell,) = [c for c in cells_of(document, "prefill") if c["params"].get("tensor_parallel") == 2]
    if cell["status"] == "skipped":
        pytest.skip(f"this host has too few processors: {cell['reason']}")
    assert [m["rank"] for m in cell["members"]] == [0, 1]
    found = {
        (r["metric"], *r["point"].values()): r["raw_value" if stolen(cell) else "median"]
        for r in cell["readings"]
    }
    assert found["all_reduce_count",] == 2 * 2
    assert found["relative_error_ratio",] < 0.1
    assert 0 < found["communication_share_ratio", "events"] < 1


def test_a_shared_model_is_held_against_the_line_of_the_same_sweep(
    swept: tuple[Job, dict[str, Any]],
) -> None:
    """Half of one process's time, and four all-reduces by alpha and beta, as report and query."""
    job, document = swept
    found = (c for probe in ("prefill", "all_reduce") for c in cells_of(document, probe))
    cells = [c for c in found if c["ranks"] <= 2 and c["arm"] == "none"]
    if any(c["status"] != "ok" for c in cells):
        pytest.skip(f"not measured here: {[c['reason'] for c in cells if c['status'] != 'ok']}")
    (row,) = [r for r in answers(job, "tensor-parallel") if r["arm"] == "none"]
    lines = [r for r in answers(job, "alpha-beta") if r["arm"] == "none"]
    (line,) = [r for r in lines if r["n_ranks"] == 2]
    each = line["alpha_seconds"] + row["message_bytes"] / line["beta_bytes_per_second"]
    alone, both = (
        next(
            r["median"]
            for c in cells
            if c["params"].get("tensor_parallel") == ranks
            for r in c["readings"]
            if r["metric"] == "prefill_device_seconds" and not r["point"]
        )
        for ranks in (1, 2)
    )
    assert row["message_bytes"] == 256 * 128 * 2  # bf16
    predicted = alone / 2 + 2 * 2 * each
    assert row["speed_up_ratio"] == pytest.approx(alone / both)
    assert row["predicted_seconds"] == pytest.approx(predicted)
    assert row["error_ratio"] == pytest.approx(predicted / both - 1)
    text = job.run("report").stdout
    assert f"{100 * (predicted / both - 1):+.1f} %" in text
    assert "no prediction" not in text


def answers(job: Job, query: str) -> list[dict[str, Any]]:
    """The rows of a named query."""
    data = job.document("query", query)["data"]
    return [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]


def test_what_cannot_run_is_listed_with_its_reason(swept: tuple[Job, dict[str, Any]]) -> None:
    _, document = swept
    if document["data"]["hosts"][0]["description"]["gpus"]:
        pytest.skip("this host has GPUs")
    skipped = cells_of(document, "host_to_device")
    assert [c["status"] for c in skipped] == ["skipped"]
    assert skipped[0]["reason"].startswith("no_gpu: ")
    assert skipped[0]["readings"] == []


def test_workers_ran_where_the_plan_says(swept: tuple[Job, dict[str, Any]]) -> None:
    _, document = swept
    for cell in cells_of(document, "host_memory"):
        if cell["status"] != "ok":
            continue
        member = cell["members"][0]
        assert member["cpus"] == cell["binding"]["cpus"]
        assert member["pid"] != os.getpid()
        locality = {r["metric"]: r for r in cell["readings"]}["locality_ratio"]
        assert locality["median"] >= 0.99


def test_the_report_tells_a_person_what_was_found(swept: tuple[Job, dict[str, Any]]) -> None:
    job, document = swept
    done = job.run("report")
    assert done.returncode == 0
    for text in ("HOST", "MEASURED", "host_memory", "all_reduce", "GB/s", "NEXT", "Stored in"):
        assert text in done.stdout
    short = document["data"]["sweep"]["id"][:8]
    assert f"topobench report {short}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        (("report",), "report"),
        (("plan",), "plan"),
        (("query", "--list"), "query"),
        (("query", "latest"), "query"),
        (("topo", "show"), "topology"),
        (("doctor",), "doctor"),
        (("db", "info"), "db-info"),
        (("db", "upgrade"), "db-upgrade"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else v,
)
def test_every_json_document_is_as_its_schema_says(
    swept: tuple[Job, dict[str, Any]], arguments: tuple[str, ...], schema: str
) -> None:
    job, _ = swept
    document = job.document(*arguments)
    check(document, schema)
    if schema == "topology":
        assert Topology.from_json(document).to_json() == document


def test_a_second_probe_adds_a_second_sweep_and_cron_prints_nothing_when_all_is_well(
    swept: tuple[Job, dict[str, Any]],
) -> None:
    job, first = swept
    done = job.run("probe", *SMALL, "--trigger", "cron")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [s for s in job.sweeps() if s == first["data"]["sweep"]["id"]]
    assert len(set(job.sweeps())) == len(job.sweeps()) == 2
    assert job.document("report", first["data"]["sweep"]["id"])["data"] == first["data"]


def test_a_held_host_refuses_a_second_sweep_and_names_the_holder(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with HostLock(tmp_path / "run", sweep="nightly-1"):
        done = job.run("probe", *SMALL)
    assert done.returncode == 4
    assert "nightly-1" in done.stderr
    assert job.sweeps() == []


def test_the_agent_stays_small_and_ray_starts_little_beside_it(tmp_path: Path) -> None:
    """Whatever else runs on the host may take CPU time from what is measured."""
    job = Job(tmp_path)
    sizes = "host_memory.bytes=" + ",".join(f"{n}M" for n in range(4, 24, 2))
    driver = job.start("probe", *SMALL[:4], "--set", sizes)
    largest, titles, libraries = 0, dict[int, str](), set[str]()
    while driver.poll() is None:
        titles |= {pid: title(pid) for pid in descendants(driver.pid)}
        if agent := agent_of(driver.pid):
            largest = max(largest, _resident_bytes(agent))
            libraries |= _libraries(agent)
        time.sleep(0.1)
    driver.communicate()
    assert 0 < largest <= 150e6
    assert "_raylet.so" in libraries
    assert not {name for name in libraries if "arrow" in name}
    idle = re.compile(r"dashboard/|monitor\.py|runtime_env/|ray::(IDLE|Dashboard|RuntimeEnv)")
    assert [t for t in titles.values() if idle.search(t)] == []
    assert gone_within(5, driver.pid, job.sweeps()) == []


def _libraries(pid: int) -> set[str]:
    """Names of the files that a process has mapped; none once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {Path(line.split()[5]).name for line in lines if "/" in line}


def _resident_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = [line.split() for line in text.splitlines() if line.startswith("VmRSS:")]
    return int(lines[0][1]) << 10 if lines else 0
