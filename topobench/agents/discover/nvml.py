"""
Asking NVML, the only place that imports pynvml.

Each call may fail by itself (not supported, no permission, library too old, GPU lost);
then its value is None and the reason is kept.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from topobench.agents.discover.facts import GpuFacts, MigFacts, NvmlFacts
from topobench.pcie import bits_set, normalise_address
from topobench.topology import NvLink, P2p

_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""NVML's NVLink version is an enumeration, not the number people say."""
_REMOTE_KINDS = {0: "gpu", 1: "npu", 2: "nvswitch"}
_P2P = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS"}
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_FABRIC_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
_MOST_LINKS = 36
_SPEED_COMMON, _LINK_SPEED = 90, 164  # field ids: MB/s of any link; of link scopeId
_C2C_COUNT, _C2C_SPEED = 170, 172  # field ids: chip links; MB/s of link scopeId
_VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}
_FABRIC_FAULTS = {
    0: "degraded bandwidth",
    2: "route recovery",
    4: "route unhealthy",
    6: "access timeout",
}
"""Where a two-bit answer stands in the health mask (1 is yes) -> what it says."""
_FABRIC_SETUP = 8
_FABRIC_SETUPS = {
    2: "wrong system GUID",
    3: "wrong chassis",
    4: "no partition",
    5: "insufficient NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}
"""The mask's four bits on configuration; 0 is not supported, 1 is correct."""
_LOST = frozenset({15, 16})  # GPU_IS_LOST, RESET_REQUIRED
_NO_PERMISSION = 4

_REASONS = {
    1: "NVML is not initialised",
    3: "not supported",
    4: "no permission",
    6: "not found",
    9: "driver not loaded",
    12: "libnvidia-ml.so.1 not found",
    13: "the driver's library lacks the function",
    15: "the GPU is lost",
    16: "the GPU needs a reset",
    17: "the operating system blocks the GPU",
    18: "driver and library versions differ (reboot, or reload the driver)",
}
_COMPUTE_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}


def reason(error: Exception) -> str:
    """Why an NVML call gave nothing, in words."""
    code = getattr(error, "value", None)
    return _REASONS.get(code, str(error)) if isinstance(code, int) else str(error)


class _Asker:
    """Calls NVML for one GPU and keeps why calls failed."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.denied: dict[str, str] = {}
        self.lost = False

    def __call__(self, name: str, *args: Any) -> Any:
        """The result of ``nvml<name>``, or None."""
        label = name.removeprefix("Device")
        function = getattr(self.library, f"nvml{name}", None)
        if function is None:
            self.denied.setdefault(label, "pynvml lacks the function")
            return None
        try:
            return function(*args)
        except self.library.NVMLError as error:
            self.denied.setdefault(label, reason(error))
            self.lost |= getattr(error, "value", None) in _LOST
            return None


def read(library: Any = None) -> NvmlFacts:
    """
    All GPUs this process may see, in NVML's order.

    Args:
        library: A module like pynvml; None imports pynvml itself.
    """
    library = library or load()
    if library is None:
        return NvmlFacts(error="the Python package nvidia-ml-py is not installed")
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return NvmlFacts(error=reason(error))
    try:
        ask = _Asker(library)
        cuda = ask("SystemGetCudaDriverVersion_v2")
        gpus = _gpus(library, ask("DeviceGetCount") or 0)
        return NvmlFacts(
            driver=_text(ask("SystemGetDriverVersion")),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            gpus=gpus,
        )
    finally:
        library.nvmlShutdown()


def load() -> Any:
    """The module pynvml, or None where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _gpus(library: Any, count: int) -> tuple[GpuFacts, ...]:
    handles: dict[int, Any] = {}
    found = []
    for index in range(count):
        ask = _Asker(library)
        try:
            handles[index] = library.nvmlDeviceGetHandleByIndex(index)
        except library.NVMLError as error:
            state = "no_access" if error.value == _NO_PERMISSION else "lost"
            found.append(GpuFacts(index, state=state, denied={"GetHandleByIndex": reason(error)}))
            continue
        found.append(_gpu(ask, index, handles[index]))
    return tuple(_with_peers(library, gpu, handles) for gpu in found)


def _gpu(ask: _Asker, index: int, handle: Any) -> GpuFacts:
    pci = ask("DeviceGetPciInfo", handle)
    memory = ask("DeviceGetMemoryInfo", handle)
    capability = ask("DeviceGetCudaComputeCapability", handle)
    mode = ask("DeviceGetMigMode", handle)
    links = tuple(_links(ask, handle))
    version = next((v for link in links if (v := _link_version(ask, handle, link))), None)
    fabric = _fabric(ask, handle)
    c2c = ask("DeviceGetC2cModeInfoV", handle)
    chip_links, chip_rate = _chip_links(ask, handle) if c2c and c2c.isC2cEnabled else (None, None)
    return GpuFacts(
        index=index,
        pci_address=normalise_address(_text(pci.busId) or "") if pci else None,
        uuid=_text(ask("DeviceGetUUID", handle)),
        model=_text(ask("DeviceGetName", handle)),
        memory_bytes=memory.total if memory else None,
        compute_capability="{}.{}".format(*capability) if capability else None,
        module_id=ask("DeviceGetModuleId", handle),
        cpu_affinity=_mask(ask("DeviceGetCpuAffinity", handle, 64)),
        memory_nodes=_mask(ask("DeviceGetMemoryAffinity", handle, 16, 0)),
        own_numa_node=ask("DeviceGetNumaNodeId", handle),
        links=links,
        nvlink_version=version,
        nvlink_bytes_per_second=_link_speed(ask, handle, links),
        fabric=fabric.state,
        fabric_multi_node=fabric.multi_node,
        fabric_health=fabric.faults,
        c2c=bool(c2c.isC2cEnabled) if c2c else None,
        c2c_links=chip_links,
        c2c_bytes_per_second=chip_rate,
        virtualization=_VIRTUALIZATION.get(ask("DeviceGetVirtualizationMode", handle)),
        compute_mode=_COMPUTE_MODES.get(ask("DeviceGetComputeMode", handle)),
        mig_mode={0: "disabled", 1: "enabled"}.get(mode[0]) if mode else None,
        mig=tuple(_slices(ask, handle)) if mode and mode[0] == 1 else (),
        state="lost" if ask.lost else "ok",
        denied=ask.denied,
    )


def _links(ask: _Asker, handle: Any) -> Iterator[NvLink]:
    """
    Links that answer for their state.

    A link this GPU lacks refuses; the capability query says yes for all of them.
    """
    for index in range(_MOST_LINKS):
        active = ask("DeviceGetNvLinkState", handle, index)
        if active is None:
            continue
        kind = ask("DeviceGetNvLinkRemoteDeviceType", handle, index) if active else None
        remote_kind = "unknown" if kind is None else _REMOTE_KINDS.get(kind, "unknown")
        remote = ask("DeviceGetNvLinkRemotePciInfo", handle, index) if active else None
        yield NvLink(
            index=index,
            state="active" if active else "inactive",
            remote_kind=remote_kind if active else None,
            remote=_remote_address(remote),
        )


def _remote_address(remote: Any) -> str | None:
    """The other end of a link; guests are told ffffffff:ff:ff.0, which is nobody."""
    if remote is None or remote.bus == 0xFF:
        return None
    return normalise_address(_text(remote.busId) or "")


def _link_version(ask: _Asker, handle: Any, link: NvLink) -> str | None:
    if link.state != "active":
        return None
    version = ask("DeviceGetNvLinkVersion", handle, link.index)
    return None if version is None else _VERSIONS.get(version)


def _link_speed(ask: _Asker, handle: Any, links: tuple[NvLink, ...]) -> float | None:
    """One direction of one active link, B/s; the driver counts MB/s of 1e6."""
    active = [link.index for link in links if link.state == "active"]
    if not active:
        return None
    for value in _fields(ask, handle, [(_LINK_SPEED, active[0]), _SPEED_COMMON]):
        if value:
            return float(value) * 1e6
    return None


def _chip_links(ask: _Asker, handle: Any) -> tuple[int | None, float | None]:
    """Links between a GPU and its CPU, and B/s of all together, one direction."""
    count, rate = _fields(ask, handle, [_C2C_COUNT, (_C2C_SPEED, 0)])
    return count or None, count * rate * 1e6 if count and rate else None


def _fields(ask: _Asker, handle: Any, wanted: list[Any]) -> list[int | None]:
    """Values of NVML's numbered fields, None for those it does not tell."""
    values = ask("DeviceGetFieldValues", handle, wanted) or ()
    found = [v.value.uiVal if v.nvmlReturn == 0 else None for v in values]
    return found or [None] * len(wanted)


@dataclass(frozen=True, slots=True)
class _Fabric:
    """
    A GPU's place in the NVLink fabric.

    Args:
        state: Of its registration; None where there is no fabric.
        multi_node: Whether the fabric has a name, as those that join hosts do.
    """

    state: str | None = None
    multi_node: bool | None = None
    faults: tuple[str, ...] | None = None


def _fabric(ask: _Asker, handle: Any) -> _Fabric:
    kind = getattr(ask.library, "c_nvmlGpuFabricInfo_v2_t", None)
    info = kind() if kind else None
    if info is None or ask("DeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
        return _Fabric()
    state = _FABRIC_STATES.get(info.state)
    if state != "completed":
        return _Fabric(state)
    if info.status:
        return _Fabric(f"failed: {info.status}")
    faults = [text for at, text in _FABRIC_FAULTS.items() if info.healthMask >> at & 3 == 1]
    setup = info.healthMask >> _FABRIC_SETUP & 0xF
    if setup > 1:
        faults.append(_FABRIC_SETUPS.get(setup, f"wrong configuration ({setup})"))
    return _Fabric(state, any(info.clusterUuid), tuple(faults))


def _slices(ask: _Asker, handle: Any) -> Iterator[MigFacts]:
    for index in range(ask("DeviceGetMaxMigDeviceCount", handle) or 0):
        slice_handle = ask("DeviceGetMigDeviceHandleByIndex", handle, index)
        if slice_handle is None:
            continue
        name = _text(ask("DeviceGetName", slice_handle)) or ""
        memory = ask("DeviceGetMemoryInfo", slice_handle)
        yield MigFacts(
            uuid=_text(ask("DeviceGetUUID", slice_handle)),
            profile=name.rpartition("MIG ")[2] or None,
            memory_bytes=memory.total if memory else None,
        )


def _with_peers(library: Any, gpu: GpuFacts, handles: Mapping[int, Any]) -> GpuFacts:
    """The GPU with what NVML says of it and each other GPU."""
    if gpu.index not in handles:
        return gpu
    ask, mine = _Asker(library), handles[gpu.index]
    p2p, ancestors = {}, {}
    for index, other in handles.items():
        if index == gpu.index:
            continue
        read, write = (ask("DeviceGetP2PStatus", mine, other, way) for way in (0, 1))
        if read is not None or write is not None:
            p2p[str(index)] = P2p(_p2p(read), _p2p(write))
        level = ask("DeviceGetTopologyCommonAncestor", mine, other)
        if level in _ANCESTORS:
            ancestors[str(index)] = _ANCESTORS[level]
    return replace(gpu, p2p=p2p, ancestors=ancestors, denied={**ask.denied, **gpu.denied})


def _p2p(status: int | None) -> str | None:
    """The word nvidia-smi prints for a peer status."""
    return None if status is None else _P2P.get(status, "U")


def _mask(words: Any) -> tuple[int, ...] | None:
    """Positions of the bits of an array of 64-bit words; None if none is set."""
    if words is None:
        return None
    return bits_set(sum(int(word) << 64 * i for i, word in enumerate(words))) or None


def _text(value: Any) -> str | None:
    """Text of what pynvml returns as bytes or str, by its age."""
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
