# SPDX-License-Identifier: Apache-2.0
"""The fixture `nnabla`: NNabla 1.39 in its own process, one per test process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.bridge import Nnabla

ENVIRONMENT = Path(__file__).resolve().parent.parent.parent / ".venv-interop"


@pytest.fixture(scope="session")
def nnabla() -> Iterator[Nnabla]:
    """A running NNabla; NNL_INTEROP_PYTHON names its Python, else .venv-interop has it.

    Without a finished .venv-interop (the Makefile stamps it) the test is skipped by name. A path
    that was named and is not there is an error, because someone asked for the comparison.
    """
    named = os.environ.get("NNL_INTEROP_PYTHON")
    if named and not Path(named).is_file():
        pytest.fail(f"NNL_INTEROP_PYTHON is {named}: no such file", pytrace=False)
    if not named and not (ENVIRONMENT / ".stamp").is_file():
        pytest.skip("NNabla 1.39 is not installed (make interop installs it)")
    worker = Nnabla(Path(named or ENVIRONMENT / "bin" / "python").absolute())
    yield worker
    worker.close()
