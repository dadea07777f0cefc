"""An element tree that knows the line of each element, because an error in a schema has to name its place."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path
from xml.parsers import expat


class SchemaError(Exception):
    """The schema says something that the generator cannot turn into a layout. Reads `file:line: what`."""


class Element(ElementTree.Element):
    """An element with its file and line."""

    path: Path
    line: int

    def error(self, words: str) -> SchemaError:
        return SchemaError(f"{self.path}:{self.line}: {words}")

    def attribute(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise self.error(f"<{self.tag.rpartition('}')[2]}> has no attribute {name}")
        return value

    def number(self, name: str) -> int:
        return self.as_number(self.attribute(name), name)

    def optional_number(self, name: str) -> int | None:
        return None if self.get(name) is None else self.number(name)

    def text_number(self) -> int:
        return self.as_number((self.text or "").strip(), "the value")

    def as_number(self, text: str, what: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise self.error(f"{what} is {text!r}, expected a whole number") from None

    def refuse_attributes_except(self, known: Iterable[str]) -> None:
        if unknown := sorted(set(self.keys()) - set(known)):
            raise self.error(f"unknown attribute {unknown[0]} of <{self.tag.rpartition('}')[2]}>")

    def parts(self) -> list[Element]:
        """The children, typed: every element of the tree is of this class."""
        return [child for child in self if isinstance(child, Element)]


def read_located(path: Path) -> Element:
    parser = expat.ParserCreate(namespace_separator="}")

    def make(tag: str, attributes: dict[str, str]) -> Element:
        element = Element(tag, attributes)
        element.path, element.line = path, parser.CurrentLineNumber
        return element

    builder = ElementTree.TreeBuilder(element_factory=make)
    parser.StartElementHandler = lambda tag, attributes: builder.start(_tag(tag), attributes)
    parser.EndElementHandler = lambda tag: builder.end(_tag(tag))
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(path.read_bytes(), True)
    except expat.ExpatError as cause:
        raise SchemaError(f"{path}:{cause.lineno}: not well-formed XML: {expat.errors.messages[cause.code]}") from cause
    except OSError as cause:
        raise SchemaError(f"{path}: {cause.strerror}") from cause
    root = builder.close()
    assert isinstance(root, Element)
    return root


def _tag(name: str) -> str:
    return f"{{{name}" if "}" in name else name
