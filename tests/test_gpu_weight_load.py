"""The loading pipeline into a real GPU."""

from __future__ import annotations

import pytest

from probing import Listener, measure
from topobench.probes.weight_load import WeightLoad

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no usable GPU"),
]


def test_a_file_reaches_the_gpu_and_the_slower_stage_bounds_it() -> None:
    listener = Listener()
    context = listener.context(devices=("GPU-0",), deadline_seconds=60.0)
    readings = measure(WeightLoad(bytes=256 << 20), context)
    found = {r.metric.rpartition("_bytes")[0] or r.metric: r.summary for r in readings}
    storage, transfer = found["storage_bandwidth"].median, found["transfer_bandwidth"].median
    assert 1e9 < transfer < 450e9
    assert listener.notes["limited_by"] == ("storage" if storage < transfer else "transfer")
    assert found["load_bandwidth"].minimum < 1.5 * min(storage, transfer)
    assert len(listener.buffers) == 2
