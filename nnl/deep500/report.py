# SPDX-License-Identifier: Apache-2.0
"""Reports: rows of measurements with what they were measured on, as files that can be compared."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from nnl.core.parameters.atomic import replacing
from nnl.deep500.columns import KEYS, columns, plots

FORMAT = 1
_PACKAGES = ("nnl", "numpy", "onnx", "onnxruntime", "torch", "tensorflow", "openvino", "mpi4py")


def versions() -> dict[str, str]:
    """Versions of Python and of every package that takes part and is installed."""
    found = {"python": platform.python_version()}
    for name in (*_PACKAGES, "tensorflow-cpu"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """What the measurements were made on."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux
    threads = os.environ.get("OMP_NUM_THREADS", "")
    found = {
        "processor": model,
        "cores": os.cpu_count(),
        "threads": threads or "all",
        "system": f"{platform.system()} {platform.release()}",
    }
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv"]
        done = subprocess.run(command, capture_output=True, text=True)
        found["graphics"] = done.stdout.strip().splitlines()[1:]
    return found


@dataclass
class Report:
    """What a benchmark has found.

    Attributes:
        kind: What `nnl bench` was asked for: "op", "network", "optimizer", "distributed",
            "overhead", "experiments" or "compare".
        rows: Flat dictionaries. settings: What was asked for.
        ended: "done", or why it ended before.
    """

    kind: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    ended: str = "done"
    versions: dict[str, str] = field(default_factory=versions)
    hardware: dict[str, Any] = field(default_factory=hardware)
    command: list[str] = field(default_factory=lambda: list(sys.argv[1:]))
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def id(self) -> str:
        """A name that follows from everything in the report, to refer to it by."""
        text = json.dumps(self._content(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _content(self) -> dict[str, Any]:
        return {"format": FORMAT, **_clean(vars(self))}

    def whole(self) -> dict[str, Any]:
        """Everything that is written: the content, its id, what the columns mean, and what can be
        drawn of them. The last two follow from the rows and are not read again."""
        told = {"columns": columns(self.rows), "plots": plots(self.kind, self.rows)}
        return {"id": self.id, **self._content(), **told}

    def write(self, path: str | Path) -> None:
        """Write it as JSON."""
        text = json.dumps(self.whole(), indent=1)
        with replacing(path) as whole:
            whole.write_text(text + "\n", encoding="utf-8")


def _clean(x: Any) -> Any:
    """With null for numbers that JSON does not have."""
    if isinstance(x, dict):
        return {k: _clean(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_clean(v) for v in x]
    if isinstance(x, float) and (x != x or x in (float("inf"), -float("inf"))):
        return None
    return x


def load(path: str | Path) -> Report:
    """Read a report.

    Raises:
        ValueError: It is none, or was changed after it was written.
    """
    return read(Path(path).read_bytes(), str(path))


def read(data: bytes, name: str) -> Report:
    """Read the content of a file of this name; raises as load()."""
    try:
        found = json.loads(data)
        version = found["format"]
        known = {f.name: found[f.name] for f in fields(Report)} if version == FORMAT else {}
        report = Report(**{"kind": "", **known})
        columns(report.rows)
        changed = version == FORMAT and report.id != found["id"]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(f"{name}: not a report of nnl bench") from error
    if version != FORMAT:
        raise ValueError(f"{name}: a report of format {version}, wanted {FORMAT}")
    if changed:
        raise ValueError(f"{name}: its rows are not those that it was written with")
    return report


def compare(first: Report, second: Report) -> list[dict[str, Any]]:
    """A row per measurement that both have: first, second and their ratio; and every status that
    has changed.

    Raises:
        ValueError: They are of different kinds.
    """
    if first.kind != second.kind:
        raise ValueError(f"compare: one report is about {first.kind}, the other {second.kind}")

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(k) for k in KEYS)

    before = {key(r): r for r in first.rows}
    found = []
    for row in second.rows:
        old = before.get(key(row))
        if old is None:
            continue
        name = {k: row[k] for k in KEYS if k in row}
        if row.get("status") != old.get("status"):
            change = {"what": "status", "first": old.get("status"), "second": row.get("status")}
            found.append({**name, **change})
        for what, value in row.items():
            earlier = old.get(what)
            numbers = isinstance(value, (int, float)) and isinstance(earlier, (int, float))
            if numbers and what not in KEYS and not isinstance(value, bool):
                ratio = value / earlier if earlier else None
                found.append(
                    {**name, "what": what, "first": earlier, "second": value, "ratio": ratio}
                )
    return found


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows as aligned text for a terminal."""
    names = list(columns or dict.fromkeys(k for row in rows for k in row))
    cells = [[_text(row.get(n)) for n in names] for row in rows]
    widths = [max(len(n), *(len(c[i]) for c in cells), 0) for i, n in enumerate(names)]
    lines = [[n.ljust(w) for n, w in zip(names, widths, strict=True)]]
    lines += [[c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in cells]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
