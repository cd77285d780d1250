# SPDX-License-Identifier: Apache-2.0
"""Language models in the folder `models`: listed, brought, opened."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnl.console.chat.served import Served
from nnl.console.errors import Refused, missing

FILES = (".nnlp", ".gguf")


class Models:
    """What may be talked to; one model is open at a time.

    Args:
        folder: That of the console. Its folder `models` may have links to elsewhere.
        command: What stands before the arguments of `nnl`.
    """

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self.folder, self.command = folder / "models", command
        self._served: Served | None = None
        self._opening = threading.Lock()

    def all(self) -> list[dict[str, Any]]:
        """Folders of Hugging Face's libraries, and files that `nnl serve` takes."""
        return [
            {
                "id": path.name,
                "kind": path.suffix.lower()[1:] if path.is_file() else "folder",
                "bytes": sum(f.stat().st_size for f in _files(path)),
                "open": self._served is not None and self._served.path == path,
            }
            for path in self._paths()
        ]

    def _paths(self) -> list[Path]:
        found = self.folder.iterdir() if self.folder.is_dir() else []
        return sorted(
            path
            for path in found
            if (path.is_file() and path.suffix.lower() in FILES) or (path / "config.json").is_file()
        )

    def add(self, path: Path) -> dict[str, Any]:
        """Keep a file that was brought."""
        if path.suffix.lower() not in FILES:
            hint = f"copy or link folders into {self.folder}"
            what = f"{path.name} is neither {' nor '.join(FILES)}"
            raise Refused("unsupported", what, hint, path.name)
        self.folder.mkdir(exist_ok=True)
        if (self.folder / path.name).exists():
            hint = "give the file another name"
            raise Refused("conflict", f"there is a {path.name} already", hint, path.name)
        os.replace(path, self.folder / path.name)
        return {"id": path.name}

    def open(self, key: str) -> dict[str, Any]:
        """Load a model in place of the one that was open; what it can be asked for.

        Raises:
            Refused: It cannot be loaded, which is said in the words of `nnl serve`.
        """
        path = next((p for p in self._paths() if p.name == key), None)
        if path is None:
            raise missing("model", key[:80])
        with self._opening:
            if self._served is None or self._served.path != path or not self._served.runs:
                self.close()
                self._served = Served(path, self.command)
            return self._served.facts

    def opened(self, key: str) -> Served:
        """What answers for a model.

        Raises:
            Refused: It is not open, or has ended.
        """
        served = self._served
        if served is None or served.path.name != key or not served.runs:
            how = "" if served is None or served.path.name != key else served.last_words()
            what = f"{key[:80]} is not open{how and f', its process has ended: {how}'}"
            raise Refused("conflict", what, "open it again", key[:80])
        return served

    def close(self) -> None:
        """End what answers."""
        if self._served is not None:
            self._served.end()
            self._served = None


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [f for f in path.iterdir() if f.is_file()]
