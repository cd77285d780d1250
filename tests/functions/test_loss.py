# SPDX-License-Identifier: Apache-2.0
"""Cross entropies, losses and metrics: what NNabla does, and what the messages say."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError

# "By NNabla" below: the expected numbers were computed by NNabla 1.39.
X = np.array([[1, 3, 3], [2, 2, -1]], np.float32)


def call(f, *arrays, **kw):
    """(value, gradients of its sum, None for labels)."""
    vs = [
        nn.Variable.from_numpy_array(np.asarray(a), need_grad=np.asarray(a).dtype.kind == "f")
        for a in arrays
    ]
    with nn.auto_forward():
        y = f(*vs, **kw)
        if y.need_grad:
            F.sum(y).backward()
    return y.d, [v.g if v.need_grad else None for v in vs]


def f32(*rows):
    return np.array(rows, np.float32)


@pytest.mark.parametrize("f", [F.softmax_cross_entropy, F.categorical_cross_entropy])
def test_a_negative_label_costs_nothing(f):
    y, (gx, _) = call(f, f32([0.1, 0.2, 0.7], [0.5, 0.3, 0.2]), np.array([[-7], [1]]))
    assert y[0, 0] == 0 and y[1, 0] > 0
    assert not gx[0].any() and gx[1].any()


@pytest.mark.parametrize(
    "f", [F.softmax_cross_entropy, F.categorical_cross_entropy, F.top_n_error, F.confusion_matrix]
)
def test_labels_must_be_below_the_number_of_classes(f):
    match = rf"{f.name}: target has the label 3, wanted labels in \[0, 3\), or negative ones"
    with pytest.raises(ValueError, match=match):
        call(f, X, np.array([[1], [3]]))


@pytest.mark.parametrize(
    "f", [F.softmax_cross_entropy, F.categorical_cross_entropy, F.top_n_error, F.confusion_matrix]
)
def test_labels_have_size_1_along_the_axis(f):
    for shape in ((2,), (1, 2), (2, 3)):
        match = rf"{f.name}: target int64.* must have the shape \(2, 1\) for x float32\[2, 3\]"
        with pytest.raises(ShapeError, match=match):
            call(f, X, np.zeros(shape, np.int64))
    with pytest.raises(ShapeError, match=rf"{f.name}: axis 2 is outside \[-2, 2\)"):
        call(f, X, np.zeros((2, 1), np.int64), axis=2)


def test_softmax_cross_entropy_of_huge_scores_is_exact():
    y, (gx, _) = call(F.softmax_cross_entropy, f32([1e6, 1e6 + 1, -1e6]), np.array([[0]]))
    np.testing.assert_allclose(y, np.log1p(np.e), rtol=1e-6)
    np.testing.assert_allclose(gx, [[1 / (1 + np.e) - 1, 1 / (1 + 1 / np.e), 0]], rtol=1e-6)


def test_softmax_of_rows_without_finite_score_is_not_a_number():
    with np.errstate(invalid="ignore"):
        y, _ = call(F.softmax, f32([-np.inf, 0, 1], [-np.inf] * 3))
    np.testing.assert_allclose(y[0], [0, 0.26894143, 0.7310586], rtol=1e-6)
    assert np.isnan(y[1]).all()


def test_impossible_events_cost_as_much_as_in_nnabla():
    y, (gx, gt) = call(F.binary_cross_entropy, f32([0, 1, 0, 1]), f32([0, 1, 1, 0]))
    np.testing.assert_allclose(y, [[0, 0, 87.33655, 87.33655]], rtol=1e-6)
    np.testing.assert_allclose(gx, [[0, 0, -8.507059e37, 8.507059e37]], rtol=1e-6)
    np.testing.assert_allclose(gt, [[87.33655, -87.33655, 87.33655, -87.33655]], rtol=1e-6)
    y, _ = call(F.categorical_cross_entropy, f32([0.5, 0.5, 0]), np.array([[2]]))
    np.testing.assert_allclose(y, [[87.33655]], rtol=1e-6)
    y, _ = call(F.sigmoid_cross_entropy, f32([200, -200, 0]), np.array([[0, 1, 1]]))
    np.testing.assert_allclose(y, [[200, 200, np.log(2)]], rtol=1e-6)


def test_slopes_at_kinks_are_those_of_nnabla():
    _, (g0, g1) = call(F.absolute_error, f32([1, 2, 3]), f32([1, 2.5, -3]))
    np.testing.assert_array_equal(g0, [[-1, -1, 1]])
    np.testing.assert_array_equal(g1, [[1, 1, -1]])
    y, (g0, _) = call(F.huber_loss, f32([1, 2, 3, 3, 0]), f32([1, 2.5, -3, 2, 1]))
    np.testing.assert_array_equal(y, [[0, 0.25, 11, 1, 1]])
    np.testing.assert_array_equal(g0, [[0, -1, 2, 2, -2]])
    y, (g0, _) = call(
        F.epsilon_insensitive_loss, f32([1, 2, 3, 3]), f32([1, 2.5, -3, 3.5]), epsilon=0.5
    )
    np.testing.assert_array_equal(y, [[0, 0, 5.5, 0]])
    np.testing.assert_array_equal(g0, [[0, 0, 1, 0]])


def test_kl_multinomial_of_an_impossible_event_is_finite():
    y, _ = call(F.kl_multinomial, f32([0.25, 0.25, 0.5]), f32([0.5, 0.5, 0]))
    np.testing.assert_allclose(y, [[8.517193]], rtol=1e-6)
    assert call(F.kl_multinomial, X * 0 + 0.5, X * 0 + 0.5, base_axis=0)[0].shape == (1,)


def test_a_tie_counts_as_an_error():
    x = f32([1, 1, 1], [3, 1, 1], [3, 3, 1])
    for n, want in ((1, [1, 1, 1]), (2, [1, 1, 0]), (3, [0, 0, 0])):
        y, _ = call(F.top_n_error, x, np.array([[0], [1], [1]]), n=n)
        np.testing.assert_array_equal(y[:, 0], want)
    assert call(F.top_n_error, x[:1], np.array([[-1]]))[0] == 0


def test_confusion_matrix_has_labels_in_rows():
    x = np.concatenate([X, f32([0, 0, 1], [0, 0, 1])])
    y, _ = call(F.confusion_matrix, x, np.array([[0], [2], [2], [1]]))
    np.testing.assert_array_equal(y, [[0, 1, 0], [0, 0, 1], [1, 0, 1]])
    assert y.dtype == np.int32
    assert call(F.confusion_matrix, X, np.array([[0], [-1]]))[0].sum() == 1


def test_one_half_counts_as_positive():
    y, _ = call(F.binary_error, f32([0.4, 0.5, 0.6]), f32([0, 0, 1]))
    np.testing.assert_array_equal(y, [[0, 1, 0]])


def test_messages():
    with pytest.raises(ValueError, match="huber_loss: delta is -2.0, wanted a number >= 0"):
        call(F.huber_loss, X, X, delta=-2)
    with pytest.raises(ValueError, match="epsilon_insensitive_loss: epsilon is -1.0, wanted a num"):
        call(F.epsilon_insensitive_loss, X, X, epsilon=-1)
    for f in (F.sigmoid_cross_entropy, F.binary_cross_entropy, F.binary_error):
        match = rf"{f.name}: x float32\[2, 3\] and target .*\[2, 1\] must have the same shape"
        with pytest.raises(ShapeError, match=match):
            call(f, X, X[:, :1])
    with pytest.raises(ShapeError, match="kl_multinomial: p .* and q .* must have the same shape"):
        call(F.kl_multinomial, X, X[:, :1])
    with pytest.raises(ShapeError, match=r"kl_multinomial: axis 2 is outside \[-2, 2\) for p"):
        call(F.kl_multinomial, X, X, base_axis=2)
    with pytest.raises(ShapeError, match="squared_error: x0 .* and x1 .* must have the same rank"):
        call(F.squared_error, X, X[0])
