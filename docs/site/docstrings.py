# SPDX-License-Identifier: Apache-2.0
"""Docstrings as Markdown: text with formulas, lists of arguments and errors, the example."""

from __future__ import annotations

import doctest
import inspect
import re
from dataclasses import dataclass, field
from typing import Any

HEADING = re.compile(
    r"^(Args|Returns|Raises|Yields|Source|Attributes|Class attributes|Example|Parameters|Options)"
    r"( \(when called\)|, in the scope [^:]*)?:(.*)$"
)
ENTRY = re.compile(r"^([\w*.]+(?:(?:, | and )[\w*.]+)*): (.*)$", re.S)
CODE = re.compile(r"( {4}.*(\n|$))+")
KEPT = re.compile(r"(\$\$.*?\$\$|\$[^$]+\$|`[^`]+`)", re.S)


@dataclass
class Docstring:
    """What a docstring holds: text first, then sections by their headings, and the example."""

    text: str = ""
    sections: list[tuple[str, str]] = field(default_factory=list)
    example: str = ""


def read(thing: Any) -> Docstring:
    """The docstring of a function, an op or a class."""
    doc = thing.__doc__ or ""
    found = Docstring()
    rest = ""
    for part in doctest.DocTestParser().parse(inspect.cleandoc(doc)):
        if isinstance(part, doctest.Example):
            found.example += part.source
        else:
            rest += part
    text: list[str] = []
    sections: list[tuple[str, list[str]]] = []
    target = text
    for line in rest.split("\n"):
        if match := HEADING.match(line):
            target = [match[3].strip()]
            sections.append((match[1] + (match[2] or ""), target))
        elif target is not text and line and not line[0].isspace() and not target[-1]:
            target = [line]  # text goes on after a section
            sections.append(("", target))
        else:
            target.append(line)
    found.text = "\n".join(text).strip()
    found.sections = [
        # of a section the first line is that of the heading; text keeps its indented lines
        (heading, inspect.cleandoc("\n".join(lines)) if heading else "\n".join(lines).strip())
        for heading, lines in sections
        if heading != "Example"
    ]
    return found


def markdown(text: str) -> str:
    """Text of a docstring as Markdown: signs that mean something there are escaped."""

    def part(text: str) -> str:
        if text.startswith("$$"):
            return f"\n\n$$\n{inspect.cleandoc(text[2:-2]).strip()}\n$$\n\n"
        if text[:1] in "$`":
            return re.sub(r"\s+", " ", text)
        return re.sub(r"([*<>\[\]#|]|(?<!\w)_)", r"\\\1", text)

    # indented paragraphs are code, as they are in Markdown
    done = "".join(
        paragraph if CODE.fullmatch(paragraph) else "".join(part(p) for p in KEPT.split(paragraph))
        for paragraph in re.split(r"(\n\n+)", text)
    )
    # a full stop or a comma after a formula of its own belongs to it
    return re.sub(r"\n\$\$\n\n([.,;:])", r" \1\n$$\n\n", done)


def entries(body: str) -> list[tuple[str, str]]:
    """(names, text) of a section that lists arguments, parameters or errors."""
    found: list[tuple[str, str]] = []
    for line in body.split("\n"):
        match = None if line[:1].isspace() else ENTRY.match(line)
        if match:
            found.append((match[1], match[2]))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{line.strip()}")
        elif line.strip():
            found.append(("", line))
    return found


def section(heading: str, body: str) -> str:
    """A section as Markdown; one without a heading is text between others."""
    if not heading:
        return markdown(body)
    if heading == "Raises":
        body = re.sub(r"\. (\w+Error: )", r".\n\1", body)  # two errors on one line
    if heading.startswith(("Args", "Raises", "Attributes", "Class", "Parameters", "Options")):
        items = [
            f"- `{names}`: {flowing(text)}" if names else f"- {flowing(text)}"
            for names, text in entries(body)
        ]
        return f"**{heading}**\n\n" + "\n".join(items)
    return f"**{heading}**: {markdown(body)}"


def flowing(text: str) -> str:
    """Markdown of an entry, whose further lines belong to it."""
    return markdown(text).strip().replace("\n", "\n  ")


def whole(doc: Docstring) -> str:
    """A docstring without its example as Markdown."""
    parts = [markdown(doc.text), *(section(*s) for s in doc.sections)]
    return "\n\n".join(p.strip() for p in parts)
