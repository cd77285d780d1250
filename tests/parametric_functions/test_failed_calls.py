# SPDX-License-Identifier: Apache-2.0
"""A parametric function that fails leaves the registry as it was and says what was wrong."""

import pytest

import nnl as nn
import nnl.parametric_functions as PF
from nnl.core.arrays.spec import ShapeError


def names():
    return list(nn.get_parameters(grad_only=False))


def test_parameters_made_before_the_error_are_removed():
    x = nn.Variable((2, 3, 8, 8))
    with pytest.raises(ShapeError, match="spans 9 pixels"):
        PF.convolution(x, 4, (9, 9), name="a")
    assert names() == []
    PF.convolution(x, 4, (3, 3), name="a")  # the name is free for a right call
    assert names() == ["a/conv/W", "a/conv/b"]


def test_parameters_that_existed_stay():
    x = nn.Variable((2, 3, 8, 8))
    PF.convolution(x, 4, (3, 3), name="a")
    before = {k: id(v) for k, v in nn.get_parameters().items()}
    with pytest.raises(ShapeError, match=r"parameter 'a/conv/W' exists with the shape \(4, 3, 3"):
        PF.convolution(x, 5, (3, 3), name="a")
    assert {k: id(v) for k, v in nn.get_parameters().items()} == before


def test_an_outer_parametric_function_removes_what_inner_ones_made():
    @PF.parametric_function_api("two")
    def two(inp):
        h = PF.affine(inp, 3, name="one")
        return PF.convolution(h, 3, (3, 3))

    with pytest.raises(ShapeError, match="wanted 4 axes"):
        two(nn.Variable((2, 5)))
    assert names() == []


@pytest.mark.parametrize(
    "call,error,text",
    [
        (lambda: PF.affine("x", 3), TypeError, "affine: inp is str, wanted nnl.Variable or"),
        (lambda: PF.prelu(None), TypeError, "prelu: inp is NoneType, wanted nnl.Variable or"),
        (
            lambda: PF.affine(nn.Variable((2, 3)), -1),
            ShapeError,
            r"parameter 'affine/W' cannot have the shape \(3, -1\)",
        ),
        (
            lambda: PF.convolution(nn.Variable((2, 3, 8, 8)), 4, 3),
            TypeError,
            r"convolution: kernel is 3, wanted an int for each spatial axis: \(3, 3\)",
        ),
    ],
)
def test_wrong_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
    assert names() == []
