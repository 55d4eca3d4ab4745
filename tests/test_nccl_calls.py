"""NCCL's own calls: what is passed, and what its errors become; NCCL itself needs GPUs."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from topobench.errors import ProbeError, ResultInvalid
from topobench.probes import all_reduce, collective, collectives, nccl_calls
from topobench.probes.collective import Group

torch = pytest.importorskip("torch", reason="torch is not installed")

STREAM, COMMUNICATOR = 0x7F00_0000_0010, 0x7F11_2233_4450
PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
WORDS = {5: b"invalid usage", 6: b"remote process exited or there was a network error"}


class Library:
    """Functions with NCCL's C signature, called without a prototype as those of a library are."""

    def __init__(self, code: int = 0) -> None:
        self.seen: list[tuple[Any, ...]] = []

        def called(*arguments: Any) -> int:
            self.seen.append(arguments)
            return code

        self._kept = PROTOTYPE(called)
        address = ctypes.cast(self._kept, ctypes.c_void_p).value
        assert address is not None
        self.ncclAllReduce = self.ncclBroadcast = ctypes.CFUNCTYPE(ctypes.c_int)(address)

        self.ncclGetErrorString = WORDS.__getitem__


def calls(library: Library, monkeypatch: pytest.MonkeyPatch) -> nccl_calls.Calls:
    stream = SimpleNamespace(cuda_stream=STREAM)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(nccl_calls, "_loaded", lambda: library)
    monkeypatch.setattr(nccl_calls, "_communicator", lambda group: COMMUNICATOR)
    return nccl_calls.Calls(Group(0, 2, "nccl", None))


def test_pointers_are_whole_and_types_are_those_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    made = calls(library, monkeypatch)
    sent, received = torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)
    made.all_reduce(sent, received)
    made.broadcast(sent.double(), received.double())
    both = (COMMUNICATOR, STREAM)
    assert library.seen[0] == (sent.data_ptr(), received.data_ptr(), 3, 9, 0, *both)
    assert library.seen[1][2:] == (3, 8, 0, *both)


@pytest.mark.parametrize(("code", "reason"), [(5, "cuda_error"), (6, "rank_lost")])
def test_only_a_remote_error_is_a_lost_rank(
    code: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, data = calls(Library(code), monkeypatch), torch.ones(1)
    told = pytest.raises(ProbeError, match="NCCL error in ncclAllReduce: ")
    with told as caught, collective.errors_named():
        made.all_reduce(data, data)
    assert caught.value.code == reason
    assert WORDS[code].decode() in caught.value.text


def test_a_communicator_that_does_not_block_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what torch asked of NCCL, or by the variable that asks torch for it."""
    backends = [
        SimpleNamespace(options=SimpleNamespace(config=SimpleNamespace(blocking=blocking)))
        for blocking in (0, 1, -(1 << 31))
    ]
    monkeypatch.delenv("TORCH_NCCL_USE_COMM_NONBLOCKING", raising=False)
    assert [nccl_calls._returns_early(b) for b in backends] == [True, False, False]
    assert not nccl_calls._returns_early(object())
    monkeypatch.setenv("TORCH_NCCL_USE_COMM_NONBLOCKING", "1")
    assert nccl_calls._returns_early(object())


class Root(Group):
    """The first of some ranks, which hears of itself alone."""

    def gather(self, values: Any) -> list[list[float]]:
        return [list(values)]


class Silent(collectives._Broadcasted):
    """Sends nothing."""

    def operate(self, sent: Any, received: Any) -> None:
        return


class Unmade(all_reduce.Buffers):
    """Sums nothing."""

    def add_up(self, number: int) -> None:
        return


def test_a_result_that_was_never_written_is_found_where_it_would_be_the_data_itself() -> None:
    """Out of place, of the root of a broadcast and of the only rank of a sum."""
    cpu = torch.device("cpu")
    message = collectives.Broadcast(bytes=64, place="out_of")
    sent = Silent(Root(0, 2, "gloo", cpu), message, parts_in=1, parts_out=1, place="out_of")
    summed = Unmade(Root(0, 1, "gloo", cpu), all_reduce.AllReduce(bytes=64, place="out_of"))
    for data in (sent, summed):
        with pytest.raises(ResultInvalid, match=r"among 16 elements \(rank 0: 16\)"):
            data.verify(0)
