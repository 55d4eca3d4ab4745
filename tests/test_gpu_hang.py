"""What hangs on a GPU ends at its deadline, keeps its samples, and leaves the GPU free."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launching import Lab, cell
from topobench.agents.service import HostRequest, describe_host
from topobench.host import Host
from topobench.reading import Cell, ReasonCode, Run, Status

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no usable GPU"),
]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

START_SECONDS, WORK_SECONDS = 120.0, 10.0


@pytest.fixture(scope="module")
def here() -> Host:
    return describe_host(HostRequest(sweep="hang"))


def on_gpus(host: Host, probe: str, *, ranks: int = 1, **params: Any) -> Cell:
    gpus = tuple(g.key for g in host.topology.gpus if g.state == "ok" and not g.is_slice)
    made = cell(probe, **params)
    if ranks > 1:
        case = dataclasses.replace(made.case, params={**made.case.params, "ranks": ranks})
        made = dataclasses.replace(made, case=case)
    return dataclasses.replace(made, devices=gpus[:ranks], ranks=ranks)


def check_hung(run: Run, metric: str) -> None:
    assert run.reason is not None
    assert (run.status, run.reason.code) == (Status.TIMEOUT, ReasonCode.DEADLINE)
    assert run.duration_seconds < START_SECONDS
    kept = next(r for r in run.readings if r.metric == metric)
    assert kept.summary.n >= 1
    assert kept.summary.stop_reason == "aborted"


def test_a_kernel_that_never_ends(lab: Lab, here: Host) -> None:
    """The worker waits for it in the driver; the next one has the GPU again."""
    hung, after = lab.run(
        on_gpus(here, "stuck", how="kernel"),
        on_gpus(here, "kernel_launch", mode="synchronised"),
        on=here, seconds=WORK_SECONDS, start=START_SECONDS,
    )  # fmt: skip
    check_hung(hung, "duration_seconds")
    assert after.status is Status.OK, after.reason


@pytest.mark.multi_gpu
@two_gpus
def test_a_stopped_rank_of_nccl(lab: Lab, here: Host) -> None:
    """The other rank waits on its GPU, where nobody tells it that there is nothing to wait for."""
    common: dict[str, Any] = {"ranks": 2, "bytes": 512 << 20, "backend": "nccl"}
    hung, after = lab.run(  # three rounds find that one operation fills a sample
        on_gpus(here, "lostreduce", die=1, die_at=6, how="SIGSTOP", **common),
        on_gpus(here, "lostreduce", **common),
        on=here, seconds=WORK_SECONDS, start=START_SECONDS,
    )  # fmt: skip
    check_hung(hung, "latency_seconds")
    assert "rank 1 was found stopped by a signal" in str(hung.reason)
    assert after.status is Status.OK, after.reason
