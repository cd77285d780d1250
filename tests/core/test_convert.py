# SPDX-License-Identifier: Apache-2.0
"""Numbers that users give: integral floats are ints, and no cache mixes up equal ones."""

import math

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS
from tests.core.conftest import leaf
from tests.test_derived import samples


def test_integral_sizes_are_ints_whatever_was_made_before():
    for make in (nn.Variable, nn.NdArray):
        for shape in ((9173, 11.0), (9174.0, np.float32(3)), np.array([9175, 2]), [True, 9176]):
            a = make(shape)
            assert a.shape == tuple(int(n) for n in shape)
            assert [type(n) for n in a.shape] == [int, int]
            assert make(shape).shape == a.shape
    assert nn.NdArray(9177.0, 2).shape == (9177, 2) and nn.Variable(9178.0).shape == (9178,)
    x = nn.Variable((2, 6))
    x.reset_shape((3.0, 8 / 2))
    assert x.shape == (3, 4) and x.reshape((2.0, -1.0)).shape == (2, 6)


def test_other_sizes_are_refused_with_the_name_of_the_class():
    nn.Variable((7, 11))
    for bad in ((7, 11.5), (7, float("nan")), (7, None), ("7",), [[1, 2]]):
        for make in (nn.Variable, nn.NdArray):
            with pytest.raises(
                TypeError, match=rf"^{make.__name__}: shape is .* sequence of ints$"
            ):
                make(bad)
    for make in (nn.Variable, nn.NdArray):
        text = (
            rf"^{make.__name__}: shape is a numpy array float64\[2, 3\], wanted a sequence of "
            rf"ints: {make.__name__}.from_numpy_array takes the values of an array$"
        )
        with pytest.raises(TypeError, match=text):
            make(np.ones((2, 3)))


def as_floats(kind, value):
    if kind.startswith("int") and type(value) is int:
        return float(value)
    if kind.startswith("tuple[int") and value is not None:
        return [np.float64(v) for v in value]
    return value


def test_every_attribute_that_is_an_int_takes_an_integral_float():
    ops = [o for o in OPS.values() if hasattr(o.attrs_class, "samples")]
    for op, sample in [(o, s) for o in ops for s in samples(o)]:
        kinds = dict(zip(op.fields, op.kinds, strict=True))
        exact = op.attrs(**sample.attrs)
        given = {f: as_floats(kinds[f], v) for f, v in sample.attrs.items()}
        assert op.attrs(**given) is exact, op.name
        for field, kind in kinds.items():
            if kind.split(" ")[0] in ("int", "tuple[int,") and field in sample.attrs:
                bad = 0.5 if kind.startswith("int") else (1, 0.5)
                with pytest.raises(TypeError, match=rf"^{op.name}: {field} is .*0.5.*, wanted "):
                    op.attrs(**{**sample.attrs, field: bad})


def test_parametric_functions_take_integral_floats():
    x = nn.Variable((2, 6, 8, 8))
    h = PF.convolution(x, 8 / 2, (3.0, 3.0), pad=np.array([1.0, 1]), group=2.0, name="c")
    assert h.shape == (2, 4, 8, 8) and PF.affine(h, 6 / 2, name="a").shape == (2, 3)
    assert PF.deconvolution(h, 2.0, (2.0, 2), stride=(2.0, 2.0), name="d").shape == (2, 2, 16, 16)
    assert PF.embed(nn.Variable((3,)), 6.0, 4.0).shape == (3, 4)
    shapes = {k: v.shape for k, v in nn.get_parameters().items()}
    assert shapes["c/conv/W"] == (4, 3, 3, 3) and shapes["a/affine/W"] == (256, 3)
    for call, text in {
        lambda: PF.convolution(x, 4.5, (3, 3)): "^convolution: outmaps is 4.5, wanted an int$",
        lambda: PF.convolution(x, 4, (3, 2.5)): r"^convolution: kernel is \(3, 2.5\), wanted a seq",
        lambda: PF.affine(x, 4.5): "^affine: n_outmaps is 4.5, wanted an int or a seq",
        lambda: PF.affine(x, "4"): "^affine: n_outmaps is '4', wanted an int or",
        lambda: PF.affine(x, 4, base_axis=1.5): "^affine: base_axis is 1.5, wanted an int$",
    }.items():
        with pytest.raises(TypeError, match=text):
            call()


def test_one_int_for_all_spatial_axes_is_an_error_that_shows_the_tuple():
    x, w = nn.Variable((4, 3, 28, 28)), nn.Variable((5, 3, 3, 3))
    wanted = r", wanted an int for each spatial axis: \({0}, {0}\)$"
    for call, text in {
        lambda: F.max_pooling(x, 2): "^max_pooling: kernel is 2" + wanted.format(2),
        lambda: F.average_pooling(x, 2.0): "^average_pooling: kernel is 2" + wanted.format(2),
        lambda: F.sum_pooling(x, kernel=2): "^sum_pooling: kernel is 2" + wanted.format(2),
        lambda: F.unpooling(x, 3): "^unpooling: kernel is 3" + wanted.format(3),
        lambda: F.max_pooling(x, (2, 2), stride=1): "^max_pooling: stride is 1" + wanted.format(1),
        lambda: F.convolution(x, w, pad=1): "^convolution: pad is 1" + wanted.format(1),
        lambda: F.deconvolution(x, w, stride=2): "^deconvolution: stride is 2" + wanted.format(2),
        lambda: F.depthwise_convolution(x, w, dilation=2): "convolution: dilation is 2",
        lambda: F.roi_align(x, w, 7): "^roi_align: output_size is 7" + wanted.format(7),
        lambda: PF.convolution(x, 4, 3): "^convolution: kernel is 3" + wanted.format(3),
        lambda: PF.convolution(x, 4, (3, 3), pad=1): "^convolution: pad is 1" + wanted.format(1),
        lambda: PF.depthwise_convolution(x, 3): "^depthwise_convolution: kernel is 3",
        lambda: F.max_pooling(nn.Variable((2, 3, 9)), 2): r"spatial axis: \(2,\)$",
    }.items():
        with pytest.raises(TypeError, match=text):
            call()
    assert F.max_pooling(x, (2, 2)).shape == (4, 3, 14, 14)


def test_minus_zero_is_not_zero():
    one = leaf([1])
    with nn.auto_forward():
        for zero in (0.0, -0.0, np.float32(0.0), np.float32(-0.0), 0):
            wanted = math.copysign(1, zero)
            assert np.copysign(1, F.mul_scalar(one, zero).d) == wanted
            assert np.copysign(1, (one * zero).d) == wanted
            assert np.copysign(1, F.constant(zero, (1,)).d) == wanted


def test_what_a_call_lacks_is_found_though_its_attributes_are_known():
    x, w = nn.Variable((1, 2, 5, 5)), nn.Variable((3, 2, 3, 3))
    assert F.convolution(x, w, pad=(1, 1)).shape == (1, 3, 5, 5)
    assert F.convolution(x, weight=w, pad=(1, 1)).shape == (1, 3, 5, 5)
    assert F.convolution(weight=w, x=x, pad=(1, 1)).shape == (1, 3, 5, 5)
    for call in (
        lambda: F.convolution(x, pad=(1, 1)),
        lambda: F.convolution(x, None, pad=(1, 1)),
        lambda: F.convolution(weight=w, pad=(1, 1)),
    ):
        for auto in (False, True):
            with (
                nn.auto_forward(auto),
                pytest.raises(TypeError, match=r"needs the input '(x|weight)'"),
            ):
                call()


def test_a_list_counts_as_what_it_holds_at_the_call():
    x = nn.Variable((2, 6))
    shape = [3, 4]
    assert F.reshape(x, shape).shape == F.reshape(x, shape=shape).shape == (3, 4)
    shape[:] = [6, 2]
    assert F.reshape(x, shape).shape == F.reshape(x, shape=shape).shape == (6, 2)
    assert F.reshape(x, (3, 4)).shape == (3, 4)
    for wrong in ([[3, 4]], ([3], [4]), [3, 4.5], [3, "4"]):
        for _ in range(2):
            with pytest.raises(TypeError, match="^reshape: shape is"):
                F.reshape(x, wrong)


def test_recorded_steps_tell_equal_arguments_apart():
    seen = []

    @nn.compile
    def step(x, s):
        seen.append(s)
        return x * 2.0

    x = leaf([1])
    for s in (0.0, -0.0, 0, False, (0.0, 1), (-0.0, 1), (0.0, True)):
        step(x, s)
        step(x, s)
    assert [repr(s) for s in seen] == [
        "0.0", "-0.0", "0", "False", "(0.0, 1)", "(-0.0, 1)", "(0.0, True)",
    ]  # fmt: skip


def test_equal_specs_stay_one_object():
    assert Spec.of((2.0, True)) is Spec.of((2, 1)) is Spec.of([np.int64(2), np.float32(1)])
