# SPDX-License-Identifier: Apache-2.0
"""Trials as the page gets them and as the index has them: facts, errors, what they run on."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np

import nnl
from nnl.core.arrays.resources import cores

# What to do where a command does not say it.
HINTS = {
    "not_found": "put the file back, or choose another data set",
    "memory": "take smaller minibatches, or a smaller network",
}


def shown(row: Mapping[str, Any], whole: bool = False) -> dict[str, Any]:
    """A trial as the page gets it."""
    names = (
        "id project number name kind status version seed created started ended epoch max_epoch "
        "eta_s parameters multiply_adds note search search_number"
    ).split()
    best = None
    if row["best_name"] is not None:
        best = {k: row[f"best_{k}"] for k in ("name", "value", "epoch")}
    found = {name: row[name] for name in names} | {"best": best}
    found |= {name: json.loads(row[name]) for name in ("last", "tags")}
    found |= {name: bool(row[name]) for name in ("pinned", "locked")}
    for name in ("weights_from", "error"):
        found[name] = json.loads(row[name]) if row[name] else None
    if whole:
        found |= {name: json.loads(row[name]) for name in ("config", "environment")}
    return found | {"pareto": False}  # lists know


def problem_said(problem: Mapping[str, Any]) -> dict[str, Any]:
    """What a command has said of its error."""
    code = str(problem.get("code") or "failed")
    return {
        "message": str(problem["error"]),
        "hint": problem.get("hint") or HINTS.get(code),
        "where": problem.get("where"),
        "code": code,
    }


def error_text(message: str, hint: Any = None, where: Any = None, code: str = "failed") -> str:
    return json.dumps({"code": code, "message": message, "hint": hint, "where": where})


def environment() -> dict[str, Any]:
    """What a trial runs on."""
    return {
        "nnl": nnl.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpus": cores(),
    }
