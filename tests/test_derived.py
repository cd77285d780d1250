# SPDX-License-Identifier: Apache-2.0
"""Checks that every op gets from its samples, without anyone writing them."""

import functools
import inspect

import numpy as np
import pytest

import nnl as nn
from nnl.core.arrays.array import NdArray
from nnl.core.differentiation.grad import grad
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import STATIC
from nnl.core.ops import random as nnl_random
from nnl.core.ops.op import OPS
from nnl.core.settings.context import STATE
from nnl.graph.printing.text import describe
from nnl.graph.program.program import LIBRARY_OPS

DOUBLE = nn.Context(["cpu:double"])
# made per instance, see test_functions_and_graph and test_switch; what only a library knows
SKIPPED = {"python_function", "python_function_backward", "switch", "while", *LIBRARY_OPS}


def samples(op):
    return list(op.attrs_class.samples(np.random.default_rng(0)))


CASES = [
    pytest.param(op, i, id=f"{op.name}-{i}")
    for op in OPS.values()
    if hasattr(op.attrs_class, "samples")
    for i in range(len(samples(op)))
]
PUBLIC = [p for p in CASES if p.values[0].nnp]  # internal ops are called by rules only
FIRST = [p.values[0] for p in PUBLIC if p.values[1] == 0]


def each_sample(cases):
    """Makes a test of (op, i, ...) one test per op: pytest takes longer for a test than most
    samples take. An error gets a note that tells the sample."""
    numbers = {}
    for p in cases:
        op, i = p.values
        numbers.setdefault(op, []).append(i)

    def decorate(test):
        @functools.wraps(test)
        def all_of(op, **others):
            skipped = []
            for i in numbers[op]:
                try:
                    test(op=op, i=i, **others)
                except pytest.skip.Exception as e:
                    skipped.append(e)
                except BaseException as e:
                    e.add_note(f"with sample {i} of {op.name}")
                    raise
            if len(skipped) == len(numbers[op]):
                raise skipped[0]

        signature = inspect.signature(test)
        left = [p for name, p in signature.parameters.items() if name != "i"]
        all_of.__signature__ = signature.replace(parameters=left)
        ops = [pytest.param(op, id=op.name) for op in numbers]
        return pytest.mark.parametrize("op", ops)(all_of)

    return decorate


class Case:
    """One sample with fresh arrays and a fresh random stream."""

    def __init__(self, op, i, dtype=np.float64):
        self.op, self.dtype = op, dtype
        s = samples(op)[i]
        self.attrs, self.order = s.attrs, s.order
        arrays = [None if a is None else np.asarray(a) for a in s.inputs]
        self.arrays = [a if a is None or a.dtype.kind != "f" else a.astype(dtype) for a in arrays]
        self.grad = s.grad or tuple(a is not None and a.dtype.kind == "f" for a in self.arrays)
        names = op.inputs
        self.written = {
            i for i in op.written(op.intern(self._values())) if i < len(names) and names[i] != "rng"
        }

    def _values(self):
        op = self.op
        return tuple(
            tuple(v) if isinstance(v, list) else v
            for v in (self.attrs.get(f, d) for f, d in zip(op.fields, op.defaults, strict=True))
        )

    def variables(self, arrays=None):
        arrays = self.arrays if arrays is None else arrays
        return [
            None if a is None else Variable.from_numpy_array(a, need_grad=g)
            for a, g in zip(arrays, self.grad, strict=True)
        ]

    def run(self, xs):
        xs = list(xs)
        if self.op.takes_rng:
            rng = nnl_random.stream(7)
            n = len(self.op.inputs) - 1
            xs += [None] * (n - len(xs)) + [rng]
        attrs = self.op.attrs(**self.attrs)
        if self.op.has_resolve:
            attrs = self.op._resolve(attrs, tuple(xs))
        self.resolved_attrs = attrs
        from nnl.core.graph.dispatch import apply

        y = apply(self.op, attrs, tuple(xs))
        return y if isinstance(y, tuple) else (y,)

    def differentiable(self):
        return self.op.differentiable and any(self.grad) and not self.written

    def gradients(self, xs, ys):
        """Of the inputs, for random gradients of the outputs; none where there are none."""
        if not self.differentiable():
            return []
        rng = np.random.default_rng(1)
        for y in ys:
            if y.need_grad:
                y.backward(rng.normal(size=y.shape).astype(np.float32))
        return [x.g for x in xs if x is not None and x.need_grad]

    def rounded(self, dtype):
        """The arrays, those of floating-point numbers that it only reads with fewer bits."""
        return [
            a if a is None or a.dtype.kind != "f" or w in self.written else a.astype(dtype)
            for w, a in enumerate(self.arrays)
        ]


def test_every_op_is_complete():
    for op in [op for op in OPS.values() if op.name not in SKIPPED]:
        cls = op.attrs_class
        missing = [n for n in ("samples", "cost") if not hasattr(cls, n)]
        if not (hasattr(cls, "forward") or hasattr(cls, "ufunc") or hasattr(cls, "decompose")):
            missing.append("forward, ufunc or decompose")
        if not (cls.__doc__ or "").strip():
            missing.append("docstring")
        assert not missing, f"{op.name} lacks {missing}"
        assert samples(op), op.name


def test_cost_is_known_for_every_sample():
    for op, i in [p.values for p in CASES]:
        case = Case(op, i, np.float32)
        with nn.auto_forward(False):
            (y, *_) = case.run(case.variables())
        node = y.edge.node
        cost = node.attrs.cost(*[v and v.current_spec for v in node.inputs])
        assert int(cost.flops) >= 0 and int(cost.bytes) >= 0, f"{op.name} {i}"


@each_sample(CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infer_matches_forward(op, i, dtype):
    case = Case(op, i, dtype)
    ctx = DOUBLE if dtype == np.float64 else nn.Context()
    with nn.context_scope(ctx), nn.auto_forward():
        xs = case.variables()
        for y in case.run(xs):
            host = y.data.read("host")
            assert isinstance(host, np.ndarray)
            assert (host.shape, host.dtype) == (y.spec.shape, y.spec.dtype)
            assert host.flags.c_contiguous
            if not op.view:
                for x in xs:
                    assert x is None or not np.shares_memory(host, x.data.read("host"))
    if not case.written:
        for x, a in zip(xs, case.arrays, strict=True):
            if a is not None:
                np.testing.assert_array_equal(x.d, a, err_msg="an input was changed")


@each_sample(CASES)
def test_inputs_need_not_be_contiguous(op, i):
    """Arrays of other frameworks, taken in by DLPack, may have any strides."""
    case = Case(op, i, np.float32)

    def outputs(strided):
        xs = case.variables()
        for x, a in zip(xs, case.arrays, strict=True):
            if strided and a is not None and a.ndim:
                wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
                wide[..., ::2] = a
                x.data.write("host", wide[..., ::2])
        return [y.d for y in case.run(xs)] + [xs[k].d for k in case.written if xs[k] is not None]

    with nn.auto_forward(), np.errstate(all="ignore"):
        for got, want in zip(outputs(True), outputs(False), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def assert_same(got, want, exact, what):
    """Equal bit for bit, or within what another order of additions does to float32."""
    if exact or want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite, err_msg=what)
    np.testing.assert_array_equal(got[~finite], want[~finite], err_msg=what)
    scale = max(1.0, float(np.abs(want[finite]).max(initial=0)))
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=2e-5 * scale, err_msg=what)


@pytest.mark.parametrize("context", ["numpy", "cpu"])
@each_sample(CASES)
def test_static_compiled_and_dynamic_agree(op, i, context):
    """In numpy bit for bit: the same kernels in the same order. Natively within rounding: plans
    fuse, small arrays in dynamic mode are numpy's."""
    with nn.context_scope(nn.Context([f"{context}:float"])), np.errstate(all="ignore"):
        check_modes(op, i, exact=context == "numpy")


def check_modes(op, i, exact):
    case = Case(op, i, np.float32)

    def start(ys):
        rng = np.random.default_rng(3)
        return [
            Variable.from_numpy_array(rng.normal(size=y.shape).astype(np.float32))
            if y.spec.dtype.kind == "f"
            else None
            for y in ys
        ]

    def loss_of(ys):
        """A scalar that depends on every visible floating-point output."""
        total = None
        for y, u in zip(ys, start(ys), strict=True):
            if u is not None and y.need_grad:
                part = OPS["sum"](y * u, axes=tuple(range(len(y.shape))))
                total = part if total is None else total + part
        return total

    def grads(xs):
        return [None if x is None or not x.need_grad else x.g.copy() for x in xs]

    def eager():
        xs = case.variables()
        with nn.auto_forward():
            ys = case.run(xs)
            values = [y.d.copy() for y in ys]
            loss = loss_of(ys)
            if loss is not None:
                loss.backward()
        return values, grads(xs)

    def static(forward, backward):
        xs = case.variables()
        ys = case.run(xs)
        for y in ys:
            y.persistent = True
        loss = loss_of(ys)
        ends = [*ys] if loss is None else [*ys, loss]
        if loss is None or not forward.get("clear_no_need_grad"):
            nn.forward_all(ends, **forward)
        else:
            loss.forward(**forward)
        values = [y.d.copy() for y in ys] if loss is None or not forward else None
        if loss is not None:
            loss.backward(**backward)
        return values, grads(xs)

    def compiled():
        xs = case.variables()

        def step():
            ys = case.run(xs)
            loss = loss_of(ys)
            if loss is not None:
                loss.backward()
            return ys

        ys = nn.compile(step)()
        return [y.d for y in ys], grads(xs)

    want = eager()
    modes = {
        "static": lambda: static({}, {}),
        "static, cleared": lambda: static({"clear_no_need_grad": True}, {"clear_buffer": True}),
        "compiled": compiled,
    }
    for name, mode in modes.items():
        got = mode()
        for a, b in zip(want, got, strict=True):
            if b is None:
                continue
            for x, y in zip(a, b, strict=True):
                if x is None:
                    assert y is None, name
                else:
                    assert_same(y, x, exact, name)


def gradient_error(case, order):
    """Relative difference of <v, vjp(u)> and a central difference along a random direction v."""
    rng = np.random.default_rng(1)
    wanted = [i for i, g in enumerate(case.grad) if g]
    base = [case.arrays[i] for i in wanted]

    def outputs(arrays):
        full = list(case.arrays)
        for i, a in zip(wanted, arrays, strict=True):
            full[i] = a
        xs = case.variables(full)
        return [xs[i] for i in wanted], [y for y in case.run(xs) if y.need_grad]

    _, ys = outputs(base)
    us = [rng.normal(size=y.shape) for y in ys]
    if not ys:
        return 0.0

    def function(arrays, us):
        """(leaves, outputs) of the function whose first derivative is checked."""
        xs, ys = outputs(arrays)
        if order == 1:
            return xs, ys
        starts = [Variable.from_numpy_array(u, need_grad=True) for u in us]
        return xs + starts, [g for g in grad(ys, xs, starts)]

    free = base if order == 1 else base + us
    weights = None

    def value(arrays):
        nonlocal weights
        xs, outs = function(arrays[: len(base)], arrays[len(base) :] or us)
        if weights is None:
            weights = [rng.normal(size=y.shape) for y in outs]
        return xs, outs, sum(float((y.d * w).sum()) for y, w in zip(outs, weights, strict=True))

    xs, outs, _ = value(free)
    alive = [(y, w) for y, w in zip(outs, weights, strict=True) if y.need_grad]
    dirs = [rng.normal(size=x.shape) for x in free]
    exact = 0.0
    if alive:
        gs = grad([y for y, _ in alive], xs, [Variable.from_numpy_array(w) for _, w in alive])
        exact = sum(float((g.d * v).sum()) for g, v in zip(gs, dirs, strict=True))
    eps = 1e-6
    up = value([x + eps * v for x, v in zip(free, dirs, strict=True)])[2]
    down = value([x - eps * v for x, v in zip(free, dirs, strict=True)])[2]
    numeric = (up - down) / (2 * eps)
    scale = max(1.0, abs(exact), abs(numeric), abs(up) * 1e-2)
    return abs(exact - numeric) / scale


@pytest.mark.parametrize("order", [1, 2])
@each_sample(CASES)
def test_gradient_matches_central_difference(op, i, order):
    case = Case(op, i)
    if not case.differentiable() or case.order < order:
        return
    with nn.context_scope(DOUBLE), nn.auto_forward():
        assert gradient_error(case, order) < 2e-5


@each_sample(CASES)
def test_arrays_give_the_same_as_variables(op, i):
    case = Case(op, i, np.float32)
    with nn.auto_forward():
        want = [y.d for y in case.run(case.variables())]
    arrays = [None if a is None else NdArray.from_numpy_array(a) for a in case.arrays]
    if not any(isinstance(a, NdArray) for a in arrays):
        return
    for a, b in zip(want, case.run(arrays), strict=True):
        assert isinstance(b, NdArray)
        np.testing.assert_array_equal(a, b.data)


def test_state_is_as_before_the_tests():
    assert STATE.interpreter is STATIC and STATE.make_nodes
    assert Value.leaf(NdArray(2)).node is None


def broken(a):
    """Arrays that probably do not fit where `a` does."""
    yield a[None], "a leading axis more"
    yield np.zeros((2, 1, 3, 1, 2), a.dtype), "rank 5"
    yield np.zeros((), a.dtype), "a scalar"
    if a.ndim:
        yield np.zeros((*a.shape[:-1], a.shape[-1] + 1), a.dtype), "a longer last axis"
        yield np.zeros((a.shape[0] + 1, *a.shape[1:]), a.dtype), "a longer first axis"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # zeros come where logarithms are taken
@each_sample(PUBLIC)
def test_wrong_shapes_give_an_error_that_names_the_function(op, i):
    """Whatever shape comes, a call works or says in its own words why not; state is unchanged."""
    case = Case(op, i, np.float32)
    for k, a in enumerate(case.arrays):
        if a is None:
            continue
        for wrong, what in broken(a):
            arrays = list(case.arrays)
            arrays[k] = wrong
            xs = case.variables(arrays)
            message = None
            with nn.auto_forward():
                try:
                    case.run(xs)
                except (ValueError, TypeError, NotImplementedError, IndexError) as e:
                    message = str(e)
            if message is None:
                continue
            assert message.startswith(f"{op.name}:") or message.startswith(f"{op.name}("), (
                f"{op.name} with {what} for {op.inputs[min(k, len(op.inputs) - 1)]}: {message}"
            )
            for x, before in zip(xs, arrays, strict=True):
                if before is not None:
                    np.testing.assert_array_equal(x.d, before)


def test_wrong_kinds_of_input_are_named():
    cases = [Case(op, 0, np.float32) for op in FIRST if op.name not in SKIPPED]
    for case, k in [(c, k) for c in cases for k, a in enumerate(c.arrays) if a is not None]:
        op, xs = case.op, case.variables()
        xs[k] = 3.0
        with pytest.raises(TypeError, match=rf"{op.name}: \w+ is float, wanted nnl.Variable or"):
            case.run(xs)


def test_the_graph_of_a_function_can_be_printed():
    """With its cost, which is computed from all inputs, a random state too."""
    for op in FIRST:
        case = Case(op, 0)
        with nn.auto_forward(False):
            y = case.run(case.variables())[0]
        assert f"{op.name}(" in describe(y)
