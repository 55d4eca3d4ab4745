"""What a cell's windows allow: warnings, and why its numbers must not be used. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topobench.errors import ProbeError, ResultInvalid
from topobench.probes.serving_search import Search
from topobench.probes.serving_session import Result
from topobench.probes.serving_windows import Window
from topobench.reading import ReasonCode

MOST_FAILED = 0.05
"""Share of failed requests above which the others say nothing of the server."""
EXACT_SHARE = 0.99
"""Of the prompts and answers that have the tokens asked for."""


def usable(windows: Sequence[Window]) -> list[Window]:
    """Those whose times and rates may be used: valid, and of a load that the server answered."""
    found = []
    for load in dict.fromkeys(w.load for w in windows):
        own = [w for w in windows if w.valid and w.load == load]
        if sum(w.error_count for w in own) <= MOST_FAILED * sum(w.n for w in own):
            found += own
    return found


def warnings(result: Result) -> Iterator[str]:
    """What does not spoil the numbers but must be known beside them."""
    windows = result.windows
    if result.told["tokens_from"] == "chunks":
        text = "the server counts no tokens; chunks with text are counted, which may hold several"
        yield f"tokens_not_told: {text}"
    for window in windows:
        if any(w.valid for w in windows):
            yield from (f"{code}: a window is not valid: {text}" for code, text in window.faults)
        if window.valid and window.error_count > window.limits.errors * window.n:
            kinds = ", ".join(f"{k} {n}" for k, n in sorted(window.errors.items()))
            yield f"requests_failed: {window.error_count} of {window.n} ({kinds})"
        for share, what in ((window.exact_ratio, "prompts"), (window.whole_ratio, "answers")):
            if share is not None and share < EXACT_SHARE:
                text = f"{share:.1%} of the {what} have as many tokens as asked for"
                yield f"{what}_not_exact: {text}"
        if window.at_once > (1 - EXACT_SHARE) * window.answered:
            text = f"{window.at_once} of {window.answered} answers of several tokens came at once"
            yield f"tokens_at_once: {text}, so they have no TPOT; does a proxy keep them back?"


def refuse(result: Result) -> None:
    """
    Refuse a cell without a window that may be used.

    Raises:
        ResultInvalid: Says what was wrong with the first of them.
        ProbeError: No request was answered.
    """
    windows = result.windows
    if windows and not any(w.answered for w in windows):
        given_up = any(w.given_up for w in windows)
        none = "too many were in flight before the first window" if given_up else "none was sent"
        kinds = ", ".join(sorted({k for w in windows for k in w.errors})) or none
        raise ProbeError(ReasonCode.REQUESTS_FAILED, f"no request was answered: {kinds}")
    known = [w for w in windows if w.valid or (result.search and w.meets is not None)]
    if not known:
        code, text = _worst(windows)
        raise ResultInvalid(code, text)
    if result.search is not None and result.search.best is None:
        _refuse_search(result.search, windows)
    if result.search is None and not usable(windows):
        kinds = ", ".join(sorted({k for w in known for k in w.errors}))
        failed, n = sum(w.error_count for w in known), sum(w.n for w in known)
        text = f"{failed} of {n} requests failed ({kinds})"
        raise ResultInvalid(ReasonCode.REQUESTS_FAILED, text)


def _refuse_search(search: Search, windows: Sequence[Window]) -> None:
    if search.ended == "none":
        text = f"even {search.first_over:g} was over the limit; raise the limit, or start lower"
        raise ResultInvalid(ReasonCode.UNTIMEABLE, text)
    if search.ended == "not judged":
        code, text = _worst(windows)
        raise ResultInvalid(code, text)
    text = f"no load held its windows in a row after {search.windows} windows"
    raise ResultInvalid(ReasonCode.UNSTEADY, text)


def _worst(windows: Sequence[Window]) -> tuple[ReasonCode, str]:
    for window in reversed(windows):
        if window.faults:
            return window.faults[0]
    text = "no window held enough requests for a P99; take longer windows (most_window)"
    return ReasonCode.UNSTEADY, text
