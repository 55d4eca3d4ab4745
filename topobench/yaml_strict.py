"""
Read YAML strictly: every scalar stays the text that was written, with its line.

PyYAML's resolver turns ``no`` into False and the PCI address ``0000:01:00.0`` into 60.0.
Here a typed field parses its own text, so nothing changes its meaning on the way. Duplicate
keys, aliases, anchors, tags and several documents are mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from topobench import user_files
from topobench.errors import ConfigError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 12
_MAX_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar as written; ``plain`` is False for quoted text."""

    value: str
    where: str
    plain: bool = True

    @property
    def is_null(self) -> bool:
        """Nothing, ``~`` or ``null`` was written, without quotes."""
        return self.plain and self.value in ("", "~", "null")


@dataclass(frozen=True, slots=True)
class Listing:
    """A sequence."""

    items: tuple[Node, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a table, with where the key stands."""

    key: str
    value: Node
    where: str


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping; its keys are unique."""

    entries: tuple[Entry, ...]
    where: str


Node = Text | Listing | Table


def read(path: Path, mistakes: list[str]) -> Table | None:
    """
    The top-level table of a file; None for an empty one.

    Mistakes that leave the rest readable (a duplicate key, an alias, a tag) are appended to
    ``mistakes``; the reader goes on, so that a user sees all of them at once.

    Raises:
        ConfigError: Not readable, not text, not YAML, or no table at its top.
    """
    return parse(text_of(path), str(path), mistakes)


def parse(text: str, source: str, mistakes: list[str]) -> Table | None:
    """
    Like :func:`read`, of text; ``source`` names it in messages.

    Raises:
        ConfigError: It is no YAML, or no table.
    """
    reader = _Reader(source, mistakes)
    try:
        node = reader.document(yaml.parse(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        raise ConfigError([*mistakes, _syntax_message(source, error)]) from error
    if node is None or (isinstance(node, Text) and node.is_null):
        return None
    if not isinstance(node, Table):
        raise ConfigError([*mistakes, f"{node.where}: expected keys at the top (key: value)"])
    return node


def text_of(path: Path) -> str:
    """
    The text of a file, read once.

    Raises:
        ConfigError: Not readable, not text, or larger than a config file can be.
    """
    try:
        raw = user_files.read(path, _MAX_BYTES)
    except FileNotFoundError as error:
        raise ConfigError([f"{path}: no such file"]) from error
    except OSError as error:
        text = f"{path}: cannot be read: {error.strerror}; name a YAML file"
        raise ConfigError([text]) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            [f"{path}: not a text file (byte {error.start} is not UTF-8); name a YAML file"]
        ) from error


def _syntax_message(source: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"{source}:{mark.line + 1}" if mark else source
    problem = getattr(error, "problem", None)
    if problem is None:
        return f"{where}: not a text file; name a YAML file"
    return f"{where}: not YAML: {problem}; check the indentation, quotes and brackets near here"


@dataclass(slots=True)
class _Reader:
    """Builds nodes from parser events; aliases and tags never reach a resolver."""

    source: str
    mistakes: list[str]
    _depth: int = field(default=0)

    def document(self, events: Iterator[Any]) -> Node | None:
        """The first document; a second one is a mistake."""
        found: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents == 2:
                    self._mistake(event, "a second document starts here; one file is one document")
            elif isinstance(event, yaml.NodeEvent):
                node = self._node(event, events)
                found = node if documents == 1 else found
        return found

    def _node(self, event: Any, events: Iterator[Any]) -> Node | None:
        """The node that starts with ``event``; None for an alias, which is refused."""
        where = self._where(event)
        if isinstance(event, yaml.AliasEvent):
            self._mistake(event, f"the alias *{event.anchor} is not supported; write the value out")
            return None
        self._check_plainness(event)
        if isinstance(event, yaml.ScalarEvent):
            return Text(event.value, where, plain=bool(event.implicit[0]))
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ConfigError([*self.mistakes, f"{where}: nested deeper than {_MAX_DEPTH} levels"])
        node: Node
        if isinstance(event, yaml.SequenceStartEvent):
            node = Listing(tuple(self._items(events)), where)
        else:
            node = Table(tuple(self._entries(events)), where)
        self._depth -= 1
        return node

    def _items(self, events: Iterator[Any]) -> Iterator[Node]:
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            if (node := self._node(event, events)) is not None:
                yield node

    def _entries(self, events: Iterator[Any]) -> Iterator[Entry]:
        seen: dict[str, str] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._node(event, events)
            value = self._node(next(events), events)
            if not isinstance(key, Text):
                self._mistake(event, "a key must be plain text")
            elif key.value in seen:
                self.mistakes.append(
                    f"{key.where}: {key.value}: given twice; first at {seen[key.value]}"
                )
            else:
                seen[key.value] = key.where
                if value is not None:
                    yield Entry(key.value, value, key.where)

    def _check_plainness(self, event: Any) -> None:
        if event.anchor is not None:
            self._mistake(event, f"the anchor &{event.anchor} is not supported; remove it")
        if event.tag is not None:
            self._mistake(event, f"the tag {event.tag} is not supported; remove it")

    def _where(self, event: Any) -> str:
        return f"{self.source}:{event.start_mark.line + 1}"

    def _mistake(self, event: Any, what: str) -> None:
        self.mistakes.append(f"{self._where(event)}: {what}")
