"""
NCCL's own calls on the communicator that torch joined: all-reduce and broadcast out of place.

torch.distributed does both in place only, and its functional form copies first, which is other
work. NCCL's functions take one buffer to send and one to receive into. With torch's communicator
its rings, its settings and its log are those of every other collective of the gang.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from topobench.errors import ProbeError, ProbeUnavailable
from topobench.probes import collective
from topobench.reading import ReasonCode

INSTEAD = "take place in; between GPUs the probe nccl_tests measures both places, too"
_LIBRARY = "libnccl.so.2"
# Of ncclDataType_t, ncclRedOp_t and ncclResult_t in nccl.h; unchanged since 2.10.
_TYPES = {"int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
_SUM = 0
_SUCCESS = 0
_NONBLOCKING = "TORCH_NCCL_USE_COMM_NONBLOCKING"


class Calls:
    """
    All-reduce and broadcast from one buffer into another, on torch's current stream.

    Args:
        group: Joined over NCCL; it has met, so that its communicator is there.

    Raises:
        ProbeUnavailable: ``unsupported``: another backend, calls that return before their work
            is enqueued, or a torch that does not lend its communicator or share its NCCL.
    """

    def __init__(self, group: collective.Group) -> None:
        if group.backend != "nccl":
            text = f"{group.backend} does this in place only; {INSTEAD}"
            raise ProbeUnavailable(ReasonCode.UNSUPPORTED, text)
        import torch

        self._cuda = torch.cuda  # an import statement would cost 0.4 us of each call
        self._types = {getattr(torch, name): number for name, number in _TYPES.items()}
        self._library = _loaded()
        self._communicator = _communicator(group)

    def all_reduce(self, sent: Any, received: Any) -> None:
        """Enqueue the sum of ``sent`` of all ranks into ``received``."""
        self._call("ncclAllReduce", sent, received, _SUM)

    def broadcast(self, sent: Any, received: Any) -> None:
        """Enqueue ``sent`` of rank 0 into ``received`` of every rank."""
        self._call("ncclBroadcast", sent, received, 0)

    def _call(self, name: str, sent: Any, received: Any, how: int) -> None:
        code = getattr(self._library, name)(
            ctypes.c_void_p(sent.data_ptr()),
            ctypes.c_void_p(received.data_ptr()),
            ctypes.c_size_t(sent.numel()),
            self._types[sent.dtype],
            how,
            ctypes.c_void_p(self._communicator),
            ctypes.c_void_p(self._cuda.current_stream().cuda_stream),
        )
        if code != _SUCCESS:
            words = self._library.ncclGetErrorString(code).decode(errors="replace")
            text = f"NCCL error in {name}: {words}"
            # As torch would say it: ``collective.errors_named`` tells a lost rank by the words.
            raise ProbeError(ReasonCode.CUDA_ERROR, text) from RuntimeError(text)


def _communicator(group: collective.Group) -> int:
    import torch.distributed as dist

    backend = dist.group.WORLD._get_backend(group.device)
    if _returns_early(backend):
        text = f"torch's communicator does not block; set {_NONBLOCKING}=0, or {INSTEAD}"
        raise ProbeUnavailable(ReasonCode.UNSUPPORTED, text)
    lend = getattr(backend, "_comm_ptr", None)
    pointer = int(lend()) if lend else 0
    if not pointer:
        text = f"this torch does not lend its communicator of NCCL; {INSTEAD}"
        raise ProbeUnavailable(ReasonCode.UNSUPPORTED, text)
    return pointer


def _returns_early(backend: Any) -> bool:
    """Whether a call may come back before its work is enqueued, so that a mark comes too early."""
    config = getattr(getattr(backend, "options", None), "config", None)
    return os.environ.get(_NONBLOCKING) == "1" or getattr(config, "blocking", 1) == 0


def _loaded() -> ctypes.CDLL:
    """The NCCL that torch uses; never another one, whose communicators may look different."""
    import torch

    own = torch.cuda.nccl.version()[:3]
    try:
        library = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError as error:
        text = f"this torch has NCCL inside itself ({_LIBRARY} is not loaded); {INSTEAD}"
        raise ProbeUnavailable(ReasonCode.UNSUPPORTED, text) from error
    found = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(found))
    major, minor, patch = own
    if found.value != major * 10_000 + minor * 100 + patch:
        text = f"{_LIBRARY} is version {found.value}, torch was built for {own}; {INSTEAD}"
        raise ProbeUnavailable(ReasonCode.UNSUPPORTED, text)
    library.ncclGetErrorString.restype = ctypes.c_char_p
    return library
