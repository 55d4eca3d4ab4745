"""Which hosts and GPUs of them a sweep uses, and what a probe lacks there; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from topobench import health
from topobench.bindings import usable_cpu_count
from topobench.config import ClusterConfig, HostExpectation, host_names
from topobench.errors import UsageError
from topobench.host import Host
from topobench.probes.protocol import Probe
from topobench.reading import Reason, ReasonCode, Status
from topobench.topology import Gpu, Topology

_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.I)
_PREFIXES = ("gpu-", "mig-")
GPU_OR_CPU = "cuda_or_cpu"
"""What a probe needs that runs on GPUs, and on the CPUs of a host without any."""


@dataclass(frozen=True, slots=True)
class Lack:
    """Why something will not run; ``failed`` where a user must not overlook it."""

    status: Status
    reason: Reason


@dataclass(frozen=True, slots=True)
class HostGpus:
    """
    The GPUs of one host for this sweep.

    Args:
        usable: In the order selected, else by index.
        broken: Selected GPUs that cannot be measured, each with why.
        lack: Why there is no usable GPU at all; None where there is one.
    """

    usable: tuple[Gpu, ...] = ()
    broken: tuple[tuple[Gpu, Lack], ...] = ()
    lack: Lack | None = None

    @property
    def absent(self) -> bool:
        """Whether the host has none, working or not: it is measured by its CPUs."""
        return self.lack is not None and self.lack.reason.code is ReasonCode.NO_GPU

    @property
    def whole(self) -> tuple[Gpu, ...]:
        """Usable GPUs that are no MIG slices: only these have NVLinks and peers."""
        return tuple(g for g in self.usable if not g.is_slice)


def select_hosts(config: ClusterConfig, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """
    The hosts to measure: those named by ``--hosts``, else by ``hosts:``, else all.

    One of ``hosts:`` that is not here is told of by :func:`absent_hosts`.

    Raises:
        UsageError: ``--hosts`` names a host that is neither here nor in ``hosts:``.
    """
    chosen = [h for h in hosts if not config.hosts or config.expectation_for(h)]
    if not config.only_hosts:
        return tuple(chosen)
    picked = []
    for name in config.only_hosts:
        found = [h for h in chosen if _is_called(name, config, h)]
        if not found and not any(_calls(name, e) for e in config.hosts):
            known = ", ".join(sorted(h.name for h in chosen)) or "none"
            raise UsageError(f"--hosts: no host {name!r}; hosts here: {known}")
        picked += [h for h in found if h not in picked]
    return tuple(picked)


def _is_called(name: str, config: ClusterConfig, host: Host) -> bool:
    """By the host itself, or by ``hosts:``, which may know it by its id alone."""
    said = config.expectation_for(host)
    if said is not None and _calls(name, said):
        return True
    return name.lower() in [n.lower() for n in host_names(host)]


def absent_hosts(config: ClusterConfig, hosts: Sequence[Host]) -> tuple[str, ...]:
    """Hosts of ``hosts:`` that are not among the alive ones."""
    here = [config.expectation_for(h) for h in hosts]
    wanted = [e for e in config.hosts if e not in here]
    if config.only_hosts:
        wanted = [e for e in wanted if any(_calls(name, e) for name in config.only_hosts)]
    return tuple(e.host for e in wanted)


def _calls(name: str, expectation: HostExpectation) -> bool:
    return name.lower() in (expectation.host.lower(), (expectation.id or "").lower())


def check_devices(config: ClusterConfig, hosts: Sequence[Host]) -> None:
    """
    Refuse a device that no host has, or that could be two of one host.

    Raises:
        UsageError: Lists what there is.
    """
    for selector in config.devices:
        if not any(_matching(selector, h.topology) for h in hosts):
            known = [_describe(g) for h in hosts for g in _candidates(h.topology)]
            listed = "; ".join(known[:16]) or "no GPU on any host"
            raise UsageError(f"--devices: no GPU {selector!r}; there are: {listed}")


def select_gpus(config: ClusterConfig, host: Host) -> HostGpus:
    """
    The GPUs of one host to measure.

    GPUs that the driver shows but torch cannot use are failures, never quietly left out.
    """
    candidates = _candidates(host.topology)
    if not candidates:
        return _none(Status.SKIPPED, ReasonCode.NO_GPU, _no_gpu_text(host.topology))
    if config.devices:
        found = [g for s in config.devices for g in _matching(s, host.topology)]
        candidates = tuple(dict.fromkeys(found))
        if not candidates:
            text = f"none of the devices {', '.join(config.devices)} is on this host"
            return _none(Status.SKIPPED, ReasonCode.NOT_SELECTED, text)
    if host.facts.torch_error or not host.facts.torch:
        text = host.facts.torch_error or "the driver shows GPUs, but torch cannot be imported"
        return _none(Status.FAILED, ReasonCode.TORCH_CANNOT_USE_GPU, text)
    states = [(g, _state_lack(g, host) or unfit(config, host, g)) for g in candidates]
    usable = tuple(g for g, lack in states if lack is None)
    broken = tuple((g, lack) for g, lack in states if lack is not None)
    return HostGpus(usable, broken, None if usable else broken[0][1])


def unmet(
    probe: type[Probe], host: Host, gpus: HostGpus, hosts: int, *, own_program: bool = False
) -> Lack | None:
    """
    What a probe needs and this host lacks; the first that is missing, GPUs before all.

    Args:
        own_program: The user says where its program is, so it need not be on PATH.
    """
    needs = [n for n in probe.needs if not (own_program and n.startswith("binary:"))]
    for need in sorted(needs, key=lambda n: (not n.startswith("cuda"), n)):
        lack = _unmet_need(need, host, gpus, hosts)
        if lack is not None:
            return lack
    return None


def _unmet_need(need: str, host: Host, gpus: HostGpus, hosts: int) -> Lack | None:
    if need == "cuda":
        return gpus.lack
    if need == GPU_OR_CPU:
        return None if gpus.absent else gpus.lack
    kind, separator, rest = need.partition(">=")
    if separator and rest.isdecimal():
        return _unmet_count(kind, int(rest), host, gpus, hosts)
    kind, _, name = need.partition(":")
    if kind == "binary":
        text = f"the program {name} is not on PATH; install it or add its folder to PATH"
        return None if name in host.facts.binaries else _skipped(ReasonCode.NO_BINARY, text)
    text = f"the Python package {need} is not installed on this host; pip install {need}"
    here = host.facts.torch if need == "torch" else host.facts.packages.get(need)
    return None if here else _skipped(ReasonCode.NO_PACKAGE, text)


def _unmet_count(kind: str, count: int, host: Host, gpus: HostGpus, hosts: int) -> Lack | None:
    if kind == "gpus":
        return gpus.lack or needs_gpus(count, gpus)
    if kind == "cpus":
        return needs_cpus(count, host.topology)
    return _too_few(hosts, count, "host", ReasonCode.NEEDS_2_HOSTS)


def needs_gpus(count: int, gpus: HostGpus) -> Lack | None:
    """None where so many whole GPUs are usable; MIG slices have no peers."""
    if len(gpus.whole) < count and len(gpus.whole) < len(gpus.usable):
        text = "MIG slices have neither NVLinks nor peers"
        return Lack(Status.NOT_APPLICABLE, Reason(ReasonCode.MIG, text))
    return _too_few(len(gpus.whole), count, "GPU", ReasonCode.NEEDS_2_GPUS)


def needs_cpus(count: int, topology: Topology) -> Lack | None:
    """None where so many CPUs may run at once."""
    return _too_few(usable_cpu_count(topology), count, "CPU", ReasonCode.NEEDS_2_CPUS)


def _too_few(have: int, need: int, noun: str, code: ReasonCode) -> Lack | None:
    if have >= need:
        return None
    return _skipped(code, f"needs {need} {noun}s, {have} usable")


def _candidates(topology: Topology) -> tuple[Gpu, ...]:
    """GPUs and slices; a GPU cut into slices is measured through them."""
    parents = {g.mig.parent for g in topology.gpus if g.mig and g.mig.parent}
    return tuple(g for g in topology.gpus if g.key not in parents)


def _state_lack(gpu: Gpu, host: Host) -> Lack | None:
    visible = host.facts.torch_gpus
    if gpu.state == "lost":
        told = [str(t) for t in host.facts.health if t.device == gpu.key]
        known = "; ".join(told) or "see dmesg for Xid errors"
        return _failed(f"{gpu.key} does not answer the driver (lost); {known}")
    if gpu.mig is not None and gpu.mig.parent is None and gpu.mig.mode == "enabled":
        text = f"{gpu.key} has MIG on but no instance; make one or turn MIG off"
        return _skipped(ReasonCode.MIG, text)
    if gpu.compute_mode == "prohibited":
        text = f"the compute mode of {gpu.key} lets no process use it; see nvidia-smi -c"
        return _skipped(ReasonCode.UNSUPPORTED, text)
    if gpu.key in host.facts.occupied:
        text = f"{host.facts.occupied[gpu.key]}; wait for it, or end it"
        return _skipped(ReasonCode.SHARED_GPU, text)
    if gpu.is_slice or visible is None or gpu.uuid is None:
        return None
    if _bare(gpu.uuid) not in [_bare(uuid) for uuid in visible]:
        return _failed(f"the driver shows {gpu.key} (state {gpu.state}), torch does not")
    return None


def unfit_gpus(config: ClusterConfig, host: Host) -> dict[str, Lack]:
    """Key of each GPU of a host that its health bars from being measured -> why."""
    found = {g.key: unfit(config, host, g) for g in host.topology.gpus} if host.facts.health else {}
    return {key: lack for key, lack in found.items() if lack is not None}


def unfit(config: ClusterConfig, host: Host, gpu: Gpu) -> Lack | None:
    """Why a GPU is not measured although the driver shows it; None if it may be."""
    whole = gpu.mig.parent if gpu.mig and gpu.mig.parent else gpu.key
    found = health.skipping(config.health, host.facts.health, whole)
    return None if found is None else _skipped(found.code, str(found))


def _matching(selector: str, topology: Topology) -> tuple[Gpu, ...]:
    """
    GPUs that a selector names on one host: none or one.

    Raises:
        UsageError: The start of a UUID fits several.
    """
    gpus = _candidates(topology)
    if selector.isdecimal():
        return tuple(g for g in gpus if g.index == int(selector))
    if selector.lower().startswith(_PREFIXES):
        found = [g for g in gpus if g.uuid and g.uuid.lower().startswith(selector.lower())]
        exact = [g for g in found if g.uuid and g.uuid.lower() == selector.lower()]
        if len(found) > 1 and not exact:
            listed = ", ".join(g.key for g in found)
            raise UsageError(f"--devices: {selector!r} could be {listed}; write more of it")
        return tuple(exact or found)
    wanted = _pci(selector)
    return tuple(g for g in gpus if wanted and g.pci_address and _pci(g.pci_address) == wanted)


def _pci(text: str) -> tuple[int, ...] | None:
    """(domain, bus, device, function) of an address in any of the usual spellings."""
    match = _PCI.fullmatch(text)
    if match is None:
        return None
    return tuple(int(part or "0", 16) for part in match.groups())


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _describe(gpu: Gpu) -> str:
    names = [str(gpu.index)] if gpu.index is not None else []
    return " = ".join([*names, *(n for n in (gpu.uuid, gpu.pci_address) if n)])


def _no_gpu_text(topology: Topology) -> str:
    if topology.machine.driver:
        return "the driver shows no GPU"
    return "no NVIDIA driver answers on this host"


def _none(status: Status, code: ReasonCode, text: str) -> HostGpus:
    return HostGpus(lack=Lack(status, Reason(code, text)))


def _skipped(code: ReasonCode, text: str) -> Lack:
    return Lack(Status.SKIPPED, Reason(code, text))


def _failed(text: str) -> Lack:
    return Lack(Status.FAILED, Reason(ReasonCode.TORCH_CANNOT_USE_GPU, text))
