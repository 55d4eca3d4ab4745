"""``topobench compare``: selectors and a store in, :class:`Outcome` out."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topobench import compare_select, policy
from topobench.commands import Outcome
from topobench.compare import Options, compare_sides, compare_with_control
from topobench.compare_cases import Compared, case_documents
from topobench.comparison import Change
from topobench.errors import UsageError
from topobench.measured import Value

if TYPE_CHECKING:
    from topobench.db.measured import Found
    from topobench.db.selecting import Selection
    from topobench.db.source import Source
    from topobench.db.store import Store

UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    What ``compare`` was asked.

    Args:
        control: ``unchanged`` for a difference in differences, or None.
        policy_file: Tolerances in place of the package's.
    """

    as_of: str | None = None
    control: str | None = None
    force: bool = False
    imported: bool = False
    synthetic: bool = False
    policy_file: Path | None = None


def compare(store_url: str, a: str, b: str, wanted: Wanted) -> Outcome:
    """
    Compare what two selectors name.

    Raises:
        UsageError: A selector that means nothing or selects nothing, or sides in common.
    """
    from topobench.db import selecting, source
    from topobench.report.compare_text import render_compare

    if wanted.control not in (None, UNCHANGED):
        raise UsageError(f"--control {wanted.control}: the only control is {UNCHANGED}")
    rules = policy.load(wanted.policy_file)
    selectors = compare_select.parse(a), compare_select.parse(b)
    as_of = None if wanted.as_of is None else selecting.moment(wanted.as_of)
    wanted = replace(wanted, as_of=as_of)
    with source.opened(store_url) as opened:
        selections = [opened.resolve(s, as_of) for s in selectors]
        sides = [
            _values(opened, selection, wanted, name)
            for name, selection in zip("AB", selections, strict=True)
        ]
        options = Options(rules, wanted.force, hardware=_by_hardware(selections))
        if wanted.control is None:
            found = compare_sides(sides[0], sides[1], options)
        else:
            found = _with_control(opened, selections, sides, wanted, options)
    described = [_side(*pair) for pair in zip(selections, sides, strict=True)]
    data = _document(found, described, rules.version, wanted, _newest(sides))
    return Outcome(
        data, lambda: render_compare(data), exit_code=found.exit_code, status=data["verdict"]
    )


def is_small(store: Store, a: str, b: str, most: int, seconds: float) -> bool:
    """
    Whether two selectors name so few readings that comparing them takes no time.

    Args:
        seconds: Spent on finding out; what is not known then counts as large.

    Raises:
        UsageError: A selector that means nothing.
    """
    from topobench.db import source

    selectors = [compare_select.parse(text) for text in (a, b)]
    return source.are_few(store, selectors, most, seconds)


def _values(source: Source, selection: Selection, wanted: Wanted, name: str) -> list[Value]:
    found = _measured(source, selection, wanted)
    if found.values:
        return found.values
    left = [
        f"{count} {kind} readings are left out, --{kind} takes them"
        for kind, count in (("imported", found.imported), ("synthetic", found.synthetic))
        if count
    ]
    when = f" by {wanted.as_of}" if wanted.as_of else ""
    raise UsageError(
        f"{name} ({selection.meaning}) selects no usable reading{when}"
        + (f": {'; '.join(left)}" if left else "")
    )


def _measured(source: Source, selection: Selection, wanted: Wanted) -> Found:
    return source.measured(
        selection,
        as_of=wanted.as_of,
        imported=wanted.imported,
        synthetic=wanted.synthetic,
    )


def _by_hardware(selections: Sequence[Selection]) -> bool:
    """Whether both sides were chosen by SKU or by cluster, and not by the same one."""
    words = [(s.selector.get("sku"), s.selector.get("cluster")) for s in selections]
    return words[0] != words[1] and all(any(pair) for pair in words)


def _with_control(
    source: Source,
    selections: Sequence[Selection],
    sides: Sequence[Sequence[Value]],
    wanted: Wanted,
    options: Options,
) -> Compared:
    """Hosts that changed their driver against those that kept theirs."""
    if not all(s.selector.get("driver") for s in selections):
        raise UsageError(
            "--control unchanged needs driver:VERSION on both sides; the control is the hosts "
            "that kept their driver"
        )
    before, after = _periods(sides[0], sides[1])
    treated = {v.subject.host for v in before}
    others = []
    for selection, period in zip(selections, (before, after), strict=True):
        kept = {k: v for k, v in selection.selector.words.items() if k != "driver"}
        wider = replace(selection, selector=replace(selection.selector, words=kept), drivers=None)
        first, last = min(v.began for v in period), max(v.began for v in period)
        found = _measured(source, wider, wanted).values
        others.append(
            [v for v in found if first <= v.began <= last and v.subject.host not in treated]
        )
    control = _unchanged(others[0], others[1])
    if not control[0]:
        raise UsageError(
            "--control unchanged: no other host was measured with one driver both before and after"
        )
    return compare_with_control((before, after), control, options)


def _periods(a: Sequence[Value], b: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """The values of the hosts that changed, of nights wholly before or after the change."""
    changed = {v.subject.host for v in a} & {v.subject.host for v in b}
    before = [v for v in a if v.subject.host in changed]
    after = [v for v in b if v.subject.host in changed]
    if not changed:
        raise UsageError("--control unchanged: no host was measured under both drivers")
    last, first = max(v.began for v in before), min(v.began for v in after)
    if first <= last:  # hosts changed one after the other: those nights are of neither period
        before = [v for v in before if v.began < first]
        after = [v for v in after if v.began > last]
    if not before or not after:
        raise UsageError(
            f"--control unchanged: the change took from {first} to {last}, and no sweep lies "
            "before or none after it; choose hosts that changed together with host:NAME"
        )
    return before, after


def _unchanged(before: Sequence[Value], after: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """The values of the hosts that were measured in both periods with one driver."""
    drivers: dict[str, set[str | None]] = collections.defaultdict(set)
    for value in (*before, *after):
        drivers[value.subject.host].add(value.software.driver)
    both = {v.subject.host for v in before} & {v.subject.host for v in after}
    same = {h for h in both if len(drivers[h]) == 1 and None not in drivers[h]}
    kept = [[v for v in side if v.subject.host in same] for side in (before, after)]
    return kept[0], kept[1]


def _newest(sides: Sequence[Sequence[Value]]) -> str:
    return max(v.at for side in sides for v in side)


def _side(selection: Selection, values: Sequence[Value]) -> dict[str, Any]:
    return {
        "text": selection.selector.text,
        "meaning": selection.meaning,
        "sweeps": len({v.sweep for v in values}),
        "hosts": len({h for v in values for h in v.subject.hosts or (v.subject.host,)}),
        "runs": len({v.run for v in values}),
        "first_at": min(v.at for v in values),
        "last_at": max(v.at for v in values),
        "sources": sorted({v.subject.source for v in values}),
        "synthetic": any(v.subject.synthetic for v in values),
    }


def _document(
    found: Compared,
    sides: Sequence[dict[str, Any]],
    version: str,
    wanted: Wanted,
    newest: str,
) -> dict[str, Any]:
    cases = case_documents(found.cases)
    counts = collections.Counter(str(c.verdict) for c in found.cases)
    return {
        "a": sides[0],
        "b": sides[1],
        "as_of": wanted.as_of or newest,
        "policy": version,
        "control": wanted.control,
        "forced": wanted.force,
        "design": found.design,
        "verdict": _overall(found),
        "counts": {str(word): counts.get(str(word), 0) for word in Change},
        "cases": cases,
        "left_out": list(found.left_out),
        "inputs_digest": found.inputs_digest,
    }


def _overall(found: Compared) -> str:
    """The word for all cases together: as the exit code says it."""
    if found.exit_code == 1:
        return str(Change.REGRESSED)
    if found.exit_code == 3:
        return str(Change.INCONCLUSIVE)
    words = {c.verdict for c in found.cases}
    return str(Change.IMPROVED if Change.IMPROVED in words else Change.EQUIVALENT)
