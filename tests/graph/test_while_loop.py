# SPDX-License-Identifier: Apache-2.0
"""while_loop: what it gives is what the loop in Python gives, in every mode, and from files."""

import json

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.node import capture
from nnl.core.ops.op import OPS
from nnl.graph.lowering.lowering import lower
from nnl.graph.program.program import VerifyError, verify
from nnl.graph.program.program_data import from_dict, to_dict
from tests.graph.saved import normal
from tests.graph.test_switch import backend, leaf, same  # noqa: F401


class Net:
    """h grows until it is large and leaves a row at each trip; every other trip changes d too."""

    def __init__(self, most=9):
        nn.seed(1)
        self.x, self.scale = leaf(normal(4, 3), True), leaf(np.full((1, 1), 1.5, np.float32), True)
        self.limit, self.most = leaf(np.array(60, np.float32)), most
        self.start = [leaf(np.array(0, np.float32)), leaf(normal(2, 4, seed=1), True)]
        self.kinds = [leaf(np.array([2, 0], np.int64)), PF.embed(nn.Variable((1,)), 3, 4).parent]

    def layer(self, h):
        return PF.affine(h, 3, name="fc") * self.scale + h

    def goes_on(self, h, odd, d, kind):
        return F.less(F.sum(F.abs(h)), self.limit)

    def body(self, h, odd, d, kind):
        d = nn.switch(odd, [F.sin, lambda d: d * PF.embed(kind, 3, 4)], d)
        return self.layer(h), 1 - odd, d, kind, F.sum(h, axis=1)

    def loop(self):
        carried = (F.tanh(self.x), *self.start, self.kinds[0])
        return nn.while_loop(self.goes_on, self.body, *carried, max_trips=self.most)

    def now(self):
        with nn.auto_forward():
            return self.loop()

    def trips(self, n):
        """Sets the limit so that there are n trips."""
        with nn.auto_forward():
            h = F.tanh(self.x)
            for _ in range(n):
                self.limit.d = 1.001 * F.sum(F.abs(h)).d
                h = self.layer(h)
            assert F.sum(F.abs(h)).d > self.limit.d or not n

    def gradients(self, ys, run):
        leaves = [self.x, self.scale, self.start[1], *nn.get_parameters().values()]
        for v in leaves:
            v.grad.zero()
        h, _, d, _, rows = ys
        loss = F.sum(h**2) + F.sum(F.sin(rows)) + F.sum(d**3)
        if run:
            loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True)
        return [v.g.copy() for v in leaves]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_values_and_gradients_are_those_of_the_loop_in_python(n, backend):  # noqa: F811
    net = Net()
    ys = net.loop()
    net.trips(n)
    nn.forward_all(ys)
    want = net.now()
    for got, w in zip(ys, want, strict=True):
        same(got.d, w.d, backend)
    assert (ys[4].d[n - 1] != 0).any() and (ys[4].d[n:] == 0).all() and ys[4].shape == (9, 4)
    with nn.auto_forward():
        wanted = net.gradients(want, False)
    for got, w in zip(net.gradients(ys, True), wanted, strict=True):
        same(got, w)


def test_gradients_are_torchs(backend):  # noqa: F811
    torch = pytest.importorskip("torch")
    net = Net()
    ys = net.loop()
    net.trips(4)
    got = net.gradients(ys, True)
    x, scale, start, *params = (
        torch.tensor(v.d, requires_grad=True)
        for v in (net.x, net.scale, net.start[1], *nn.get_parameters().values())
    )
    names = list(nn.get_parameters())
    table, w, b = (params[names.index(k)] for k in ("embed/W", "fc/affine/W", "fc/affine/b"))
    h, d, rows = torch.tanh(x), start, []
    while h.abs().sum() < float(net.limit.d):
        rows.append(h.sum(1))
        d = d * table[[2, 0]] if (len(rows) - 1) % 2 else torch.sin(d)
        h = (h @ w + b) * scale + h
    loss = (h**2).sum() + torch.stack(rows).sin().sum() + (d**3).sum()
    assert len(rows) == 4
    for g, t in zip(got, torch.autograd.grad(loss, [x, scale, start, *params]), strict=True):
        same(g, t.numpy())


def test_gradients_of_gradients(backend):  # noqa: F811
    x, n = leaf(np.array([0.5, 2], np.float32), True), leaf(np.array(0, np.float32))
    y, _ = nn.while_loop(
        lambda y, k: F.less_scalar(k, 2), lambda y, k: (y * x, k + 1), x, n, max_trips=5
    )
    (g,) = nn.grad([y], [x])  # of x^3
    (gg,) = nn.grad([g], [x])
    gg.forward()
    same(gg.d, 6 * x.d)


def test_without_a_bound(backend):  # noqa: F811
    x = leaf(np.array([1, 2], np.float32), True)
    y = nn.while_loop(lambda y: F.less_scalar(F.sum(y), 1e6), lambda y: y * 2, x)
    y.forward()
    assert y.d.tolist() == [2.0**19, 2.0**20]
    x.d = 1e6
    y.forward()
    assert y.d.tolist() == [1e6, 1e6]  # no trip
    with pytest.raises(NotImplementedError, match="max_trips does not say for how many"):
        y.backward()


@pytest.mark.parametrize("clears", [False, True])
def test_random_numbers_inside(clears, backend):  # noqa: F811
    x, n = leaf(normal(64), True), leaf(np.array(0, np.float32))
    y, _ = nn.while_loop(
        lambda y, k: F.less_scalar(F.add2(k, F.rand(shape=(), seed=4)), 3),
        lambda y, k: (F.dropout(y, 0.25, seed=3), k + 1),
        x,
        n,
        max_trips=8,
    )
    last = None
    for _ in range(3):
        x.grad.zero()
        y.forward(clear_no_need_grad=clears)
        scale = (y.d / x.d)[y.d != 0]
        same(scale, np.float32((4 / 3) ** np.round(np.log(scale[0]) / np.log(4 / 3))))
        assert 0.1 < (y.d != 0).mean() < 0.7  # 0.75^3 is 0.42
        assert last is None or (y.d != last).any()
        last = y.d.copy()
        for k in (1, 2)[: 1 if clears else 2]:
            y.backward(clear_buffer=clears)
            same(x.g * x.d, k * last)


def test_a_training_step_is_one_plan(backend, tmp_path):  # noqa: F811
    """Newton's iteration inside: its steps and the bound are in the program."""

    def losses(loop, path=None):
        nn.clear_parameters()
        nn.seed(7)
        solver, rng = S.Sgd(0.05), np.random.default_rng(0)

        @nn.compile
        def step(x):
            a = PF.affine(x, 4, name="a") ** 2 + 1.0
            loss = F.mean((loop(a) - 3.0) ** 2)
            solver.set_parameters(nn.get_parameters(), reset=False, retain_state=True)
            solver.zero_grad()
            loss.forward()
            loss.backward()
            solver.update()
            return loss

        values = [step(leaf(rng.normal(size=(8, 4)).astype(np.float32))).d.item() for _ in range(4)]
        if path:
            step.save(path)
            x = leaf(normal(8, 4))
            again = step(x).d.item(), nn.load_program(path).run(x=x.d)
            assert np.isclose(again[0], next(iter(again[1].values())))
        return values

    def newton(r, a):
        return (r + a / r) * 0.5

    def with_while(a):
        def goes_on(r):
            return F.greater_scalar(F.max(F.abs(r * r - a)), 1e-3)

        return nn.while_loop(goes_on, lambda r: newton(r, a), a, max_trips=30)

    def unrolled(a):
        r = a
        for _ in range(12):  # more than enough
            r = newton(r, a)
        return r

    got = losses(with_while, tmp_path / "step.nnlp")
    np.testing.assert_allclose(got, losses(unrolled), rtol=2e-3)


# ---- files ----


def test_files_run_to_the_same_bits(backend, tmp_path):  # noqa: F811
    net, path = Net(), tmp_path / "net.nnlp"
    ys = net.loop()
    outputs = dict(zip("abcde", ys, strict=True))
    nn.save_program(path, outputs, {"x": net.x, "limit": net.limit})
    found = nn.load_program(path)
    data = json.loads(json.dumps(to_dict(found["main"])))
    assert to_dict(from_dict(data)) == data and from_dict(data).text() == found["main"].text()
    for n in (0, 1, 4):
        net.trips(n)
        nn.forward_all(ys, clear_buffer=True)
        got = found.run(x=net.x.d, limit=net.limit.d)
        for k, y in outputs.items():
            same(got[k], y.d, "numpy")


def program():
    n, x, a = leaf(np.array(0, np.float32)), nn.Variable((2,)), nn.Variable((2,))
    y, *_ = nn.while_loop(
        lambda x, n: F.less_scalar(n, 3), lambda x, n: (x + a, n + 1, x), x, n, max_trips=5
    )
    return lower(capture([y.edge]), [y.edge.key], plain=[y.edge.key])[0]


def attribute(**fields):
    return lambda step: step.attrs.update(fields)


def inside(name, change):
    return lambda step: change(step.attrs[name])


@pytest.mark.parametrize(
    "change,text",
    [
        (attribute(body=None), "its definition does not take that"),
        (attribute(carried=-1), "-1 carried and 0 scanned of 3, 5 rows"),
        (attribute(carried=1), r"makes arrays of the shapes .*, its definition .*\(5,\)"),
        (attribute(scanned=9), "2 carried and 9 scanned of 3"),
        (attribute(scanned=1), "wanted 5 rows"),
        (attribute(rows=None), "rows of scanned or stacked arrays have no number"),
        (attribute(rows=6), r"makes arrays of the shapes .*\(5, 2\).*, its definition"),
        (attribute(backwards=True), "a loop that goes backwards has a condition"),
        (lambda s: setattr(s, "ins", (2, *s.ins[1:])), "trips is float32"),
        (lambda s: setattr(s, "ins", s.ins[:3]), "the condition was recorded for"),
        (inside("condition", lambda p: p.outputs.clear()), "the condition gives no boolean"),
        (inside("body", lambda p: p.outputs.clear()), "the body gives nothing"),
        (inside("body", lambda p: p.steps.clear()), "in a program inside: slot"),
        (
            inside("body", lambda p: setattr(p.steps[0], "writes", (0,))),
            "a program inside writes what is carried or scanned",
        ),
    ],
)
def test_verify_tells_what_cannot_run_inside(change, text):
    p, known = program(), {}
    verify(p, known)
    change(p.steps[-1])
    with pytest.raises(VerifyError, match=text):
        verify(p, known)


# ---- errors ----


def test_errors():
    x = nn.Variable((2,))

    def goes_on(x):
        return F.less_scalar(F.sum(x), 3)

    with pytest.raises(TypeError, match="while_loop: nothing is carried"):
        nn.while_loop(goes_on, F.relu)
    with pytest.raises(TypeError, match="while_loop: input 1 is int, wanted nnl.Variable"):
        nn.while_loop(goes_on, F.relu, x, 3)
    with pytest.raises(ValueError, match="while_loop: max_trips is -1, wanted an int from 0 on"):
        nn.while_loop(goes_on, F.relu, x, max_trips=-1)
    with pytest.raises(TypeError, match="while_loop: condition is int, wanted a function"):
        nn.while_loop(3, F.relu, x)
    with pytest.raises(TypeError, match="while_loop: body is NoneType, wanted a function"):
        nn.while_loop(goes_on, None, x)
    for dynamic in (False, True):
        with nn.auto_forward(dynamic):
            text = r"the condition returned float32\[2\], wanted one number"
            with pytest.raises(ShapeError, match=text):
                nn.while_loop(F.relu, F.relu, x)
            with pytest.raises(
                TypeError, match="while_loop: the condition returned bool, wanted a"
            ):
                nn.while_loop(lambda x: True, F.relu, x)
            with pytest.raises(TypeError, match="while_loop: the body returned int, wanted a Var"):
                nn.while_loop(goes_on, lambda x: 3, x)
            text = r"while_loop: carries float32\[2\], and the body returned float32\[\]"
            with pytest.raises(ShapeError, match=text):
                nn.while_loop(goes_on, F.sum, x)
            with pytest.raises(ShapeError, match="max_trips must say how many there may be"):
                nn.while_loop(goes_on, lambda x: (x, x), x)
    assert OPS["while"].attrs_class.__doc__
