# SPDX-License-Identifier: Apache-2.0
"""The headers of the C++ library: what each says of itself, and its text."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "cpp" / "include" / "nnl"
MARKS = re.compile(r"^( \* ?|/\* ?|// ?)", re.M)


def opening(text: str) -> str:
    """The comment that a header begins with, without its licence line, as Markdown."""
    lines = text.split("\n")[1:]
    end = next(i for i, line in enumerate(lines) if not line.startswith(("//", "/*", " *")))
    comment = MARKS.sub("", "\n".join(lines[:end])).replace("*/", "")
    # indented lines are code, which wants an empty line before it
    return re.sub(r"\n\n( {2}.*?)(?=\n\S|\Z)", r"\n\n```cpp\1\n```", comment, flags=re.S)


def headers(*names: str) -> str:
    """Sections of headers by name, or of all that are not named on the page of others."""
    parts = []
    for name in names:
        path = FOLDER / f"{name}.h"
        text = path.read_text(encoding="utf-8")
        parts.append(
            f"## {path.name}\n\n{opening(text)}\n\n"
            f":::{{dropdown}} The text of nnl/{path.name}\n```cpp\n{text}```\n:::\n"
        )
    return "\n".join(parts)
