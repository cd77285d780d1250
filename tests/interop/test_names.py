# SPDX-License-Identifier: Apache-2.0
"""Every module path of NNabla and every public name in it is here, refused, or documented."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path

import pytest

import nnl
from nnl.nnabla.paths import REFUSED

pytestmark = pytest.mark.interop
HERE = Path(__file__).parent
DIFFERENCES = (HERE.parent.parent / "docs" / "differences.md").read_text()
NEEDS = {"experimental.tb_graph_writer": "tensorboardX"}


@pytest.fixture(scope="module")
def theirs(nnabla):
    ran = subprocess.run(
        [nnabla.python, HERE / "names.py"], capture_output=True, text=True, check=True
    )
    return json.loads(ran.stdout.splitlines()[-1])


def documented(path: str) -> bool:
    """Whether docs/differences.md names a module, or one that it is below."""
    parts = path.split(".")
    above = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return any(f"`{p}`" in DIFFERENCES or f"`{p}...`" in DIFFERENCES for p in above)


def test_every_module_and_name_is_accounted_for(theirs) -> None:
    lost = []
    for full, names in theirs["modules"].items():
        path = full.removeprefix("nnabla").removeprefix(".")
        try:
            module = importlib.import_module(f"nnl.{path}" if path else "nnl")
        except ModuleNotFoundError as e:
            if e.name == NEEDS.get(path):
                continue  # the path is there; its package is not
            refused = any(path == r or path.startswith(r + ".") for r in REFUSED)
            assert not refused or ": " in str(e), path
            if not refused and not documented(path):
                lost.append(path)
            continue
        lost += [
            f"{path}: {n}"
            for n in names or ()
            if not hasattr(module, n) and f"`{n}`" not in DIFFERENCES
        ]
    assert not lost, "\n".join(lost)


def test_what_importing_nnabla_loads_is_an_attribute_of_nnl(theirs) -> None:
    for name in theirs["loaded"]:
        if name in REFUSED:
            with pytest.raises(AttributeError, match=f"no module nnl.{name}: "):
                getattr(nnl, name)
        else:
            assert hasattr(nnl, name), name
