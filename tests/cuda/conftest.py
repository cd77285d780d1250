# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cuda import shim


@pytest.fixture
def host_compiler() -> Iterator[None]:
    """Kernels compiled by g++ and run on host memory; skips the test where there is no g++."""
    if not shim.available():
        pytest.skip("there is no g++ to compile CUDA kernels for the host")
    with shim.in_place():
        yield
