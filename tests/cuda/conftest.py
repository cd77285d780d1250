# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.cuda import kernels, shim


@pytest.fixture
def host_compiler() -> Iterator[None]:
    """Kernels compiled by g++ and run on host memory; skips the test where there is no g++."""
    if not shim.available():
        pytest.skip("there is no g++ to compile CUDA kernels for the host")
    with shim.in_place():
        yield


def _machines() -> list[Any]:
    """Where kernels can run: on the host, and on a GPU if there is one."""
    if find_spec("cupy") is None:
        return ["host"]
    import cupy

    return ["host", *([pytest.param("gpu", marks=pytest.mark.cuda)] * cupy.cuda.is_available())]


@pytest.fixture(params=_machines())
def machine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the kernels of a test run: "host" as in host_compiler, or "gpu"."""
    if request.param == "host":
        request.getfixturevalue("host_compiler")
        yield "host"
        return
    import cupy

    with kernels.on_gpu(cupy):
        yield "gpu"
