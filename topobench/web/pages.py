"""The pages: what each shows, read from the store when it is asked for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from topobench import __version__
from topobench.errors import NotFound
from topobench.report import words
from topobench.report.figures import UNKNOWN
from topobench.report.page.page import Sight, environment, heading, sections
from topobench.report.page.parts import Figure, Head, Section, Table
from topobench.report.safe import clean
from topobench.units import count, format_span

if TYPE_CHECKING:
    from topobench.db.queries import Query
    from topobench.db.store import Store
    from topobench.web.site import Site

FOLDER = Path(__file__).parent / "templates"
STALE_SECONDS = 14 * 86_400.0
"""Older data says nothing of a host any more."""
MOST_ROWS = 500
"""Rows of a query's answer on a page; its CSV has them all."""
_MOST_NAMED = 20
"""Hosts of a sweep whose bad GPUs are called by their indices, not by the start of a UUID."""
_FINAL = frozenset({"done", "interrupted", "failed"})
_TILES_FROM = 12


def compile_templates() -> None:
    """All of them, before the first visitor."""
    engine = environment(FOLDER)
    for name in engine.list_templates(extensions=("html",)):
        engine.get_template(name)


def rendered(name: str, **values: Any) -> str:
    """A template of this package with what all have."""
    known = {"version": __version__, "page": name, **values}
    return environment(FOLDER).get_template(f"{name}.html").render(known)


def overview(site: Site, params: Mapping[str, str]) -> str:
    """The fleet: hosts and verdicts, and the newest sweeps."""
    from topobench.db import look

    store = site.store()
    look.check_keys(store)
    hosts = [_host(h, time.time()) for h in look.fleet(store)]
    text, level = params.get("q", "").strip(), params.get("level", "")
    fitting = [h for h in hosts if _fits(h, text.lower()) and level in ("", h["level"])]
    shown = sorted(fitting, key=lambda h: _LEVELS.index(h["level"]))
    counts = Counter(h["level"] for h in hosts)
    return rendered(
        "overview",
        hosts=shown,
        total=len(hosts),
        counts={k: counts[k] for k in _LEVELS if counts[k]},
        levels=_LEVELS,
        text=text,
        level=level,
        tiles=len(shown) >= _TILES_FROM,
        sweeps=[sweep_row(s) for s in store.sweeps(limit=10)],
        synthetic=any(h["synthetic"] for h in hosts),
        store=store.url,
    )


_LEVELS = ("fail", "degraded", "watch", "stale", "unknown", "learning", "ok", "not judged")
"""Worst first: levels of verdicts, and what has none or an old one."""


def _host(host: Mapping[str, Any], now: float) -> dict[str, Any]:
    measured = host["measured_unix_seconds"]
    age = None if measured is None else max(0.0, now - measured)
    level = host["level"] or "not judged"
    if age is not None and age > STALE_SECONDS:
        level = "stale"
    return {
        **{k: clean(host[k]) if host[k] else "" for k in ("cluster", "name", "sku", "rack")},
        "link": _host_link(host["cluster"], host["key"]),
        "level": level,
        "class": level.replace(" ", "-"),
        "age": "never" if age is None else f"{format_span(age)} ago",
        "seconds": -1 if age is None else age,
        "synthetic": host["synthetic"],
        "sweep": host["sweep"],
        "sweep_status": host["sweep_status"] or "",
    }


def _fits(host: Mapping[str, Any], text: str) -> bool:
    return any(text in str(host[k]).lower() for k in ("name", "cluster", "sku", "rack"))


def _host_link(cluster: str, key: str) -> str:
    return f"/host?{urlencode({'cluster': cluster, 'key': key})}"


def sweep_row(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """A sweep as lists show it."""
    return {
        "id": clean(sweep["id"]),
        "short": clean(sweep["id"])[:8],
        "cluster": clean(sweep.get("cluster", "")),
        "profile": clean(sweep["profile"]),
        "status": clean(sweep["status"]),
        "started": words.minute(sweep["started_at"]),
        "took": words.took(sweep),
        "counts": words.counts_text(sweep["counts"]) if "counts" in sweep else "",
        "synthetic": sweep.get("synthetic", False),
    }


def sweeps(site: Site) -> str:
    """The newest sweeps."""
    from topobench.db import look

    store = site.store()
    look.check_keys(store)
    found = [sweep_row(s) for s in store.sweeps(limit=200)]
    return rendered("sweeps", sweeps=found)


def host(site: Site, params: Mapping[str, str]) -> str:
    """
    A host: its newest sweep in figures, and the sweeps it took part in.

    Raises:
        NotFound: No such host.
    """
    from topobench.db import look

    store = site.store()
    look.check_keys(store)
    cluster, key = params.get("cluster", ""), params.get("key", "")
    known = [h for h in look.fleet(store) if (h["cluster"], h["key"]) == (cluster, key)]
    if not known:
        raise NotFound(
            f"no host {clean(key)!r} in cluster {clean(cluster)!r}; the first page lists them"
        )
    own = look.host_sweeps(store, cluster, key)
    newest = next((s for s in own if s["status"] != "running"), own[0] if own else None)
    body = "" if newest is None else _figures(site, newest["id"], newest["status"], key)
    return rendered(
        "host",
        host=_host(known[0], time.time()),
        key=clean(key),
        sweeps=[sweep_row(s) for s in own],
        newest=None if newest is None else sweep_row(newest),
        body=body,
    )


def sweep(site: Site, identity: str, params: Mapping[str, str]) -> str:
    """
    A sweep: of one host in figures; of several, its hosts and their cells.

    Args:
        params: ``host``: key of the host to show in figures.

    Raises:
        NotFound: No such sweep, or no such host in it.
    """
    from topobench.db import look

    store = site.store()
    look.check_keys(store)  # first: a sweep without its cluster is not found
    progress = look.progress(store, identity)
    look.check_keys(store, progress["id"])
    hosts = look.sweep_hosts(store, progress["id"])
    wanted = params.get("host")
    if wanted is not None and wanted not in {h["key"] for h in hosts}:
        raise NotFound(f"host {clean(wanted)!r} took no part in sweep {progress['id'][:8]}")
    chosen = wanted or (hosts[0]["key"] if len(hosts) == 1 else None)
    body = "" if chosen is None else _figures(site, progress["id"], progress["status"], chosen)
    return rendered(
        "sweep",
        sweep={"id": progress["id"], "short": progress["id"][:8], **_how_far(progress)},
        hosts=_hosts_table(hosts, progress["id"]) if chosen is None else None,
        judged=[] if chosen is not None else [_judged(store, progress["id"])],
        chosen=next((clean(h["name"]) for h in hosts if h["key"] == chosen), ""),
        several=len(hosts) > 1,
        body=body,
    )


def _how_far(progress: Mapping[str, Any]) -> dict[str, Any]:
    counts = progress["counts"]
    total = sum(counts.values())
    done = total - counts.get("planned", 0)
    return {
        "status": clean(progress["status"]),
        "share": done / total if total else 0.0,
        "words": f"{done} of {count(total, 'cell')}: {words.counts_text(counts)}",
    }


def progress(site: Site, identity: str) -> dict[str, Any]:
    """How far a sweep is, for the page that shows it."""
    from topobench.db import look

    return _how_far(look.progress(site.store(), identity))


def _hosts_table(hosts: Sequence[Mapping[str, Any]], sweep_id: str) -> list[dict[str, Any]]:
    return [
        {
            "name": clean(h["name"]),
            "address": clean(h["address"] or ""),
            "sku": clean(h["sku"] or UNKNOWN),
            "counts": words.counts_text(h["counts"]),
            "bad": any(h["counts"].get(s) for s in ("failed", "timeout", "aborted", "invalid")),
            "link": f"/sweep/{quote(sweep_id)}?{urlencode({'host': h['key']})}",
        }
        for h in hosts
    ]


def _judged(store: Store, sweep_id: str) -> Section:
    """The verdicts on all hosts of a sweep, or the command that makes them."""
    from topobench.db import look
    from topobench.report.page.judged import judged
    from topobench.report.page.wiring import names_of
    from topobench.report.records import Places

    verdicts = look.verdicts(store, sweep_id)
    bad = dict.fromkeys(v["host"] for v in verdicts if v["device"] and v["level"] != "ok")
    wired = names_of(look.topologies(store, sweep_id, [*bad][:_MOST_NAMED])).values()
    gpus = {
        g.uuid: f"GPU {g.index}" for t in wired for g in t.gpus if g.uuid and g.index is not None
    }
    return Section("verdicts", "Verdicts", tuple(judged(verdicts, Places({}, gpus), sweep_id)))


def _figures(site: Site, sweep_id: str, status: str, key: str) -> str:
    """The sections of a host in a sweep; kept once the sweep has ended."""

    def make() -> str:
        from topobench.db import look

        store = site.store()
        look.check_keys(store, sweep_id)
        sight = Sight(
            store.sweep_document(sweep_id, host=key),
            look.topologies(store, sweep_id, [key]),
            look.verdicts(store, sweep_id, key),
        )
        found = sections(sight)
        charts = any(isinstance(p, Figure) for s in found for p in s.parts)
        return rendered("figures", head=heading(sight.document), sections=found, charts=charts)

    from topobench.db import look

    judged = len(look.verdicts(site.store(), sweep_id, key))
    return site.kept(f"{sweep_id} {key} {judged}", make) if status in _FINAL else make()


def queries(site: Site) -> str:
    """Every named query."""
    from topobench.db.queries import list_queries

    return rendered("queries", queries=list_queries())


def query(site: Site, name: str, params: Mapping[str, str]) -> str:
    """
    A named query: its form, and its answer once it was sent.

    Raises:
        UsageError: No such query, or a value that does not parse.
    """
    from topobench.db.queries import load, run_query, why_empty
    from topobench.report.tables_text import query_sheet

    found = load(name)
    given = _given(found, params)
    answer = run_query(site.store(), name, given) if "run" in params else None
    rows: Sequence[Sequence[Any]] = () if answer is None else answer.rows[:MOST_ROWS]
    table = None
    why: list[str] = []
    if answer is not None:
        why = [] if rows else why_empty(site.store(), given)
        sheet = query_sheet(answer.columns, rows)
        heads = [Head(c.name, c.number) for c in sheet.columns]
        shown = [[text.strip() for text in row] for row in sheet.rows]
        table = Table(heads, shown, cut=len(answer.rows) - len(rows), dense=True)
    return rendered(
        "query",
        query=found,
        given={p.name: given.get(p.name, p.default) for p in found.parameters},
        table=table,
        total=None if answer is None else len(answer.rows),
        why=why,
        csv=f"/query/{quote(name)}.csv?{urlencode(given)}",
        empty=not site.store().sweeps(limit=1),
    )


def query_csv(site: Site, name: str, params: Mapping[str, str]) -> str:
    """The whole answer of a named query as CSV."""
    from topobench.db.queries import load, run_query
    from topobench.report.tables_text import query_csv as written

    answer = run_query(site.store(), name, _given(load(name), params))
    return written(answer.columns, answer.rows)


def _given(found: Query, params: Mapping[str, str]) -> dict[str, str]:
    """The parameters that a form filled in."""
    names = {p.name for p in found.parameters}
    return {k: v for k, v in params.items() if k in names and v.strip()}


def form_of(path: str, params: Mapping[str, str]) -> str:
    """The address of the form that was sent, filled in as it was; empty where there is none."""
    from topobench.db.queries import list_queries

    if path == "/compare":
        return path
    name = path.removeprefix("/query/")
    if name == path:
        return ""
    if name not in {q.name for q in list_queries()}:
        return "/query"
    return f"{path}?{urlencode({k: v for k, v in params.items() if k != 'run'})}"


def trouble(title: str, text: str, hint: str = "", form: str = "") -> str:
    """A page that says what is wrong and what to do."""
    return rendered("trouble", title=title, text=clean(text), hint=hint, form=form)
