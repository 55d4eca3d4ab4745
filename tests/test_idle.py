"""Whether a host may be measured, or belongs to somebody else just now."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace
from typing import Any

import pytest

from planning import configured, gpu, host, small
from topobench import config
from topobench.agents import idle
from topobench.errors import ConfigError, RefusedError
from topobench.host import BUSY_OR_NOT, Busy, Idle
from topobench.reading import ReasonCode, Status
from topobench.selection import select_gpus
from topobench.topology import Topology
from watched_gpu import GIB, SWEEP, Watched, process


def host_of(watched: Watched) -> Topology:
    """A host whose only GPU is the one that NVML answers for."""
    return small(gpus=[dataclasses.replace(gpu(0), uuid=watched.uuid)])


def occupants(watched: Watched, wanted: Idle = BUSY_OR_NOT) -> list[str]:
    return idle.occupants(host_of(watched), watched.session, wanted, sweep=SWEEP)


def used(percent: int) -> Any:
    return SimpleNamespace(gpu=percent, memory=0)


def test_a_host_where_nobody_is_at_work_is_idle() -> None:
    assert occupants(Watched(DeviceGetUtilizationRates=used(0))) == []


def test_a_program_of_somebody_else_keeps_a_host_busy() -> None:
    watched = Watched()
    watched.state.processes = [process(os.getpid())]
    watched.state.used = 2 * GIB
    (line,) = occupants(watched)
    assert line.startswith(f"pid {os.getpid()} (")
    assert line.endswith(f"computes on {watched.uuid}")


def test_gpus_of_somebody_else_are_left_out_and_the_others_measured() -> None:
    watched = Watched()
    place = host_of(watched)
    assert idle.occupied(place, watched.session, sweep=SWEEP) == {}
    watched.state.processes = [process(os.getpid())]
    taken = idle.occupied(place, watched.session, sweep=SWEEP)
    here = host(small(gpus=[*place.gpus, gpu(1)]), occupied=taken)
    chosen = select_gpus(configured(), here)
    assert [g.index for g in chosen.usable] == [1]
    ((left_out, lack),) = chosen.broken
    assert (left_out.uuid, lack.status) == (watched.uuid, Status.SKIPPED)
    assert lack.reason.code is ReasonCode.SHARED_GPU
    assert f"pid {os.getpid()} (" in lack.reason.text


def test_memory_that_nobody_owns_keeps_a_host_busy() -> None:
    watched = Watched()
    watched.state.used = 40 * GIB
    assert occupants(watched) == [f"40 GiB of {watched.uuid} are held, and no process owns them"]


def test_processes_of_other_containers_keep_a_host_busy() -> None:
    watched = Watched()
    watched.state.processes = [process(4_194_305, None)]  # beyond the largest pid
    assert occupants(watched) == [f"a process of another container computes on {watched.uuid}"]


def test_a_gpu_that_works_for_nobody_in_sight_keeps_a_host_busy() -> None:
    watched = Watched(DeviceGetUtilizationRates=used(97))
    assert occupants(watched) == [f"{watched.uuid} is used to 97 %, and no process is seen"]


@pytest.mark.parametrize(("load", "busy"), [(0.8, True), (0.2, False)])
def test_load_counts_where_it_is_asked_for(
    load: float, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    assert occupants(Watched()) == []
    assert bool(occupants(Watched(), Idle(load=0.5))) is busy


def test_a_busy_host_is_refused_and_says_by_whom() -> None:
    with pytest.raises(RefusedError, match=r"this host is busy: pid 7 computes on GPU-1; wait"):
        idle.require(Idle(Busy.SKIP), lambda: ["pid 7 computes on GPU-1"])


def test_a_host_that_anybody_may_share_is_not_looked_at() -> None:
    def nobody_looks() -> list[str]:
        raise AssertionError

    idle.require(BUSY_OR_NOT, nobody_looks)


@pytest.mark.parametrize(("free_at", "measured"), [(20.0, True), (100.0, False)])
def test_a_busy_host_is_waited_for_so_long(free_at: float, measured: bool) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        assert 0 < seconds <= idle.LOOK_SECONDS
        now += seconds

    def look() -> list[str]:
        return [] if now >= free_at else ["pid 7"]

    def wait() -> None:
        idle.require(Idle(Busy.WAIT, wait_seconds=60), look, clock=lambda: now, sleep=sleep)

    if measured:
        wait()
        assert now == free_at
    else:
        with pytest.raises(RefusedError, match="waited 60 s"):
            wait()
        assert now == 60


def test_the_config_says_what_becomes_of_busy_hosts(tmp_path: Any) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("kind: topobench/v1\nidle: {busy: wait, wait: 5m, load: 0.05}\n")
    loaded = config.load(path, environ={})
    assert loaded.idle == Idle(Busy.WAIT, 300.0, 0.05)
    path.write_text(config.to_yaml(loaded))
    assert config.load(path, environ={}).idle == loaded.idle


@pytest.mark.parametrize("text", ["busy: drain", "load: 0", "load: high", "wait: 5"])
def test_what_makes_no_sense_is_a_mistake(text: str, tmp_path: Any) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"kind: topobench/v1\nidle: {{{text}}}\n")
    with pytest.raises(ConfigError, match=r"idle\."):
        config.load(path, environ={})
