# SPDX-License-Identifier: Apache-2.0
"""Loads the extension module of the native engine, or says why it cannot be."""

from __future__ import annotations

import ctypes
import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "nnl.ext.native"
ONEDNN = "libdnnl.so.3"
ONEDNN_PACKAGE = "onednn-cpu-gomp"


class NotBuilt(ImportError):
    """nnl was installed without its native engine."""


def load() -> ModuleType:
    """The extension module.

    Raises:
        NotBuilt: nnl was installed without it.
        ImportError: It is there and cannot be used; the text says why and what to do.
    """
    missing = _import("_processor").missing_instructions()
    if missing:
        raise ImportError(
            f"it was built for a processor with {', '.join(missing)}, which this one lacks; "
            "install nnl again on this machine"
        )
    try:
        return _import("_native")
    except NotBuilt:
        raise
    except ImportError as e:
        if ONEDNN not in str(e):
            raise
        _load_onednn(e)
        return _import("_native")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    except ModuleNotFoundError as e:
        if e.name != f"{PACKAGE}.{name}":
            raise
        beside = _installed_elsewhere()
        if beside is not None:
            raise ImportError(
                f"nnl is imported from its sources in {_sources()}, which hold no engine, and not "
                f"from {beside}, where it is installed: start Python in another folder"
            ) from e
        raise NotBuilt("nnl was installed without it") from e


def _sources() -> Path:
    """The folder of the sources, or what nnl is installed into."""
    from pathlib import Path

    return Path(__file__).resolve().parents[3]


def _installed_elsewhere() -> Path | None:
    """Where nnl is installed, if the nnl that runs is another one: sources in Python's way."""
    sources = _sources()
    if not (sources / "cpp" / "CMakeLists.txt").is_file():
        return None
    from importlib.metadata import distributions  # a tenth of the time that nnl takes to import

    for distribution in distributions(name="nnl"):
        for file in distribution.files or []:
            if file.as_posix() == "nnl/__init__.py":
                found = type(sources)(str(file.locate())).resolve()
                if found.parent != sources / "nnl" and found.is_file():
                    return found.parents[1]
    return None


def _load_onednn(cause: ImportError) -> None:
    """Load oneDNN from where pip put it, if that is none of the places the module looks at.

    nnl and oneDNN may lie in two environments, one on top of the other; and pip install --target
    forgets the folder lib. A library that is loaded is found by its name from then on.
    """
    from importlib.metadata import distributions
    from pathlib import Path

    copies = [f for d in distributions(name=ONEDNN_PACKAGE) for f in d.files or []]
    paths = [Path(str(f.locate())) for f in copies if f.name == ONEDNN]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise ImportError(f"{cause}; pip install {ONEDNN_PACKAGE}==2023.2.0") from cause
    try:
        ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
    except OSError as e:
        raise ImportError(f"oneDNN does not load: {e}") from e
