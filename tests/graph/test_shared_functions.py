# SPDX-License-Identifier: Apache-2.0
"""Several outputs of one static graph, run in turns: what one computes or clears and another one
wants. Expected values are torch's, or those of the same calls without clearing."""

import gc
import itertools
import weakref

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.graph.execution.session import FORWARDS

torch = pytest.importorskip("torch")

CLEAR = {"clear_no_need_grad": True}
X = np.linspace(-1, 1.5, 384).reshape(2, 3, 8, 8).astype(np.float32)


@pytest.fixture(params=["cpu", "numpy"], autouse=True)
def _context(request):
    nn.random.prng = np.random.RandomState(3)
    nn.seed(5)
    with nn.context_scope(nn.Context([f"{request.param}:float"])):
        yield


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# ---- a joint plan must not go on from another forward than the latest ----


@pytest.mark.parametrize("first_clears", [False, True])
@pytest.mark.parametrize("name", ["sin", "tanh", "exp", "sigmoid", "swish"])
def test_backward_follows_the_latest_forward_whichever_output_it_was_called_on(name, first_clears):
    x = nn.Variable((2, 3), need_grad=True)
    c = getattr(F, name)(x)
    y, z = F.sum(F.tanh(c) * 0.3), F.mean(c)
    x.d = 0.5
    y.forward(**CLEAR)
    y.backward(clear_buffer=first_clears)
    x.d = -1
    x.grad.zero()
    y.forward(**CLEAR)
    x.d = np.linspace(-1, 1, 6).reshape(2, 3)
    nn.forward_all([y, z])
    y.backward(clear_buffer=True)
    t = torch.tensor(x.d, requires_grad=True)
    op = {"swish": torch.nn.functional.silu}.get(name) or getattr(torch, name)
    (torch.tanh(op(t)) * 0.3).sum().backward()
    close(x.g, t.grad.numpy())


def test_a_forward_that_clears_the_same_functions_leaves_the_joint_plan_valid():
    x = nn.Variable((2, 3), need_grad=True)
    h = F.tanh(F.sin(x) * 2)
    loss, error = F.sum(h**2), F.mean(F.abs(h))
    x.d = 0.5
    loss.forward(**CLEAR)
    error.forward(clear_buffer=True)
    loss.backward(clear_buffer=True)
    t = torch.full((2, 3), 0.5, requires_grad=True)
    (torch.tanh(torch.sin(t) * 2) ** 2).sum().backward()
    close(x.g, t.grad.numpy())


def test_graphs_that_wait_for_their_backward_are_freed_with_their_handles():
    x = nn.Variable((2, 3), need_grad=True)
    x.d = 1
    y = F.sum(F.tanh(x))
    y.forward(**CLEAR)
    (session,) = [r for r in FORWARDS if r() is not None and r().outputs == [y.edge]]
    data = weakref.ref(y.data)
    gc.disable()
    try:
        del y
        assert session() is None and data() is None
    finally:
        gc.enable()
    F.sum(F.tanh(x)).forward(**CLEAR)
    assert session not in FORWARDS


# ---- what one output has cleared ----


def two_convolutions(x):
    h = F.relu(PF.convolution(x, 4, (3, 3), name="a"))
    return PF.convolution(h, 4, (3, 3), name="b")


def lstm(x):
    h = F.constant(0, (1, 1, 3, 3))
    return PF.lstm(F.sin(F.reshape(x, (2, 3, 64))), h, h)[0]


TRUNKS = {
    "convolution": two_convolutions,
    "pooling": lambda x: F.max_pooling(F.tanh(x * 2), (2, 2)),
    "batch_normalization": lambda x: PF.batch_normalization(F.sin(x)),
    "block": lambda x: F.relu(PF.batch_normalization(PF.convolution(F.tanh(x), 4, (3, 3)))),
    "layer_normalization": lambda x: PF.layer_normalization(F.sin(x)),
    "affine": lambda x: PF.affine(F.tanh(PF.affine(x, 4, name="a")), 3, name="b"),
    "product": lambda x: F.sin(x) * F.tanh(x),
    "batch_matmul": lambda x: F.batch_matmul(F.tanh(x), F.sin(x)),
    "lstm": lstm,
    "dropout": lambda x: F.tanh(F.dropout(F.sin(x), 0.5)),
}
HEADS = {
    "itself": lambda z: z,
    "mean": F.mean,
    "sink": lambda z: F.sink(z),
    "losses": lambda z: F.sink(F.mean(z), F.sum(z)),
    "squares": lambda z: F.sum(z**2),
    "tanh": lambda z: F.sum(F.tanh(z) ** 2),
    "reshape": lambda z: F.sum(F.reshape(z, (-1,)) ** 3),
    "no gradient": lambda z: F.mean(F.greater_scalar(z, 0)),
}


def gradients(trunk, first, second, late, clear, flags):
    nn.clear_parameters()
    nn.random.prng = np.random.RandomState(3)
    nn.seed(5)
    x = nn.Variable(X.shape, need_grad=True)
    z = TRUNKS[trunk](x)
    a = HEADS[first](z)
    b = None if late else HEADS[second](z)
    found = []
    for k in range(2):
        x.d = X * (k + 1)
        x.grad.zero()
        for p in nn.get_parameters().values():
            p.grad.zero()
        a.forward(**flags)
        b = HEADS[second](z) if late else b
        if k and not late and not flags:
            b.forward()  # else its own functions would have run in the first round only
        b.backward(clear_buffer=clear)
        found += [x.g.copy(), *[p.g.copy() for p in nn.get_parameters().values()]]
        found += [p.d.copy() for p in nn.get_parameters(grad_only=False).values()]
    return found


@pytest.mark.parametrize("trunk", TRUNKS)
def test_backward_of_one_output_after_a_clearing_forward_of_another(trunk):
    firsts = ("itself", "mean", "losses", "squares", "no gradient")
    for first, second in itertools.product(firsts, ("mean", "sink", "squares", "tanh", "losses")):
        wanted = gradients(trunk, first, second, True, False, {})
        for late, clear in itertools.product([False, True], repeat=2):
            if second in (("losses",) if late else ("squares", "tanh")):
                continue
            got = gradients(trunk, first, second, late, clear, CLEAR)
            what = f"{first}, {second}, late {late}, clear {clear}"
            for g, w in zip(got, wanted, strict=True):
                np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-3, err_msg=what)


def test_what_is_computed_again_begins_with_the_state_of_its_forward():
    """Running statistics move once, and the numbers drawn are the same."""
    x = nn.Variable((4, 3), need_grad=True)
    x.d = X.ravel()[:12].reshape(4, 3)
    z = F.dropout(PF.batch_normalization(F.tanh(x)), 0.5)
    a, b = F.sum(z), F.sum(z**2)
    nn.seed(3)
    a.forward(**CLEAR)
    mean = nn.get_parameters(grad_only=False)["bn/mean"]
    once = mean.d.copy()
    after = F.rand(shape=(3,))
    after.forward()
    b.backward()
    np.testing.assert_array_equal(mean.d, once)
    got, rest = x.g.copy(), F.rand(shape=(3,))
    rest.forward()
    nn.seed(3)
    x.grad.zero()
    b.forward()
    b.backward()
    close(got, x.g)
    again = [F.rand(shape=(3,)) for _ in range(2)]
    nn.forward_all(again)
    np.testing.assert_array_equal([v.d for v in again], [after.d, rest.d])


def test_a_flag_that_changes_between_forward_and_backward_loses_no_values():
    x = nn.Variable(X.shape, need_grad=True)
    x.d = X
    h = F.tanh(F.sin(x) * 2)
    w = nn.Variable(X.shape, need_grad=True)
    w.d = 2
    y = F.sum(F.relu(h * w) ** 2)
    y.forward(**CLEAR)
    w.need_grad = False
    y.backward(clear_buffer=True)
    t = torch.tensor(X, requires_grad=True)
    (torch.relu(torch.tanh(torch.sin(t) * 2) * 2) ** 2).sum().backward()
    close(x.g, t.grad.numpy())
    assert (w.g == 0).all()


def test_what_clear_buffer_has_cleared_stays_an_error():
    x = nn.Variable((2, 3), need_grad=True)
    x.d = 1
    z = F.sin(x) * F.tanh(x)
    z.forward(clear_buffer=True)
    with pytest.raises(ValueError, match="was read after it had been cleared by clear_buffer"):
        F.mean(z).backward()
