# SPDX-License-Identifier: Apache-2.0
"""nnl.compile with open sizes: bit for bit what a function gives that is recorded at each size."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from tests.graph.open_networks import Network, array
from tests.graph.saved import normal

OPEN = {"x": ("n", None, "h", "w"), "t": ("n", None)}
SHAPES = [(4, 8, 8), (3, 10, 8), (4, 8, 8), (7, 9, 12), (1, 16, 16), (3, 10, 8)]


def variable(a):
    return nn.Variable.from_numpy_array(np.asarray(a, np.float32))


def loss_of(x, t):
    h = PF.convolution(x, 16, (3, 3), pad=(1, 1), name="conv")
    h = F.max_pooling(F.relu(PF.batch_normalization(h)), (2, 2))
    h = F.dropout(PF.affine(F.mean(h, axis=(2, 3)), 8, name="a"), 0.3)
    places = array(np.arange(x.shape[2]).reshape(1, 1, -1, 1))
    h = h + F.mean(x * places, axis=(1, 2, 3), keepdims=False).reshape((x.shape[0], 1)) / x.shape[0]
    return F.mean(F.softmax_cross_entropy(PF.affine(h, 5, name="b"), t))


def trainer(solver, **options):
    nn.clear_parameters()
    nn.seed(1)
    loss_of(nn.Variable((2, 3, 8, 8)), nn.Variable((2, 1)))
    solver.set_parameters(nn.get_parameters())
    calls = []

    def step(x, t):
        calls.append(x.shape)
        loss = loss_of(x, t)
        solver.zero_grad()
        loss.forward()
        loss.backward()
        solver.weight_decay(1e-4)
        solver.update()
        return {"loss": loss}

    return nn.compile(step, **options), calls


def trained(run, shapes=SHAPES):
    losses = []
    for k, (n, h, w) in enumerate(shapes):
        t = np.random.default_rng(k).integers(0, 5, (n, 1))
        losses.append(run(variable(normal(n, 3, h, w, seed=k)), variable(t))["loss"].d.copy())
    return losses, {k: p.d.copy() for k, p in nn.get_parameters(grad_only=False).items()}


@pytest.mark.parametrize("solver", [S.Momentum, S.Adam])
def test_training_at_several_sizes_is_the_same_bit_for_bit(solver):
    want, parameters = trained(trainer(solver())[0])
    run, calls = trainer(solver(), open=OPEN)
    found, after = trained(run)
    assert found == want
    for name, p in parameters.items():
        np.testing.assert_array_equal(after[name], p, err_msg=name)
    assert len(calls) == 16  # no size of the data has been recorded
    assert calls[0][1] == 3 and len({c[2] for c in calls}) > 2


def test_the_last_batch_is_smaller():
    def mean(x):
        return x / x.shape[0], F.mean(x, axis=0)

    run = nn.compile(open={"x": ("batch", None)}, ranges={"batch": (1, 64)})(mean)
    for n in (64, 64, 17, 1):
        x = normal(n, 5, seed=n)
        y, m = run(x=variable(x))
        np.testing.assert_array_equal(y.d, nn.compile(mean)(variable(x))[0].d)
        assert y.shape == (n, 5) and m.shape == (5,)
    with pytest.raises(ValueError, match=r"mean: x has the shape \(65, 5\): axis 0: batch is 65, "):
        run(x=variable(normal(65, 5)))
    assert run(variable(normal(2, 3)))[0].shape == (2, 3)  # what is not open is another recording


@pytest.mark.parametrize("seed", range(6))
def test_random_networks(seed):
    net, rng = Network(seed), np.random.default_rng(seed)
    run = nn.compile(lambda x: net(x), open={"x": net.axes})
    closed = nn.compile(lambda x: net(x))
    for n in range(4):
        x = normal(*net.shape(rng), seed=n)
        try:
            want = closed(variable(x)).d
        except ValueError:  # too small for a window
            with pytest.raises(ValueError, match="does not take the sizes"):
                run(variable(x))
            continue
        np.testing.assert_array_equal(run(variable(x)).d, want)


def test_gradients_of_arguments_and_other_arguments():
    def f(x, power, flip=False):
        y = F.sum((x[::-1] if flip else x) ** power)
        (g,) = nn.grad([y], [x])
        return y, g

    run = nn.compile(f, open={"x": ("n",)})
    for n in (3, 9, 4):
        x = nn.Variable.from_numpy_array(normal(n, seed=n), need_grad=True)
        for power, flip in ((2, False), (3, True)):
            y, g = run(x, power, flip=flip)
            np.testing.assert_allclose(g.d, power * x.d ** (power - 1), rtol=1e-5)


@pytest.mark.parametrize("zero", [False, True])
def test_gradients_of_arguments_are_theirs(zero):
    def f(x):
        y = F.sum(x**3)
        if zero:
            x.grad.zero()
        y.backward()
        return y

    run = nn.compile(f, open={"x": ("n",)})
    for n in (3, 9, 3):
        x = nn.Variable.from_numpy_array(normal(n, seed=n), need_grad=True)
        x.g = 1
        run(x), run(x)
        want = 3 * x.d**2
        np.testing.assert_allclose(x.g, want if zero else 2 * want + 1, rtol=1e-5)


def test_flags_that_change_record_again():
    w = nn.Variable.from_numpy_array(np.ones((1, 3), np.float32), need_grad=True)
    seen = []

    def f(x):
        seen.append(1)
        y = F.sum(x * w)
        w.grad.zero()
        if w.need_grad:
            y.backward()
        return y

    run = nn.compile(f, open={"x": ("n", None)})
    run(variable(np.ones((2, 3))))
    run(variable(np.ones((5, 3))))
    assert (w.g == 5).all() and len(seen) == 14
    w.need_grad = False
    run(variable(np.ones((4, 3))))
    assert len(seen) == 28


def test_what_is_recorded_is_saved_as_one_program(tmp_path):
    run, _ = trainer(S.Adam(), open=OPEN)
    x, t = normal(4, 3, 8, 8), np.ones((4, 1))
    run(variable(x), variable(t))
    run.save(tmp_path / "step.nnlp")
    program = nn.load_program(tmp_path / "step.nnlp")
    assert list(program) == ["step"] and list(program["step"].dims) == ["n", "h", "w"]
    for k, (n, h, w) in enumerate(SHAPES):
        x, t = normal(n, 3, h, w, seed=k), np.ones((n, 1))
        want = run(variable(x), variable(t))["loss"].d
        assert program.run(x=x, t=t)["loss"] == pytest.approx(want, rel=1e-5)


def test_other_formats_are_not_written_at_some_size(tmp_path):
    run = nn.compile(lambda x: x * 2, open={"x": ("n",)})
    run(variable(np.ones(3)))
    with pytest.raises(
        ValueError, match="save: .*lambda.* has open sizes, which .nnlp holds alone"
    ):
        run.save(tmp_path / "a.onnx")


def longer(x):
    for _ in range(x.shape[0]):
        x = x + 1
    return x


def told(x):
    return x * 2, x.shape[0]


def in_parts(x):
    return F.tanh(x) if x.shape[0] < 100 else F.relu(x)


OUTSIDE = nn.Variable((1, 3)) + 1


def outside(x):
    return x + OUTSIDE


def state(x):
    h = nn.Variable(x.shape)
    return F.assign(h, x) + x


@pytest.mark.parametrize(
    "f,text",
    [
        (longer, "compile: longer: add_scalar.* is only there at some sizes at n="),
        (in_parts, r"steps differ between sizes at n=24, .*: tanh .* and relu .*: close the size"),
        (told, r"compile: told: it returns \[.*, 24\] at one size and \[.*\] at another: return"),
        (outside, "compile: outside: add_scalar .* was called outside of the function that is"),
        (
            state,
            r"state: assign \(.*\) writes an array of the shapes \(24, 3\), .*: what is kept",
        ),
    ],
)
def test_what_depends_on_the_size_is_named(f, text):
    run = nn.compile(f, open={"x": ("n", None)})
    with pytest.raises(ValueError, match=text):
        run(variable(np.ones((4, 3))))


@pytest.mark.parametrize(
    "open,text",
    [
        ({"z": ("n", None)}, r"compile: told: open: there is no input 'z' among \['x'\]"),
        ({"x": ("n",)}, r"compile: told: open: x has the shape \(4, 3\), wanted a name or None"),
    ],
)
def test_wrong_names(open, text):
    with pytest.raises(ValueError, match=text):
        nn.compile(told, open=open)(variable(np.ones((4, 3))))
    with pytest.raises(TypeError, match=r'compile: open is 3, wanted a dict, as {"x": \("n", 3\)}'):
        nn.compile(told, open=3)
