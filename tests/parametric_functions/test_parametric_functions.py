# SPDX-License-Identifier: Apache-2.0
"""What parametric functions do with parameters that exist, with flags, and with wrong arguments."""

import inspect

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.core.arrays.spec import ShapeError


@pytest.fixture(autouse=True)
def _seeded():
    nn.seed(313)


def v(*shape, need_grad=False):
    a = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return nn.Variable.from_numpy_array(a, need_grad=need_grad)


def names(**kw):
    return list(nn.get_parameters(**kw))


# ---- scopes and reuse ----


def test_second_call_uses_the_same_parameters():
    x = v(2, 3)
    with nn.auto_forward():
        np.testing.assert_array_equal(PF.affine(x, 4).d, PF.affine(x, 4).d)
    assert names() == ["affine/W", "affine/b"]


def test_gradients_of_both_uses_add_up():
    x = v(2, 3)
    with nn.auto_forward():
        (PF.affine(x, 4) + PF.affine(x, 4)).backward()
    np.testing.assert_allclose(nn.get_parameters()["affine/b"].g, 4)


def test_name_opens_a_scope_around_that_of_the_function():
    with nn.parameter_scope("net"):
        PF.convolution(v(2, 3, 8, 8), 4, (3, 3), name="block/first")
    assert names() == ["net/block/first/conv/W", "net/block/first/conv/b"]


def test_name_may_be_the_last_positional_argument():
    PF.prelu(v(2, 3), 1, True, False, None, "act")
    assert names() == ["act/prelu/slope"]


def test_other_shape_under_the_same_name_is_an_error_and_changes_nothing():
    PF.affine(v(2, 3), 4)
    before = nn.get_parameters()["affine/W"].d.copy()
    text = r"'affine/W' exists with the shape \(3, 4\), wanted \(5, 4\)"
    with pytest.raises(ShapeError, match=text):
        PF.affine(v(2, 5), 4)
    np.testing.assert_array_equal(nn.get_parameters()["affine/W"].d, before)
    assert nn.get_current_parameter_scope() is PF.get_current_parameter_scope()


def test_scope_is_closed_after_an_error():
    with pytest.raises(ShapeError):
        PF.affine(v(2, 3), 4, base_axis=5, name="x")
    PF.affine(v(2, 3), 4)
    assert names() == ["affine/W", "affine/b"]


# ---- gradients ----


def test_fixed_parameters_keep_their_flag_and_get_no_gradient():
    x = v(2, 3, need_grad=True)
    with nn.auto_forward():
        y = PF.affine(x, 4, fix_parameters=True)
        assert y.need_grad
        y.backward()
    w = nn.get_parameters()["affine/W"]
    assert w.need_grad and not w.g.any() and x.g.any()


def test_later_call_without_fix_parameters_trains_again():
    with nn.auto_forward():
        PF.affine(v(2, 3), 4, fix_parameters=True)
        PF.affine(v(2, 3), 4).backward()
    assert nn.get_parameters()["affine/W"].g.any()


def test_no_grad_leaves_the_registered_flag():
    with nn.no_grad():
        assert not PF.affine(v(2, 3), 4).need_grad
    assert nn.get_parameters()["affine/W"].need_grad


def test_running_statistics_need_no_gradient():
    PF.batch_normalization(v(2, 3, 4, 4))
    assert names() == ["bn/beta", "bn/gamma"]
    assert names(grad_only=False) == ["bn/beta", "bn/gamma", "bn/mean", "bn/var"]


def test_fix_parameters_reaches_every_layer_of_a_transformer():
    x = v(5, 2, 12)
    y = PF.transformer(x, x, 12, 3, 1, 1, 7, fix_parameters=True)
    assert not y.need_grad


def test_rng_reaches_every_layer_of_a_transformer():
    made = []
    for _ in range(2):
        nn.clear_parameters()
        x = v(5, 2, 12)
        PF.transformer(x, x, 12, 3, 1, 1, 7, rng=np.random.RandomState(3))
        made.append({k: p.d.copy() for k, p in nn.get_parameters().items()})
    for key, value in made[0].items():
        np.testing.assert_array_equal(made[1][key], value)


# ---- batch normalisation ----


def test_batch_statistics_move_the_running_ones_by_a_tenth():
    x = v(8, 3, 4, 4)
    with nn.auto_forward():
        y = PF.batch_normalization(x)
    p = nn.get_parameters(grad_only=False)
    np.testing.assert_allclose(p["bn/mean"].d, 0.1 * x.d.mean((0, 2, 3), keepdims=True), atol=1e-6)
    var = x.d.var((0, 2, 3), keepdims=True, ddof=1)
    np.testing.assert_allclose(p["bn/var"].d, 0.9 + 0.1 * var, rtol=1e-5)
    np.testing.assert_allclose(y.d.mean((0, 2, 3)), 0, atol=1e-6)


def test_running_statistics_are_used_and_kept_without_batch_stat():
    x = v(8, 3)
    init = {"mean": np.full((1, 3), 2.0, np.float32), "var": np.full((1, 3), 4.0, np.float32)}
    with nn.auto_forward():
        y = PF.batch_normalization(x, batch_stat=False, param_init=init)
    np.testing.assert_allclose(y.d, (x.d - 2) / np.sqrt(4 + 1e-5), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(nn.get_parameters(grad_only=False)["bn/mean"].d, 2)


# ---- recurrent cells ----


def test_lstm_cell_is_a_step_of_lstm():
    x, h, c = v(2, 3), v(2, 4), v(2, 4)
    with nn.auto_forward():
        h1, c1 = PF.lstm_cell(x, h, c, 4)
        w = nn.get_parameters()["lstm/affine/W"].d  # (I + H, gates i o f g, H)
        weight = np.ascontiguousarray(w[:, [0, 2, 3, 1]].transpose(1, 2, 0)[None])
        state = [F.reshape(s, (1, 1, 2, 4)) for s in (h, c)]
        y, _, c_n = F.lstm(F.reshape(x, (1, 2, 3)), *state, nn.Variable.from_numpy_array(weight))
    np.testing.assert_allclose(h1.d, y.d[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(c1.d, c_n.d[0, 0], rtol=1e-5, atol=1e-6)


def test_lstm_cell_object_keeps_its_state_until_it_is_reset():
    cell = PF.LSTMCell(2, 4)
    with nn.auto_forward():
        first, second = cell(v(2, 3)).d.copy(), cell(v(2, 3)).d.copy()
        assert not np.array_equal(first, second)
        cell.reset_state()
        assert not cell.h.d.any() and not cell.c.d.any()
        np.testing.assert_array_equal(cell(v(2, 3)).d, first)


def test_lstm_cell_object_refuses_states_that_no_memory_holds():
    with pytest.raises(ValueError) as e:
        PF.LSTMCell(10**18, 4)
    assert str(e.value).startswith("LSTMCell: the result float32[1000000000000000000, 4] takes")


def test_reset_state_leaves_computed_states_alone():
    cell = PF.LSTMCell(2, 4)
    y = cell(v(2, 3))
    y.forward()
    before = y.d.copy()
    cell.reset_state()
    np.testing.assert_array_equal(y.d, before)


def test_a_state_that_goes_on_is_reset_where_the_script_keeps_it():
    """Truncated backpropagation: the first state is the memory of the last one."""
    cell = PF.LSTMCell(2, 4)
    h0, c0 = cell.h, cell.c
    y = F.sum(cell(v(2, 3)) + cell(v(2, 3)))
    h0.data, c0.data = cell.h.data, cell.c.data
    results = []
    for reset in (False, False, True):
        if reset:
            cell.reset_state()
            assert not h0.d.any() and not c0.d.any()
        y.forward()
        y.backward(clear_buffer=True)
        results.append((float(y.d), h0.d.tolist()))
    assert results[0] == results[2] != results[1]


def test_reset_state_zeroes_the_state_that_was_given():
    h = v(2, 4)
    cell = PF.LSTMCell(2, 4, h=h)
    cell.reset_state()
    assert cell.h is h and not h.d.any()


# ---- the decorator ----


def test_decorator_gives_a_scope_and_an_argument_name():
    @PF.parametric_function_api("scaled", [("s", "Factor", "()", True), ("m", "Mean", "()", False)])
    def scaled(inp, fix_parameters=False):
        """Inp times a factor."""
        return PF.get_parameter_or_create("s", (1,), lambda shape: np.full(shape, 3.0)) * inp

    x = v(4)
    with nn.auto_forward():
        np.testing.assert_allclose(scaled(x, name="a").d, 3 * x.d, rtol=1e-6)
    assert names() == ["a/scaled/s"]
    assert list(inspect.signature(scaled).parameters) == ["inp", "fix_parameters", "name"]
    assert scaled.__name__ == "scaled"
    assert scaled.__doc__.startswith("Inp times a factor.")
    assert (
        "scope [name/]scaled:\n    s: Factor, ().\n    m: Mean, (), without gradient."
        in scaled.__doc__
    )


def test_scope_is_the_function_name_if_none_is_given():
    @PF.parametric_function_api()
    def counted(inp):
        return PF.get_parameter_or_create("n", inp.shape)

    counted(v(4))
    assert names() == ["counted/n"]


# ---- errors ----


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: PF.affine(v(2, 3), 4, base_axis=2), r"affine: base_axis 2 is outside \[-2, 2\)"),
        (lambda: PF.svd_affine(v(2, 3), 4, 5), r"svd_affine: r is 5, wanted at most 3 for 3 x 4"),
        (
            lambda: PF.convolution(v(2, 3, 8), 4, (3, 3)),
            r"convolution: inp has the shape \(2, 3, 8\), wanted 4 axes for base_axis 1",
        ),
        (
            lambda: PF.convolution(v(2, 3, 8, 8), 4, (3, 3), group=2),
            r"convolution: 3 input channels do not divide into group 2",
        ),
        (
            lambda: PF.deconvolution(v(2, 4, 8, 8), 3, (3, 3), group=2),
            r"deconvolution: 3 output channels do not divide into group 2",
        ),
        (
            lambda: PF.depthwise_deconvolution(v(2, 3, 8, 8), (3, 3), divisor=2),
            r"depthwise_deconvolution: 3 input channels do not divide into divisor 2",
        ),
        (
            lambda: PF.batch_normalization(v(2, 3), axes=[2]),
            r"batch_normalization: axis 2 is outside",
        ),
        (
            lambda: PF.group_normalization(v(2, 4), 2, channel_axis=3),
            r"group_normalization: axis 3",
        ),
        (
            lambda: PF.weight_normalization(v(2, 4), dim=2),
            r"weight_normalization: axis 2 is outside",
        ),
        (lambda: PF.spectral_norm(v(2, 4), dim=2), r"spectral_norm: axis 2 is outside"),
        (
            lambda: PF.rnn(v(2, 4), v(1, 1, 2, 3)),
            r"rnn: x has the shape \(2, 4\) and h \(1, 1, 2, 3\)",
        ),
        (
            lambda: PF.multi_head_attention(v(2, 1, 10), v(2, 1, 10), v(2, 1, 10), 3),
            r"multi_head_attention: k_embed_dim 10 is no multiple of num_heads 3",
        ),
        (
            lambda: PF.multi_head_attention(v(2, 6), v(2, 1, 6), v(2, 1, 6), 3),
            r"multi_head_attention: query has the shape \(2, 6\), wanted 3 axes",
        ),
    ],
)
def test_shapes_are_checked_before_a_parameter_is_made(call, text):
    with pytest.raises(ShapeError, match=text):
        call()
    assert not names(grad_only=False)


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: PF.svd_affine(v(2, 3), 4, 0), r"svd_affine: r is 0, wanted at least 1"),
        (
            lambda: PF.batch_normalization(v(2, 3), param_init={"scale": 1}),
            r"batch_normalization: param_init has the key 'scale', wanted some of \['beta'",
        ),
        (
            lambda: PF.multi_head_attention(
                v(2, 1, 6), v(2, 1, 6), v(2, 1, 6), 3, param_init={"w": 1}
            ),
            r"multi_head_attention: param_init has the key 'w', wanted some of \['q_weight'",
        ),
    ],
)
def test_values_are_checked_before_a_parameter_is_made(call, text):
    with pytest.raises(ValueError, match=text):
        call()
    assert not names(grad_only=False)
