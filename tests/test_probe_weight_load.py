"""The loading pipeline into host memory, through real files; a GPU only replaces the target."""

from __future__ import annotations

import itertools
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topobench.errors import ProbeUnavailable, ResultInvalid
from topobench.probes.protocol import check_metrics
from topobench.probes.weight_load import BUFFERS, WeightLoad, Weights, resident_ratio

MIB = 1 << 20


class MemoryTarget:
    """Two buffers and a place to copy them to, at once."""

    def __init__(self, size: int, chunk: int, fault: int | None = None) -> None:
        self.place = np.zeros(size, np.uint8)
        self.slots = [np.frombuffer(mmap.mmap(-1, chunk), np.uint8) for _ in range(BUFFERS)]
        self.buffers = [s.data for s in self.slots]
        self.order: list[tuple[str, int]] = []
        self.fault = fault

    def send(self, slot: int, offset: int) -> None:
        self.order.append(("send", slot))
        self.place[offset : offset + len(self.slots[slot])] = self.slots[slot]
        if self.fault is not None:
            self.place[self.fault] ^= 1

    def wait(self, slot: int) -> None:
        self.order.append(("wait", slot))

    def read(self, offset: int, size: int) -> Any:
        return self.place[offset : offset + size]

    def poison(self, value: int) -> None:
        self.place.fill(value)


def probe(folder: Path | None = None, **changes: Any) -> WeightLoad:
    given = {"bytes": 4 * MIB, "chunk_bytes": MIB, "readers": 2, **changes}
    return WeightLoad(folder=str(folder) if folder else None, **given)


@pytest.mark.parametrize("io", ["buffered", "direct"])
def test_stages_and_pipeline_are_measured_and_every_byte_arrives(io: str) -> None:
    made = probe(io=io)
    target = MemoryTarget(made.bytes, made.chunk_bytes)
    notes: dict[str, Any] = {}
    readings = list(made.load(target, notes.__setitem__))
    check_metrics(WeightLoad, readings)
    found = {r.metric.partition("_bytes")[0]: r.summary.median for r in readings}
    slower = min(found["storage_bandwidth"], found["transfer_bandwidth"])
    assert found["predicted_duration_seconds"] == pytest.approx(made.bytes / slower)
    assert found["load_bandwidth"] == pytest.approx(made.bytes / found["duration_seconds"])
    predicted, measured = found["predicted_duration_seconds"], found["duration_seconds"]
    assert found["overlap_ratio"] == pytest.approx(predicted / measured)
    slow = "storage" if found["storage_bandwidth"] == slower else "transfer"
    assert notes["limited_by"] == slow
    assert notes["filesystem"] != "unknown"


def test_a_buffer_is_waited_for_before_it_is_filled_again() -> None:
    made = probe()
    target = MemoryTarget(made.bytes, made.chunk_bytes)
    list(made.load(target, lambda key, value: None))
    for slot in range(BUFFERS):
        own = [what for what, which in target.order if which == slot]
        assert all(a != b for a, b in itertools.pairwise(own) if b == "send")


def test_one_wrong_byte_is_found() -> None:
    made = probe()
    target = MemoryTarget(made.bytes, made.chunk_bytes, fault=made.bytes - 1)
    with pytest.raises(ResultInvalid, match=f"wrong_data: 1 of {made.bytes} bytes are wrong"):
        list(made.load(target, lambda key, value: None))


def test_chunks_that_were_swapped_are_found() -> None:
    made = probe()
    target = MemoryTarget(made.bytes, made.chunk_bytes)
    weights = Weights.write(made)
    for number, offset in enumerate((MIB, 0, 2 * MIB, 3 * MIB)):
        weights.read_into(target.buffers[0], offset)
        target.send(0, number * MIB)
    with pytest.raises(ResultInvalid, match="wrong_data"):
        weights.check(target)
    weights.close()


def test_the_page_cache_is_emptied_of_the_file() -> None:
    weights = Weights.write(probe())
    descriptor = weights._file.fileno()
    weights.read_into(memoryview(bytearray(MIB)), 0)
    assert resident_ratio(descriptor, 4 * MIB) >= 0.25
    weights.forget()
    assert resident_ratio(descriptor, 4 * MIB) < 0.02
    weights.close()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no writable /dev/shm")
def test_a_file_that_stays_in_memory_is_no_storage() -> None:
    made = probe(Path("/dev/shm"))
    with pytest.raises(ProbeUnavailable, match=r"unsupported: 100.*/dev/shm \(tmpfs\) stays in"):
        list(made.load(MemoryTarget(made.bytes, MIB), lambda key, value: None))


def test_too_large_a_file_is_refused_with_the_amounts(tmp_path: Path) -> None:
    made = probe(tmp_path, bytes=1 << 60)
    with pytest.raises(
        ProbeUnavailable, match=r"not_enough_disk: 1 EiB asked for in .*[KMGT]iB free"
    ):
        Weights.write(made)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"bytes": 3 * MIB + 4096}, "must be a multiple of chunk_bytes"),
        ({"chunk_bytes": MIB // 3}, "must be a multiple of chunk_bytes"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ProbeUnavailable, match=why):
        Weights.write(probe(**changes))


def test_no_such_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProbeUnavailable, match=r"unsupported: no file of 4 MiB .*folder"):
        Weights.write(probe(tmp_path / "absent"))


def test_nothing_is_left_of_a_killed_process(tmp_path: Path) -> None:
    """The file never has a name, so no clean-up is needed."""
    code = (
        "import os, signal, sys\n"
        "from topobench.probes.weight_load import WeightLoad, Weights\n"
        f"Weights.write(WeightLoad(bytes={4 * MIB}, chunk_bytes={MIB}, folder=sys.argv[1]))\n"
        "print(os.listdir(sys.argv[1]), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == -9
    assert done.stdout.strip() == "[]"
    assert os.listdir(tmp_path) == []
