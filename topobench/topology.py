"""
The words of a host's wiring: topology, NUMA node, GPU, link, path class.

Pure values whose field names are the keys of ``topobench.topology/1``
(docs/topology.md, docs/schemas/topology.json). Unknown is None beside a reason, never 0 or -1.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topobench.units import format_cpu_list as format_cpu_list
from topobench.units import parse_cpu_list as parse_cpu_list

SCHEMA = "topobench.topology/1"


class NodeKind(enum.StrEnum):
    """What a NUMA node holds; only nodes with CPUs can be bound to."""

    CPU_MEMORY = "cpu+memory"
    CPU = "cpu"
    MEMORY = "memory"
    GPU = "gpu"
    EMPTY = "empty"


class PathClass(enum.StrEnum):
    """PCIe path classes as nvidia-smi prints them, nearest first; NVLink is ``NV<n>``."""

    SELF = "X"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


@dataclass(frozen=True, slots=True)
class Known:
    """
    A value with where it came from, or None with why it is unknown.

    Args:
        source: ``sysfs``, ``operator``, ``nvml``, ``local_cpulist``, ``ancestor`` ...
    """

    value: int | None = None
    source: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """
    What the host is; no serial numbers.

    Args:
        iommu: ``on`` if the kernel uses one, ``off``, or ``unknown``.
    """

    arch: str | None = None
    vendor: str | None = None
    product: str | None = None
    bios: str | None = None
    kernel: str | None = None
    os: str | None = None
    driver: str | None = None
    cuda: str | None = None
    container: str | None = None
    iommu: str = "unknown"


@dataclass(frozen=True, slots=True)
class CpuGroups:
    """The CPUs of each ``package``, ``die``, ``cluster`` or ``core``, as list strings."""

    level: str
    sets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CpuKind:
    """CPUs of one kind on a hybrid host: "core", "atom", "capacity 1024", "base 2400 MHz"."""

    name: str
    cpus: str


@dataclass(frozen=True, slots=True)
class Caches:
    """
    All caches of one level, type and size.

    Args:
        type: ``data``, ``instruction`` or ``unified``.
        bytes: Of each.
        sets: CPUs that share one, for each, as list strings.
    """

    level: int
    type: str
    bytes: int
    sets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cpus:
    """
    CPU lists are Linux list strings ("0-31,64-95").

    Args:
        offline: Present but switched off.
        allowed: What this process may use (affinity and cpuset).
        isolated: Kept from the scheduler by the boot line.
        family: Of an x86 CPU, as model_number and stepping.
        dies: None where the kernel tells of none; equal to packages if each is one die.
        kinds: Empty where all CPUs are alike.
        quota_cpus: cpu.max as a number of CPUs; None when unlimited.
    """

    possible: str | None = None
    online: str | None = None
    allowed: str | None = None
    model: str | None = None
    vendor: str | None = None
    packages: int | None = None
    physical_cores: int | None = None
    threads_per_core: int | None = None
    last_level_cache_bytes: int | None = None
    quota_cpus: float | None = None
    offline: str | None = None
    isolated: str | None = None
    family: int | None = None
    model_number: int | None = None
    stepping: int | None = None
    dies: int | None = None
    clusters: int | None = None
    groups: tuple[CpuGroups, ...] = ()
    kinds: tuple[CpuKind, ...] = ()
    caches: tuple[Caches, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """
    How fast a node's memory is from its nearest initiators, as firmware says (HMAT).

    Args:
        initiators: NUMA nodes from which it is reached best.
    """

    initiators: tuple[int, ...]
    read_bytes_per_second: float | None = None
    write_bytes_per_second: float | None = None
    read_latency_seconds: float | None = None
    write_latency_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class NumaNode:
    """
    A NUMA node.

    Args:
        gpu: UUID or address of the GPU whose memory it is.
        access: None where firmware does not say.
        memory_side_cache_bytes: Of a cache in front of the memory (HBM as cache).
    """

    id: int
    kind: NodeKind
    cpus: str
    memory_bytes: int | None
    allowed: bool
    gpu: str | None = None
    access: MemoryAccess | None = None
    memory_side_cache_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NumaDistances:
    """``matrix[i][j]`` is the distance from ``nodes[i]`` to ``nodes[j]``."""

    nodes: tuple[int, ...] = ()
    matrix: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class PciLink:
    """
    A PCIe link, as read; idle devices may show a lower speed than they reach under load.

    Args:
        effective_max_bytes_per_second: Of the slower end of the link, after encoding.
    """

    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None
    bytes_per_second: float | None = None
    effective_max_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class PciDevice:
    """
    A PCI function; ``parent`` is the address of the bridge above it.

    Args:
        acs: Whether it sends peer traffic up to the root: ``on``, ``off`` or ``unknown``.
        iommu: Its group; None if no IOMMU holds it.
        iommu_type: ``identity``, ``DMA``, ``DMA-FQ`` ...: whether addresses are translated.
        virtual_functions: How many a physical function has switched on.
        physical_function: Address of the one that a virtual function belongs to.
        host_bridge: Its root bus, "pci0000:3a"; None where a capture does not say.
    """

    address: str
    pci_class: str
    vendor: str
    device: str
    parent: str | None
    role: str
    numa_node: Known
    link: PciLink | None = None
    driver: str | None = None
    acs: str = "unknown"
    iommu: str | None = None
    iommu_type: str | None = None
    subsystem_vendor: str | None = None
    subsystem_device: str | None = None
    virtual_functions: int | None = None
    physical_function: str | None = None
    host_bridge: str | None = None


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink of a GPU."""

    index: int
    state: str
    remote_kind: str | None = None
    remote: str | None = None


@dataclass(frozen=True, slots=True)
class NvLinks:
    """A GPU's NVLinks; None for the whole when the GPU has none."""

    active: int
    expected: int | None
    version: str | None
    bytes_per_second: float | None
    links: tuple[NvLink, ...] = ()


@dataclass(frozen=True, slots=True)
class Mig:
    """
    A MIG slice, or the mode of a whole GPU.

    Args:
        parent: Key of the whole GPU; None for the whole GPU itself.
    """

    mode: str
    parent: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """
    A GPU, known by UUID and PCI address; indices are display only.

    Args:
        cpu_node: NUMA node with CPUs to bind to.
        own_numa_node: NUMA node that *is* this GPU's memory (Grace-type hosts).
        cpus: CPUs near it, as a list string.
        state: ok, lost, no_access (NVML does not name it), or unknown (NVML not asked).
        fabric: State of its registration with the NVLink fabric.
        fabric_multi_node: Whether the fabric reaches other hosts.
        fabric_health: What is wrong with the fabric, in words; empty if nothing is.
        c2c: Whether a chip link joins it to a CPU.
        c2c_bytes_per_second: All its chip links, one direction.
        virtualization: ``none``, ``passthrough``, ``vgpu`` ...
        compute_mode: ``default``, ``exclusive`` (one process at a time) or ``prohibited``.
    """

    index: int | None
    uuid: str | None
    pci_address: str | None
    model: str | None
    memory_bytes: int | None
    cpu_node: Known
    cuda_index: int | None = None
    own_numa_node: int | None = None
    cpus: str | None = None
    compute_capability: str | None = None
    state: str = "ok"
    mig: Mig | None = None
    nvlink: NvLinks | None = None
    fabric: str | None = None
    c2c: bool | None = None
    fabric_multi_node: bool | None = None
    fabric_health: tuple[str, ...] | None = None
    c2c_links: int | None = None
    c2c_bytes_per_second: float | None = None
    module_id: int | None = None
    virtualization: str | None = None
    compute_mode: str | None = None

    @property
    def key(self) -> str:
        """What it is called everywhere: its UUID, else its PCI address."""
        return self.uuid or self.pci_address or f"gpu:{self.index}"

    @property
    def name(self) -> str:
        """What paths and warnings call it: ``gpu:`` and its index, else its PCI address."""
        return f"gpu:{self.pci_address if self.index is None else self.index}"

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice of another GPU."""
        return self.mig is not None and self.mig.parent is not None


@dataclass(frozen=True, slots=True)
class Nic:
    """
    A network or RDMA interface behind a PCI function.

    Args:
        rdma: Whether it is an RDMA port.
        port: Of an RDMA device, from 1.
        physical_state: Of an RDMA port: ``linkup``, ``polling``, ``disabled`` ...
        speed_name: As the kernel prints it, "4X NDR".
        interfaces: Network interfaces on the same PCI function.
        gpu_direct: Whether it can reach GPU memory; None if not known.
    """

    name: str
    pci_address: str | None
    numa_node: Known
    rate_bytes_per_second: float | None = None
    link_layer: str | None = None
    state: str | None = None
    rdma: bool = False
    port: int | None = None
    physical_state: str | None = None
    speed_name: str | None = None
    interfaces: tuple[str, ...] = ()
    gpu_direct: bool | None = None


@dataclass(frozen=True, slots=True)
class Nvme:
    """An NVMe controller; ``transport`` is pcie, rdma, tcp ..."""

    name: str
    pci_address: str | None
    numa_node: Known
    model: str | None = None
    state: str | None = None
    transport: str | None = None


@dataclass(frozen=True, slots=True)
class P2p:
    """Peer access as NVML says, per direction; it does not prove correct copies."""

    read: str | None = None
    write: str | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """
    The way between two ends (``gpu:0``, ``nic:mlx5_0``, ``numa:1``, ``nvme:nvme0``).

    Args:
        smi: Class as nvidia-smi prints it; ``smi_pcie`` leaves NVLink out.
        nccl: NCCL's type, from ``a`` to ``b``.
        nominal_bytes_per_second: Of the slowest link on the way, by its standard.
        nccl_bytes_per_second: What NCCL assumes.
        bottleneck: That slowest link.
    """

    a: str
    b: str
    smi: str | None = None
    smi_pcie: str | None = None
    nccl: str | None = None
    hops: int | None = None
    nominal_bytes_per_second: float | None = None
    nccl_bytes_per_second: float | None = None
    measured_bytes_per_second: float | None = None
    bottleneck: str | None = None
    p2p: P2p | None = None


@dataclass(frozen=True, slots=True)
class TopologyWarning:
    """Something a user should know about this picture."""

    code: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Topology:
    """
    One host's wiring at one moment.

    Args:
        trust: ``low`` for a guest's or container's view, where firmware data is missing.
        nccl_version: Release of NCCL whose rules gave the paths' types and bandwidths.
        fingerprints: ``shape``, ``config`` and ``health``, and the parts of shape: ``cpu``,
            ``numa``, ``pci``, ``nvlink``, ``nic``; each ``tfp1:<hex>``.
    """

    taken_at: str
    root: str
    virtualization: str
    trust: str
    machine: Machine
    cpus: Cpus
    numa_nodes: tuple[NumaNode, ...] = ()
    numa_distances: NumaDistances = NumaDistances()
    pci: tuple[PciDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    nvswitches: tuple[str, ...] = ()
    nvme: tuple[Nvme, ...] = ()
    paths: tuple[Path, ...] = ()
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[TopologyWarning, ...] = ()
    nccl_version: str | None = None

    @property
    def cpu_nodes(self) -> tuple[NumaNode, ...]:
        """NUMA nodes with CPUs: what users mean by "NUMA nodes"."""
        return tuple(n for n in self.numa_nodes if n.kind in (NodeKind.CPU_MEMORY, NodeKind.CPU))

    def distance(self, a: int, b: int) -> int | None:
        """Kernel distance between two NUMA nodes, or None if not known."""
        nodes = self.numa_distances.nodes
        if a not in nodes or b not in nodes:
            return None
        return self.numa_distances.matrix[nodes.index(a)][nodes.index(b)]

    def to_json(self) -> dict[str, Any]:
        """The document ``topobench.topology/1`` as plain JSON types."""
        return {"schema": SCHEMA, **plain(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Topology:
        """
        Read a ``topobench.topology/1`` document; keys it does not know are ignored.

        Raises:
            ValueError: Another schema, or a required key is missing.
        """
        if value.get("schema") != SCHEMA:
            raise ValueError(f"not a {SCHEMA} document: schema is {value.get('schema')!r}")
        return typing.cast(Topology, build(cls, dict(value)))


# JSON says "class"; Python keeps that word for itself.
_KEYS = {"pci_class": "class"}


def plain(value: Any) -> Any:
    """Turn a value of this module, or one built alike, into plain JSON types."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {_KEYS.get(f.name, f.name): plain(getattr(value, f.name)) for f in fields}
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    return value


def build(kind: Any, value: Any) -> Any:
    """
    A value of the annotated type ``kind`` from plain JSON; unknown keys are ignored.

    Raises:
        ValueError: A required key is missing, or a value has another type.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        chosen = [a for a in args if a is not type(None)]
        return build(chosen[0], value)
    if origin is tuple:
        return tuple(build(args[0], v) for v in _checked(value, list, kind))
    if origin is Mapping:
        return {k: build(args[1], v) for k, v in _checked(value, dict, kind).items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build_dataclass(kind, _checked(value, dict, kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    if kind is float:
        return float(_checked(value, (int, float), kind))
    return _checked(value, kind, kind)


def _build_dataclass(kind: type, value: dict[str, Any]) -> Any:
    given = {}
    for name, key, hint, required in _fields(kind):
        if key in value:
            given[name] = build(hint, value[key])
        elif required:
            raise ValueError(f"{kind.__name__}: key {key!r} is missing")
    return kind(**given)


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, str, Any, bool], ...]:
    """Name, JSON key, type and whether it is required, of each field."""
    hints = typing.get_type_hints(kind)
    missing = dataclasses.MISSING
    return tuple(
        (
            f.name,
            _KEYS.get(f.name, f.name),
            hints[f.name],
            f.default is f.default_factory is missing,
        )
        for f in dataclasses.fields(kind)
    )


def _checked(value: Any, wanted: Any, kind: Any) -> Any:
    """The value if it is of that type; a bool is no number."""
    if isinstance(value, wanted) and not (isinstance(value, bool) and wanted is not bool):
        return value
    raise ValueError(f"{value!r:.60} is not of type {kind}")
