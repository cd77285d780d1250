# SPDX-License-Identifier: Apache-2.0
"""Tables in .csv files, as people and programs of all systems write them."""

from __future__ import annotations

import csv
import io
import os
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from nnl.core.arguments.suggest import did_you_mean

DIVIDERS = ",;\t"
_MARKS = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16, as Excel writes it


class Table(NamedTuple):
    """A header, rows, and the line of the file that each row ends in."""

    header: list[str]
    rows: list[list[str]]
    lines: list[int]


def read_text(content: bytes, where: str, encoding: str | None = None) -> str:
    """The text of a file.

    Args:
        where: What errors begin with.
        encoding: None is UTF-8, or UTF-16 where the file begins with its mark.
    Raises:
        ValueError: There is no such encoding, or a line has bytes that it does not know.
    """
    if encoding is None and b"\0" in content[:4096] and not content.startswith(_MARKS):
        raise ValueError(f"{where} is no .csv file: it has zero bytes, which no UTF-8 text has")
    named = encoding or ("utf-16" if content.startswith(_MARKS) else "utf-8-sig")
    try:
        return content.decode(named)
    except LookupError:
        raise ValueError(
            f"{where}: there is no encoding {named!r}; cp932 is Shift JIS, cp1252 Western Europe's"
        ) from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = "UTF-8" if encoding is None else encoding
        raise ValueError(
            f'{where}, line {line} is not {what}: give its encoding, as encoding="cp932" for Shift '
            'JIS or "cp1252", or save it as UTF-8'
        ) from None


def read_table(text: str, where: str) -> Table:
    """The table in a text. Commas divide cells; where the header has none, semicolons or tabs do.

    Args:
        where: What errors begin with.
    Raises:
        ValueError: There is no header, or a row has another number of cells.
    """
    first = re.search(r"[^\r\n]+", text)
    divider = next((d for d in DIVIDERS if first is not None and d in first[0]), ",")
    if first is not None and re.fullmatch("sep=.", first[0]):  # a line of Excel's
        divider, text = first[0][4], text[: first.start()] + text[first.end() :]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=divider, skipinitialspace=True)
    try:
        header = [title.strip() for title in next((row for row in reader if row), [])]
        numbered = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"{where}, line {reader.line_num}: {error}") from error
    if not header:
        raise ValueError(f"{where} has no header")
    for line, row in numbered:
        if len(row) != len(header):
            raise ValueError(f"{where}, line {line} has {len(row)} cells, the header {len(header)}")
    return Table(header, [row for _, row in numbered], [line for line, _ in numbered])


def variables(header: Sequence[str]) -> dict[str, tuple[list[int], bool]]:
    """Columns of each variable, and whether it is a vector: y__0, y__1 belong together."""
    found: dict[str, tuple[list[int], bool]] = {}
    for i, title in enumerate(header):
        if not title or title.startswith("#"):  # Excel writes empty columns behind the last
            continue
        name, vector, _ = title.split(":", 1)[0].partition("__")
        columns, is_vector = found.get(name, ([], False))
        found[name] = ([*columns, i], is_vector or bool(vector))
    return found


def file_name(cell: str, folder: str) -> str:
    """The name of a file in a cell: without blanks around it, and with the slashes of this system
    where a list from Windows has backslashes, and with its accents as the files have them."""
    name = cell.strip()
    if "\0" in name:
        return name
    forms = [name, name.replace("\\", "/")]
    # macOS writes an accent after its letter, other systems as one letter with it
    forms += [unicodedata.normalize(form, forms[1]) for form in ("NFC", "NFD")]
    there = (f for f in dict.fromkeys(forms) if os.path.exists(os.path.join(folder, f)))
    return next(there, forms[1])


def why_missing(name: str, folder: str) -> str:
    """What may be wrong with the name of a file that is not there, as the end of a sentence."""
    if re.match(r"[A-Za-z]:[\\/]", name):
        return ", a place on a disk of Windows: names begin at the folder of the list"
    parent, last = os.path.split(os.path.join(folder, name))
    try:
        return did_you_mean(last, os.listdir(parent))
    except OSError:
        return ", nor its folder"


def why_no_number(cell: str) -> str:
    """What may be wrong with a cell that should be a number, as the end of a sentence."""
    if re.fullmatch(r"[+-]?\d*,\d+(e[+-]?\d+)?", cell.strip(), re.IGNORECASE):
        return f": numbers have points here, {cell.strip().replace(',', '.')}"
    return ": write classes as numbers from 0 on" if cell.strip() else ""
