# SPDX-License-Identifier: Apache-2.0
"""switch: what it gives is what the chosen function gives, in every mode, and from files."""

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
from nnl.graph.program.program import CONSTANT, VerifyError, verify
from nnl.graph.program.program_data import Damaged, from_dict, to_dict
from tests.graph.saved import normal
from tests.graph.test_programs import CONTEXTS


@pytest.fixture(params=CONTEXTS)
def backend(request):
    with nn.context_scope(nn.Context([f"{request.param}:float"])):
        yield request.param


def same(got, want, backend="cpu"):
    if backend == "numpy":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, 2e-5, 2e-6 * max(1, np.abs(want).max(initial=0)))


def leaf(array, need_grad=False):
    return nn.Variable.from_numpy_array(array, need_grad=need_grad)


class Net:
    """Three branches over h and z: parameters, what stands around them, a switch inside one."""

    def __init__(self):
        nn.seed(1)
        self.x, self.i = leaf(normal(4, 3), True), nn.Variable(())
        self.z = leaf(normal(4, 3, seed=1), True)
        self.h, self.j = F.tanh(self.x), leaf(np.array(1, np.int64))
        self.branches = [self.layer, lambda h, z: (z, h), self.inner]

    def layer(self, h, z):
        return F.relu(PF.affine(h, 3, name="fc")) * self.h, F.reshape(h, (4, 3)) + z

    def inner(self, h, z):
        a = nn.switch(self.j, [lambda a: a - 1, lambda a: F.exp(a) * z], h)
        return a, F.relu(PF.affine(a, 3, name="fc"))

    def chosen(self):
        return nn.switch(self.i, self.branches, self.h, self.z)

    def called(self, k):
        return self.branches[k](self.h, self.z)

    def gradients(self, ys):
        leaves = [self.x, self.z, *nn.get_parameters().values()]
        for v in leaves:
            v.grad.zero()
        loss = F.sum(ys[0] ** 2) + F.sum(F.sin(ys[1]))
        loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True)
        return [v.g.copy() for v in leaves]


@pytest.mark.parametrize("k", range(3))
def test_values_and_gradients_are_those_of_the_chosen_function(k, backend):
    net = Net()
    ys = net.chosen()
    net.i.d = k
    want = net.called(k)
    nn.forward_all(ys)
    nn.forward_all(want)
    for got, w in zip(ys, want, strict=True):
        same(got.d, w.d, backend)
    for got, w in zip(net.gradients(ys), net.gradients(want), strict=True):
        same(got, w)


def test_gradients_are_torchs(backend):
    torch = pytest.importorskip("torch")
    net = Net()
    ys = net.chosen()
    w, b = (torch.tensor(p.d, requires_grad=True) for p in nn.get_parameters().values())
    for k in range(3):
        net.i.d = k
        x, z = (torch.tensor(v.d, requires_grad=True) for v in (net.x, net.z))
        h = torch.tanh(x)
        a = torch.exp(h) * z
        y0, y1 = [
            (torch.relu(h @ w + b) * h, h + z), (z, h), (a, torch.relu(a @ w + b))
        ][k]  # fmt: skip
        leaves = [x, z, w, b]
        want = torch.autograd.grad((y0**2).sum() + y1.sin().sum(), leaves, allow_unused=True)
        for got, g, v in zip(net.gradients(ys), want, leaves, strict=True):
            same(got, np.zeros(v.shape, np.float32) if g is None else g.numpy())


def test_gradients_of_gradients(backend):
    x, i = leaf(np.array([0.5, 2], np.float32), True), nn.Variable(())
    y = nn.switch(i, [lambda x: x**3, F.exp], x)
    (g,) = nn.grad([y], [x])
    (gg,) = nn.grad([g], [x])
    for k, want in enumerate((6 * x.d, np.exp(x.d))):
        i.d = k
        gg.forward()
        same(gg.d, want)


@pytest.mark.parametrize("kind", ["double", "half"])
def test_other_types(kind):
    with nn.context_scope(nn.Context([f"cpu:{kind}"])):
        x, i = nn.Variable((2, 5), need_grad=True), leaf(np.array([True]))
        x.d = normal(2, 5)
        branches = [lambda x: x, lambda x: PF.affine(x, 5, name=kind)]
        h = PF.affine(x, 5, name="first")
        y, z = nn.switch(i, branches, h), branches[1](h)
        grads = []
        for v in (y, z):
            assert v.spec == z.spec
            v.forward()
            x.grad.zero()
            v.backward()
            grads.append(x.g.copy())
        np.testing.assert_array_equal(y.d, z.d)
        np.testing.assert_array_equal(*grads)


def test_what_is_given_may_have_another_width(backend):
    i, x = nn.Variable(()), nn.Variable((2,), need_grad=True)
    y = nn.switch(i, [F.relu, lambda x: x * 2], x)
    i.d, x.d = 1, np.array([1, 2], np.float64)
    y.forward()
    y.backward()
    assert y.d.dtype == np.float32 and y.d.tolist() == [2, 4] and x.g.tolist() == [2, 2]


def test_dynamic_mode_calls_one_function():
    called = []
    branches = [lambda x, k=k: called.append(k) or x * k for k in range(3)]
    with nn.auto_forward():
        i, x = nn.Variable(()), leaf(normal(2))
        i.d = 2
        assert (nn.switch(i, branches, x).d == 2 * x.d).all()
        assert (nn.switch(True, branches, x).d == x.d).all()
    assert called == [2, 1]


def test_random_numbers_and_statistics_inside(backend):
    def train(x):
        return F.dropout(PF.batch_normalization(x, name="bn"), 0.5, seed=3)

    i, x = nn.Variable(()), leaf(normal(64, 3), True)
    y = nn.switch(i, [lambda x: x, train], x)
    mean = nn.get_parameters(grad_only=False)["bn/bn/mean"]
    y.forward()
    assert (mean.d == 0).all() and (y.d == x.d).all()
    i.d = 1
    y.forward()
    first = y.d.copy()
    assert (mean.d != 0).all() and (first == 0).any()
    y.forward()
    assert (y.d != first).any()
    want = train(x)  # its stream begins anew
    mean.d = 0
    grads = []
    for v in (want, want, y):
        x.grad.zero()
        v.forward(clear_no_need_grad=True)
        v.backward(normal(64, 3, seed=2), clear_buffer=True)
        grads.append(x.g.copy())
    third = y.d.copy()
    want.forward()
    same(third, want.d, backend)  # a backward pass draws nothing
    x.grad.zero()
    want.backward(normal(64, 3, seed=2))
    same(grads[2], x.g)


def test_what_nothing_remembers_has_no_gradient():
    i, x = nn.Variable(()), nn.Variable((4,))
    y = nn.switch(i, [F.dropout, F.relu], x)
    x.need_grad = True
    y.forward()
    with pytest.raises(NotImplementedError, match="recorded where nothing needed a gradient"):
        y.backward()


def test_a_training_step_is_one_plan(backend, tmp_path):
    def losses(choose, path=None):
        nn.clear_parameters()
        solver, rng = S.Momentum(0.1), np.random.default_rng(0)
        nn.seed(7)

        @nn.compile
        def step(x, i):
            h = PF.affine(x, 4, name="a")
            loss = F.mean((choose(i, h) - x) ** 2)
            solver.set_parameters(nn.get_parameters(), reset=False, retain_state=True)
            solver.zero_grad()
            loss.forward()
            loss.backward()
            solver.update()
            return loss

        values = []
        for n in range(6):
            x, i = leaf(rng.normal(size=(8, 4)).astype(np.float32)), leaf(np.array(n % 2))
            values.append(step(x, i).d.item())
        if path:
            step.save(path)
            again = step(x, i).d.item(), nn.load_program(path).run(x=x.d, i=i.d)
            assert np.isclose(again[0], next(iter(again[1].values())))
        return values

    branches = [F.tanh, lambda h: PF.affine(h, 4, name="b")]

    def both(i, h):  # the same functions without a switch
        a, b = (f(h) for f in branches)
        return F.where(F.broadcast(F.reshape(F.equal_scalar(i, 1), (1, 1)), h.shape), b, a)

    got = losses(lambda i, h: nn.switch(i, branches, h), tmp_path / "step.nnlp")
    np.testing.assert_allclose(got, losses(both), rtol=1e-4)


# ---- files ----


def test_files_run_to_the_same_bits(backend, tmp_path):
    net, path = Net(), tmp_path / "net.nnlp"
    ys = net.chosen()
    nn.save_program(path, {"a": ys[0], "b": ys[1]}, {"x": net.x, "i": net.i})
    found = nn.load_program(path)
    data = json.loads(json.dumps(to_dict(found["main"])))
    assert to_dict(from_dict(data)) == data and from_dict(data).text() == found["main"].text()
    for k in range(3):
        net.i.d = k
        nn.forward_all(ys, clear_buffer=True)
        got = found.run(x=net.x.d, i=k)
        same(got["a"], ys[0].d, "numpy")
        same(got["b"], ys[1].d, "numpy")
    with pytest.raises(ValueError, match="index holds 3, and there are 3 branches"):
        found.run(x=net.x.d, i=3)


def test_programs_inside_are_printed_further_to_the_right():
    i, x = nn.Variable(()), nn.Variable((2,))
    i.name, x.name = "i", "x"
    y = nn.switch(i, [F.relu, lambda x: x * 2], x)
    program, _ = lower(capture([y.edge]), [y.edge.key], plain=[y.edge.key])
    lines = [line.partition("  #")[0] for line in program.text().splitlines()]
    assert lines == [
        "i:f32[] input",
        "x:f32[2] input",
        "%2:i64[] = cast(i) dtype=int64 whole=switch: index",
        "%4:f32[2] = switch(%2, x)",
        "  branches 0",
        "    x0:f32[2] input",
        "    %2:f32[2] = relu(x0)",
        "    return y0=%2",
        "  branches 1",
        "    x0:f32[2] input",
        "    %2:f32[2] = mul_scalar(x0) val=2",
        "    return y0=%2",
        "return %4",
    ]


def program():
    i, x = leaf(np.array(0, np.int64)), nn.Variable((2,))
    y = nn.switch(i, [F.relu, lambda x: F.relu(x) * 2], x)
    return lower(capture([y.edge]), [y.edge.key], plain=[y.edge.key])[0]


DATA = to_dict(program())


def branch(change):
    return lambda data: change(data["steps"][0]["attrs"]["branches"][1])


@pytest.mark.parametrize(
    "change,text",
    [
        (branch(lambda b: b["program"].pop("steps")), "its fields are not those of a program"),
        (branch(lambda b: b.update(program=3)), "its fields are not those of a program"),
        (branch(lambda b: b["program"]["outputs"].update(y0=9)), "there is no value 9"),
    ],
)
def test_the_reader_tells_what_is_damaged_inside(change, text):
    data = json.loads(json.dumps(DATA))
    change(data)
    with pytest.raises(Damaged, match=text):
        from_dict(data)


def inside(k, **fields):
    def change(step):
        for name, value in fields.items():
            setattr(step.programs[1].slots[k], name, value)

    return change


@pytest.mark.parametrize(
    "change,text",
    [
        (lambda s: s.attrs.update(branches=()), "there are no branches"),
        (lambda s: s.attrs.update(branches=3), "its definition does not take that"),
        (lambda s: s.attrs.update(branches=(*s.programs, 3)), "its definition does not take that"),
        (inside(1, role="state"), "a program inside keeps value 1, a state"),
        (inside(1, role="intermediate"), "reads slot 1 before anything makes it"),
        (lambda s: s.programs[1].outputs.clear(), r"branch 1 gives nothing, branch 0 float32\[2\]"),
        (lambda s: s.programs[1].carries.update({1: 2}), "hands values on to its next run"),
        (lambda s: s.programs[1].steps.pop(), "in a program inside: slot 3 is kept and nothing"),
        (lambda s: setattr(s, "ins", (2, 2)), "wanted one number of int64"),
        (lambda s: setattr(s, "ins", (1,)), "the inputs are nothing, branch 0 was recorded for"),
    ],
)
def test_verify_tells_what_cannot_run_inside(change, text):
    p, known = program(), {}
    verify(p, known)
    change(p.steps[0])
    with pytest.raises(VerifyError, match=text):
        verify(p, known)


# ---- errors ----


def test_errors():
    i, x = nn.Variable(()), nn.Variable((2, 3))
    with pytest.raises(ShapeError, match=r"branch 1 gives float32\[6\], branch 0 float32\[2, 3\]"):
        nn.switch(i, [F.relu, lambda x: F.reshape(x, (6,))], x)
    with pytest.raises(TypeError, match="switch: branch 0 returned int, wanted a Variable"):
        nn.switch(i, [lambda x: 3], x)
    with pytest.raises(TypeError, match="switch: input 0 is ndarray, wanted nnl.Variable"):
        nn.switch(i, [F.relu], x.d)
    for dynamic in (False, True):
        text = r"switch: index is float32\[2, 3\], wanted one number"
        with nn.auto_forward(dynamic), pytest.raises(ShapeError, match=text):
            nn.switch(x, [F.relu], x)
    with pytest.raises(TypeError, match="switch: index is str, wanted a Variable or a number"):
        nn.switch("a", [F.relu], x)
    with pytest.raises(TypeError, match="switch: branch 1 is int, wanted a function"):
        nn.switch(i, [F.relu, 3], x)
    with pytest.raises(TypeError, match="switch: branches is Op, wanted several functions"):
        nn.switch(i, F.relu, x)
    with pytest.raises(ValueError, match="switch: there are no branches"):
        nn.switch(i, [])
    with pytest.raises(ValueError, match="switch: index holds 2, and there are 2 branches"):
        nn.switch(2, [F.relu, F.tanh], x)
    y = nn.switch(i, [F.relu, F.tanh], x)
    i.d = 0.5
    with pytest.raises(ValueError, match="switch: index holds 0.5, wanted whole numbers"):
        y.forward()
    i.d = -1
    with pytest.raises(ValueError, match="index holds -1, and there are 2 branches"):
        y.forward()
    x.reset_shape((5, 3), True)
    with pytest.raises(ShapeError, match=r"the inputs are float32\[5, 3\], branch 0 was"):
        y.forward()


def test_what_a_pass_finds_inside_is_kept_around(tmp_path):
    i, x = nn.Variable(()), nn.Variable((2,))
    y = nn.switch(i, [lambda x: x + F.arange(1, 3), F.tanh], x)
    nn.save_program(tmp_path / "x.nnlp", {"y": y}, {"x": x, "i": i})
    found = nn.load_program(tmp_path / "x.nnlp")
    assert found.run(x=[1, 1], i=0)["y"].tolist() == [2, 3]
    inner = next(s for s in found["main"].steps if s.op == "switch").programs
    assert not any(s.role == CONSTANT and not s.zero for p in inner for s in p.slots)
    assert OPS["switch"].attrs_class.__doc__
