"""
Whether two groups of values may be compared, and what else differs between them. Pure.

A refusal is a reason not to compare; some may be forced. Everything else that could explain
a difference is told beside the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from topobench import env_arms
from topobench.measured import VERSIONS, Value
from topobench.reading import Scalar

DISTURBED = {
    "power_limit_below_default": "the power limit was below its default",
    "cpu_quota_below_threads": "the control group granted fewer CPUs than threads",
    "host_busy": "other programs kept the CPUs busy",
    "steal": "the hypervisor took CPU time",
}
"""Warnings of a run that make it a run of another machine -> what they say."""
_EXPLAINING = {
    "pcie_downtrained": "a PCIe link ran below its maximum",
    "power_capped": "the GPU worked at its power limit",
    "throttled_briefly": "a GPU was slowed between readings",
}
_OTHER_ORDER = "the ranks went through the same hosts in another order (hosts: of the cluster file)"
_MOST = 0.5
"""Share of the runs of a side from which a condition is the side's."""


def refusal(
    a: Sequence[Value],
    b: Sequence[Value],
    *,
    same_hosts: bool,
    force: bool = False,
    hardware: bool = False,
) -> str | None:
    """
    Why values must not be compared, or None.

    Args:
        a: Of one case; of the same hosts as b, or of others.
        force: Only say what cannot be forced.
        hardware: Other hardware is what the user asks about.
    """
    for rule in (_versions, _conventions):
        for reason in rule(a, b):
            return reason
    if force:
        return None
    for reason in _forceable(a, b, same_hosts=same_hosts, hardware=hardware):
        return f"{reason}; --force compares them all the same"
    return None


def differences(a: Sequence[Value], b: Sequence[Value], *, same_hosts: bool) -> list[str]:
    """What differs between values that were compared, in sentences."""
    found = list(_software(a, b))
    if _orders_differ([*a, *b]):
        found.append(_OTHER_ORDER)
    for name, what in (("shape", "wiring"), ("config", "setup"), ("health", "state of the links")):
        mine, theirs = _wirings(a, name), _wirings(b, name)
        if mine and theirs and mine != theirs and (same_hosts or name == "shape"):
            found.append(f"the {what} differs ({name} fingerprint)")
    classes = _all(a, lambda v: v.path_class), _all(b, lambda v: v.path_class)
    if classes[0] != classes[1] and all(classes):
        found.append(f"path class {_listed(classes[0])} against {_listed(classes[1])}")
    if len(_wirings(a, "shape")) > 1 or len(_wirings(b, "shape")) > 1:
        found.append("hosts of different wiring are on one side")
    found += [f"{text} on side {side}" for side, text in _one_sided(a, b, _EXPLAINING)]
    found += [f"{text} on side {side}" for side, text in _one_sided(a, b, DISTURBED)]
    shared = [t for c, t in DISTURBED.items() if _share(a, c) > _MOST and _share(b, c) > _MOST]
    return found + [f"{text} on both sides" for text in shared]


def _versions(a: Sequence[Value], b: Sequence[Value]) -> Iterator[str]:
    mine, theirs = (_all(side, lambda v: str(v.subject.version)) for side in (a, b))
    if mine != theirs or len(mine) > 1:
        name = a[0].subject.probe
        yield (
            f"{name} version {_listed(mine)} against {_listed(theirs)}: "
            "numbers of different versions of a probe are not comparable"
        )


def _conventions(a: Sequence[Value], b: Sequence[Value]) -> Iterator[str]:
    mine, theirs = (_all(side, _convention) for side in (a, b))
    if mine and theirs and (mine != theirs or len(mine) > 1):
        yield f"bytes were counted differently: {_listed(mine)} against {_listed(theirs)}"


def _forceable(
    a: Sequence[Value], b: Sequence[Value], *, same_hosts: bool, hardware: bool
) -> Iterator[str]:
    mine, theirs = _wirings(a, "shape"), _wirings(b, "shape")
    if mine and theirs and mine != theirs and not hardware:
        what = "the hardware of the host changed" if same_hosts else "the hosts are wired otherwise"
        yield f"{what} (shape fingerprint {_listed(mine)} against {_listed(theirs)})"
    settings = _all(a, _settings), _all(b, _settings)
    if settings[0] != settings[1]:
        one, other = (_listed(s) or "none" for s in settings)
        yield f"settings of arm {a[0].subject.arm} differ: {one} against {other}"
    mine_arms, their_arms = _definitions(a), _definitions(b)
    if same_hosts and any(
        mine_arms[d] != their_arms[d] for d in mine_arms.keys() & their_arms.keys()
    ):
        yield f"arm {a[0].subject.arm} is defined otherwise: CPUs, memory or threads changed"
    if _orders_differ([*a, *b]):
        yield _OTHER_ORDER
    for side, text in _one_sided(a, b, DISTURBED):
        yield f"{text} on side {side}"


def _orders_differ(values: Iterable[Value]) -> bool:
    """Whether ranks on the same hosts are in several orders: other rings between the hosts."""
    orders = {v.subject.hosts for v in values}
    return len({tuple(sorted(order)) for order in orders}) < len(orders)


def _one_sided(
    a: Sequence[Value], b: Sequence[Value], codes: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Conditions that most runs of one side had, and most of the other had not."""
    for code, text in codes.items():
        mine, theirs = _share(a, code), _share(b, code)
        if (mine > _MOST) != (theirs > _MOST):
            yield ("A" if mine > theirs else "B"), text


def _share(side: Sequence[Value], code: str) -> float:
    """Of the values whose runs had that warning."""
    return sum(code in v.warnings for v in side) / len(side)


def _software(a: Sequence[Value], b: Sequence[Value]) -> Iterator[str]:
    for name in VERSIONS:
        mine = {v for value in a if (v := getattr(value.software, name))}
        theirs = {v for value in b if (v := getattr(value.software, name))}
        if mine and theirs and mine != theirs:
            yield f"{name} {_listed(mine)} against {_listed(theirs)}"
    settings = [_host_settings(side) for side in (a, b)]
    for key in sorted(settings[0].keys() & settings[1].keys()):
        if settings[0][key] != settings[1][key]:
            yield f"{key} {_listed(settings[0][key])} against {_listed(settings[1][key])}"


def _host_settings(side: Iterable[Value]) -> dict[str, set[str]]:
    """Settings of the host that are single values, such as the governor."""
    found: dict[str, set[str]] = {}
    for details in {id(v.software): v.software.details for v in side}.values():
        settings = details.get("host_settings")
        for key, value in settings.items() if isinstance(settings, dict) else ():
            if isinstance(value, Scalar) and value is not None:
                found.setdefault(str(key), set()).add(str(value))
    return found


def _definitions(side: Iterable[Value]) -> dict[tuple[str, ...], set[str]]:
    """How the arm was defined for each device set."""
    found: dict[tuple[str, ...], set[str]] = {}
    for value in side:
        found.setdefault(value.subject.devices, set()).add(value.subject.definition)
    return found


def _settings(value: Value) -> str:
    return env_arms.text_of(value.subject.env)


def _convention(value: Value) -> str | None:
    found = value.software.details.get("bytes_convention")
    return found if isinstance(found, str) else None


def _wirings(side: Iterable[Value], name: str) -> set[str]:
    return {
        found
        for v in side
        if v.wiring is not None and (found := getattr(v.wiring, name)) is not None
    }


def _all(side: Iterable[Value], of: Callable[[Value], str | None]) -> set[str]:
    return {found for v in side if (found := of(v)) is not None}


def _listed(words: Iterable[str]) -> str:
    ordered = sorted(w for w in words if w)
    return ", ".join(ordered[:3]) + (" ..." if len(ordered) > 3 else "")
