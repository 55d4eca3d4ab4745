"""
XML of foreign files, read with the standard library's parser and nothing it may be talked into.

No entity is declared or expanded, no other file is opened, and size, depth and number of
elements are bounded, so memory is too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from topobench.errors import ImportFailed

MAX_BYTES = 32 << 20
"""hwloc's largest files are a few MB."""
MAX_ELEMENTS = 300_000
MAX_DEPTH = 200
LONGEST_ATTRIBUTE = 1 << 16


@dataclass(slots=True)
class Element:
    """An element; ``text`` is what stands directly inside it."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def get(self, name: str, default: str = "") -> str:
        """An attribute's value."""
        return self.attributes.get(name, default)

    def all(self, tag: str) -> Iterator[Element]:
        """Children with that name."""
        return (child for child in self.children if child.tag == tag)


def parse_xml(text: str, root: str) -> Element:
    """
    The root element of an XML text.

    Args:
        root: Name it must have.

    Raises:
        ImportFailed: It is no such XML, declares entities, or is too large.
    """
    if len(text) > MAX_BYTES:
        raise ImportFailed(f"{len(text)} characters, at most {MAX_BYTES} are read")
    if "\0" in text[:4096] or "<" not in text[:65536]:
        raise ImportFailed("this is no XML text")
    found = _Builder().parse(text)
    if found.tag != root:
        raise ImportFailed(f"the root element is <{found.tag[:40]}>, expected <{root}>")
    return found


class _Builder:
    """Elements from the parser's events."""

    def __init__(self) -> None:
        self.count = 0
        self.open: list[Element] = []
        self.root: Element | None = None
        self.parser = parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._refuse

    def parse(self, text: str) -> Element:
        try:
            self.parser.Parse(text.lstrip("\ufeff \t\r\n").encode("utf-8"), True)
        except UnicodeEncodeError as error:
            raise ImportFailed("it holds characters that no XML may hold") from error
        except expat.ExpatError as error:
            what = expat.errors.messages.get(error.code, str(error.code))
            raise ImportFailed(f"line {error.lineno}: not well-formed XML: {what}") from error
        if self.root is None:
            raise ImportFailed("this is no XML text")
        return self.root

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        line = self.parser.CurrentLineNumber
        if self.count > MAX_ELEMENTS:
            raise ImportFailed(f"line {line}: more than {MAX_ELEMENTS} elements")
        if len(self.open) >= MAX_DEPTH:
            raise ImportFailed(f"line {line}: elements nested more than {MAX_DEPTH} deep")
        if any(len(value) > LONGEST_ATTRIBUTE for value in attributes.values()):
            raise ImportFailed(f"line {line}: an attribute of <{tag[:40]}> is too long")
        element = Element(tag, attributes)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def _end(self, tag: str) -> None:
        self.open.pop()

    def _data(self, text: str) -> None:
        if text.strip():
            self.open[-1].text += text

    def _doctype(self, name: str, system: str | None, public: str | None, has_subset: bool) -> None:
        if has_subset:
            self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        line = self.parser.CurrentLineNumber
        raise ImportFailed(f"line {line}: it declares its own document type or entities; refused")
