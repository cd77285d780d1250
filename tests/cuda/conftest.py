# SPDX-License-Identifier: Apache-2.0
"""Where the kernels of a test run, and what happens after a test that has broken the GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.cuda import kernels
from tests.cuda.host_stream import processor


@pytest.fixture
def host_compiler() -> Iterator[None]:
    """Kernels run by PoCL on host memory; skips the test where that is not installed."""
    if processor() is None:
        pytest.skip("there is no PoCL to run kernels on the host: make test-opencl")
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


BROKEN: list[str] = []  # the test after which the GPU of this process takes no more work


@pytest.fixture(autouse=True)
def all_work_is_done(request: pytest.FixtureRequest) -> Iterator[None]:
    """Wait for the GPU after each test that uses one, so that its errors are that test's."""
    yield
    if request.node.get_closest_marker("cuda") is None or find_spec("cupy") is None:
        return
    from cupy.cuda import runtime

    try:
        runtime.deviceSynchronize()
    except runtime.CUDARuntimeError:
        BROKEN.append(request.node.nodeid)
        raise


def pytest_runtest_logfinish() -> None:
    """Leave this process to a new one, where pytest-xdist makes one: such an error stays."""
    if BROKEN and "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(3)
