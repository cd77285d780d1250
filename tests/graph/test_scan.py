# SPDX-License-Identifier: Apache-2.0
"""nn.scan: against a loop over numpy rows, central differences, C++ and engines of ONNX."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.core.arrays.spec import ShapeError
from tests.graph.saved import check, normal
from tests.native.kernels import require_library

W = normal(3, 3, seed=9) * 0.4


def variable(a, need_grad=False):
    return nn.Variable.from_numpy_array(np.asarray(a, np.float32), need_grad=need_grad)


def cell(w):
    def f(state, row):
        h, total = state
        x, scale = row
        h = F.tanh(F.affine(h, w) + x * scale)
        return (h, total + F.sum(h)), (h * 2, F.sum(h * x))

    return f


def expected(h, xs, scales, reverse):
    """The same in numpy, in float64."""
    h, total, rows = h.astype(np.float64), 0.0, [None] * len(xs)
    for k in range(len(xs))[:: -1 if reverse else 1]:
        h = np.tanh(h @ W.astype(np.float64) + xs[k] * scales[k])
        total += h.sum()
        rows[k] = h * 2, (h * xs[k]).sum()
    return h, total, np.array([r[0] for r in rows]), np.array([r[1] for r in rows])


def network(h, xs, scales, reverse=False, w=None):
    w = variable(W) if w is None else w
    (h, total), (ys, sums) = nn.scan(cell(w), (h, F.constant(0, ())), (xs, scales), reverse=reverse)
    return {"last": h, "total": total, "ys": ys, "sums": sums}


def values(t, b=2):
    return {
        "h": normal(b, 3, seed=1),
        "xs": normal(t, b, 3, seed=2),
        "scales": normal(t, 1, 1, seed=3),
    }


def near(found, want):
    for got, w in zip(found.values(), want, strict=True):
        got = got.d if isinstance(got, nn.Variable) else got
        assert got.shape == np.shape(w)
        np.testing.assert_allclose(got, w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("how", ["static", "dynamic", "compiled"])
@pytest.mark.parametrize("t", [1, 6])
def test_scan_is_the_loop(how, reverse, t):
    given = values(t)
    xs = {k: variable(v) for k, v in given.items()}
    if how == "compiled":
        found = nn.compile(lambda h, xs, scales: network(h, xs, scales, reverse))(**xs)
    else:
        with nn.auto_forward(how == "dynamic"):
            found = network(**xs, reverse=reverse)
        if how == "static":
            nn.forward_all(list(found.values()))
    near(found, expected(*given.values(), reverse))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_are_central_differences(dynamic, reverse):
    given = {**values(5), "w": W}

    def loss(given):
        with nn.auto_forward(dynamic):
            xs = {
                k: nn.Variable.from_numpy_array(v.astype(np.float64), need_grad=True)
                for k, v in given.items()
            }
            found = network(**xs, reverse=reverse)
            y = F.sum(found["last"] ** 2) + found["total"] + F.sum(found["ys"] * found["ys"])
            y = y + F.sum(found["sums"])
        if not dynamic:
            y.forward()
        return y, xs

    context = nn.Context(["cpu:double"], "CpuArray")
    with nn.context_scope(context):
        y, xs = loss(given)
        y.backward()
        rng = np.random.default_rng(4)
        for name, x in xs.items():
            direction, step = rng.normal(size=x.shape), 1e-5
            ends = [loss({**given, name: given[name] + s * direction})[0].d for s in (step, -step)]
            want = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose((x.g * direction).sum(), want, rtol=1e-6)


def test_second_derivatives():
    x = variable([0.5, -1.0, 2.0], need_grad=True)
    total, _ = nn.scan(lambda s, x: (s * x, ()), F.constant(1, ()), x)  # the product
    (g,) = nn.grad([total], [x])
    (gg,) = nn.grad([g[0]], [x])
    nn.forward_all([g, gg])
    np.testing.assert_allclose(g.d, [-2.0, 1.0, -0.5], rtol=1e-6)
    np.testing.assert_allclose(gg.d, [0, 2.0, -1.0], rtol=1e-6)


def test_single_values_and_no_results():
    x = variable(np.arange(1, 5))
    total, sums = nn.scan(lambda s, x: (s + x, s + x), variable(0), x)
    last, nothing = nn.scan(lambda s, x: (x, ()), variable(0), x, reverse=True)
    nn.forward_all([total, sums, last])
    assert (total.d, last.d, nothing, sums.d.tolist()) == (10, 1, (), [1, 3, 6, 10])


def layer(x, reverse=False):
    b = x.shape[1]

    def f(h, x):
        h = F.tanh(PF.affine(F.concatenate(h, x, axis=1), 8, name="cell"))
        return h, PF.affine(h, 2, name="out")

    h, ys = nn.scan(f, F.constant(0, (b, 8)), x, reverse)
    return {"h": h, "y": ys}


@pytest.mark.parametrize("net", [layer, lambda x: layer(x, reverse=True)])
def test_the_number_of_rows_may_be_open(net, tmp_path):
    x, path, lib = nn.Variable((4, 2, 3)), tmp_path / "a.nnlp", require_library()
    nn.save_program(path, net, {"x": x}, open={"x": ("time", "batch", None)})
    found, model = nn.load_program(path), lib.Model(str(path))
    assert "rows=time" in found.text()
    for t, b in ((1, 1), (7, 3), (30, 2), (200, 1)):
        v = normal(t, b, 3, seed=t)
        closed = nn.Variable(v.shape)
        nn.save_program(tmp_path / "b.nnlp", net(closed), {"x": closed})
        want = nn.load_program(tmp_path / "b.nnlp").run(x=v)
        check(found.run(x=v), want)
        model.resize("x", v.shape)
        assert model.run({"x": v})["y"] == want["y"].tobytes()


def test_training_through_it_at_open_sizes():
    layer(nn.Variable((2, 1, 3)))

    def step(x):
        loss = F.mean(layer(x)["y"] ** 2)
        for p in nn.get_parameters().values():
            p.grad.zero()
        loss.forward()
        loss.backward()
        return loss

    run = nn.compile(step, open={"x": ("time", "batch", None)})
    for t, b in ((3, 2), (9, 1), (5, 4)):
        x = variable(normal(t, b, 3, seed=t))
        found = run(x).d, [p.g.copy() for p in nn.get_parameters().values()]
        want = nn.compile(step)(x).d, [p.g for p in nn.get_parameters().values()]
        assert found[0] == want[0]
        for a, w in zip(found[1], want[1], strict=True):
            np.testing.assert_array_equal(a, w)


@pytest.mark.parametrize("reverse", [False, True])
def test_it_is_written_to_onnx_as_scan(reverse):
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    from nnl.converters.onnx import load
    from nnl.converters.onnx.exporting.exporter import export

    given = values(6)
    xs = {k: nn.Variable(v.shape) for k, v in given.items()}
    proto = export(network(**xs, reverse=reverse), xs, batch=None)
    assert "Scan" in [n.op_type for n in proto.graph.node]
    onnx.checker.check_model(proto, full_check=True)
    want = expected(*given.values(), reverse)
    if not reverse:  # which the reference refuses
        near(dict(enumerate(ReferenceEvaluator(proto).run(None, given))), want)
    back = load(proto)({k: variable(v) for k, v in given.items()})
    nn.forward_all(list(back))
    near(dict(enumerate(back)), want)
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(proto.SerializeToString())
    near(dict(enumerate(session.run(None, given))), want)


def test_what_is_carried_may_be_the_row_too_in_onnx():
    """One tensor may not have the names of two outputs."""
    ort = pytest.importorskip("onnxruntime")
    from nnl.converters.onnx.exporting.exporter import export

    def f(h, row):
        h = F.tanh(h * 0.5 + row)
        return h, h

    init, xs = nn.Variable((3,)), nn.Variable((4, 3))
    last, rows = nn.scan(f, init, xs)
    init.d, xs.d = np.random.default_rng(0).normal(size=(2, 4, 3))[0, 0], 1
    nn.forward_all([last, rows])
    proto = export({"last": last, "rows": rows}, {"init": init, "xs": xs}, batch=None)
    given = {"init": init.d.astype(np.float32), "xs": xs.d.astype(np.float32)}
    found = ort.InferenceSession(proto.SerializeToString()).run(None, given)
    np.testing.assert_allclose(found[0], last.d, rtol=1e-6)
    np.testing.assert_allclose(found[1], rows.d, rtol=1e-6)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "f,init,xs,error,text",
    [
        (None, 0, (2,), TypeError, "scan: f is NoneType, wanted a function"),
        (lambda h, x: h, 0, (2,), TypeError, "scan: f returned Variable, wanted a pair: carried"),
        (lambda h, x: (1, x), 0, (2,), TypeError, "scan: what f carries: input 0 is int, wanted"),
        (lambda h, x: (h, 3), 0, (2,), TypeError, "scan: a result of f: input 0 is int, wanted"),
        (lambda h, x: (F.reshape(h, (1,)), x), 0, (2,), ShapeError,
         r"scan: carries float32\[\], and f returned float32\[1\]"),
        (lambda h, x: (h, x), 0, (), ShapeError, r"scan: xs is float32\[\], wanted arrays with"),
    ],
)  # fmt: skip
def test_errors(f, init, xs, error, text, dynamic):
    with nn.auto_forward(dynamic), pytest.raises(error, match=text):
        nn.scan(f, variable(init), nn.Variable(xs))


def test_arrays_have_one_number_of_rows():
    with pytest.raises(ShapeError, match=r"scan: xs is float32\[2\], float32\[3\], wanted arrays"):
        nn.scan(lambda h, x: (h, ()), variable(0), (nn.Variable((2,)), nn.Variable((3,))))
