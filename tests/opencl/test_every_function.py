# SPDX-License-Identifier: Apache-2.0
"""Every definition in the context "opencl" against numpy, values and gradients, on its samples."""

import numpy as np
import pytest

import nnl as nn
from nnl.ext.opencl import coverage
from nnl.ext_utils import get_extension_context
from tests.test_derived import CASES, Case, each_sample

REFERENCE = nn.Context(["numpy:float"])


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly(device):
    """These tests take the time of the compiler, which is a quarter of the usual without passes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "options", [*device.options, "-cl-opt-disable"])
        device.queue.programs.clear()
        yield
        device.queue.programs.clear()


def forward_and_backward(op, i, ctx):
    """Values, and gradients of the inputs."""
    with nn.context_scope(ctx), nn.auto_forward(), np.errstate(all="ignore"):
        case = Case(op, i, np.float32)
        xs = case.variables()
        ys = case.run(xs)
        gradients = case.gradients(xs, ys)
        return [y.d for y in ys] + gradients


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
@each_sample(CASES)
def test_values_and_gradients_are_those_of_numpy(op, i):
    want = forward_and_backward(op, i, REFERENCE)
    got = forward_and_backward(op, i, get_extension_context("opencl"))
    for a, b in zip(want, got, strict=True):
        assert (b.shape, b.dtype) == (a.shape, a.dtype)
        np.testing.assert_allclose(b, a, rtol=3e-5, atol=3e-5)


def test_most_functions_and_all_solvers_have_kernels():
    found = coverage.covered()
    assert len(found) >= 150
    updates = {n for n in found if n.endswith("_update")}
    assert len(updates) >= 16, updates
