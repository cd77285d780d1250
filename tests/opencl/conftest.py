# SPDX-License-Identifier: Apache-2.0
"""Tests on an OpenCL device: the first that is there, or PoCL's on the processor."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def device():
    """The device of the context "opencl"; skips where pyopencl or a driver is missing."""
    pytest.importorskip("pyopencl", reason="pyopencl is not installed: make test-opencl")
    from nnl.ext import opencl

    if opencl.missing():
        pytest.skip(f"there is no OpenCL device: {opencl.missing()[0]}")
    return opencl.device_of(0)
