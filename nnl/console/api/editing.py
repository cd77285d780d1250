# SPDX-License-Identifier: Apache-2.0
"""Routes that the editor asks while a network is drawn; they change nothing."""

from __future__ import annotations

import platform
from functools import cache
from importlib.util import find_spec
from typing import Any

from fastapi import APIRouter

import nnl
from nnl.console.documents import optimizers
from nnl.console.documents.analysis import analyse
from nnl.console.documents.code import code
from nnl.console.documents.configuring import config_problems
from nnl.console.documents.diff import diff
from nnl.console.documents.document import arrange
from nnl.console.palette import palette
from nnl.console.server.requests import Body, The, document
from nnl.console.server.security import UPLOAD_BYTES
from nnl.core.arrays.resources import cores, memory_bytes
from nnl.core.settings.context import BACKENDS

router = APIRouter()


@router.get("/health")
def health() -> dict[str, bool]:
    return {"ok": True}


@router.get("/session")
def session(console: The) -> dict[str, Any]:
    return {
        "read_only": console.read_only,
        "version": nnl.__version__,
        "folder": str(console.folder),
        "limits": {"upload_bytes": UPLOAD_BYTES, "children": console.children},
    }


@router.get("/system")
def system() -> dict[str, Any]:
    import numpy

    contexts, devices = ["cpu"], []
    if "cudnn" in BACKENDS and find_spec("cupy") is not None:
        from nnl.ext_utils import list_extensions

        contexts += [name for name in list_extensions() if name != "cpu"]
    return {
        "versions": {
            "nnl": nnl.__version__,
            "python": platform.python_version(),
            "numpy": numpy.__version__,
        },
        "platform": platform.platform(),
        "cpus": cores(),
        "memory_bytes": memory_bytes(),
        "backends": sorted(BACKENDS),
        "contexts": contexts,
        "devices": devices,
        "optional": {n: find_spec(n) is not None for n in ("optuna", "matplotlib", "onnx", "PIL")},
    }


@cache
def _schema() -> dict[str, Any]:
    return palette.schema()


@router.get("/schema/layers")
def layers() -> dict[str, Any]:
    return _schema()


@router.get("/schema/solvers")
def solvers() -> dict[str, Any]:
    return optimizers.schema()


@router.post("/analyze")
def analyze(console: The, given: Body) -> dict[str, Any]:
    doc = document(given.get("document"))
    train, valid = console.data(doc)
    found = analyse(doc, dict(train.shapes), given.get("revision"))
    return {**found, "config": config_problems(doc, train, valid)}


@router.post("/code")
def python(console: The, given: Body) -> dict[str, Any]:
    doc = document(given.get("document"))
    text, lines = code(doc, console.columns(doc))
    return {"text": text, "lines": lines}


@router.post("/arrange")
def positions(given: Body) -> dict[str, Any]:
    doc = document(given.get("document"))
    net = doc.networks.get(given.get("network") or doc.main.name, doc.main)
    return {"positions": {key: list(at) for key, at in arrange(net).items()}}


@router.post("/diff")
def differences(given: Body) -> dict[str, Any]:
    return diff(document(given.get("a"), "a"), document(given.get("b"), "b"))
