"""The body of ``topobench import``: files in, :class:`Imported` out, foreign results stored."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topobench import user_files
from topobench.errors import ImportFailed, UsageError
from topobench.importers import nccl_tests, nvbandwidth
from topobench.importers.cells import Origin
from topobench.importers.document import (
    MAX_BYTES,
    SCHEMA,
    Document,
    clean,
)
from topobench.topology import Topology

if TYPE_CHECKING:
    from topobench.db.store import Store

PARSERS = {nccl_tests.TOOL: nccl_tests.parse, nvbandwidth.TOOL: nvbandwidth.parse}
"""Format -> what reads it."""


@dataclass(frozen=True, slots=True)
class Imported:
    """
    What became of some files.

    Args:
        documents: ``topobench.import/1`` with ``file``, ``sha256`` and ``stored``.
        failures: ``{file, message}`` of each that could not be read or stored.
    """

    documents: list[dict[str, Any]]
    failures: list[dict[str, str]]

    @property
    def exit_code(self) -> int:
        """1 if a file could not be read, or its result must not be used."""
        return int(bool(self.failures) or any(d["status"] == "invalid" for d in self.documents))

    def to_json(self) -> dict[str, Any]:
        """The document itself of one file; a list of several."""
        if len(self.documents) == 1 and not self.failures:
            return self.documents[0]
        return {"schema": SCHEMA, "documents": self.documents, "failures": self.failures}


def origin(
    *,
    cluster: str | None = None,
    host: str | None = None,
    sku: str | None = None,
    topology: Path | None = None,
    taken_at: str | None = None,
) -> Origin:
    """
    Whose result the user says it is.

    Args:
        topology: File with a ``topobench.topology/1`` document.

    Raises:
        UsageError: A value is not of its kind.
    """
    named = {"cluster": cluster, "host": host, "sku": sku}
    for flag, value in named.items():
        if value is not None and value != (clean(value) or None):
            raise UsageError(f"--{flag}: {value!r} is no name")
    return Origin(
        **{k: v for k, v in named.items() if v is not None},
        topology=None if topology is None else _topology(topology),
        taken_at=None if taken_at is None else _moment(taken_at),
    )


def import_files(
    tool: str, files: Sequence[Path], whose: Origin, *, store_url: str | None
) -> Imported:
    """
    Read foreign results and store them, each once.

    Args:
        store_url: None: nothing is stored.

    Raises:
        ImportFailed: No file could be read; the message names each.
        StoreUnreachable: The store went away; importing again goes on where it stopped.
    """
    done = Imported([], [])
    with _opened(store_url) as store:
        for file in files:
            try:
                done.documents.append(_one(tool, file, whose, store))
            except ImportFailed as error:
                done.failures.append({"file": clean(str(file)), "message": str(error)})
    if not done.documents:
        raise ImportFailed("\n".join(f"{f['file']}: {f['message']}" for f in done.failures))
    return done


@contextlib.contextmanager
def _opened(url: str | None) -> Iterator[Store | None]:
    if url is None:
        yield None
        return
    from topobench.db.store import Store

    with Store.open(url) as store:
        yield store


def _one(tool: str, file: Path, whose: Origin, store: Store | None) -> dict[str, Any]:
    data = _read(file)
    digest = hashlib.sha256(data).hexdigest()
    document = PARSERS[tool](data.decode("utf-8", "replace"))
    found = {**document.to_json(), "file": clean(file.name), "sha256": digest, "stored": None}
    if store is not None and document.rows:
        found["stored"] = _stored(store, document, whose, found["file"], digest)
    return found


def _stored(
    store: Store, document: Document, whose: Origin, file: str, digest: str
) -> dict[str, Any]:
    from topobench.db.imports import store_import
    from topobench.reading import to_json

    stored: dict[str, Any] = to_json(store_import(store, document, whose, file=file, digest=digest))
    return stored


def _read(file: Path) -> bytes:
    """
    The bytes of a file, of which no more than a result may have are read.

    Raises:
        ImportFailed: It can't be read, or is too large.
    """
    try:
        return user_files.read(file, MAX_BYTES)
    except OSError as error:
        raise ImportFailed(f"cannot be read: {error.strerror}") from error


def _topology(file: Path) -> Topology:
    try:
        return Topology.from_json(json.loads(_read(file)))
    except (ImportFailed, ValueError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"--topology {file}: {error}; give what `topobench topo show --format json` printed"
        ) from error


def _moment(text: str) -> str:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(
            f"--taken-at: {text!r} is no time with a zone, such as 2026-11-29T15:14:22Z"
        )
    return moment.astimezone(datetime.UTC).isoformat(timespec="microseconds")[:-6] + "Z"
