# SPDX-License-Identifier: Apache-2.0
"""rnn, lstm and gru: dropout between layers, lengths, shape errors."""

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl.core.arrays.spec import ShapeError

T, B, INPUTS, H = 4, 3, 5, 2


@pytest.fixture(autouse=True)
def _dynamic():
    nn.seed(4)
    with nn.auto_forward():
        yield


def lstm_arrays(layers=2, directions=1):
    rng = np.random.default_rng(0)
    shapes = [
        (T, B, INPUTS),
        (layers, directions, B, H),
        (layers, directions, B, H),
        (directions, 4, H, INPUTS + H),
        (layers - 1, directions, 4, H, (directions + 1) * H),
        (layers, directions, 4, H),
    ]
    return [
        nn.Variable.from_numpy_array(rng.normal(size=s).astype(np.float32), need_grad=True)
        for s in shapes
    ]


def test_dropout_between_layers_changes_the_output_of_every_call():
    xs = lstm_arrays()
    ys = [F.lstm(*xs, num_layers=2, dropout=0.5)[0].d for _ in range(2)]
    assert not np.array_equal(*ys)


@pytest.mark.parametrize("setting", [{"training": False}, {"dropout": 0.0}, {"dropout": None}])
def test_dropout_is_off(setting):
    xs = lstm_arrays()
    want = F.lstm(*xs, num_layers=2)[0].d
    got = F.lstm(*xs, num_layers=2, **{"dropout": 0.5, **setting})[0].d
    np.testing.assert_array_equal(got, want)


def test_dropout_leaves_one_layer_alone():
    x, h, c, w0, _, b = lstm_arrays(layers=1)
    want = F.lstm(x, h, c, w0, None, b)[0].d
    np.testing.assert_array_equal(F.lstm(x, h, c, w0, None, b, dropout=0.5)[0].d, want)


def test_dropout_of_nearly_all_leaves_the_upper_layer_with_its_state_alone():
    xs = lstm_arrays()
    w0 = nn.Variable.from_numpy_array(np.ascontiguousarray(xs[4].d[0]))
    state = [
        nn.Variable.from_numpy_array(np.ascontiguousarray(v.d[1:])) for v in (xs[1], xs[2], xs[5])
    ]
    silent = nn.Variable.from_numpy_array(np.zeros((T, B, H), np.float32))
    want = F.lstm(silent, state[0], state[1], w0, None, state[2])[0].d
    got = F.lstm(*xs, num_layers=2, dropout=1 - 1e-9)[0].d
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_gradient_with_dropout_is_that_of_the_mask_that_was_drawn():
    """Central difference with the same stream, in float64."""
    with nn.context_scope(nn.Context(["cpu:double"])):
        arrays = [v.d.astype(np.float64) for v in lstm_arrays(directions=2)]

        def run(scale):
            nn.seed(8)
            vs = [nn.Variable.from_numpy_array(a, need_grad=True) for a in arrays]
            vs[3].d = arrays[3] * scale
            return vs, F.sum(F.lstm(*vs, num_layers=2, bidirectional=True, dropout=0.4)[0])

        vs, y = run(1.0)
        y.backward()
        exact = (vs[3].g * arrays[3]).sum()
        numeric = (run(1 + 1e-6)[1].d - run(1 - 1e-6)[1].d) / 2e-6
        assert abs(exact - numeric) < 1e-6 * max(1, abs(exact))


def test_no_steps_give_the_first_state_back():
    _, h, c, w0, _, b = lstm_arrays(layers=1)
    y, h_n, c_n = F.lstm(nn.Variable((0, B, INPUTS)), h, c, w0, None, b)
    assert y.shape == (0, B, H)
    np.testing.assert_array_equal(h_n.d, h.d)
    np.testing.assert_array_equal(c_n.d, c.d)


@pytest.mark.parametrize(
    "change,text",
    [
        ({1: (1, 1, B, H)}, r"lstm: h is .*\[1, 1, 3, 2\], wanted the shape \(2, 1, 3, 2\)"),
        ({2: (2, 1, B, H + 1)}, r"lstm: c is .*, wanted the shape \(2, 1, 3, 2\)"),
        ({3: (1, 4, H, INPUTS)}, r"lstm: weight_l0 is .*, wanted the shape \(1, 4, 2, 7\)"),
        ({4: (1, 1, 4, H, H)}, r"lstm: weight is .*, wanted the shape \(1, 1, 4, 2, 4\)"),
        ({5: (2, 1, 3, H)}, r"lstm: bias is .*, wanted the shape \(2, 1, 4, 2\)"),
        ({0: (T, INPUTS)}, r"lstm: x .* has rank 2, wanted 3"),
    ],
)
def test_shapes_are_checked(change, text):
    xs = lstm_arrays()
    for i, shape in change.items():
        xs[i] = nn.Variable(shape)
    with pytest.raises(ShapeError, match=text):
        F.lstm(*xs, num_layers=2)


def test_weights_of_further_layers_are_wanted():
    x, h, c, w0, _, b = lstm_arrays()
    with pytest.raises(
        ShapeError, match=r"lstm: weight is missing, wanted those of the other 1 layers"
    ):
        F.lstm(x, h, c, w0, None, b, num_layers=2)


def test_attributes_are_checked():
    xs = lstm_arrays()
    with pytest.raises(ValueError, match=r"lstm: dropout is 1.5, wanted 0 <= dropout < 1"):
        F.lstm(*xs, num_layers=2, dropout=1.5)
    with pytest.raises(ValueError, match=r"lstm: num_layers is 0, wanted at least 1"):
        F.lstm(*xs, num_layers=0)
    with pytest.raises(ValueError, match=r"rnn: nonlinearity is 'gelu', wanted 'tanh' or 'relu'"):
        F.rnn(xs[0], xs[1], nn.Variable((1, H, INPUTS + H)), nonlinearity="gelu")
