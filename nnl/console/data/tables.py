# SPDX-License-Identifier: Apache-2.0
"""Tables of samples: .csv files, and what their cells hold or name."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nnl.console.errors import Refused
from nnl.data import table
from nnl.data.damage import naming
from nnl.data.loader import get_file_extension, load
from nnl.data.table import file_name, variables, why_missing, why_no_number

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff")
ARRAYS = (".npy", ".csv")
MAX_ROWS_OF_STATISTICS = 2000
MAX_NUMBERS_OF_STATISTICS = 2**25
MAX_KEPT = 32 * 2**20  # bytes of a table
MAX_CELL_FILE = 256 * 2**20
MAX_CELL_TABLE = 16 * 2**20  # as text, which becomes many times as much
MAX_PIXELS = 2**26
Array = np.ndarray[Any, Any]


def read_table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a .csv file; those of the last ones are kept in memory.

    Raises:
        Refused: It is no such file, or a row has another number of cells.
    """
    facts = path.stat()
    if facts.st_size > MAX_KEPT:
        return _read(path)
    return _kept(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=4)
def _kept(path: Path, changed: int, size: int) -> tuple[list[str], list[list[str]]]:
    return _read(path)


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    with open(path, "rb") as file:
        content = file.read()
    try:
        header, rows, _ = table.read_table(table.read_text(content, path.name), path.name)
    except ValueError as error:
        text, _, hint = str(error).partition(": give its encoding")
        hint = "if it is a table, save it as UTF-8" if hint else None
        raise Refused("unreadable", text, hint, path.name) from None
    if all(is_number(title) for title in header):
        text = f"{path.name} begins with the numbers {','.join(header)[:60]}"
        hint = "add a first line that names the columns, as x,y"
        raise Refused("unreadable", text, hint, path.name)
    return header, rows


def kind_of(cell: str) -> str:
    """What the page shows a cell as."""
    if is_number(cell):
        return "number"
    extension = get_file_extension(cell) or ""
    return "image" if extension in IMAGES else "array" if extension in ARRAYS else "text"


def read_cells(cells: Sequence[str], root: Path) -> Array:
    """The numbers of cells: theirs, or those in the file that one names."""
    if all(is_number(cell) for cell in cells):
        return np.array([float(cell) for cell in cells], np.float32)
    path = _file_below(root, cells[0], "")
    if get_file_extension(cells[0]) in IMAGES:
        sized(path)
    name = cells[0].strip()
    try:
        with naming(name), open(path, "rb") as file:
            value = load(get_file_extension(name))(file, normalize=True)
        return np.asarray(value, np.float32)
    except (ValueError, TypeError) as error:  # the latter of an array of texts
        text = str(error) if name in str(error) else f"{name}: {error}"
        raise Refused("unreadable", text, None, name) from None


def sized(path: Path) -> None:
    """Raise where a picture would take very much memory; that it is one is seen later."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            width, height = opened.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # Pillow's own sentence names the file by its place on this machine.
        unknown = isinstance(error, UnidentifiedImageError)
        why = "it is no picture, or a damaged one" if unknown else str(error)
        raise Refused("unreadable", f"{path.name}: {why}", None, path.name) from None
    if width * height > MAX_PIXELS:
        text = f"{path.name} has {width} x {height} pixels, at most {MAX_PIXELS >> 20} million"
        raise Refused("too_large", text, "make it smaller", path.name)


def describe(name: str, cells: Sequence[str], root: Path) -> dict[str, Any]:
    """The entry of a column, from its first row."""
    value = read_cells(cells, root)
    kind = "vector" if len(cells) > 1 else kind_of(cells[0])
    return {"name": name, "type": kind, "shape": list(value.shape)}


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _file_below(root: Path, cell: str, where: str) -> Path:
    """The file that a cell names, which must be inside the data set."""
    at = f"{where}: " if where else ""
    if not cell.strip():
        hint = "fill it in, or leave out the row"
        raise Refused("unreadable", f"{at}the cell is empty", hint, cell)
    name = file_name(cell, str(root))
    path = (root / name).resolve() if "\0" not in cell else root
    if not path.is_relative_to(root.resolve()):
        raise Refused(
            "unreadable", f"{at}{cell[:100]!r} leads out of the data set", None, cell[:100]
        )
    if get_file_extension(cell) not in (*IMAGES, *ARRAYS):
        text = f"{at}{cell[:100]!r} is neither a number nor a file of a known kind"
        known = f"known are {', '.join((*IMAGES, *ARRAYS))}"
        hint = f"{why_no_number(cell).removeprefix(': ')}; {known}"
        raise Refused("unreadable", text, hint, cell[:100])
    if not path.is_file():
        text = f"{at}there is no file {cell[:100]!r}{why_missing(name, str(root))}"
        raise Refused("unreadable", text, None, cell[:100])
    most = MAX_CELL_TABLE if path.suffix.lower() == ".csv" else MAX_CELL_FILE
    if path.stat().st_size > most:
        raise Refused("too_large", f"{at}{cell[:100]!r} is larger than {most >> 20} MiB")
    return path


def described(path: Path, name: str) -> dict[str, Any]:
    """What is known of a data set: its columns, rows and bytes.

    Raises:
        Refused: A cell names no file, or one that is outside of the data set's folder.
    """
    header, rows = read_table(path)
    if not rows:
        raise Refused("unreadable", f"{name} has a header and no rows", None, name)
    root = path.parent
    for i, row in enumerate(rows):
        for title, cell in zip(header, row, strict=True):
            if not is_number(cell):
                _file_below(root, cell, f"{name}, row {i + 1}, column {title}")
    columns = [
        describe(column, [rows[0][i] for i in places], root)
        for column, (places, _) in variables(header).items()
    ]
    return {
        "name": name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "columns": columns,
        "rows": len(rows),
        "bytes": sum(p.stat().st_size for p in root.rglob("*") if p.is_file()),
    }


def statistics(path: str) -> dict[str, Any]:
    """Of every column; of some rows only where there are very many, or large ones."""
    header, rows = read_table(Path(path))
    root = Path(path).parent
    found, least = [], len(rows)
    for name, (places, _) in variables(header).items():
        size = max(read_cells([rows[0][i] for i in places], root).size, 1)
        count = min(MAX_ROWS_OF_STATISTICS, MAX_NUMBERS_OF_STATISTICS // size + 1)
        some = rows[:: max(-(-len(rows) // count), 1)]
        values = [read_cells([row[i] for i in places], root) for row in some]
        found.append(_statistics(name, values))
        least = min(least, len(some))
    return {"columns": found, "rows": len(rows), "looked_at": least}


def _statistics(name: str, values: list[Array]) -> dict[str, Any]:
    flat = np.concatenate([v.reshape(-1) for v in values]).astype(np.float64)
    flat = flat[np.isfinite(flat)]
    single = all(v.size == 1 for v in values)
    found: dict[str, Any] = {"name": name, "type": "number" if single else "array"}
    if not flat.size:
        return {**found, "min": None, "max": None, "mean": None, "std": None, "distinct": 0,
                "histogram": None, "values": None}  # fmt: skip
    counts, edges = np.histogram(flat, 20)
    kinds = Counter(flat.tolist()) if single else Counter[float]()
    few = single and len(kinds) <= 100
    return {
        **found,
        "min": flat.min(),
        "max": flat.max(),
        "mean": flat.mean(),
        "std": flat.std(),
        "distinct": len(kinds) if single else len(np.unique(flat)),
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
        "values": [{"value": v, "count": n} for v, n in sorted(kinds.items())] if few else None,
    }
