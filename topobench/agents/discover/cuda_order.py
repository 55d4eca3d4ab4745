"""Which index CUDA gives each GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topobench.topology import Gpu


def cuda_indices(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> dict[str, int]:
    """
    GPU key -> CUDA index, for those whose index is certain.

    CUDA's own order is fastest first, which is known here only if all GPUs are of one
    model; CUDA_DEVICE_ORDER=PCI_BUS_ID is always known. CUDA stops at the first name of
    CUDA_VISIBLE_DEVICES that it cannot resolve.
    """
    usable = [g for g in gpus if g.state == "ok" and g.mig is None]
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    ordered = by_bus or len({g.model for g in usable}) <= 1
    usable.sort(key=lambda g: _bus_order(g.pci_address))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if not visible:
        return {g.key: i for i, g in enumerate(usable)} if ordered else {}
    found: dict[str, int] = {}
    for name in visible.split(","):
        gpu = _resolve(name.strip(), usable if ordered else (), gpus)
        if gpu is None or gpu.key in found:
            break
        found[gpu.key] = len(found)
    return found


def _resolve(name: str, ordered: Sequence[Gpu], gpus: Sequence[Gpu]) -> Gpu | None:
    """A GPU or MIG slice by number, UUID, or a prefix of a UUID that only one has."""
    if name.isdigit():
        return ordered[int(name)] if int(name) < len(ordered) else None
    found = [g for g in gpus if name and g.uuid and g.uuid.startswith(name)]
    return found[0] if len(found) == 1 else None


def _bus_order(address: str | None) -> tuple[int, ...]:
    return tuple(int(p, 16) for p in (address or "").replace(".", ":").split(":") if p)
