# SPDX-License-Identifier: Apache-2.0
"""affine, batch_matmul, dot, embed, convolutions and interpolate: behaviour and messages."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.functions.convolution import convolution_data, convolution_weight
from nnl.functions.interpolate import interpolate_backward


def array(*shape):
    return nn.NdArray.from_numpy_array(np.random.default_rng(0).normal(size=shape).astype("f"))


def indices(*values):
    return nn.NdArray.from_numpy_array(np.array(values))


# ---- affine, batch_matmul, dot ----


def test_affine_output_has_all_axes_of_the_weight_but_the_first():
    assert F.affine(array(2, 3, 4), array(12, 5, 6), array(5, 6)).shape == (2, 5, 6)
    assert F.affine(array(2, 3, 4), array(24, 5), base_axis=0).shape == (5,)
    assert F.affine(array(2, 3, 4), array(4, 5), base_axis=-1).shape == (2, 3, 5)


def test_an_inner_size_of_zero_gives_the_bias():
    b = array(5)
    np.testing.assert_array_equal(F.affine(array(2, 0), array(0, 5), b).data, [b.data] * 2)


@pytest.mark.parametrize(
    "args,text",
    [
        (
            (array(2, 3, 4), array(11, 5)),
            r"affine: x float32\[2, 3, 4\] has 12 values from axis 1 on, "
            r"weight float32\[11, 5\] takes 11",
        ),
        ((array(2, 3), array(3)), r"affine: weight float32\[3\] has rank 1, wanted >= 2"),
        (
            (array(2, 3), array(3, 5), array(4)),
            r"affine: bias float32\[4\] must have the shape \(5,\)",
        ),
        ((array(2, 3), array(3, 5), None, 2), r"affine: axis 2 is outside \[-2, 2\) for x"),
    ],
)
def test_affine_errors(args, text):
    with pytest.raises(ShapeError, match=text):
        F.affine(*args)


@pytest.mark.parametrize(
    "a,b,text",
    [
        ((2, 3, 4), (4, 5), r"a float32\[2, 3, 4\] and b float32\[4, 5\] must have the same rank"),
        ((4,), (4,), "must have the same rank, at least 2"),
        (
            (2, 3, 4),
            (2, 5, 6),
            r"a float32\[2, 3, 4\] has inner size 4, b float32\[2, 5, 6\] has 5",
        ),
        ((2, 3, 4), (3, 4, 5), r"the batch axes of a float32\[2, 3, 4\] and b .* do not broadcast"),
    ],
)
def test_batch_matmul_errors(a, b, text):
    with pytest.raises(ShapeError, match=f"batch_matmul: .*{text}"):
        F.batch_matmul(array(*a), array(*b))


@pytest.mark.parametrize(
    "sa,sb",
    [
        ((3,), (3,)),
        ((), (2, 3)),
        ((2, 3), ()),
        ((), ()),
        ((2, 3), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 5, 3), (3, 4)),
        ((2, 5, 3), (3,)),
        ((2, 5, 3), (7, 3, 4)),
        ((3,), (6, 7, 3, 4)),
    ],
)
def test_dot_is_the_dot_of_numpy(sa, sb):
    a, b = array(*sa), array(*sb)
    want = np.dot(a.data, b.data)
    np.testing.assert_allclose(F.dot(a, b).data, want, rtol=1e-5, atol=1e-6)
    with nn.auto_forward():
        va, vb = (nn.Variable.from_numpy_array(v.data) for v in (a, b))
        np.testing.assert_allclose(F.dot(va, vb).d, want, rtol=1e-5, atol=1e-6)


def test_dot_of_numpy_arrays_is_a_numpy_array():
    assert F.dot(2.0, 3.0) == 6
    assert isinstance(F.dot(np.ones((2, 3)), np.ones((3, 2))), np.ndarray)


def test_dot_writes_its_result_to_out():
    out = nn.NdArray((2, 4))
    a, b = array(2, 3), array(3, 4)
    assert F.dot(a, b, out=out) is out
    np.testing.assert_allclose(out.data, a.data @ b.data, rtol=1e-5, atol=1e-6)


def test_dot_errors():
    with pytest.raises(
        ShapeError, match=r"dot: the last axis of a float32\[2, 3\] has size 3, .*2"
    ):
        F.dot(array(2, 3), array(2, 3))
    with pytest.raises(ValueError, match=r"dot: out has the shape \(2, 5\), the result has \(2, 4"):
        F.dot(array(2, 3), array(3, 4), out=nn.NdArray((2, 5)))
    with pytest.raises(TypeError, match="dot: b is ndarray, wanted nnl.Variable or nnl.NdArray"):
        F.dot(array(2, 3), np.ones((3, 2)))
    with pytest.raises(TypeError, match="dot: out is ndarray, wanted nnl.Variable or nnl.NdArray"):
        F.dot(array(2, 3), array(3, 4), out=np.ones((2, 4)))


# ---- embed ----


@pytest.mark.parametrize("bad", [-1, 7])
def test_embed_names_an_index_out_of_range(bad):
    with pytest.raises(ValueError, match=rf"embed: x0 holds the index {bad}, w has rows 0 to 6"):
        F.embed(indices(0, bad), array(7, 2))


def test_embed_rejects_a_scalar_weight():
    with pytest.raises(ShapeError, match=r"embed: w float32\[\] has rank 0, wanted >= 1"):
        F.embed(indices(0), array())


def test_embed_backward_errors():
    from nnl.functions.affine import embed_backward

    with pytest.raises(
        ShapeError, match=r"embed_backward: gy float32\[2, 3\] must have .*\(2, 4\)"
    ):
        embed_backward(indices(0, 1), array(2, 3), shape=(7, 4))
    with pytest.raises(ShapeError, match=r"embed_backward: z float32\[6, 4\] must have .*\(7, 4\)"):
        embed_backward(indices(0, 1), array(2, 4), array(6, 4), shape=(7, 4))


# ---- convolutions ----

X = (1, 3, 8, 8)


@pytest.mark.parametrize(
    "x,w,kw,error,text",
    [
        (
            X,
            (4, 2, 3, 3),
            {},
            ShapeError,
            r"x float32\[1, 3, 8, 8\] has 3 channels, "
            r"weight float32\[4, 2, 3, 3\] takes 2 x group 1",
        ),
        (
            X,
            (4, 3, 9, 3),
            {},
            ShapeError,
            r"the kernel of weight float32\[4, 3, 9, 3\] with dilation \(1, 1\) spans 9 pixels on "
            r"spatial axis 0, x float32\[1, 3, 8, 8\] with pad \(0, 0\) has 8",
        ),
        (X, (4, 3, 3, 3), {"pad": (1,)}, ShapeError, r"pad \(1,\) has 1 entries, x .* 2 spatial"),
        (X, (4, 3, 3, 3), {"stride": (0, 1)}, ValueError, r"stride \(0, 1\) must be >= 1"),
        (X, (4, 3, 3, 3), {"pad": (-1, 1)}, ValueError, r"pad \(-1, 1\) must be >= 0"),
        (X, (4, 3, 3), {}, ShapeError, r"weight float32\[4, 3, 3\] has rank 3, wanted 4 for 2 sp"),
        (X, (4, 1, 3, 3), {"group": 3}, ShapeError, "has 4 maps, not a multiple of group 3"),
        (X, (4, 3, 0, 3), {}, ShapeError, r"weight float32\[4, 3, 0, 3\] is empty"),
        ((2, 3), (4, 3), {}, ShapeError, r"x float32\[2, 3\] has no spatial axis after base_axis"),
    ],
)
def test_convolution_errors(x, w, kw, error, text):
    with pytest.raises(error, match=f"convolution: .*{text}"):
        F.convolution(array(*x), array(*w), **kw)


def test_convolution_names_a_bias_of_another_size():
    with pytest.raises(
        ShapeError, match=r"convolution: bias float32\[5\] must have the shape \(4,\)"
    ):
        F.convolution(array(*X), array(4, 3, 3, 3), array(5))


def test_gradients_of_convolution_check_their_shapes():
    with pytest.raises(
        ShapeError, match=r"convolution_data: gy float32\[1, 4, 5, 5\] is not the res"
    ):
        convolution_data(array(1, 4, 5, 5), array(4, 3, 3, 3), shape=X)
    with pytest.raises(ShapeError, match="convolution_weight: gy .* is not the result float32"):
        convolution_weight(array(*X), array(1, 4, 5, 5), shape=(4, 3, 3, 3))


def test_several_batch_axes():
    x, w = array(2, 5, 3, 8, 8), array(4, 3, 3, 3)
    y = F.convolution(x, w, base_axis=2)
    assert y.shape == (2, 5, 4, 6, 6)
    flat = F.convolution(F.reshape(x, (10, 3, 8, 8)), w)
    np.testing.assert_array_equal(y.data.reshape(flat.shape), flat.data)
    assert F.convolution(array(3, 8, 8), w, base_axis=0).shape == (4, 6, 6)
    assert F.convolution(x, w, base_axis=-3).shape == y.shape


def test_four_spatial_axes():
    y = F.convolution(array(2, 3, 4, 4, 4, 4), array(4, 3, 3, 3, 3, 3))
    assert y.shape == (2, 4, 2, 2, 2, 2)


def test_no_images_give_no_results_and_a_gradient_of_zero():
    with nn.auto_forward():
        x = nn.Variable.from_numpy_array(np.zeros((0, 3, 8, 8), "f"), need_grad=True)
        w = nn.Variable.from_numpy_array(np.ones((4, 3, 3, 3), "f"), need_grad=True)
        y = F.convolution(x, w)
        gx, gw = nn.grad(y, [x, w])
    assert y.shape == (0, 4, 6, 6) and gx.shape == x.shape
    assert gw.shape == w.shape and not gw.d.any()


@pytest.mark.parametrize(
    "w,kw,error,text",
    [
        ((5, 3, 3, 3), {}, ShapeError, "has 4 channels, weight float32.5, 3, 3, 3. takes 5"),
        (
            (4, 3, 3, 3),
            {"stride": (2, 2), "output_padding": (2, 0)},
            ValueError,
            r"output_padding \(2, 0\) must be >= 0 and below stride \(2, 2\)",
        ),
        (
            (4, 3, 3, 3),
            {"output_padding": (0,)},
            ShapeError,
            r"output_padding \(0,\) has 1 entries",
        ),
        ((4, 3, 3, 3), {"pad": (6, 6)}, ShapeError, r"with pad \(6, 6\) give the size \(-2, -2\)"),
    ],
)
def test_deconvolution_errors(w, kw, error, text):
    with pytest.raises(error, match=f"deconvolution: .*{text}"):
        F.deconvolution(array(1, 4, 8, 8), array(*w), **kw)


def test_depthwise_errors():
    with pytest.raises(
        ShapeError, match=r"depthwise_convolution: weight .* must be \(6, then 2 kernel sizes\)"
    ):
        F.depthwise_convolution(array(*X), array(3, 3, 3), multiplier=2)
    with pytest.raises(ShapeError, match="has 3 channels, not a multiple of divisor 2"):
        F.depthwise_deconvolution(array(*X), array(3, 3, 3), divisor=2)
    with pytest.raises(ShapeError, match=r"depthwise_deconvolution: bias .* have the shape \(3,\)"):
        F.depthwise_deconvolution(array(*X), array(3, 3, 3), array(4))


# ---- interpolate ----


def test_scaled_sizes_are_rounded_down_and_output_size_wins():
    x = array(2, 3, 4, 5)
    assert F.interpolate(x, scale=(1.3, 1.7)).shape == (2, 3, 5, 8)
    assert F.interpolate(x, scale=(2, 2), output_size=(3, 3)).shape == (2, 3, 3, 3)
    assert F.interpolate(x, scale=(2, 2), channel_last=True).shape == (2, 6, 8, 5)


@pytest.mark.parametrize(
    "n,out,kw,want",  # by NNabla 1.39, for x = 1, 2, .. n
    [
        (7, 4, {}, [1, 2.75, 4.5, 6.25]),
        (7, 4, {"half_pixel": True}, [1.375, 3.125, 4.875, 6.625]),
        (4, 7, {"align_corners": True}, [1, 1.5, 2, 2.5, 3, 3.5, 4]),
        (5, 1, {"half_pixel": True}, [1]),
        (4, 7, {"mode": "nearest"}, [1, 1, 2, 2, 3, 3, 4]),
        (4, 7, {"mode": "nearest", "half_pixel": True}, [1, 1, 1, 2, 3, 3, 4]),
        (7, 4, {"mode": "nearest", "align_corners": True}, [1, 3, 5, 7]),
        (7, 4, {"mode": "nearest", "half_pixel_for_nn": True}, [1, 3, 5, 7]),
        (5, 1, {"mode": "nearest", "half_pixel_for_nn": True}, [3]),
    ],
)
def test_interpolated_positions_are_those_of_nnabla(n, out, kw, want):
    x = nn.NdArray.from_numpy_array(np.arange(1, n + 1, dtype="f"))
    np.testing.assert_allclose(F.interpolate(x, output_size=(out,), **kw).data, want, rtol=1e-5)


def test_nearest_with_aligned_corners_ends_at_the_last_pixel():
    # 47 * (8 / 47) in float32 is just below 8, which must not select pixel 7
    x = nn.NdArray.from_numpy_array(np.arange(9, dtype="f"))
    y = F.interpolate(x, output_size=(48,), mode="nearest", align_corners=True)
    assert y.data[-1] == 8


def test_interpolation_to_the_same_size_is_a_copy():
    x = array(2, 3, 4)
    y = F.interpolate(x, output_size=(4,))
    np.testing.assert_array_equal(y.data, x.data)
    assert not np.shares_memory(y.data, x.data)


@pytest.mark.parametrize(
    "kw,error,text",
    [
        ({}, ValueError, "neither scale nor output_size is given"),
        (
            {"output_size": (2, 2), "mode": "cubic"},
            ValueError,
            "mode is 'cubic', wanted 'linear' or",
        ),
        ({"output_size": (0, 2)}, ValueError, r"output_size \(0, 2\) must be >= 1"),
        (
            {"output_size": (2,), "align_corners": True, "half_pixel": True},
            ValueError,
            "align_corners and half_pixel exclude each other",
        ),
        ({"output_size": (2,) * 5}, ShapeError, r"x float32\[2, 3, 4, 4\] has rank 4, wanted >= 5"),
        (
            {"scale": (2,) * 5},
            ShapeError,
            r"scale \(2, 2, 2, 2, 2\) has 5 entries, x .* has 4 axes",
        ),
    ],
)
def test_interpolate_errors(kw, error, text):
    with pytest.raises(error, match=f"interpolate: .*{text}"):
        F.interpolate(array(2, 3, 4, 4), **kw)


def test_interpolate_rejects_an_axis_without_pixels():
    with pytest.raises(ShapeError, match=r"interpolate: x float32\[2, 0\] has no pixels"):
        F.interpolate(array(2, 0), output_size=(3,))


def test_interpolate_backward_checks_its_shape():
    with pytest.raises(
        ShapeError, match=r"interpolate_backward: gy float32\[2, 4\] must have .* \(2, 3"
    ):
        interpolate_backward(array(2, 4), output_size=(3,), mode="linear", shape=(2, 5))
