"""What torch does not tell or do, asked of the CUDA driver itself (libcuda, by ctypes)."""

from __future__ import annotations

import ctypes
from typing import Any

from topobench.errors import ProbeError
from topobench.reading import ReasonCode

_MEMORY_CLOCK_RATE, _MEMORY_BUS_WIDTH = 36, 37  # CUdevice_attribute of cuda.h
_GRAPH_NODE_KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL
_DATA_RATE = 2  # transfers a clock, as the driver tells clocks of every memory type
_PEER_ALREADY_ENABLED, _PEER_NOT_ENABLED = 704, 705


class Driver:
    """
    The driver, for devices by torch's numbers.

    Raises:
        ProbeError: ``cuda_error``, from every method, with the driver's own words.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise ProbeError(ReasonCode.CUDA_ERROR, f"no CUDA driver: {error}") from error
        self._call("cuInit", 0)

    def memory_peak(self, device: int) -> float | None:
        """Bytes a second that the device's memory can move at most; None if not known."""
        kilohertz = self._attribute(_MEMORY_CLOCK_RATE, device)
        bits = self._attribute(_MEMORY_BUS_WIDTH, device)
        return kilohertz * 1e3 * _DATA_RATE * bits / 8 or None

    def graph_kernels(self, graph: int) -> int:
        """Kernels among the nodes of a CUDA graph."""
        handle, count = ctypes.c_void_p(graph), ctypes.c_size_t()
        self._call("cuGraphGetNodes", handle, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        self._call("cuGraphGetNodes", handle, nodes, ctypes.byref(count))
        kinds = []
        for node in nodes:
            kind = ctypes.c_int()
            self._call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
            kinds.append(kind.value)
        return kinds.count(_GRAPH_NODE_KERNEL)

    def current_context(self) -> int:
        """Handle of the context that torch made current."""
        found = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(found))
        return found.value or 0

    def can_access(self, device: int, peer: int) -> bool:
        """Whether a device can reach a peer's memory."""
        found = ctypes.c_int()
        self._call("cuDeviceCanAccessPeer", ctypes.byref(found), device, peer)
        return bool(found.value)

    def set_access(self, peer_context: int, *, on: bool) -> None:
        """Let the current context reach a peer's memory, or no longer."""
        peer = ctypes.c_void_p(peer_context)
        if on:
            self._call("cuCtxEnablePeerAccess", peer, 0, fine=_PEER_ALREADY_ENABLED)
        else:
            self._call("cuCtxDisablePeerAccess", peer, fine=_PEER_NOT_ENABLED)

    def copy_peer(
        self, target: tuple[int, int], source: tuple[int, int], size: int, stream: int
    ) -> None:
        """
        Enqueue a copy between two devices.

        Args:
            target: Address and context.
            source: The same.
            size: Bytes.
            stream: Of the device whose copy engine does it.
        """
        ends = (ctypes.c_void_p(value) for value in (*target, *source))
        self._call("cuMemcpyPeerAsync", *ends, ctypes.c_size_t(size), ctypes.c_void_p(stream))

    def _attribute(self, attribute: int, device: int) -> int:
        found = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(found), attribute, device)
        return found.value

    def _call(self, name: str, *arguments: Any, fine: int = 0) -> None:
        code = getattr(self._library, name)(*arguments)
        if code not in (0, fine):
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            words = (text.value or b"unknown error").decode(errors="replace")
            raise ProbeError(ReasonCode.CUDA_ERROR, f"{name}: {words} ({code})")
