"""
What the conditions of a run mean for its numbers. Pure; docs/conditions.md has the rules.

A number measured under conditions that would not come back is worse than none: such a run
is ``invalid`` with the reason, never merely slow. Where samples carry their times, those
taken while a GPU was throttled are set aside and the rest is kept (``partial``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topobench import ceilings, stats
from topobench import conditions as words
from topobench.reading import MEASURED, Cell, Reading, Reason, ReasonCode, Run, Status, to_json
from topobench.topology import Topology, parse_cpu_list
from topobench.units import format_bytes, format_percent, format_rate, format_seconds

POWER_BOUND = frozenset({"gemm", "prefill", "decode", "serving"})
"""Probes whose steady state is the power limit: there the cap is a fact, not a fault."""
UNTIMED_PROOFS = frozenset({"locality_ratio"})
"""Metrics that no throttling can change."""
GPU_TIMED = frozenset({"device_memory", "gemm"})
"""Probes whose every time lies between two marks in a GPU's own queue, filled beforehand."""
HOST_STAGED = ("NCCL_P2P_", "NCCL_SHM_")
"""Settings by which NCCL may leave the direct way and need threads of the host."""
STEAL_WARNED, STEAL_INVALID = 0.02, 0.10
"""Share of the CPUs' time that a hypervisor gave to others."""
STEAL_LEAST_SECONDS = 0.1
"""Below that, the clock ticks by which it is counted decide."""
HELD_BACK_INVALID = 0.01
"""Share of a run for which a control group's cpu.max held threads back."""
LOAD_WARNED = 1.5
"""Threads that want to run for each CPU; our own workers never ask for more than one."""
WAITED_WARNED = 0.05
"""Share of a run for which its own thread was ready and had no CPU."""
RESENT_WARNED, RESENT_LEAST = 0.01, 100
"""Share and number of TCP segments sent again."""
NIC_ERRORS = frozenset(
    {
        *("received_errors", "sent_errors", "received_drops", "sent_drops"),
        *("port_rcv_errors", "port_xmit_discards", "symbol_error", "link_downed"),
        *("link_error_recovery", "local_link_integrity_errors", "local_ack_timeout_err"),
        *("out_of_sequence", "packet_seq_err", "rnr_nak_retry_err"),
    }
)
UNOWNED_BYTES = 1 << 30
"""Memory that nobody owns: less may be the driver's own."""
LINK_READINGS = 2
"""Fewest readings under load by which a link is judged."""
CLOCK_STEP_SECONDS = 0.25

Conditions = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """
    Something about a run's conditions.

    Args:
        code: For warnings a word of its own; for a status the reason's code.
        status: What it makes of a measured run; None for a mere warning.
    """

    code: str
    text: str
    status: Status | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


def findings(conditions: Conditions, cell: Cell, topology: Topology) -> list[Finding]:
    """
    Everything to be said of a run's conditions but throttled GPUs, the gravest first.

    Args:
        conditions: ``Run.conditions``, as ``agents.conditions`` gathers them.
    """
    found = [
        finding
        for uuid, gpu in (conditions.get("gpus") or {}).items()
        for rule in (_lost, _users, _memory_errors, _slot, _power_limit, _unowned)
        for finding in rule(gpu, _name(topology, uuid))
    ]
    for uuid, gpu in (conditions.get("gpus") or {}).items():
        found += _unseen_throttling(gpu, _name(topology, uuid), _harmful(gpu, cell))
    if host := conditions.get("host"):
        seconds = (conditions.get("monitor") or {}).get("seconds")
        found += [
            *_steal(host, cell, conditions.get("env") or {}),
            *_held_back(host, cell, seconds),
            *_load(host),
            *_waited(conditions, seconds, cell, topology),
            *_clock(host),
        ]
        if cell.ranks > 1:
            found += _network(host, conditions.get("nics") or {})
    return sorted(found, key=lambda f: f.status is None)


def judge(run: Run, cell: Cell, topology: Topology) -> Run:
    """
    The run with the status that its conditions allow, with warnings and with ceilings.

    Only runs that were measured can lose their status; the times of samples are dropped.
    """
    run = ceilings.held_against(run, cell, topology)
    found = findings(run.conditions, cell, topology)
    known = {w.partition(":")[0] for w in run.warnings}
    warnings = [str(f) for f in found if f.status is None and f.code not in known]
    warnings += _cap_warnings(run.conditions, cell, topology)
    grave = [f for f in found if f.status is not None]
    grave += _impossible(run)
    if run.status not in MEASURED:
        warnings += map(str, grave)  # it failed by itself; these may be why
    elif grave:
        reason = Reason(ReasonCode(grave[0].code), grave[0].text)
        run = replace(run, status=grave[0].status or run.status, reason=reason)
    else:
        run = _without_throttled(run, cell, topology)
    return replace(
        run,
        readings=tuple(replace(r, times=()) for r in run.readings),
        warnings=(*run.warnings, *dict.fromkeys(warnings)),
    )


def _impossible(run: Run) -> Iterator[Finding]:
    """A number beyond what discovery says the hardware can do; one of the two is wrong."""
    reading = ceilings.beyond(run)
    if reading is None:
        return
    speed = reading.metric.endswith("_per_second")
    shown = format_rate if speed else format_seconds
    told, most = shown(reading.summary.median), shown(reading.ceiling or 0.0)
    word = "above" if speed else "below"
    yield Finding(
        ReasonCode.INVALID_VALUE,
        f"{reading.metric} of {told} is {word} the {most} that the hardware allows "
        f"({reading.ceiling_source}): the number or discovery is wrong",
        Status.INVALID,
    )


def _lost(gpu: Conditions, name: str) -> Iterator[Finding]:
    if gpu.get("lost"):
        yield Finding(
            ReasonCode.GPU_LOST, f"{name} fell off the bus during this run", Status.INVALID
        )


def _users(gpu: Conditions, name: str) -> Iterator[Finding]:
    users = gpu.get("users") or {}
    if foreign := users.get("foreign"):
        who = ", ".join(_process(p) for p in foreign)
        text = f"another program computes on {name}: {who}"
        yield Finding(ReasonCode.SHARED_GPU, text, Status.INVALID)
    elif users.get("visible") is False:
        yield Finding(
            "processes_hidden",
            f"NVML lists processes on {name} by pids that are unknown here (a container "
            "without the host's pids?); other programs cannot be told from ours",
        )


def _process(process: Conditions) -> str:
    size = process.get("memory_bytes")
    memory = f", {format_bytes(size)}" if size else ""
    return f"pid {process['pid']} ({process.get('name') or 'of another container'}{memory})"


def _memory_errors(gpu: Conditions, name: str) -> Iterator[Finding]:
    counted = gpu.get("counted") or {}
    if bad := counted.get("ecc_uncorrected_count"):
        text = f"{bad} uncorrectable memory errors on {name} during this run"
        yield Finding(ReasonCode.ECC_ERROR, text, Status.INVALID)
    if mended := counted.get("ecc_corrected_count"):
        yield Finding("ecc_corrected", f"{mended} memory errors on {name} were corrected")
    if rows := sum(counted.get(f"remapped_{k}_count", 0) for k in ("corrected", "uncorrected")):
        yield Finding("rows_remapped", f"{rows} memory rows of {name} were replaced by spares")
    links = (gpu.get("nvlinks") or {}).items()
    for link, counts in links:
        errors = {k: v for k, v in counts.items() if v and not k.endswith("_bytes")}
        if errors:
            told = ", ".join(f"{v} {k.removesuffix('_count')}" for k, v in errors.items())
            yield Finding("nvlink_errors", f"link {link} of {name}: {told}")


def _slot(gpu: Conditions, name: str) -> Iterator[Finding]:
    pcie, limits = gpu.get("pcie") or {}, gpu.get("limits") or {}
    keys = ("generation", "width")
    told = all(k in pcie and f"pcie_{k}" in limits for k in keys)
    if not told or pcie["loaded_readings"] < LINK_READINGS:
        return
    reached = [pcie[k][2] for k in keys]  # the highest: an idle moment is no fault
    best = [limits[f"pcie_{k}"] for k in keys]
    if any(r < b for r, b in zip(reached, best, strict=True)):
        speeds = [pcie[k] / 1e9 for k in ("bytes_per_second", "most_bytes_per_second")]
        yield Finding(
            "pcie_downtrained",
            f"the slot of {name} ran at generation {reached[0]} x{reached[1]} under load, not "
            f"{best[0]} x{best[1]}: at most {speeds[0]:.2f} of {speeds[1]:.2f} GB/s",
        )


def _power_limit(gpu: Conditions, name: str) -> Iterator[Finding]:
    if _limited(gpu):
        limits = gpu["limits"]
        yield Finding(
            "power_limit_below_default",
            f"{name} may draw {limits['power_watts']:.0f} W; its default is "
            f"{limits['default_power_watts']:.0f} W",
        )


def _limited(gpu: Conditions) -> bool:
    limits = gpu.get("limits") or {}
    if "power_watts" not in limits or "default_power_watts" not in limits:
        return False
    return bool(limits["power_watts"] < limits["default_power_watts"])


def _unowned(gpu: Conditions, name: str) -> Iterator[Finding]:
    size = gpu.get("unowned_memory_bytes")
    if size is not None and size > UNOWNED_BYTES and (gpu.get("users") or {}).get("visible"):
        yield Finding(
            "gpu_memory_without_owner",
            f"{format_bytes(size)} of {name} were in use by no process that NVML lists",
        )


def _unseen_throttling(gpu: Conditions, name: str, harmful: int) -> Iterator[Finding]:
    """What the driver's own clocks counted while no reading fell into it."""
    seen = gpu.get("clock_reasons") or {}
    for reason in words.reason_names(harmful):
        nanoseconds = (gpu.get("counted") or {}).get(f"{reason}_nanoseconds", 0)
        if nanoseconds and reason not in seen:
            text = f"{name} was slowed by {reason} for {nanoseconds / 1e6:.1f} ms between readings"
            yield Finding("throttled_briefly", text)


def _load(host: Conditions) -> Iterator[Finding]:
    before, cpus = (host.get("load_1m") or [None])[0], host.get("cpu_count")
    if before is not None and cpus and before > LOAD_WARNED * cpus:
        text = f"before the run {before:.0f} threads wanted to run on {cpus} CPUs"
        yield Finding("host_busy", text)


def _waited(
    conditions: Conditions, seconds: float | None, cell: Cell, topology: Topology
) -> Iterator[Finding]:
    """CPUs that others held meanwhile, whatever the load of the minute before was."""
    counted = (conditions.get("host") or {}).get("counted") or {}
    held_back = counted.get("throttled_seconds") or 0.0  # the kernel counts that as waiting, too
    waited = (conditions.get("cpu_wait_seconds") or 0.0) - held_back
    if not seconds or waited < WAITED_WARNED * seconds:
        return
    binding = cell.arm.binding
    cpus = parse_cpu_list(binding.cpus or topology.cpus.allowed or topology.cpus.online)
    if _busy_threads(cell) <= len(cpus):  # else ranks wait for each other
        text = f"the run waited {waited:.3f} s of {seconds:.3f} s for a CPU that others held"
        yield Finding("host_busy", text)


def _busy_threads(cell: Cell) -> int:
    """Threads of a run that want CPUs of its host; each rank of a gang has one for transport."""
    threads, ranks = cell.arm.binding.threads, cell.hosts.count(cell.host) or cell.ranks
    if cell.ranks == 1:
        return threads
    return ranks * 2 * (1 if cell.devices else threads)  # ranks with GPUs compute there


def _steal(host: Conditions, cell: Cell, env: Mapping[str, str]) -> Iterator[Finding]:
    share, seconds = host.get("steal_ratio", 0.0), host.get("steal_seconds", 0.0)
    if share < STEAL_WARNED or seconds < STEAL_LEAST_SECONDS:
        return
    text = f"the hypervisor gave {format_percent(share)} of the CPUs' time to others"
    if share >= STEAL_INVALID and not _gpu_timed(cell, env):
        yield Finding(ReasonCode.BUSY, f"{text} ({seconds:.2f} s)", Status.INVALID)
    else:
        yield Finding("steal", text)


def _gpu_timed(cell: Cell, env: Mapping[str, str]) -> bool:
    """
    Whether no CPU takes part in what is timed, so that a CPU that was taken away changes nothing.

    A queue that the host filled too late is noticed and not counted, whatever held it up.

    Args:
        env: What rank 0 found set: the arm's variables, the site's, and the host's.
    """
    if cell.case.probe in GPU_TIMED:
        return True
    params = cell.case.params
    if params.get("backend") != "nccl" or params.get("mode") == "per_call":
        return False
    on_one_host = params.get("hosts", "one") == "one"
    return on_one_host and not any(n.startswith(HOST_STAGED) for n in (*cell.arm.env, *env))


def _held_back(host: Conditions, cell: Cell, seconds: float | None) -> Iterator[Finding]:
    quota, threads = host.get("quota_cpus"), cell.arm.binding.threads * cell.ranks
    held = (host.get("counted") or {}).get("throttled_seconds")
    if held and seconds and held >= HELD_BACK_INVALID * seconds:
        limit = "" if quota is None else f" of {quota:g} CPUs"
        text = (
            f"the control group's CPU limit{limit} held threads back for {held:.3f} s "
            f"of a run of {seconds:.3f} s"
        )
        yield Finding(ReasonCode.THROTTLED, text, Status.INVALID)
    if quota is not None and quota < threads:
        text = f"the control group grants {quota:g} CPUs for {threads} threads"
        yield Finding("cpu_quota_below_threads", text)


def _network(host: Conditions, nics: Conditions) -> Iterator[Finding]:
    """Errors on the way between ranks; of the whole host, whoever caused them."""
    counted = host.get("counted") or {}
    sent, resent = (counted.get(f"tcp_{k}_segments", 0) for k in ("sent", "resent"))
    if resent > RESENT_WARNED * sent and resent >= RESENT_LEAST:
        yield Finding("tcp_resent", f"{resent:.0f} of {sent:.0f} TCP segments were sent again")
    for name, counts in nics.items():
        errors = {k: v for k, v in counts.items() if v and k in NIC_ERRORS}
        if errors:
            told = ", ".join(f"{v} {k}" for k, v in errors.items())
            yield Finding("nic_errors", f"{name}: {told}")


def _clock(host: Conditions) -> Iterator[Finding]:
    step = host.get("clock_step_seconds")
    if step is not None and abs(step) > CLOCK_STEP_SECONDS:
        text = (
            f"the wall clock moved by {step:+.3f} s against the monotonic clock during this "
            "run; durations are not affected"
        )
        yield Finding(ReasonCode.CLOCK_STEP, text)


def _without_throttled(run: Run, cell: Cell, topology: Topology) -> Run:
    """Set aside what was measured while a GPU was throttled; ``invalid`` if that is all."""
    spans = _harmful_spans(run.conditions, cell)
    if not spans:
        return run
    kept, aside = [], []
    for reading in run.readings:
        clean, dropped = _split(reading, spans)
        kept += [clean] if clean else []
        aside += [dropped] if dropped else []
    if not aside:
        return run
    reason = Reason(ReasonCode.THROTTLED, _throttled_text(run.conditions, cell, topology))
    if all(r.metric in UNTIMED_PROOFS for r in kept):
        return replace(run, status=Status.INVALID, reason=reason)
    said = f"{reason.text}; what was measured meanwhile is set aside"
    return replace(
        run,
        status=Status.PARTIAL,
        reason=run.reason or replace(reason, text=said),
        readings=tuple(kept),
        conditions={**run.conditions, "set_aside": aside},
    )


def _harmful_spans(conditions: Conditions, cell: Cell) -> list[words.Span]:
    found = []
    for gpu in (conditions.get("gpus") or {}).values():
        harmful = _harmful(gpu, cell)
        found += [
            (a, b, m & harmful) for a, b, m in gpu.get("throttled_spans") or () if m & harmful
        ]
    return found


def _harmful(gpu: Conditions, cell: Cell) -> int:
    """The clock reasons that count; the power cap is the rule where work is bound by power."""
    if cell.case.probe in POWER_BOUND and not _limited(gpu):
        return words.THROTTLING & ~words.SW_POWER_CAP
    return words.THROTTLING


def _split(
    reading: Reading, spans: Sequence[words.Span]
) -> tuple[Reading | None, dict[str, Any] | None]:
    """The clean part of a reading, and what was throttled as plain JSON; None where nothing."""
    if reading.metric in UNTIMED_PROOFS:
        return reading, None
    place = {"metric": reading.metric, "point": to_json(reading.point)}
    if not reading.samples or len(reading.times) != len(reading.samples):
        mask = functools.reduce(int.__or__, (m for _, _, m in spans))
        told = {"reasons": words.reason_names(mask), "samples": None}
        return None, {**place, **told, "median": reading.summary.median}
    masks = _masks(reading.times, spans)
    if not any(masks):
        return reading, None
    return _clean(reading, masks), {
        **place,
        "reasons": words.reason_names(functools.reduce(int.__or__, masks)),
        "samples": [[i, reading.samples[i]] for i, m in enumerate(masks) if m],
    }


def _masks(times: Sequence[float], spans: Sequence[words.Span]) -> list[int]:
    """The throttling bits met by each sample, from the end of the one before to its own end."""
    found = []
    start, last = 0.0, 0.0
    for end in times:
        if end > last:  # samples told together share the time since those before
            start, last = last, end
        found.append(
            functools.reduce(int.__or__, (m for a, b, m in spans if a < end and b > start), 0)
        )
    return found


def _clean(reading: Reading, masks: Sequence[int]) -> Reading | None:
    """The reading without throttled samples, warm-ups still first; None if no sample is left."""
    old = reading.summary
    keep = [i for i, mask in enumerate(masks) if not mask]
    warmups = sum(1 for i in keep if i < old.warmups)
    samples = tuple(reading.samples[i] for i in keep)
    if len(samples) == warmups:
        return None
    summary = stats.summarise(
        samples, warmups=warmups, stop_reason=old.stop_reason, ci_level=old.ci_level
    )
    return replace(reading, summary=summary, samples=samples, times=())


def _throttled_text(conditions: Conditions, cell: Cell, topology: Topology) -> str:
    parts = []
    for uuid, gpu in (conditions.get("gpus") or {}).items():
        harmful = _harmful(gpu, cell)
        bits = functools.reduce(int.__or__, (m for _, _, m in gpu.get("throttled_spans") or ()), 0)
        shares = gpu.get("clock_reasons") or {}
        if names := words.reason_names(bits & harmful):
            told = ", ".join(f"{n} in {format_percent(shares.get(n, 0))}" for n in names)
            clock = f" (SM clock down to {low / 1e6:.0f} MHz)" if (low := _slowest(gpu)) else ""
            parts.append(f"{_name(topology, uuid)} was slowed by {told} of the readings{clock}")
    return "; ".join(parts)


def _slowest(gpu: Conditions) -> float | None:
    clocks = gpu.get("sm_hertz")
    return clocks[0] if clocks else None


def _cap_warnings(conditions: Conditions, cell: Cell, topology: Topology) -> Iterator[str]:
    """The power cap where it is no fault, since it explains a number."""
    if cell.case.probe not in POWER_BOUND:
        return
    for uuid, gpu in (conditions.get("gpus") or {}).items():
        if "sw_power_cap" in (gpu.get("clock_reasons") or {}) and not _limited(gpu):
            yield f"power_capped: {_name(topology, uuid)} worked at its power limit"


def _name(topology: Topology, key: str) -> str:
    """``gpu:3``, as warnings and paths call it."""
    return next((g.name for g in topology.gpus if g.key == key), key)
