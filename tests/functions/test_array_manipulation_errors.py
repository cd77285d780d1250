# SPDX-License-Identifier: Apache-2.0
"""Joining, cutting, reordering, gathering, scattering, sorting: the texts of errors."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
B = np.arange(4, dtype=np.float32)


def var(a):
    return nn.Variable.from_numpy_array(np.asarray(a))


def wrong(call, error, text):
    return pytest.param(call, error, text, id=text[:60])


WRONG = [
    wrong(lambda x: F.concatenate(), TypeError, "concatenate: got no inputs, wanted at least one"),
    wrong(lambda x: F.stack(), TypeError, "stack: got no inputs"),
    wrong(lambda x: F.meshgrid(), TypeError, "meshgrid: got no inputs"),
    wrong(lambda x: F.sink(), TypeError, "sink: got no inputs"),
    wrong(lambda x: F.concatenate(x, x, axis=3), ShapeError, r"concatenate: axis 3 is outside \[-"),
    wrong(
        lambda x: F.concatenate(x, var(X[:1])),
        ShapeError,
        r"concatenate: x\[1\] float32\[1, 3, 4\] and x\[0\] float32\[2, 3, 4\] differ in more",
    ),
    wrong(lambda x: F.stack(x, x, axis=4), ShapeError, r"stack: axis 4 is outside \[-4, 3\] for x"),
    wrong(lambda x: F.stack(x, var(X[0])), ShapeError, r"stack: x\[1\] float32\[3, 4\] and x\[0\]"),
    wrong(lambda x: F.split(x, 5), ShapeError, r"split: axis 5 is outside \[-3, 3\) for x float32"),
    wrong(lambda x: F.split(var(X[:0])), ShapeError, r"split: axis 0 of x float32\[0, 3, 4\] has"),
    wrong(F.meshgrid, ShapeError, r"meshgrid: x\[0\] float32\[2, 3, 4\] has rank 3, wanted 1"),
    wrong(
        lambda x: F.slice(x, start=(0,) * 4, stop=(1,) * 4, step=(1,) * 4),
        ShapeError,
        "slice: start .* must have the same length, at most the 3 axes of x",
    ),
    wrong(lambda x: F.slice(x, start=(0,)), ShapeError, "slice: start .* must have the same lengt"),
    wrong(lambda x: F.slice(x, step=(1, 0, 1)), ValueError, r"slice: step \(1, 0, 1\) has a 0"),
    wrong(lambda x: F.pad(x, (1,)), ShapeError, r"pad: pad_width \(1,\) has 1 numbers, wanted two"),
    wrong(lambda x: F.pad(x, (1,) * 8), ShapeError, "wanted two for each of at most 3 axes"),
    wrong(lambda x: F.pad(x, (-1, 0)), ValueError, r"pad: pad_width is \(-1, 0\), wanted numbers"),
    wrong(lambda x: F.pad(x, (1, 0), mode="edge"), ValueError, "pad: mode is 'edge', wanted 'cons"),
    wrong(
        lambda x: F.pad(var(X[..., :0]), (1, 0), mode="repeat"),
        ShapeError,
        r"pad: x float32\[2, 3, 0\] has an empty axis, which mode 'repeat' cannot pad",
    ),
    wrong(lambda x: F.shift(x, (1,) * 4), ShapeError, r"shift: shifts .* has 4 numbers, wanted at"),
    wrong(lambda x: F.shift(x, border_mode="a"), ValueError, "shift: border_mode is 'a', wanted '"),
    wrong(lambda x: F.flip(x, (3,)), ShapeError, r"flip: axis 3 is outside \[-3, 3\) for x"),
    wrong(lambda x: F.tile(x, (0,)), ValueError, r"tile: reps is \(0,\), wanted numbers in"),
    wrong(lambda x: F.transpose(x, (0, 1)), ShapeError, r"transpose: axes \(0, 1\) has 2 entries"),
    wrong(lambda x: F.transpose(x, (0, 0, 1)), ShapeError, "transpose: axes .* twice"),
    wrong(
        lambda x: F.broadcast_to(x, var(X[:, :1])),
        ShapeError,
        r"broadcast_to: y float32\[2, 1, 4\] does not fit along the axes of x .* from axis -1",
    ),
    wrong(lambda x: F.broadcast_to(x, var(B), axis=1), ShapeError, "does not fit .* from axis 1"),
    wrong(lambda x: F.one_hot(x, (3,)), ShapeError, "one_hot: x .* must have the size 1 in its la"),
    wrong(
        lambda x: F.one_hot(var([[0], [3]]), (3,)),
        ValueError,
        r"one_hot: x\[..., 0\] has the value 3, wanted -3 <= value < 3",
    ),
    wrong(lambda x: F.matrix_diag(var(1.0)), ShapeError, r"matrix_diag: x float\d+\[\] is a scala"),
    wrong(F.matrix_diag_part, ShapeError, "matrix_diag_part: x .* two last axes of one size"),
    wrong(lambda x: F.trilu(var(B)), ShapeError, r"trilu: x .* has rank 1, wanted at least 2"),
    wrong(F.eye_like, ShapeError, r"eye_like: x float32\[2, 3, 4\] has rank 3, wanted 2"),
    wrong(
        lambda x: F.gather(x, var([0, 2])),
        ValueError,
        "gather: Indices has the value 2, wanted 0 <= value < 2",
    ),
    wrong(lambda x: F.gather(x, var([-1])), ValueError, "gather: Indices has the value -1"),
    wrong(
        lambda x: F.gather(x, var([[0]]), axis=0, batch_dims=1),
        ShapeError,
        r"gather: batch_dims 1 is outside \[0, 0\], with axis 0",
    ),
    wrong(
        lambda x: F.gather(x, var([[0]]), axis=1, batch_dims=1),
        ShapeError,
        r"gather: x float32\[2, 3, 4\] and Indices int64\[1, 1\] must have the same first 1 sizes",
    ),
    wrong(
        lambda x: F.gather_nd(x, [[0], [-4]]),
        ValueError,
        r"gather_nd: indices\[1\] has the value -4, wanted -3 <= value < 3",
    ),
    wrong(lambda x: F.gather_nd(x, [0]), ShapeError, r"gather_nd: indices int64\[1\] must have th"),
    wrong(lambda x: F.gather_nd(x, [[0]] * 4), ShapeError, "m from 1 to the rank of data float32"),
    wrong(lambda x: F.gather_nd(x, [[0.5]]), TypeError, "gather_nd: indices has the dtype float64"),
    wrong(lambda x: F.scatter_nd(x, [[0]]), TypeError, "scatter_nd: got neither of shape and out"),
    wrong(lambda x: F.scatter_nd(x, [[0]], (1,), x), TypeError, "scatter_nd: got both of shape an"),
    wrong(
        lambda x: F.scatter_nd(x, [[0, 1]], shape=(3, 3, 5)),
        ShapeError,
        r"scatter_nd: data float32\[2, 3, 4\] must have the shape \(2, 3, 5\), from indices",
    ),
    wrong(
        lambda x: F.scatter_nd(x, [[0, 3]], shape=(3, 3, 4)),
        ValueError,
        r"scatter_nd: indices\[0\] has the value 3, wanted -3 <= value < 3",
    ),
    wrong(
        lambda x: F.scatter_add(x, var(np.zeros((2, 5, 1))), x, axis=2),
        ShapeError,
        "scatter_add: indices .* must have the rank of x0 .* and no size above that of x1",
    ),
    wrong(
        lambda x: F.scatter_add(x, var(np.full((2, 3, 4), 2)), x),
        ValueError,
        "scatter_add: indices has the value 2, wanted 0 <= value < 2",
    ),
    wrong(lambda x: F.bool_gather(x, var(B)), ShapeError, "bool_gather: mask .* must have the fir"),
    wrong(
        lambda x: F.bool_scatter(var(B), var([1, 0, 1])),
        ValueError,
        "bool_scatter: mask has 2 elements that are not zero, wanted 4, the first size of input",
    ),
    wrong(
        lambda x: F.bool_scatter(var(B), var([1, 1, 1, 1]), x),
        ShapeError,
        r"bool_scatter: output float32\[2, 3, 4\] must have the shape \(4,\) of mask",
    ),
    wrong(
        lambda x: F.bool_scatter(var(1.0), var([1])),
        ShapeError,
        "bool_scatter: input .* and mask .* must have at least one axis",
    ),
    wrong(lambda x: F.bool_fill(var(B), x), ShapeError, "bool_fill: mask .* does not stretch to t"),
    wrong(lambda x: F.unique(x, flatten=False), ValueError, "unique: axis is None, wanted an axis"),
    wrong(lambda x: F.assign(x, var(B)), ShapeError, "assign: dst .* and src .* must have the sam"),
    wrong(lambda x: F.sort(x, axis=3), ShapeError, r"sort: axis 3 is outside \[-3, 3\) for x"),
    wrong(lambda x: F.top_k_data(x, 13), ValueError, "top_k_data: k is 13, wanted 1 to 12, the sa"),
    wrong(lambda x: F.top_k_grad(x, 0), ValueError, "top_k_grad: k is 0, wanted 1 to 12"),
    wrong(
        lambda x: F.top_k_data(x, 1, reduce=False, with_index=True),
        ValueError,
        "top_k_data: with_index is True, which needs reduce=True",
    ),
    wrong(lambda x: F.arange(0, 1, 0), ValueError, "arange: start, stop, step are 0.0, 1.0, 0.0,"),
    wrong(lambda x: F.linspace(0, 1, -2), ValueError, "linspace: num is -2, wanted at least 0"),
    wrong(lambda x: F.linspace(0, 1, 2.5), TypeError, "linspace: num is 2.5, wanted an int"),
]


@pytest.mark.parametrize("call,error,text", WRONG)
def test_a_wrong_call_says_what_is_wrong(call, error, text):
    with nn.auto_forward(), pytest.raises(error, match=text):
        call(var(X))


def test_an_index_out_of_range_leaves_out_unchanged():
    out = var(np.ones(3))
    with nn.auto_forward(), pytest.raises(ValueError, match="has the value 3"):
        F.scatter_nd(var(np.zeros(2)), [[0, 3]], out=out)
    np.testing.assert_array_equal(out.d, np.ones(3))


@pytest.mark.parametrize("name", ["bool_gather", "nonzero", "unique"])
def test_functions_of_unknown_size_need_a_value(name):
    x = var(B) * 2.0
    arguments = (x, x) if name == "bool_gather" else (x,)
    with pytest.raises(ValueError, match=rf"{name}: \w+ float32\[4\] has no value yet, and the sh"):
        getattr(F, name)(*arguments)
    x.forward()
    getattr(F, name)(*arguments)
