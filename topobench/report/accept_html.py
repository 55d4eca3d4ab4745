"""An acceptance sheet as one HTML file: no network, no script, fit for printing and signing."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.report import figures
from topobench.report.accept_text import STYLES, conditions, interval, percent, requirement
from topobench.report.safe import clean
from topobench.report.words import minute

Document = Mapping[str, Any]

_CSS = """
:root{color-scheme:light}
body{font:14px/1.45 system-ui,sans-serif;color:#18202b;background:#fff;max-width:70rem;
margin:1.5rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.05rem;margin:1.6rem 0 .2rem}
p{margin:.15rem 0}.dim{color:#596575}
table{border-collapse:collapse;width:100%;margin:.5rem 0;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid #dbe1e8;padding:.25rem .5rem;text-align:left;vertical-align:top;
overflow-wrap:anywhere}
th{color:#596575;font-weight:600}.n{text-align:right;white-space:nowrap}
.a{font-weight:700;white-space:nowrap}
.pass{color:#1c7a44}.fail,.impossible{color:#b3162f}.inconclusive,.not-measured{color:#8a5a00}
.stamp{border:2px solid currentColor;border-radius:.4rem;display:inline-block;padding:.2rem .8rem;
font-size:1.2rem;text-transform:uppercase}
code{font-size:.85em;overflow-wrap:anywhere}
.sign td{height:3rem;width:33%}
@media print{body{margin:0;max-width:none;font-size:11px}h2{break-after:avoid}
tr{break-inside:avoid}}
"""
_HEAD = ("on", "value", "interval (95 %)", "MDE", "n", "hardware limit", "answer", "why")


def accept_page(data: Document) -> str:
    """The ``data`` of accept/1 as a page; every text is escaped."""
    return "\n".join(_page(data)) + "\n"


def _page(data: Document) -> Iterator[str]:
    title = f"Acceptance: {data['criteria']['name']}"
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield (
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    )
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_text(title)}</title><style>{_CSS}</style></head><body>"
    yield f"<h1>{_text(title)}</h1>"
    yield f'<p class="stamp {_class(data["answer"])}">{_text(data["answer"])}</p>'
    yield from _facts(data)
    for warning in data["warnings"]:
        yield f'<p class="inconclusive">Warning: {_text(warning)}</p>'
    for number, rule in enumerate(data["rules"], 1):
        yield from _rule(number, rule)
    yield from _foot()
    yield "</body></html>"


def _facts(data: Document) -> Iterator[str]:
    sweep, criteria = data["sweep"], data["criteria"]
    hosts = ", ".join(f"{h['name']} ({h['sku'] or 'SKU unknown'})" for h in data["hosts"][:20])
    more = len(data["hosts"]) - 20
    counts = ", ".join(f"{data['counts'][w]} {w}" for w in STYLES if data["counts"][w])
    pairs = [
        ("Answers", counts),
        ("Cluster", sweep["cluster"]),
        ("Hosts", hosts + (f" and {more} more" if more > 0 else "")),
        ("Measured", f"{minute(sweep['started_at'])} UTC, profile {sweep['profile']}"),
        ("Sweep", sweep["id"]),
        ("topobench", sweep["tool_version"]),
        ("Criteria", f"{criteria['file']}, SHA-256 {criteria['sha256']}"),
        ("Inputs", f"SHA-256 {data['inputs_digest']}"),
    ]
    yield "<table>"
    for name, value in pairs:
        yield f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"
    yield "</table>"


def _rule(number: int, rule: Document) -> Iterator[str]:
    word = rule["answer"]
    answer = f'<span class="a {_class(word)}">{_text(word)}</span>'
    yield f"<h2>{number}. {_text(rule['name'])} {answer}</h2>"
    yield f'<p class="dim">{_text(conditions(rule))}</p><p>{_text(requirement(rule))}</p>'
    yield "<table><thead><tr>" + "".join(f"<th>{_text(h)}</th>" for h in _HEAD) + "</tr></thead>"
    yield "<tbody>"
    for answer in rule["answers"]:
        yield _row(rule, answer)
    yield "</tbody></table>"


def _row(rule: Document, answer: Document) -> str:
    metric = rule["metric"]
    numbers: Sequence[str] = (
        figures.quantity(metric, answer["value"]),
        interval(rule, answer),
        percent(answer["mde"]),
        str(answer["n"]),
        figures.quantity(metric, answer["ceiling"]),
    )
    word = answer["answer"]
    why = "; ".join([answer["reason"], *answer["notes"]])
    cells = [f"<td>{_text(answer['subject'])}</td>"]
    cells += [f'<td class="n">{_text(n)}</td>' for n in numbers]
    cells += [f'<td class="a {_class(word)}">{_text(word)}</td>', f"<td>{_text(why)}</td>"]
    return f"<tr>{''.join(cells)}</tr>"


def _foot() -> Iterator[str]:
    yield (
        '<p class="dim">pass and fail: the whole interval is on one side of the limit. '
        "n: processes, or hosts. MDE: the smallest distance from the limit that would have been "
        "seen nine times in ten. GB/s = 1e9 bytes a second.</p>"
    )
    yield '<table class="sign"><tr><th>Supplier</th><th>Customer</th><th>Date</th></tr>'
    yield "<tr><td></td><td></td><td></td></tr></table>"


def _text(value: Any) -> str:
    return html.escape(clean(value))


def _class(word: str) -> str:
    return word.replace(" ", "-")
