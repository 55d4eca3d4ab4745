"""The network probe between two ranks of this host, over the loopback interface."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from probing import Listener
from topobench.errors import ProbeError, ResultInvalid
from topobench.probes import host_network
from topobench.probes.host_network import HostNetwork
from topobench.reading import Reading, ReasonCode

SMALL: dict[str, Any] = {"bytes": 64 << 10, "streams": 2}


class Pair:
    """Both ranks in threads; what each gave or raised."""

    def __init__(self, probe: HostNetwork, meddle: Callable[[str], str] = str) -> None:
        self.readings: list[list[Reading]] = [[], []]
        self.errors: list[Exception | None] = [None, None]
        self.listeners = [Listener(), Listener()]
        self._address: queue.Queue[str] = queue.Queue()
        self._meddle = meddle
        ranks = [threading.Thread(target=self._run, args=(probe, r)) for r in (0, 1)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(60)
            assert not rank.is_alive()

    def _run(self, probe: HostNetwork, rank: int) -> None:
        context = self.listeners[rank].context(
            rank=rank,
            ranks=2,
            publish=self._address.put,
            wait=lambda: self._meddle(self._address.get(timeout=20)),
            deadline_seconds=4.0,
        )
        try:
            self.readings[rank] = list(probe.measure(context))
        except Exception as error:
            self.errors[rank] = error


@pytest.mark.parametrize("direction", ["out", "in", "both"])
def test_rank_0_gives_bandwidth_and_latency_in_every_direction(direction: str) -> None:
    pair = Pair(HostNetwork(direction=direction, **SMALL))
    assert pair.errors == [None, None]
    found = {r.metric: r.summary.median for r in pair.readings[0]}
    assert set(found) == {"bandwidth_bytes_per_second", "latency_seconds"}
    assert 1e6 < found["bandwidth_bytes_per_second"] < 1e12
    assert 1e-6 < found["latency_seconds"] < 0.1
    assert pair.readings[1] == []
    for listener in pair.listeners:
        assert listener.notes["interface"] == "lo"
        assert listener.notes["addresses"] == ["127.0.0.1", "127.0.0.1"]


@pytest.mark.parametrize("size", [64 << 10, (1 << 20) + 100, 3 << 20])
def test_bandwidth_counts_every_byte_by_the_senders_clock(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples of one byte more or less than a piece have their own rest to send."""
    sent: list[int] = []
    real = host_network._fill

    def counted(stream: socket.socket, view: memoryview) -> None:
        if len(view) > 64:
            sent.append(len(view))
        real(stream, view)

    monkeypatch.setattr(host_network, "_fill", counted)
    pair = Pair(HostNetwork(bytes=size, streams=1))
    samples = next(r for r in pair.readings[0] if r.metric.startswith("bandwidth")).samples
    assert sum(sent) == len(samples) * size


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_changed_byte_makes_both_ranks_invalid(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = host_network._sender

    def wrong(stream: socket.socket, size: int, pattern: bytes) -> Any:
        return real(stream, size, bytes([pattern[0] ^ 1]) + pattern[1:])

    monkeypatch.setattr(host_network, "_sender", wrong)
    pair = Pair(HostNetwork(direction=direction, **SMALL))
    for error in pair.errors:
        assert isinstance(error, ResultInvalid)
        assert error.code == ReasonCode.WRONG_DATA


def test_a_stranger_without_the_token_is_not_let_in() -> None:
    def with_stranger(address: str) -> str:
        host, port, _ = address.split()
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(bytes(17))
        return address

    pair = Pair(HostNetwork(**SMALL), with_stranger)
    assert pair.errors == [None, None]
    assert len(pair.readings[0]) == 2


def test_a_host_that_cannot_be_reached_is_told_with_both_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_network, "MEET_SECONDS", 1.0)

    def elsewhere(address: str) -> str:
        return " ".join([address.split()[0], "1", address.split()[2]])

    pair = Pair(HostNetwork(**SMALL), elsewhere)
    first, second = pair.errors
    assert isinstance(first, ProbeError)
    assert first.code == ReasonCode.RANK_LOST
    assert isinstance(second, ProbeError)
    assert second.code == ReasonCode.UNREACHABLE
    assert "rank 1 (127.0.0.1) cannot reach rank 0 (127.0.0.1 port 1): Conn" in str(second)
