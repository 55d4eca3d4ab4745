"""``topobench accept``: a criteria file and a sweep in, :class:`Outcome` out."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topobench import accept_criteria
from topobench.accept import judge, overall
from topobench.accept_criteria import Criteria, Rule
from topobench.accept_words import AcceptHost, Answer, Evidence, Found, Judged, Planned
from topobench.commands import Outcome
from topobench.compare_select import Selector
from topobench.errors import TopobenchError, UsageError
from topobench.measured import Value, inputs_digest

if TYPE_CHECKING:
    from topobench.db.source import Source

_EXIT_CODES = {Answer.PASS: 0, Answer.INCONCLUSIVE: 1, Answer.FAIL: 2}


def accept(
    store_url: str,
    sweep: str,
    criteria: Path,
    *,
    html: Path | None = None,
    imported: bool = False,
    synthetic: bool = False,
) -> Outcome:
    """
    Hold a sweep against acceptance criteria.

    Args:
        sweep: Id, unique beginning, or ``latest``.
        html: Where to write the sheet as a page; None for none.
        imported: Take a sweep of another tool's results.
        synthetic: Take a sweep made by ``demo``.

    Raises:
        ConfigError: The criteria are wrong; every mistake is named.
        UsageError: The sweep is imported or synthetic, and that was not asked for.
    """
    from topobench.db import source
    from topobench.report.accept_html import accept_page
    from topobench.report.accept_text import render_accept

    rules = accept_criteria.load(criteria)
    with source.opened(store_url) as opened:
        document = opened.document(sweep)
        references = _references(opened, rules)
        for told in (document["sweep"], *references.values()):
            _require_asked(told, imported=imported, synthetic=synthetic)
        evidence = _evidence(opened, document, references)
    judged = judge(rules, evidence)
    answer = overall(judged)
    data = _document(document, rules, judged, references)
    data["inputs_digest"] = inputs_digest(
        [*evidence.values, *(v for values in evidence.references.values() for v in values)],
        rules.sha256,
        {h.key: dict(h.topology.fingerprints) if h.topology else None for h in evidence.hosts},
    )
    if html is not None:
        _write(html, accept_page(data))
    return Outcome(
        data,
        lambda: render_accept(data),
        exit_code=_EXIT_CODES[answer],
        status=str(answer),
        warnings=data["warnings"],
    )


def _require_asked(sweep: Mapping[str, Any], *, imported: bool, synthetic: bool) -> None:
    for is_so, asked, flag, what in (
        (sweep["source"].startswith("import:"), imported, "imported", "holds another tool's"),
        (sweep["synthetic"], synthetic, "synthetic", "holds made-up"),
    ):
        if is_so and not asked:
            raise UsageError(
                f"sweep {sweep['id'][:8]} {what} results; --{flag} judges them all the same"
            )


def _references(source: Source, criteria: Criteria) -> dict[str, Mapping[str, Any]]:
    """The sweep of each reference, by the text of the rule."""
    texts = sorted({r.reference for r in criteria.rules if r.reference is not None})
    return {text: source.sweep(text) for text in texts}


def _evidence(
    source: Source, document: Mapping[str, Any], references: Mapping[str, Mapping[str, Any]]
) -> Evidence:
    """What is judged, and what it is held against."""
    sweep, cluster = document["sweep"]["id"], document["sweep"]["cluster"]
    topologies = source.topologies(sweep)
    for text, told in references.items():
        if told["id"] == sweep:
            raise UsageError(f"non_inferior_to: {text} is the sweep that is judged")
    return Evidence(
        cluster=cluster,
        hosts=tuple(
            AcceptHost(f"{cluster}/{h['key']}", h["name"], h["sku"], topologies.get(h["key"]))
            for h in document["hosts"]
        ),
        values=_values(source, sweep),
        cells=tuple(
            Planned(
                host=f"{cluster}/{c['host']}",
                probe=c["probe"],
                params=c["params"],
                arm=c["arm"],
                devices=tuple(c["devices"]),
                status=c["status"],
                reason=c["reason"],
            )
            for c in document["cells"]
        ),
        references={text: _values(source, told["id"]) for text, told in references.items()},
    )


def _values(source: Source, sweep: str) -> Sequence[Value]:
    selection = source.resolve(Selector(f"sweep:{sweep}", {"sweep": (sweep,)}))
    return source.measured(selection, imported=True, synthetic=True).values


def _document(
    document: Mapping[str, Any],
    criteria: Criteria,
    judged: Sequence[Judged],
    references: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    sweep = document["sweep"]
    counts = collections.Counter(str(f.answer) for j in judged for f in j.found)
    return {
        "sweep": {
            k: sweep[k]
            for k in (
                *("id", "cluster", "profile", "status", "tool_version", "started_at"),
                *("ended_at", "source", "synthetic"),
            )
        },
        "as_of": sweep["ended_at"] or sweep["started_at"],
        "criteria": {
            "name": criteria.name,
            "file": criteria.file,
            "sha256": criteria.sha256,
        },
        "hosts": [
            {k: h[k] for k in ("key", "name", "sku", "fingerprints")} for h in document["hosts"]
        ],
        "answer": str(overall(judged)),
        "counts": {str(word): counts.get(str(word), 0) for word in Answer},
        "rules": [_rule(j, references) for j in judged],
        "warnings": _warnings(sweep),
    }


def _warnings(sweep: Mapping[str, Any]) -> list[str]:
    found = list(sweep["warnings"])
    if sweep["status"] != "done":
        found.append(f"the sweep is {sweep['status']}: what it did not measure does not pass")
    if sweep["synthetic"]:
        found.append("these results were made by demo, not measured")
    if sweep["source"].startswith("import:"):
        found.append(f"these results are of another tool ({sweep['source']})")
    return found


def _rule(judged: Judged, references: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    rule: Rule = judged.rule
    return {
        "name": rule.name,
        "where": rule.place,
        "probe": rule.probe,
        "metric": rule.metric.name,
        "unit": rule.metric.unit,
        "conditions": dict(rule.params),
        "arm": rule.arm,
        "each": rule.each,
        "statistic": rule.statistic,
        "sku": rule.sku,
        "op": rule.op,
        "value": rule.value,
        "non_inferior_to": None if rule.reference is None else references[rule.reference]["id"],
        "margin": rule.margin,
        "answer": str(judged.answer),
        "answers": [_answer(f) for f in judged.found],
    }


def _answer(found: Found) -> dict[str, Any]:
    return {
        "subject": found.subject,
        "host": found.host,
        "devices": list(found.devices),
        "params": dict(found.params),
        "arm": found.arm,
        "answer": str(found.answer),
        "reason": found.reason,
        "value": found.value,
        "lo": found.lo,
        "hi": found.hi,
        "effect_ratio": found.effect_ratio,
        "unit_of": found.unit_of,
        "n": found.n,
        "n_samples": found.n_samples,
        "mde": found.mde,
        "ceiling": found.ceiling,
        "ceiling_source": found.ceiling_source,
        "notes": list(found.notes),
        "runs": list(found.runs),
    }


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TopobenchError(f"--html {path}: cannot be written: {error.strerror}") from error
