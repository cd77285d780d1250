# SPDX-License-Identifier: Apache-2.0
"""ctc_loss and its gradient are PyTorch's; bad labels and lengths are named."""

import itertools

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError

given = nn.Variable.from_numpy_array


def ours(x, *others, **settings):
    v = nn.Variable.from_numpy_array(x, need_grad=True)
    y = F.ctc_loss(v, *(o if o is None else given(o) for o in others), **settings)
    y.forward()
    v.g = 0
    y.backward(np.arange(1, len(x) + 1, dtype=np.float32))
    return y.d.copy(), v.g.copy()


@pytest.mark.parametrize("blank", [0, 4])
@pytest.mark.parametrize("lengths", [False, True])
def test_losses_and_gradients_are_those_of_pytorch(blank, lengths):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(blank)
    x = rng.normal(size=(5, 12, 5)).astype(np.float32) * 3
    label = rng.integers(0, 4, (5, 4)) + (blank == 0)
    label[0] = label[0, 0]  # between equal ones there is a blank
    n, m = np.array([12, 9, 4, 2, 1]), np.array([4, 3, 0, 4, 1])  # the fourth does not fit
    t = torch.tensor(x, requires_grad=True)
    sizes = (n, m) if lengths else (np.full(5, 12), np.full(5, 4))
    wanted = torch.nn.functional.ctc_loss(
        t.transpose(0, 1).log_softmax(2), torch.tensor(label), *map(torch.tensor, sizes),
        blank=blank, reduction="none", zero_infinity=lengths,
    )  # fmt: skip
    wanted.backward(torch.arange(1.0, 6.0))
    label[np.arange(4) >= sizes[1][:, None]] = -1  # what is beyond a length does not count
    y, g = ours(x, label, *(sizes if lengths else (None, None)), blank=blank)
    assert np.isinf(y[3]) == lengths
    y[np.isinf(y)] = 0
    np.testing.assert_allclose(y, wanted.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(g, t.grad, rtol=1e-4, atol=2e-5)


def test_it_is_the_sum_over_all_alignments():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 4, 3))
    p = np.exp(x[0]) / np.exp(x[0]).sum(1, keepdims=True)
    for label in ([1], [1, 2], [2, 2], []):
        whole = sum(
            np.prod(p[range(4), a])
            for a in itertools.product(range(3), repeat=4)
            if [c for c, _ in itertools.groupby(a) if c] == label
        )
        y, _ = ours(x.astype(np.float32), np.array([label], int).reshape(1, -1))
        assert y[0] == pytest.approx(-np.log(whole), rel=1e-5)


def test_scores_that_no_network_should_have_give_what_pytorch_gives():
    torch = pytest.importorskip("torch")
    x = np.full((2, 8, 3), -60, np.float32)
    x[:, :, 0] = 60  # surely nothing, and yet there are labels
    label = np.array([[1, 2, 1], [2, 2, 1]])
    t = torch.tensor(x, requires_grad=True)
    wanted = torch.nn.functional.ctc_loss(
        t.transpose(0, 1).log_softmax(2), torch.tensor(label), [8, 8], [3, 3], reduction="none"
    )
    wanted.backward(torch.arange(1.0, 3.0))
    y, g = ours(x, label)
    np.testing.assert_allclose(y, wanted.detach(), rtol=1e-5)
    np.testing.assert_allclose(g, t.grad, atol=1e-3)
    x[:, :, 1] = -np.inf  # impossible
    y, g = ours(x, label)
    assert np.isinf(y).all() and not g.any()
    x[:] = 0
    x[:, 5:] = np.nan  # beyond the length
    y, g = ours(x, label, np.array([5, 5]))
    assert np.isfinite(y).all() and np.isfinite(g).all()


def test_it_trains_in_compiled_steps():
    import nnl.parametric_functions as PF
    import nnl.solvers as S

    x = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    label = np.array([[1, 2], [2, 2]])
    with nn.parameter_scope("ctc"):
        PF.affine(given(x), 3, base_axis=2, name="scores")
        solver = S.Adam(0.1)
        solver.set_parameters(nn.get_parameters())

    @nn.compile
    def step(x, label):
        with nn.parameter_scope("ctc"):
            loss = F.mean(F.ctc_loss(PF.affine(x, 3, base_axis=2, name="scores"), label))
        solver.zero_grad()
        loss.backward()
        solver.update()
        return loss

    losses = [float(step(given(x), given(label)).d) for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"label": [[1, 0]]}, ValueError, "label has the value 0, wanted 0 to 2 without the blank"),
        ({"label": [[1, 3]]}, ValueError, "label has the value 3, wanted 0 to 2"),
        ({"x_length": [5]}, ValueError, "x_length has the value 5, wanted 1 to 4"),
        ({"label_length": [3]}, ValueError, "label_length has the value 3, wanted 0 to 2"),
        ({"label_length": [1, 1]}, ShapeError, r"label_length int64\[2\], wanted the shape \(1,\)"),
        ({"label": [[1], [1]]}, ShapeError, r"wanted \(B, T, C\) with T > 0 and \(B, L\)"),
        ({"blank": 3}, ValueError, "blank is 3, wanted 0 to 2"),
    ],
)
def test_bad_input_is_named(change, error, text):
    at = {"label": [[1, 2]], "x_length": [4], "label_length": [2], "blank": 0} | change
    with pytest.raises(error, match=text):
        ours(np.zeros((1, 4, 3), np.float32), *map(np.array, list(at.values())[:3]),
             blank=at["blank"])  # fmt: skip


def test_there_is_no_second_order():
    x = nn.Variable((1, 4, 3), need_grad=True)
    (g,) = nn.grad([F.ctc_loss(x, given(np.array([[1, 2]])))], [x])
    with pytest.raises(ValueError, match="ctc_loss: its gradient has no gradient"):
        nn.grad([F.sum(g * g)], [x])
