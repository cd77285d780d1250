# SPDX-License-Identifier: Apache-2.0
"""Tests on an OpenCL device: the first that is there, or PoCL's on the processor."""

from __future__ import annotations

import pytest

from tests.opencl.guarded import GuardedMemory


@pytest.fixture(scope="session", autouse=True)
def device():
    """The device of the context "opencl"; skips where pyopencl or a driver is missing."""
    pytest.importorskip("pyopencl", reason="pyopencl is not installed: make test-opencl")
    from nnl.ext import opencl

    if opencl.missing():
        pytest.skip(f"there is no OpenCL device: {opencl.missing()[0]}")
    found = opencl.device_of(0)
    old = found.memory
    found.memory = GuardedMemory(found.cl, found.context, found.queue, old.name, old.limit)
    return found


@pytest.fixture(autouse=True)
def kernels_stay_in_their_arrays(device):
    """Fails a test whose kernels have written outside of an array."""
    yield
    device.memory.check()
