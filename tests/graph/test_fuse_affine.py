# SPDX-License-Identifier: Apache-2.0
"""Affine with what follows it in one step."""

import pytest

import nnl.functions as F
from tests.graph.fusion import leaf, passes_are_verified, steps_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("passes_are_verified")


def graph(activation=None, residual=None, bias=True):
    def build():
        x, w, b = leaf(4, 7, 6), leaf(6, 5, seed=1), leaf(5, seed=2)
        leaves = [x, w] + [b] * bias
        y = F.affine(x, w, b if bias else None, base_axis=2)
        if residual is not None:
            z = leaf(*residual, seed=3)
            leaves.append(z)
            y = z + y
        return activation(y) if activation else y, leaves

    return build


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid"])
def test_activations_whose_gradient_reads_their_output(name, bias, half):
    steps = steps_of(graph(getattr(F, name), bias=bias), half=half)
    assert steps["affine_fused"] == 1 and not {"affine", name} & steps.keys()


@pytest.mark.parametrize("name", ["gelu", "swish"])
def test_others_are_fused_in_inference_only(name):
    f = getattr(F, name)
    assert "affine_fused" not in steps_of(graph(f))
    steps = steps_of(graph(f), train=False)
    assert steps["affine_fused"] == 1 and name not in steps


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("activation", [None, F.relu])
def test_an_addition_joins(activation, half):
    steps = steps_of(graph(activation, (4, 7, 5)), half=half)
    assert steps["affine_fused"] == 1 and not {"affine", "add2", "relu"} & steps.keys()


def test_a_stretched_addition_does_not():
    assert "affine_fused" not in steps_of(graph(None, (1, 7, 5)))


def test_a_value_that_is_read_elsewhere_is_kept():
    def build():
        x, w = leaf(4, 6), leaf(6, 5, seed=1)
        h = F.affine(x, w)
        return F.relu(h) * h, [x, w]

    assert "affine_fused" not in steps_of(build)


def test_products_over_many_rows_are_added_to_afterwards():
    def build():
        x, w, z = leaf(4, 1025), leaf(1025, 3, seed=1), leaf(4, 3, seed=2)
        return F.affine(x, w) + z, [x, w, z]

    assert "affine_fused" not in steps_of(build)
