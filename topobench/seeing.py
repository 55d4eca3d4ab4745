"""What ``report --html``, ``advise`` and ``serve`` do, without printing."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topobench.commands import Outcome
from topobench.config import DEFAULT_NAME
from topobench.errors import NotFound, StoreUnreachable, TopobenchError, UsageError
from topobench.extras import install_line
from topobench.report.safe import clean

if TYPE_CHECKING:
    from topobench.advice import Advice
    from topobench.db.store import Store
    from topobench.report.page import Sight


def report_page(
    store_url: str,
    sweep: str,
    target: Path,
    hosts: Sequence[str] = (),
    *,
    as_of: str | None = None,
) -> Outcome:
    """
    Write a stored sweep as one HTML file; an older file of that name is replaced.

    Args:
        hosts: Names or keys of the hosts to show in detail; empty: those that stand out.
        as_of: Nothing younger counts: neither sweeps for ``latest`` nor verdicts.

    Raises:
        TopobenchError: The file cannot be written.
    """
    from topobench.db import selecting
    from topobench.db.store import Store
    from topobench.report.page import render_report
    from topobench.report.show import whole_line

    until = None if as_of is None else selecting.moment(as_of)
    with Store.open(store_url, create=False, read_only=True) as store:
        sight = sight_of(store, sweep, only=hosts, until=until)
    text = render_report(sight)
    write_whole(target, text)
    size = f"{len(text.encode()) / 1e6:.1f} MB"
    return Outcome(
        sight.document,
        lambda: whole_line(f"wrote {target} ({size}); open it in a browser"),
        status=sight.document["sweep"]["status"],
        warnings=sight.document["sweep"]["warnings"],
    )


def sight_of(
    store: Store,
    sweep: str,
    *,
    only: Sequence[str] = (),
    host: str | None = None,
    until: str | None = None,
) -> Sight:
    """
    What the page of a sweep is made of.

    Args:
        only: Names or keys of the hosts to show in detail.
        host: Key of the one host to read; None for all.
        until: Time as stored: sweeps for ``latest``, and verdicts, that are younger do not count.
    """
    from topobench.db import look
    from topobench.report.page import Sight

    found = store.resolve_sweep(sweep, until)
    look.check_keys(store, found)
    document = store.sweep_document(found, host=host)
    return Sight(
        document,
        look.topologies(store, found, None if host is None else [host]),
        look.verdicts(store, found, host, until),
        only,
    )


def write_whole(target: Path, text: str) -> None:
    """
    Write a file so that it is never seen half written.

    Raises:
        TopobenchError: It cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise TopobenchError(
            f"{target} cannot be written: {error.strerror}; name another file"
        ) from error


def serve(
    store_url: str,
    host: str,
    port: int,
    *,
    token_file: Path | None,
    ready: Callable[[str], None],
    whatever_store: bool = False,
) -> Outcome:
    """
    Serve the store as web pages until SIGINT or SIGTERM.

    Args:
        ready: Is told where, once it listens.
        whatever_store: Also one that cannot be used, which pages tell; else only one that is away
            or not there yet.

    Raises:
        UsageError: Others could read it and no token is set; or a package is missing.
        StoreError: The store cannot be used.
        TopobenchError: The address cannot be listened on.
    """
    from rich.text import Text

    try:
        from topobench.web import app
    except ImportError as error:
        raise UsageError(
            f"{error.name} is not installed; serve needs: {install_line('web')}"
        ) from error
    from topobench.masking import mask_urls

    address = app.Address.of(host, port, token_file)
    if not whatever_store:
        _check_store(store_url)
    where = app.serve(store_url, address, ready)
    data = {"url": where, "store": mask_urls(store_url)}
    return Outcome(data, lambda: Text("stopped"))


def _check_store(store_url: str) -> None:
    """
    Refuse a store that no wait mends.

    Raises:
        StoreError: It is there and cannot be read: no store, damaged, of another schema.
    """
    from topobench.db.store import Store

    with contextlib.suppress(NotFound, StoreUnreachable):  # pages tell it until it comes
        Store.open(store_url, create=False, read_only=True).close()


def advise(store_url: str, host: str | None, sweep: str | None, folder: Path) -> Outcome:
    """
    What to do with a host, from what a sweep measured on it; ring files are written.

    Args:
        host: Name or key; None: the only one of the sweep.
        sweep: Id, unique beginning or ``latest``; None: the newest that ended and holds the host.
        folder: Where ring files go.

    Raises:
        UsageError: The host is not known, or several could be meant.
        TopobenchError: A file cannot be written.
    """
    from topobench.advice import advise as advice_on
    from topobench.db.store import Store
    from topobench.report.advice_text import render_advice
    from topobench.report.gpu_limits import roofline_document
    from topobench.report.page.wiring import names_of
    from topobench.report.records import Places

    with Store.open(store_url, create=False, read_only=True) as store:
        found, key = _sweep_and_host(store, host, sweep)
        sight = sight_of(store, found, host=key)
    document = sight.document
    items = advice_on(document, names_of(sight.topologies).get(key), sight.verdicts)
    own = document["hosts"][0]
    data = {
        "host": {
            "key": key,
            "name": own["name"],
            "cluster": document["cluster"],
            "sku": own["sku"] or own["description"].get("sku"),
        },
        "sweep": found,
        "sweep_status": document["sweep"]["status"],
        "measured_at": document["sweep"]["started_at"],
        "synthetic": bool(document["sweep"]["synthetic"]),
        "advice": [_advice_document(item, folder) for item in items],
        "roofline": roofline_document(document["cells"], Places.of(document["hosts"])),
    }
    for piece in (*data["advice"], *data["roofline"]["unknown"]):
        piece["lines"] = [_aimed(line, data["host"]) for line in piece["lines"]]
    return Outcome(data, lambda: render_advice(data), warnings=document["sweep"]["warnings"])


def _aimed(line: str, host: Mapping[str, Any]) -> str:
    """A command that measures, at the host of a cluster: by itself it would measure this one."""
    probe, cluster = "topobench probe", " --cluster cluster.yaml"
    if host["cluster"] == DEFAULT_NAME or not line.startswith(f"{probe} "):
        return line
    rest = line.removeprefix(probe).replace(cluster, "")
    return f"{probe}{cluster} --hosts {shlex.quote(clean(host['name']))}{rest}"


def _sweep_and_host(store: Store, host: str | None, sweep: str | None) -> tuple[str, str]:
    """The sweep to read and the key of the host in it."""
    from topobench.db import look

    if sweep is None and host is not None:
        sweep = look.newest_of_host(store, host)
        if sweep is None:
            raise UsageError(
                f"host {host!r} took part in no sweep that ended; `topobench query coverage` lists "
                "the hosts, `topobench probe` measures"
            )
    found = store.resolve_sweep(sweep or "latest")
    hosts = look.sweep_hosts(store, found)
    chosen = [
        h for h in hosts if host is None or host.lower() in (h["name"].lower(), h["key"].lower())
    ]
    if len(chosen) == 1:
        return found, chosen[0]["key"]
    told = [h["key"] if host else h["name"] for h in chosen or hosts]
    names = ", ".join(told[:10]) + (f" and {len(told) - 10} more" if len(told) > 10 else "")
    if not chosen:
        raise UsageError(f"host {host!r} is not in sweep {found[:8]}; it has {names}")
    raise UsageError(f"sweep {found[:8]} has {len(chosen)} hosts; name one of {names}")


def _advice_document(item: Advice, folder: Path) -> dict[str, Any]:
    """A piece of advice as JSON; its ring file is written, with the lines that use it."""
    lines, file = list(item.lines), None
    if item.ring is not None:
        file = folder / f"{item.ring.name}.xml"
        write_whole(file, item.ring.text)
        absolute = file.absolute()
        settings = {"NCCL_GRAPH_FILE": str(absolute), **item.ring.variables}
        lines = [f"export {k}={shlex.quote(v)}" for k, v in settings.items()]
        said = [
            f"# {clean(item.text)}",
            f"# valid only for {', '.join(map(clean, item.ring.valid_for))}",
        ]
        write_whole(folder / f"{item.ring.name}.env", "\n".join([*said, *lines, ""]))
    return {
        "kind": item.kind,
        "subject": item.subject,
        "devices": list(item.devices),
        "outlook": item.outlook.value,
        "text": item.text,
        "lines": lines,
        "effect_ratio": item.effect_ratio,
        "lo": item.lo,
        "hi": item.hi,
        "mde": item.mde,
        "evidence": item.evidence,
        "file": None if file is None else str(file),
        "valid_for": list(item.ring.valid_for) if item.ring else [],
    }
