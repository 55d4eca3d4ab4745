"""The probe serving on a server that it starts on a real GPU: power, memory, tokens per joule."""

from __future__ import annotations

import dataclasses
import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from topobench import config
from topobench.agents.conditions.nvml_counters import Session
from topobench.agents.service import HostRequest, HostService
from topobench.host import Host
from topobench.plan import make_plan
from topobench.probes.serving_gpu import PERIOD_SECONDS
from topobench.reading import Cell, Reading, Run, Status
from topobench.topology import Gpu, format_cpu_list, parse_cpu_list

torch = pytest.importorskip("torch", reason="torch is not installed")
for needed in ("aiohttp", "transformers"):
    pytest.importorskip(needed, reason=f"the server of this test needs {needed}")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.untouched_gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no usable GPU"),
]

CPUS = 4
WINDOW_SECONDS = 10.0
CONFIG = """
kind: topobench/v1
probes:
  - serving:
      concurrency: 4
      input_tokens: 64
      output_tokens: 16
      window: {window}s
      ramp: 2s
      requests: 20
      limit: 5s
      lag_limit: 1s
bindings: [{{name: few, cpus: "{cpus}"}}]
servers:
  llama:
    argv: {argv}
    gpus: each
    start: 60s
    timeout: 150s
"""


@dataclasses.dataclass
class Served:
    """A run on one GPU, and what that GPU was before."""

    run: Run
    cell: Cell
    gpu: Gpu
    cpus: list[int]
    idle_watts: float
    used_bytes: int
    limit_watts: float

    def reading(self, metric: str) -> Reading:
        (found,) = [r for r in self.run.readings if r.metric == metric]
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The last GPU's cell of a cluster.yaml with a server to start, run by the host's agent."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPOBENCH_RUN_DIR", str(folder))
        service = HostService(HostRequest(sweep=str(uuid.uuid4())))
        try:
            yield _run(service, service.describe(), folder)
        finally:
            service.close()


def _run(service: HostService, host: Host, folder: Path) -> Served:
    gpu = [g for g in host.topology.gpus if g.state == "ok" and not g.is_slice][-1]
    cpus = sorted(parse_cpu_list(host.topology.cpus.allowed))[-CPUS:]
    program = Path(__file__).parent / "gpu_server.py"
    text = CONFIG.format(
        window=WINDOW_SECONDS,
        cpus=format_cpu_list(cpus),
        argv=json.dumps([sys.executable, str(program), "{port}", "{}"]),
    )
    file = folder / "cluster.yaml"
    file.write_text(text)
    cells = make_plan(config.load(file, environ={}), [host], seed=1).cells
    (cell,) = [c for c in cells if c.status is Status.PLANNED and c.devices == (gpu.key,)]
    reader = Session().gpu(gpu.key)
    idle, used = reader.glance().power_watts, reader.used_memory()
    assert idle is not None
    assert used is not None
    limit = reader.limits()["power_watts"]
    (run,) = service.run([cell], {cell.id: 1})
    return Served(run, cell, gpu, cpus, idle, used, limit)


def test_it_runs_on_the_gpu_that_is_named_and_the_cpus_that_are_bound(served: Served) -> None:
    """By the server's own word: it sees one GPU, this one, and inherits the worker's CPUs."""
    run = served.run
    assert run.status is Status.OK, (run.reason, run.log_tail)
    told = json.loads(run.conditions["server"]["version"])
    assert (told["gpu"], told["visible"]) == (served.gpu.key, 1)
    assert told["cpus"] == served.cpus
    assert [m.device for m in run.members] == [served.gpu.key]
    assert served.cell.arm.name == "few"


def test_power_is_above_idle_and_within_the_limit(served: Served) -> None:
    power = served.reading("power_watts")
    assert served.idle_watts < power.summary.median <= 1.05 * served.limit_watts
    # Read all the time, not out of a buffer at the end.
    assert len(power.samples) >= 0.5 * WINDOW_SECONDS / PERIOD_SECONDS
    assert len(set(power.samples)) > 1
    (window,) = served.run.conditions["windows"]
    assert min(power.samples) <= window["power_watts"] <= max(power.samples)
    assert not [w for w in served.run.warnings if w.startswith("gpus_not_read")]


def test_memory_holds_the_weights_and_fits_the_gpu(served: Served) -> None:
    weights = json.loads(served.run.conditions["server"]["version"])["weight_bytes"]
    assert weights > 5e8
    peak = served.reading("gpu_memory_peak_bytes").summary.maximum
    assert served.gpu.memory_bytes is not None
    assert served.used_bytes + weights < peak < served.gpu.memory_bytes


def test_tokens_per_joule_follow_from_both(served: Served, tmp_path: Path) -> None:
    """By the query energy, out of a store; the tokens are those that the requests were given."""
    pytest.importorskip("sqlalchemy", reason="a store needs sqlalchemy")
    from storing import begin, host
    from topobench.db.queries import run_query
    from topobench.db.store import Store

    cell = dataclasses.replace(served.cell, host="key")
    rate, power = (served.reading(m) for m in ("output_tokens_per_second", "power_watts"))
    answered: float = served.run.conditions["windows"][0]["answered_per_second"]
    assert rate.summary.median == pytest.approx(16 * answered)
    with Store.open(f"sqlite:///{tmp_path / 'one.db'}") as store:
        begin(store, cell, hosts=[host("key")])
        store.put_run(served.run)
        answer = run_query(store, "energy", since="2020-01-01")
    (row,) = [dict(zip(answer.columns, values, strict=True)) for values in answer.rows]
    joules = rate.summary.median / power.summary.median
    assert row["tokens_per_joule"] == pytest.approx(joules)
    assert row["devices"] is not None
    assert rate.summary.median / served.limit_watts <= joules * 1.05
    assert joules < rate.summary.median / served.idle_watts
