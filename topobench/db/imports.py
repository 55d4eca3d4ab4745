"""Stores foreign results, once: the same bytes again change nothing."""

from __future__ import annotations

from dataclasses import dataclass

from topobench import __version__
from topobench.db.columns import now_text
from topobench.db.store import Store
from topobench.db.writer import Stored
from topobench.errors import NotFound
from topobench.importers.cells import (
    Origin,
    cells_and_runs,
    host_key,
    import_host,
    started_at,
    sweep_id,
)
from topobench.importers.document import Document, DocumentStatus


@dataclass(frozen=True, slots=True)
class StoredImport:
    """
    What became of a foreign result in the store.

    Args:
        sweep: Its UUID there.
        cluster: Whose it is, there.
        host: Name of the host, there.
        differs: It was stored before as another's; that stays.
    """

    sweep: str
    status: Stored
    cluster: str
    host: str
    cells: int
    warnings: tuple[str, ...] = ()
    differs: bool = False


def store_import(
    store: Store, document: Document, origin: Origin, *, file: str, digest: str
) -> StoredImport:
    """
    Store a document as a sweep whose source is ``import:<tool>``.

    An import that was cut short is finished.

    Args:
        file: Name of the file, for people.
        digest: SHA-256 of its bytes: the identity of the import.

    Raises:
        ImportFailed: It lacks what makes a result comparable.
        StoreError: The store can't take it.
    """
    id = sweep_id(document.tool, digest)
    before = _before(store, id)
    if before is not None and before[0]["status"] != "running":
        sweep, host, count = before
        differs = (sweep["cluster"], host) != (origin.cluster, origin.host)
        return StoredImport(
            id, Stored.ALREADY_STORED, sweep["cluster"], host, count, differs=differs
        )
    begun, warnings = started_at(document, origin, now_text())
    if before is not None:
        begun = before[0]["started_at"]
    made = cells_and_runs(document, digest, host_key(origin, digest), begun)
    store.begin_sweep(
        id=id,
        cluster=origin.cluster,
        profile="import",
        trigger="manual",
        seed=None,
        tool_version=__version__,
        started_at=begun,
        warnings=[*warnings, *document.reasons],
        labels={"file": file, "sha256": digest, "tool": document.tool},
        source=f"import:{document.tool}",
        hosts=[import_host(origin, digest, begun)],
        cells=[cell for cell, _ in made],
    )
    for _, run in made:
        if run is not None:
            store.put_run(run)
    sound = document.status is not DocumentStatus.INVALID
    store.end_sweep(id, "done" if sound else "failed", ended_at=begun)
    return StoredImport(id, Stored.STORED, origin.cluster, origin.host, len(made), warnings)


def _before(store: Store, id: str) -> tuple[dict[str, str], str, int] | None:
    """The sweep of an earlier import of these bytes, its host, and its cells."""
    try:
        document = store.sweep_document(id)
    except NotFound:
        return None
    return document["sweep"], document["hosts"][0]["name"], len(document["cells"])
