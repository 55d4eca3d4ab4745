"""What ``report --html``, ``advise`` and ``serve`` do, without printing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from topobench.commands import Outcome
from topobench.errors import TopobenchError, UsageError

if TYPE_CHECKING:
    from topobench.db.store import Store
    from topobench.report.page import Sight


def report_page(store_url: str, sweep: str, target: Path, hosts: Sequence[str] = ()) -> Outcome:
    """
    Write a stored sweep as one HTML file; an older file of that name is replaced.

    Args:
        hosts: Names or keys of the hosts to show in detail; empty: those that stand out.

    Raises:
        TopobenchError: The file cannot be written.
    """
    from rich.text import Text

    from topobench.db.store import Store
    from topobench.report.page import render_report

    with Store.open(store_url, create=False, read_only=True) as store:
        sight = sight_of(store, sweep, only=hosts)
    text = render_report(sight)
    write_whole(target, text)
    size = f"{len(text.encode()) / 1e6:.1f} MB"
    return Outcome(
        sight.document,
        lambda: Text(f"wrote {target} ({size}); open it in a browser"),
        status=sight.document["sweep"]["status"],
        warnings=sight.document["sweep"]["warnings"],
    )


def sight_of(
    store: Store, sweep: str, *, only: Sequence[str] = (), host: str | None = None
) -> Sight:
    """
    What the page of a sweep is made of.

    Args:
        only: Names or keys of the hosts to show in detail.
        host: Key of the one host to read; None for all.
    """
    from topobench.db import look
    from topobench.report.page import Sight

    document = store.sweep_document(store.resolve_sweep(sweep), host=host)
    found = document["sweep"]["id"]
    return Sight(
        document,
        look.topologies(store, found, None if host is None else [host]),
        look.verdicts(store, found, host),
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
) -> Outcome:
    """
    Serve the store as web pages until SIGINT or SIGTERM.

    Args:
        ready: Is told where, once it listens.

    Raises:
        UsageError: Others could read it and no token is set; or a package is missing.
        TopobenchError: The address cannot be listened on.
    """
    from rich.text import Text

    try:
        from topobench.web import app
    except ImportError as error:
        raise UsageError(
            f"{error.name} is not installed; serve needs: pip install 'topobench[web]'"
        ) from error
    from topobench.masking import mask_urls

    address = app.Address.of(host, port, token_file)
    where = app.serve(store_url, address, ready)
    data = {"url": where, "store": mask_urls(store_url)}
    return Outcome(data, lambda: Text("stopped"))
