"""What the copy probe does without a GPU; tests/test_gpu_host_to_device.py has the rest."""

from __future__ import annotations

import itertools

import pytest
import torch

from probing import Listener, measure
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes.host_to_device import Copies, HostToDevice, Way

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a usable GPU")


def test_a_cell_without_a_gpu_is_unavailable() -> None:
    with pytest.raises(ProbeUnavailable, match="no_gpu: this cell has no GPU"):
        measure(HostToDevice(), Listener().context())


@without_gpu
def test_a_gpu_that_torch_cannot_use_is_a_failure_not_a_skip() -> None:
    with pytest.raises(
        ProbeError, match=r"torch_cannot_use_gpu: torch .* cannot use GPU-1"
    ) as found:
        measure(HostToDevice(), Listener().context(devices=("GPU-1",)))
    assert not isinstance(found.value, ProbeUnavailable)


def test_pageable_memory_both_ways_is_unavailable() -> None:
    probe = HostToDevice(direction="both", memory="pageable")
    with pytest.raises(ProbeUnavailable, match="unsupported: pageable copies block"):
        measure(probe, Listener().context(devices=("GPU-1",)))


def test_larger_and_pageable_and_both_ways_are_estimated_honestly() -> None:
    """Large pageable copies are slow; small ones have one figure less; two pools take longer."""
    pinned, small = HostToDevice().estimated_seconds(), HostToDevice(bytes=4096).estimated_seconds()
    assert pinned < HostToDevice(memory="pageable").estimated_seconds()
    assert small > HostToDevice(bytes=4096, memory="pageable").estimated_seconds()
    assert HostToDevice(direction="both").estimated_seconds() > pinned
    assert HostToDevice(bytes=1 << 30).estimated_seconds() > pinned
    assert HostToDevice(at_once="all").estimated_seconds() > pinned
    assert 0.3 < pinned < 3


def test_what_is_refused_at_once_takes_no_time_of_the_plan() -> None:
    refused = HostToDevice(bytes=1 << 30, direction="both", memory="pageable", at_once="all")
    assert refused.estimated_seconds() < 0.1


class CpuCopies(Copies):
    """The walk over the pools with both sides in host memory; only the stream is missing."""

    def __init__(self, source: torch.Tensor, chunk: int) -> None:
        way = Way(source, torch.full_like(source, 0xA5), True, source.clone())
        self.ways, self.chunk, self.done = [way], chunk, 0
        self._torch, self._side = _Synchronous, None
        self._walks = [
            itertools.cycle(
                list(zip(way.target.split(chunk), way.source.split(chunk), strict=True))
            )
        ]


class _Synchronous:
    """torch without a device: nothing to wait for."""

    equal = staticmethod(torch.equal)

    class cuda:  # noqa: N801
        synchronize = staticmethod(lambda: None)
        current_stream = staticmethod(lambda: None)


def test_every_chunk_is_copied_in_turn_and_checked() -> None:
    copies = CpuCopies(torch.randint(0, 256, (4096,), dtype=torch.uint8), 256)
    copies.verify()
    assert copies.chunks == 16
    assert copies.done == 0
    copies.enqueue(3)
    copies.check()
    target, source = copies.ways[0].target, copies.ways[0].source
    assert torch.equal(target[: 3 * 256], source[: 3 * 256])
    assert bool((target[3 * 256 :] == 0xA5).all())
    copies.enqueue(20)
    copies.check()
    assert torch.equal(target, source)


@pytest.mark.parametrize("at", [0, 255, 700])
def test_one_wrong_byte_of_the_copied_chunks_is_found(at: int) -> None:
    copies = CpuCopies(torch.randint(0, 256, (4096,), dtype=torch.uint8), 256)
    copies.verify()
    copies.enqueue(3)
    copies.ways[0].target[at] += 1
    with pytest.raises(ResultInvalid, match="wrong_data: 1 of 768 bytes are wrong, host to device"):
        copies.check()
