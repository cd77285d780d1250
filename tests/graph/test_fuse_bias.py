# SPDX-License-Identifier: Apache-2.0
"""A bias that is added behind a product or a convolution."""

import pytest

import nnl.functions as F
from tests.graph.fusion import leaf, passes_are_verified, steps_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("passes_are_verified")


def product(first=False, twice=False):
    def build():
        x, w, b = leaf(4, 7, 6), leaf(6, 5, seed=1), leaf(5, seed=2)
        wide = F.reshape(b, (1, 1, 5))
        h = F.affine(x, w, base_axis=2)
        y = wide + h if first else h + wide
        return F.relu(y) * h if twice else F.relu(y), [x, w, b]

    return build


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_row_that_is_added_to_a_product(first, half):
    steps = steps_of(product(first), half=half)
    assert steps["affine_fused"] == 1 and not {"affine", "add2", "relu"} & steps.keys()


def test_a_product_that_is_read_elsewhere_is_kept():
    assert steps_of(product(twice=True))["affine"] == 1


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("f, filters", [(F.convolution, (5, 3)), (F.deconvolution, (3, 5))])
def test_a_number_for_each_map_of_a_convolution(f, filters, last):
    """As Theano's tutorials write it: conv + b.dimshuffle("x", 0, "x", "x"); and channels last."""

    def build():
        sizes = (filters[0], 2, 2, filters[1]) if last else (*filters, 2, 2)
        x = leaf(2, 6, 6, 3) if last else leaf(2, 3, 6, 6)
        w, b = leaf(*sizes, seed=1), leaf(5, seed=2)
        y = f(x, w, channel_last=last)
        return F.tanh(y + F.reshape(b, (1, 1, 1, 5) if last else (1, 5, 1, 1))), [x, w, b]

    assert "add2" not in (found := steps_of(build)) and "add2" not in steps_of(build, train=False)
    assert sum(n for op, n in found.items() if op.startswith(f.__name__)) >= 1


@pytest.mark.parametrize("shape", [(4, 5), (4, 1), (1, 1), (1, 5)])
def test_what_is_no_row_of_numbers_is_added_afterwards(shape):
    def build():
        x, w, z = leaf(4, 1025), leaf(1025, 5, seed=1), leaf(*shape, seed=2)
        return F.affine(x, w) + z, [x, w, z]

    assert "affine" in steps_of(build)
    assert {"add2", "fused_elementwise"} & steps_of(build).keys()
