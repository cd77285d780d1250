# SPDX-License-Identifier: Apache-2.0
"""function, shared, grad and scan of Theano's dialect: what they do, and say where they cannot."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import nnl as nn
import nnl.dialects.theano as theano
import nnl.dialects.theano.tensor as T
from nnl.dialects.theano.ifelse import ifelse
from nnl.dialects.theano.sandbox.rng_mrg import MRG_RandomStreams
from nnl.dialects.theano.scan_module import until
from nnl.dialects.theano.tensor.shared_randomstreams import RandomStreams


def test_inputs_by_place_and_name_with_defaults_and_forms_of_outputs():
    x, y, z = T.dscalars("x", "y", "z")
    f = theano.function([x, theano.In(y, value=1), theano.Param(z, 2, name="w")], (x + y) * z)
    assert [f(33), f(33, 2), f(33, 0, 1), f(33, w=1), f(x=3, y=0)] == [68, 70, 33, 34, 6]
    several = theano.function([x], {"twice": 2 * x, "square": x**2})(3)
    assert several == {"twice": 6, "square": 9}
    assert theano.function([], None, updates=[])() == []
    assert theano.function([x], [x + 1, theano.Out(x)])(2) == [3, 2]
    assert (x + y).eval({x: 1, y: 2}) == 3
    total = theano.In(y, value=0.0, update=x + y)
    g = theano.function([x, total], y * 1)
    assert [float(g(v)) for v in (1, 2, 3)] == [0, 1, 3]


def test_givens_and_swaps_take_the_place_of_variables():
    x, y = T.vectors("xy")
    z = (x * y).sum()
    held = theano.shared(np.ones(3, "float32") * 2)
    assert theano.function([x], z, givens={y: held})([1, 2, 3]) == 12
    assert theano.function([x], z, swaps=[(y, x * 10)])([1, 2, 3]) == 140
    assert theano.function([x], z, givens={y: np.ones(3)})([1, 2, 3]) == 6


def test_shared_values_are_parameters_and_updates_see_old_values(workspace):
    state = theano.shared(0, "state")
    inc = T.iscalar("inc")
    add = theano.function([inc], state, updates=[(state, state + inc)])
    assert [int(add(1)), int(add(10)), int(state.get_value())] == [0, 1, 11]
    assert workspace.scope["state"].d == 11 and state.get_value().dtype == np.int64
    state.set_value(-1)
    assert add(3) == -1
    w = theano.shared(np.zeros((2, 3), "float32"), "W")
    other = theano.shared(np.ones((2, 3), "float32"), "W")
    assert {w.key, other.key} == {"W", "W_1"} and other.name == "W"
    rows = theano.function([], w.sum(axis=1))
    w.set_value(np.ones((5, 3)))  # other sizes
    assert rows().tolist() == [3.0] * 5
    w.set_value(np.full((2, 3), 4))
    assert rows().tolist() == [12, 12]
    w.set_value(np.ones((5, 3)))
    held = w.get_value(borrow=True)
    held[:] = 2
    assert w.get_value()[0, 0] == 2 and pickle.loads(pickle.dumps(w)).get_value().shape == (5, 3)
    counter = theano.shared(0)
    counter.default_update = counter + 1
    f = theano.function([], counter * 1)
    assert [int(f()), int(f())] == [0, 1]
    assert int(theano.function([], counter * 1, no_default_updates=True)()) == 2


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda x, y: theano.function([x], x + y), Exception, "Undeclared input: y is needed"),
        (lambda x, y: theano.function([x, y], x), Exception, "provided input variable y is not"),
        (lambda x, y: theano.function([3], x), TypeError, "Unknown parameter type: int"),
        (lambda x, y: theano.function([theano.shared(1.0, "s")], x), TypeError, r"red.*\(s\)"),
        (lambda x, y: theano.function([x], x, updates={x: x}), TypeError, "SharedVariable, got x"),
        (lambda x, y: theano.function([x], x)([[1.0]]), TypeError, "expected 1, got 2 with shape"),
        (lambda x, y: theano.function([x], x)(), TypeError, "Missing required input: x"),
        (lambda x, y: theano.function([x], x)(1, 2), TypeError, "got 2, wanted at most 1"),
        (lambda x, y: theano.function([x], x)(["a"]), TypeError, "x got <U1 values, wanted num"),
        (lambda x, y: theano.function([x], x)([1], z=3), TypeError, "input or state: 'z'"),
        (lambda x, y: T.grad(x, x), TypeError, "cost must be a scalar. It has 1 axes"),
        (lambda x, y: T.grad(x.sum(), y), ValueError, "not part of the computational graph.*: y"),
        (lambda x, y: T.grad(x.sum(), T.ivector("k")), TypeError, "k has the type int32"),
        (lambda x, y: x[0, 0], IndexError, "too many indices: 2 for a variable of 1 axes"),
        (lambda x, y: x[T.vector("f")], TypeError, "an index is f of float32"),
        (lambda x, y: x.dimshuffle(1), ValueError, r"dimshuffle: \(1,\) of 1 axes"),
        (lambda x, y: x.sum(axis=2), ValueError, "axis 2 is out of bounds for a variable of 1"),
        (lambda x, y: x.reshape(T.lvector("s")), ValueError, "reshape: .* not known: give ndim"),
        (lambda x, y: T.join(0, x, T.matrix()), TypeError, "same number of dimensions"),
        (lambda x, y: T.set_subtensor(x, 0), TypeError, "result of a subtensor operation"),
        (lambda x, y: T.nnet.conv2d(np.ones((1, 1, 3, 3)), np.ones((1, 1, 2, 2)), border_mode="no")
         .eval(), ValueError, "invalid border_mode 'no', which must be 'valid', 'full', 'half', a"),
        (lambda x, y: bool(x > 1), TypeError, "do not support boolean operations"),
        (lambda x, y: list(x), TypeError, "does not support iteration"),
        (lambda x, y: len(x), TypeError, "has no len"),
        (lambda x, y: theano.shared(x), TypeError, "needs numeric values and not symbolic"),
        (lambda x, y: theano.shared(["a"]), TypeError, "'a'.* is no number, array or symbolic"),
        (lambda x, y: theano.scan(lambda: x), ValueError, "neither sequences nor n_steps"),
        (lambda x, y: theano.scan(lambda a: (a, a), x, [None]), ValueError, "1 of outputs_info"),
        (lambda x, y: theano.scan(lambda a, s: x, x, T.zeros(())), ValueError, "has 1 axes, and i"),
        (lambda x, y: theano.scan(lambda a, s: a, x, {"initial": x, "taps": [1]}), ValueError,
         r"taps of an output are \[1\]"),
        (lambda x, y: theano.scan(lambda a: a, x, n_steps=5)[0].eval({x: [1, 2]}), ValueError,
         "scan: a sequence has 2 rows, and there are 5 steps"),
        (lambda x, y: T.vector(dtype="complex64"), TypeError, "complex64 cannot be computed with"),
        (lambda x, y: (x + y).eval({x: [1, 2], y: [1, 2, 3]}), ValueError, "add.*2.*3"),
        (lambda x, y: theano.printing.Print("x")(x), NotImplementedError, "add the variable to"),
        (lambda x, y: T.dot(T.matrix("a"), x).eval({x: [1]}), Exception, "a is needed"),
        (lambda x, y: theano.function([x, x], x), ValueError, "Function: inputs has 'x.*' twice"),
        (lambda x, y: theano.function([x], x, givens=[(y, x), (y, x)]), ValueError,
         "givens has a variable twice"),
    ],
)  # fmt: skip
def test_errors_in_the_words_of_theano(make, error, text):
    with pytest.raises(error, match=text):
        make(T.vector("x"), T.vector("y"))


def test_integers_take_no_fractions_unless_told():
    k = T.iscalar("k")
    f = theano.function([k], k * 2)
    assert f(3.0) == 6
    with pytest.raises(TypeError, match="cannot store the value 1.5 of k without losing precision"):
        f(1.5)
    with pytest.raises(TypeError, match="cannot store the value 4294967296 of k"):
        f(2**32)
    assert theano.function([k], k * 2, allow_input_downcast=True)(1.5) == 2


def test_types_of_results():
    i, f, b = T.ivector(), T.fvector(), T.bscalar()
    several = i + f, i / 2, i // 2, i.mean(), i.sum(), f > 1, T.eq(i, 1), b + 1
    assert [v.dtype for v in several] == [
        "float32", "float32", "int32", "float32", "int64", "bool", "bool", "int8",
    ]  # fmt: skip
    assert T.col().broadcastable == (False, True) and T.tensor4().type == T.ftensor4().type
    assert T.matrix().type("m").name == "m" and T.dmatrix().dtype == "float32"
    found = theano.function([i], [i / 2, i // 2, -i % 3])([3, -4])
    assert [v.tolist() for v in found] == [[1.5, -2], [1, -2], [0, 1]]


def test_float64_where_floatX_says_so(monkeypatch):
    monkeypatch.setattr(theano.config, "floatX", "float64")
    x = T.dvector("x")
    w = theano.shared(np.array([1.0, 1e-9]), "w")
    f = theano.function([x], [(x + w).sum(), T.grad((x * w**2).sum(), w)], updates={w: w * 3})
    value, gradient = f([1.0, 1.0])
    assert value.dtype == np.float64 and value == 3 + 1e-9
    np.testing.assert_allclose(gradient, [2, 2e-9], rtol=1e-12)
    np.testing.assert_allclose(w.get_value(), [3, 3e-9], rtol=1e-12)


def test_gradients_by_hand():
    x, y = T.vectors("xy")
    loss = (x**2 * y).sum()
    f = theano.function([x, y], T.grad(loss, [x, y]))
    assert [g.tolist() for g in f([1, 2], [3, 4])] == [[6, 16], [1, 4]]
    h = x * 2
    constant = T.grad((h * x).sum(), x, consider_constant=[h])
    assert constant.eval({x: [1, 2]}).tolist() == [2, 4]
    assert T.grad((h**2).sum(), h).eval({x: [1, 2]}).tolist() == [4, 8]  # of what is computed
    zero = T.grad(x.sum(), [y], disconnected_inputs="ignore")[0]
    assert theano.function([x, y], zero, on_unused_input="ignore")([1, 2], [1, 2]).tolist() == [
        0,
        0,
    ]
    cut = T.grad((theano.gradient.grad_clip(x, -1, 1) ** 2).sum(), x)
    assert cut.eval({x: [0.25, 2]}).tolist() == [0.5, 1]
    second = T.grad(T.grad((x**3).sum(), x).sum(), x)
    assert second.eval({x: [1, 2]}).tolist() == [6, 12]


@pytest.mark.parametrize("given", ["array", "shared", "slice", "computed"])
def test_gradients_with_respect_to_what_is_given(given):
    """As a map of what a network looks at is computed, of rows of a data set that is shared."""
    x, i = T.vector("x"), T.lscalar("i")
    data = theano.shared(np.float32([1, 2]), "data")
    rows = theano.shared(np.float32([7, 7, 1, 2]), "rows")
    kinds = {"array": np.float32([1, 2]), "shared": data, "slice": rows[i * 2 : (i + 1) * 2],
             "computed": data + 0}  # fmt: skip
    f = theano.function([i], T.grad((x**3).sum(), x), givens={x: kinds[given]},
                        on_unused_input="ignore")  # fmt: skip
    assert f(1).tolist() == [3, 12]


def test_graphs_can_be_looked_at(capsys):
    x, y = T.vectors("xy")
    z = T.exp(x) + y
    assert z.owner.op.name == "add" and z.owner.inputs[1] is y
    assert set(theano.gof.graph.inputs([z])) == {x, y}
    assert theano.gof.graph.is_same_graph(z, T.exp(x) + y)
    assert not theano.gof.graph.is_same_graph(z, T.exp(y) + x)
    theano.printing.debugprint(z)
    f = theano.function([x, y], z)
    f([1], [2])
    theano.printing.debugprint(f)
    said = capsys.readouterr().out
    assert "exp = exp(x)" in said and "return" in said


# ---- scan ----


def test_scan_a_power_of_a_count_that_is_given():
    k, a = T.iscalar("k"), T.vector("a")
    found, updates = theano.scan(
        lambda prior, a: prior * a, outputs_info=T.ones_like(a), non_sequences=a, n_steps=k
    )
    power = theano.function([a, k], found[-1], updates=updates)
    assert power(range(4), 2).tolist() == [0, 1, 4, 9] and power(range(4), 3)[3] == 27
    assert len(power.inner.plans) == 2  # one for each number of steps


def test_scan_with_taps_of_sequences_and_outputs():
    """Against the loop in numpy, values and gradients against PyTorch."""
    u, x0, w = T.vector("u"), T.vector("x0"), T.scalar("w")

    def step(u_tm2, u_t, x_tm3, x_tm1, w):
        return w * x_tm1 + x_tm3 * u_tm2 + u_t

    found, _ = theano.scan(
        step,
        sequences={"input": u, "taps": [-2, 0]},
        outputs_info={"initial": x0, "taps": [-3, -1]},
        non_sequences=w,
    )
    f = theano.function([u, x0, w], [found, *T.grad((found**2).sum(), [u, x0, w])])
    us, xs, ws = (np.float32(v) for v in ([1, -2, 0.5, 3, -1], [0.1, 0.2, 0.3], 0.7))
    got = f(us, xs, ws)
    a, b, c = (torch.tensor(v, requires_grad=True) for v in (us, xs, ws))
    past = list(b)
    for i in range(2, 5):
        past.append(c * past[-1] + past[-3] * a[i - 2] + a[i])
    want = torch.stack(past[3:])
    (want**2).sum().backward()
    for g, v in zip(got, (want.detach(), a.grad, b.grad, c.grad), strict=True):
        np.testing.assert_allclose(g, v.numpy(), rtol=1e-5)


def test_scan_backwards_truncated_and_several_outputs():
    x = T.vector("x")
    (sums, squares), _ = theano.scan(
        lambda v, s: [s + v, v**2], x, outputs_info=[T.zeros(()), None], go_backwards=True
    )
    f = theano.function([x], [sums, squares])
    assert [v.tolist() for v in f([1, 2, 3])] == [[3, 5, 6], [9, 4, 1]]
    sums, _ = theano.scan(lambda v, s: s * 2 + v, x, T.zeros(()), truncate_gradient=2)
    assert T.grad(sums[-1], x).eval({x: [1, 2, 3, 4]}).tolist() == [0, 0, 2, 1]


def test_scan_until():
    """Powers of two up to a bound; the step in which the condition holds is the last one."""
    bound = T.scalar("bound")
    found, _ = theano.scan(
        lambda p, bound: (p * 2, until(p * 2 > bound)),
        outputs_info=T.constant(1.0), non_sequences=bound, n_steps=1024,
    )  # fmt: skip
    f = theano.function([bound], found)
    assert f(45).tolist() == [2, 4, 8, 16, 32, 64] and f(3).tolist() == [2, 4]


def test_scan_updates_shared_values_and_draws():
    count, draws = theano.shared(0.0, "count"), RandomStreams(5)
    rows, updates = theano.scan(lambda: (draws.uniform((2,)), {count: count + 1}), n_steps=4)
    f = theano.function([], rows, updates=updates)
    first, second = f(), f()
    assert count.get_value() == 8 and len(np.unique(np.stack([first, second]))) == 16


def test_scan_of_gradient_descent():
    """Gradients inside the step are with respect to what it is given: (x - 3)^2 halves its
    distance from 3 in each step of rate 1/4."""
    x = theano.shared(np.float32([1, 5]), "x")
    found, updates = theano.scan(
        lambda v, rate: v - rate * T.grad(((v - 3) ** 2).sum(), v),
        outputs_info=x, non_sequences=T.constant(0.25), n_steps=3,
    )  # fmt: skip
    updates[x] = found[-1]
    assert theano.function([], found, updates=updates)().tolist() == [
        [2, 4],
        [2.5, 3.5],
        [2.75, 3.25],
    ]
    assert x.get_value().tolist() == [2.75, 3.25]


def test_scan_gibbs_chain():
    """Samples that a step makes of the sample before it, without a gradient through the chain."""
    draws = RandomStreams(3)
    w, v0 = theano.shared(np.full((3, 2), 0.5, "float32"), "w"), T.matrix("v0")

    def gibbs(v):
        h = draws.binomial(
            size=(v.shape[0], 2), n=1, p=T.nnet.sigmoid(T.dot(v, w)), dtype="float32"
        )
        mean = T.nnet.sigmoid(T.dot(h, w.T))
        return mean, draws.binomial(size=mean.shape, n=1, p=mean, dtype="float32")

    (means, samples), updates = theano.scan(gibbs, outputs_info=[None, v0], n_steps=3)
    end = samples[-1]
    cost = (T.dot(v0, w) ** 2).sum() - (T.dot(end, w) ** 2).sum()
    g = T.grad(cost, w, consider_constant=[end])
    f = theano.function([v0], [means, samples, g], updates=updates)
    v = np.ones((4, 3), "float32")
    m, s, got = f(v)
    assert m.shape == s.shape == (3, 4, 3) and set(np.unique(s)) <= {0, 1}
    want = 2 * (v.T @ v - s[-1].T @ s[-1]) @ np.full((3, 2), 0.5)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_program_for_each_length():
    """Sequences of 5, 9 and again 5 rows: two programs, and gradients through both."""
    x, w = T.matrix("x"), theano.shared(np.eye(2, dtype="float32") * 0.5, "w")
    h, _ = theano.scan(lambda r, h: T.tanh(r + T.dot(h, w)), x, T.zeros((2,)))
    f = theano.function([x], T.grad(h[-1].sum(), w))
    for n in (5, 9, 5):
        value = np.random.RandomState(n).normal(size=(n, 2)).astype("float32")
        m, state = torch.eye(2).mul(0.5).requires_grad_(), torch.zeros(2)
        for row in torch.from_numpy(value):
            state = torch.tanh(row + state @ m)
        state.sum().backward()
        np.testing.assert_allclose(f(value), m.grad, rtol=1e-4, atol=1e-6)
    assert len(f.inner.plans) == 2


def test_ifelse_of_other_sizes():
    c, x = T.iscalar("c"), T.vector("x")
    f = theano.function([c, x], ifelse(T.gt(c, 0), x[:1], x * 2))
    assert f(1, [3, 4]).tolist() == [3] and f(0, [3, 4]).tolist() == [6, 8]


# ---- random numbers ----


def test_random_numbers_have_their_distributions():
    for streams in (RandomStreams(1), MRG_RandomStreams(1)):
        p = T.constant(np.float32([[0.1, 0.6, 0.3]] * 2000))
        drawn = [
            streams.uniform((2000,), 2, 4), streams.normal((2000,), 1, 3),
            streams.binomial((2000,), p=0.3), streams.random_integers((2000,), 1, 6),
            streams.multinomial(pvals=p), streams.permutation(n=50), streams.choice((2000,), 5),
            streams.shuffle_row_elements(T.arange(50)),
            streams.choice((2000,), 3, p=[0.1, 0.6, 0.3]),
        ]  # fmt: skip
        u, n, b, i, m, order, c, shuffled, chosen = theano.function([], drawn)()
        assert u.min() >= 2 and u.max() < 4 and abs(u.mean() - 3) < 0.05
        assert abs(n.mean() - 1) < 0.25 and abs(n.std() - 3) < 0.25
        assert abs(b.mean() - 0.3) < 0.04 and set(np.unique(i)) == set(range(1, 7))
        np.testing.assert_allclose(m.mean(0), [0.1, 0.6, 0.3], atol=0.04)
        assert (m.sum(1) == 1).all() and sorted(order) == sorted(shuffled) == list(range(50))
        assert set(np.unique(c)) == set(range(5)) and list(order) != list(range(50))
        np.testing.assert_allclose(np.bincount(chosen) / 2000, [0.1, 0.6, 0.3], atol=0.04)


def test_a_seed_gives_the_same_numbers_again():
    def some():
        f = theano.function([], RandomStreams(234).uniform((3,)))
        return [f().tolist(), f().tolist()]

    first = some()
    assert first == some() and first[0] != first[1]


def test_networks_go_on_in_nnl(workspace, tmp_path):
    """What is shared is saved and loaded as parameters are."""
    w = theano.shared(np.float32([1, 2]), "w")
    with nn.parameter_scope("", workspace.scope):
        nn.save_parameters(str(tmp_path / "w.h5"))
        w.set_value([0, 0])
        nn.load_parameters(str(tmp_path / "w.h5"))
    assert w.get_value().tolist() == [1, 2]
