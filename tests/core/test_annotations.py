# SPDX-License-Identifier: Apache-2.0
"""Arguments of plain functions are checked by their annotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.initializer as I
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.arguments.annotations import Input, checked, numbers
from nnl.core.arrays.spec import ShapeError
from nnl.utils.data_iterator import data_iterator_simple


@checked
def example(
    x: Input, n: int = 3, shape: tuple[int, ...] = (), flag: bool = False, other: Any = None
) -> Any:
    return n, shape, flag, other


def test_values_are_converted_and_others_are_left_alone() -> None:
    x = nn.Variable((2,))
    odd = object()
    assert example(x, 4.0, flag=1, other=odd) == (4, (), True, odd)
    assert example(x, np.int64(2)) == (2, (), False, None)


def images() -> nn.Variable:
    return nn.Variable((2, 4, 8, 8))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: example(3), TypeError, r"^example: x is int, wanted nnl.Variable or nnl.NdArray"),
        (lambda: example(images(), 2.5), TypeError, r"^example: n is 2.5, wanted an int"),
        (lambda: example(images(), flag=np.ones(2)), TypeError, r"flag is array.*wanted a bool"),
        (
            lambda: PF.affine(images(), float("inf")),
            TypeError,
            "^affine: n_outmaps is inf, wanted an int or a sequence of ints",
        ),
        (lambda: PF.affine(images(), 3, rng=7), TypeError, "^affine: rng is 7, wanted a numpy"),
        (
            lambda: PF.affine(images(), 2**62),
            ShapeError,
            "^get_parameter_or_create of 'affine/W': the result .* takes .* GiB, wanted at most",
        ),
        (
            lambda: PF.affine(images(), 3, b_init=lambda shape: np.ones(2)),
            ShapeError,
            r"the initial value of 'affine/b' has the shape \(2,\), wanted \(3,\)",
        ),
        (
            lambda: PF.affine(images(), 3, b_init=lambda shape: "abc"),
            TypeError,
            "the initial value of 'affine/b': got .*, wanted numbers",
        ),
        (
            lambda: PF.affine(images(), 3, w_init=[[1], [2, 3]]),
            TypeError,
            r"the initial value of 'affine/W': got \[\[1\], \[2, 3\]\], wanted numbers",
        ),
        (lambda: PF.affine(images(), 3, name=2), TypeError, "^affine: name is 2, wanted a str"),
        (
            lambda: PF.convolution(images(), 3, (3, 3), apply_w=3),
            TypeError,
            "^convolution: apply_w is 3, wanted a function",
        ),
        (
            lambda: PF.convolution(images(), 3, (3, 0)),
            ValueError,
            r"^calc_uniform_lim_glorot: kernel \(3, 0\) of 4 and 3 maps has no elements",
        ),
        (
            lambda: PF.lstm(images(), 3, images()),
            TypeError,
            "^lstm: h is int, wanted nnl.Variable or nnl.NdArray",
        ),
        (
            lambda: PF.LSTMCell(0.5, 4),
            TypeError,
            "^LSTMCell: batch_size is 0.5, wanted an int",
        ),
        (
            lambda: PF.transformer(*[nn.Variable((5, 2, 12))] * 2, 12, 3, 10**18),
            ValueError,
            "^transformer: num_encoder_layers is 1000000000000000000, wanted 0 to 10000",
        ),
        (
            lambda: I.NormalInitializer("a"),
            TypeError,
            "^NormalInitializer: sigma is 'a', wanted a number",
        ),
        (
            lambda: I.NormalInitializer()(7),
            TypeError,
            "^NormalInitializer: shape is 7, wanted sizes >= 0 that fit into memory",
        ),
        (
            lambda: I.UniformInitializer((1, 2, 3)),
            TypeError,
            r"^UniformInitializer: lim is \(1, 2, 3\), wanted two finite numbers",
        ),
        (
            lambda: I.calc_normal_std_glorot(3, 4, kernel=3),
            TypeError,
            "^calc_normal_std_glorot: kernel is 3, wanted sizes >= 0 that fit into memory",
        ),
        (lambda: F.nonzero((2, 3)), TypeError, "^nonzero: x is tuple, wanted nnl.Variable or"),
        (lambda: F.broadcast(images(), 3), TypeError, "^broadcast: shape is 3, wanted a sequence"),
        (
            lambda: F.slice(images(), stop=3),
            TypeError,
            "^slice: stop is 3, wanted an int or None for each axis",
        ),
        (
            lambda: F.layer_normalization(images(), None, None, output_stat=np.ones(2)),
            TypeError,
            "^layer_normalization: output_stat is array.*, wanted a bool",
        ),
        (
            lambda: F.quantize_linear(*[images()] * 3, dtype=1),
            TypeError,
            "^quantize_linear: dtype is 1, wanted a type of numpy",
        ),
        (
            lambda: S.AdaBelief(amsgrad="no"),
            TypeError,
            "^AdaBelief: amsgrad is 'no', wanted a bool",
        ),
        (
            lambda: S.Sgd().update(update_pre_hook=3),
            TypeError,
            r"^Sgd.update: pre_hook is 3, wanted a function",
        ),
        (
            lambda: S.Sgd().remove_parameters(3),
            TypeError,
            r"^Sgd.remove_parameters: keys is 3, wanted names",
        ),
        (
            lambda: F.sync_batch_normalization(images(), None, None, None, None, comm=3),
            TypeError,
            "^sync_batch_normalization: comm is 3, wanted a communicator or None",
        ),
        (
            lambda: data_iterator_simple(lambda i: (i,), 10, [], use_thread=False),
            TypeError,
            r"^DataIterator: batch_size is \[\], wanted an int",
        ),
        (lambda: F.slice(3), TypeError, "^slice: x is int, wanted nnl.Variable or nnl.NdArray"),
        (lambda: I.NormalInitializer()((2**63,)), TypeError, "^NormalInitializer: shape is"),
        (
            lambda: images().unlinked("yes"),
            TypeError,
            "^unlinked: need_grad is 'yes', wanted a bool",
        ),
        (lambda: F.cumsum(images(), axis=np.array("a")), TypeError, "^cumsum: axis is 'a', wanted"),
        (lambda: F.cumsum(images(), reverse="no"), TypeError, "^cumsum: reverse is 'no', wanted"),
        (lambda: images().reset_shape(3), TypeError, "^reset_shape: shape is 3, wanted a sequence"),
        (
            lambda: nn.NdArray.from_numpy_array([[1], [2, 3]]),
            TypeError,
            r"^from_numpy_array: got \[\[1\], \[2, 3\]\], wanted an array of numbers",
        ),
        (
            lambda: F.inq_convolution(images(), *[nn.Variable((2, 4, 3, 3))] * 2, stride=3),
            TypeError,
            r"^inq_convolution: stride is 3, wanted an int for each spatial axis: \(3, 3\)",
        ),
        (
            lambda: F.sum_pooling(images(), kernel=(2, 2), pad=np.array(3)),
            TypeError,
            r"^sum_pooling: pad is 3, wanted an int for each spatial axis: \(3, 3\)",
        ),
        (lambda: F.linspace(0, 1, 1e300), ValueError, r"^linspace: num is 1e\+300, wanted 64 bits"),
        (
            lambda: F.confusion_matrix(None, images()),
            TypeError,
            r"^confusion_matrix\(\) needs .*'x'",
        ),
        (
            lambda: F.random_erase(images(), n=2**31),
            ValueError,
            "^random_erase: n is 2147483648, wanted at most 10000",
        ),
        (
            lambda: PF.prelu(nn.Variable((3,)), shared=False),
            ShapeError,
            r"^prelu: axis 1 is outside \[-1, 1\) for inp float32\[3\]",
        ),
        (
            lambda: PF.lstm_cell(*[nn.Variable((2, 4))] * 3, 3),
            ShapeError,
            r"^lstm_cell: h has the shape \(2, 4\) and x \(2, 4\), wanted \(B, 3\)",
        ),
        (
            lambda: F.mod2(*[nn.Variable.from_numpy_array(np.ones(2, bool))] * 2),
            TypeError,
            r"^mod2: x0 is bool\[2\], wanted numbers",
        ),
        (
            lambda: F.gather_nd(nn.Variable((2, 3)), [[1], [2, 3]]),
            TypeError,
            "^gather_nd: indices has rows of different lengths, wanted one array",
        ),
        (
            lambda: nn.Variable((10**18, 10**18)),
            ValueError,
            r"^Variable: float32\[1.*\] is larger than any memory",
        ),
        (lambda: nn.Context([3]), TypeError, r"^Context: backend is \[3\], wanted a str or a list"),
        (lambda: nn.seed("a"), TypeError, "^seed: seed_value is 'a', wanted an int"),
        (
            lambda: nn.set_auto_forward("on"),
            TypeError,
            "^set_auto_forward: auto is 'on', wanted a bool",
        ),
        (
            lambda: images().size_from_axis(None),
            TypeError,
            "^size_from_axis: axis is None, wanted an int",
        ),
        (
            lambda: images().data.narrow(0, 0, "a"),
            TypeError,
            "^narrow: length is 'a', wanted an int",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    call: Callable[[], Any], error: type[Exception], text: str
) -> None:
    try:
        with pytest.raises(error, match=text):
            call()
        assert not nn.get_parameters()
    finally:
        nn.clear_parameters()


class Unprintable(np.ndarray):
    def __repr__(self) -> str:
        raise AssertionError("an array that is taken is written out")


def test_arrays_that_are_taken_are_not_written_out() -> None:
    a = np.ones(1000, np.float32).view(Unprintable)
    assert np.shares_memory(numbers("f: x", a, "numbers"), a)
