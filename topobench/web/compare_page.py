"""The page that compares: small comparisons at once, larger ones while the visitor waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from topobench.report import figures
from topobench.report.compare_text import point_of
from topobench.report.figures import UNKNOWN, signed_percent
from topobench.report.page.parts import Head, Table
from topobench.report.safe import clean
from topobench.units import count
from topobench.web.comparisons import Question
from topobench.web.pages import MOST_ROWS, rendered, sweep_row

if TYPE_CHECKING:
    from topobench.web.site import Site

AT_ONCE_READINGS = 1500
"""Readings that are compared while the page is made: in about 0.1 s."""
_LOOKING_SECONDS = 0.1
WAITS = "Being compared; it is shown here as soon as it is known."
_FLAGS = ("synthetic", "imported", "force")
_GRAVITY = {"regressed": 0, "inconclusive": 1, "improved": 2, "equivalent": 3}
"""Words of a comparison in the order shown."""


def compare(site: Site, params: Mapping[str, str]) -> tuple[str, bool]:
    """
    Two selections side by side; the form alone until both are given.

    Returns:
        The page, and whether it is whole: without what is still being compared it asks again.

    Raises:
        TopobenchError: They cannot be compared, as the message says.
    """
    question = _question(params)
    found, waits = "", ""
    if question.a and question.b:
        found, waits = _found(site, question)
    page = rendered(
        "compare",
        a=question.a,
        b=question.b,
        params=dict(params),
        found=found,
        waits=waits,
        progress=f"/compare/progress?{urlencode(_asked(question))}",
        recent=[sweep_row(s) for s in site.store().sweeps(limit=30)],
    )
    return page, not waits


def progress(site: Site, params: Mapping[str, str]) -> dict[str, Any]:
    """How far a comparison is, for the page that waits for it."""
    job = site.comparisons.waited_for(_question(params))
    if job is None or job.ended is not None:
        return {"status": "ended", "words": ""}  # or forgotten: the page asks again
    return {"status": "running", "words": WAITS}


def _question(params: Mapping[str, str]) -> Question:
    a, b = params.get("a", "").strip(), params.get("b", "").strip()
    return Question(a, b, **{name: params.get(name) == "1" for name in _FLAGS})


def _asked(question: Question) -> dict[str, str]:
    flags = {name: "1" for name in _FLAGS if getattr(question, name)}
    return {"a": question.a, "b": question.b, **flags}


def _found(site: Site, question: Question) -> tuple[str, str]:
    """What was found, and what is waited for; one of them is empty."""
    from topobench import comparing
    from topobench.db import look

    store = site.store()
    newest = look.newest_run(store)

    def make() -> str:
        flags = {name: getattr(question, name) for name in _FLAGS}
        wanted = comparing.Wanted(**flags)
        return _drawn(comparing.compare(site.url, question.a, question.b, wanted).data)

    if comparing.is_small(store, question.a, question.b, AT_ONCE_READINGS, _LOOKING_SECONDS):
        return site.kept(repr((question, newest)), make), ""
    job = site.comparisons.ask(question, newest)
    if job.ended is None:
        return "", WAITS
    if job.error is not None:
        site.comparisons.told(job)
        raise job.error
    assert job.data is not None
    return _drawn(job.data), ""


def _drawn(found: Mapping[str, Any]) -> str:
    notes = Counter(clean(note) for case in found["cases"] for note in case["notes"])
    told = [f"{count(number, 'case')}: {note}" for note, number in notes.most_common(20)]
    left = [clean(text) for text in found["left_out"]]
    return rendered("compared", found=found, table=_cases(found), notes=told, left=left)


def _cases(found: Mapping[str, Any]) -> Table:
    cases = sorted(found["cases"], key=lambda c: _GRAVITY.get(c["verdict"], len(_GRAVITY)))
    own = any(case["host"] for case in cases)  # else hosts are pooled
    heads = [
        Head("verdict"), Head("case"), Head("arm"), *([Head("on")] if own else []),
        Head("metric"), Head("effect", True), Head("95 % interval", True),
        Head("could be seen from", True), Head("n of A, B", True), Head("why"),
    ]  # fmt: skip
    rows = [_row(case, own) for case in cases]
    styles = ["bad" if case["verdict"] == "regressed" else "" for case in cases]
    return Table(heads, rows, styles=styles).limited(MOST_ROWS)


def _row(case: Mapping[str, Any], own: bool) -> list[str]:
    on = ", ".join([clean(case["host"] or ""), *(clean(d)[:12] for d in case["devices"])])
    interval = f"{signed_percent(case['lo'])} to {signed_percent(case['hi'])}"
    return [
        clean(case["verdict"]),
        ", ".join([clean(case["probe"]), *_params({**case["params"], **point_of(case)})]),
        clean(case["arm"]),
        *([on] if own else []),
        figures.label(case["metric"]),
        signed_percent(case["effect_ratio"]),
        UNKNOWN if case["lo"] is None else interval,
        UNKNOWN if case["mde"] is None else f"{100 * case['mde']:.1f} %",
        f"{case['n_a']}, {case['n_b']}",
        clean(case["reason"] or ""),
    ]


def _params(params: Mapping[str, Any]) -> list[str]:
    return [
        f"{figures.label(k)} {figures.quantity(k, v)}" for k, v in params.items() if v is not None
    ]
