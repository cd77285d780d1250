# SPDX-License-Identifier: Apache-2.0
"""save(): files, names, external weights, round trips and errors."""

import logging
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from nnl.converters.onnx import load  # noqa: E402
from nnl.converters.onnx.exporting.exporter import export, save  # noqa: E402
from nnl.converters.onnx.exporting.table import export_rows, page  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator  # noqa: E402
from nnl.core.ops.python_function import PythonFunction  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    nn.seed(5)


def classifier(shape=(2, 40)):
    x = nn.Variable(shape)
    return x, PF.affine(F.relu(PF.affine(x, 30, name="first")), 3, name="second")


def run(source, *inputs):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    source = str(source) if isinstance(source, Path) else source.SerializeToString()
    runtime = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in runtime.get_inputs()]
    return runtime.run(None, dict(zip(names, inputs, strict=True)))


def value_of(x, y, array):
    x.d = array
    y.forward()
    return y.d.copy()


# ---- files ----


def test_external_weights_are_read_by_onnx_runtime_and_onnx(tmp_path):
    x, y = classifier()
    array = np.random.default_rng(0).normal(size=(2, 40)).astype(np.float32)
    want = value_of(x, y, array)
    save(tmp_path / "m.onnx", y, x, external_data=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    np.testing.assert_allclose(run(tmp_path / "m.onnx", array)[0], want, rtol=1e-5, atol=1e-6)
    model = onnx.load(tmp_path / "m.onnx")
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    np.testing.assert_array_equal(stored["first/affine/W"], nn.get_parameters()["first/affine/W"].d)


def test_external_weights_are_aligned_and_small_ones_stay(tmp_path):
    x, y = classifier()
    save(tmp_path / "m.onnx", y, x, external_data=True)
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    places = {t.name: {e.key: e.value for e in t.external_data} for t in model.graph.initializer}
    assert places["first/affine/W"] == {
        "location": "m.onnx.data",
        "offset": "0",
        "length": str(40 * 30 * 4),
    }
    assert places["second/affine/b"] == {}
    assert all(int(p.get("offset", 0)) % 64 == 0 for p in places.values())


def test_weights_above_the_threshold_become_external(tmp_path):
    x, y = classifier()
    save(tmp_path / "a.onnx", y, x, external_threshold=5000)
    save(tmp_path / "b.onnx", y, x, external_threshold=50000)
    save(tmp_path / "c.onnx", y, x, external_threshold=5000, external_data=False)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["a.onnx", "a.onnx.data", "b.onnx", "c.onnx"]


@pytest.mark.long
def test_weights_of_more_than_2_gb_go_out_and_come_back(tmp_path):
    x = nn.Variable((1, 16384))
    w = nn.parameter.get_parameter_or_create("w", (16384, 36000))
    rng = np.random.default_rng(0)
    for rows in (slice(0, 10), slice(-10, None)):
        w.data.data[rows] = rng.normal(size=(10, 36000))
    x.d = rng.normal(size=x.shape)
    y = F.affine(x, w)
    y.forward(clear_buffer=True)
    save(tmp_path / "m.onnx", y, x)
    assert (tmp_path / "m.onnx.data").stat().st_size == 16384 * 36000 * 4 > 2**31
    given, want = {"x0": x.d.astype(np.float32)}, y.d.copy()
    nn.clear_parameters()
    del w, y
    runtime = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (name,) = (i.name for i in runtime.get_inputs())
    np.testing.assert_allclose(runtime.run(None, {name: given["x0"]})[0], want, atol=1e-3)
    del runtime
    (got,) = load(tmp_path / "m.onnx").run(given["x0"])
    np.testing.assert_allclose(got, want, atol=1e-3)


def test_failing_export_leaves_the_old_files_and_no_others(tmp_path, monkeypatch):
    x, y = classifier()
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")
    with pytest.raises(UnsupportedOperator):
        save(path, F.batch_inv(F.reshape(x, (2, 2, 20))[:, :, :2]), x)

    def refuse(*args, **kw):
        raise onnx.checker.ValidationError("refused")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(UnsupportedOperator, match="opset 18 has no valid form of this: refused"):
        save(path, y, x, external_data=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folder_is_refused(tmp_path):
    x, y = classifier()
    with pytest.raises(FileNotFoundError, match="m.onnx: there is no folder .*nowhere"):
        save(tmp_path / "nowhere" / "m.onnx", y, x)


# ---- names and values ----


def test_inputs_and_outputs_get_the_names_of_variables_and_mappings():
    x, y = classifier()
    z = nn.Variable((2, 3))
    z.name = "z"
    out = y + z
    out.name = "scores"
    graph = export(out).graph
    assert [i.name for i in graph.input] == ["x", "z"]
    assert [o.name for o in graph.output] == ["scores"]
    graph = export({"a": y, "b": out}, {"image": x, "offset": z}).graph
    assert [i.name for i in graph.input] == ["image", "offset"]
    assert [o.name for o in graph.output] == ["a", "b"]


def test_leaves_that_are_not_inputs_are_stored():
    x = nn.Variable((2, 3))
    scale = nn.Variable.from_numpy_array(np.array([[1.0, 2, 3]], np.float32))
    scale.name = "scale"
    model = export(x * scale, x)
    assert [t.name for t in model.graph.initializer] == ["scale"]
    got = run(model, np.ones((5, 3), np.float32))[0]
    np.testing.assert_array_equal(got, np.broadcast_to([[1, 2, 3]], (5, 3)))


def test_one_variable_may_be_several_outputs_and_an_input_an_output():
    x = nn.Variable((2, 3))
    y = F.exp(x)
    got = run(export({"a": y, "b": y, "c": x}, x), np.zeros((4, 3), np.float32))
    assert [g.shape for g in got] == [(4, 3)] * 3
    np.testing.assert_array_equal(got[0], got[1])
    np.testing.assert_array_equal(got[2], 0)


def test_integer_inputs_keep_their_type():
    index = nn.Variable.from_numpy_array(np.array([[1], [2]]))
    y = PF.embed(index, 5, 3)
    model = export(y, index)
    got = run(model, np.array([[4], [0], [1]]))[0]
    np.testing.assert_array_equal(got[:, 0], nn.get_parameters()["embed/W"].d[[4, 0, 1]])


def test_weights_keep_other_types_than_float32():
    x = nn.Variable((2, 3))
    w = nn.Variable.from_numpy_array(np.ones((1, 3), np.float16))
    w.name = "w"
    model = export(x * w, x)
    assert model.graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
    assert run(model, np.ones((1, 3), np.float32))[0].dtype == np.float32


def test_a_context_of_float64_is_written_as_float64():
    with nn.context_scope(nn.Context(["cpu:double"])):
        x = nn.Variable.from_numpy_array(np.zeros((2, 3)))
        y = F.tanh(x * 3 + 1)
    array = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(run(export(y, x), array)[0], np.tanh(3 * array + 1), rtol=1e-12)


def test_random_numbers_have_the_shape_and_range_asked_for():
    x = nn.Variable((2, 3))
    y = F.concatenate(x, F.rand(-1.0, 2.0, (2, 500)), axis=1)
    got = run(export(y, x), np.ones((4, 3), np.float32))[0][:, 3:]
    assert got.shape == (4, 500)  # the batch size of a random array follows
    assert got.min() >= -1 and got.max() < 2 and abs(got.mean() - 0.5) < 0.2


def test_boolean_mask_gives_an_output_of_open_length():
    x = nn.Variable.from_numpy_array(np.array([1.0, -1, 2], np.float32))
    mask = F.greater_scalar(x, 0.0)
    mask.forward()
    model = export(F.bool_gather(x, mask), x, batch=None)
    np.testing.assert_array_equal(run(model, np.array([-1, 5, -2], np.float32))[0], [5])


def test_constant_that_is_the_same_for_every_sample_follows_the_batch():
    x = nn.Variable((2, 3))
    same = nn.Variable.from_numpy_array(np.array([[1.0, 2, 3]] * 2, np.float32))
    model = export(x + same, x)
    got = run(model, np.zeros((4, 3), np.float32))[0]
    np.testing.assert_array_equal(got, [[1, 2, 3]] * 4)
    other = nn.Variable.from_numpy_array(np.array([[1.0, 2, 3], [4, 5, 6]], np.float32))
    with pytest.raises(OnnxError, match="add2 does not take another batch size than 2"):
        export(x + other, x)


# ---- round trips ----


def test_onnx_to_nnl_to_onnx_keeps_outputs(tmp_path):
    x = nn.Variable((2, 3, 9, 7))
    y = F.relu(PF.batch_normalization(PF.convolution(x, 4, (3, 3), name="c"), batch_stat=False))
    y = PF.affine(F.max_pooling(y, (2, 2)), 5, name="d")
    save(tmp_path / "first.onnx", y, x)
    array = np.random.default_rng(0).normal(size=(3, 3, 9, 7)).astype(np.float32)
    want = run(tmp_path / "first.onnx", array)[0]
    nn.clear_parameters()
    again = nn.Variable((2, 3, 9, 7))
    save(tmp_path / "second.onnx", load(tmp_path / "first.onnx")(again), again)
    got = run(tmp_path / "second.onnx", array)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_model_from_torch_comes_back_the_same(tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
        torch.nn.BatchNorm2d(4),
        torch.nn.GELU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 3),
        torch.nn.Softmax(dim=1),
    ).eval()
    x = torch.randn(2, 2, 9, 7)
    torch.onnx.export(net, (x,), str(tmp_path / "torch.onnx"), dynamo=False, opset_version=17)
    v = nn.Variable((2, 2, 9, 7))
    save(tmp_path / "nnl.onnx", load(tmp_path / "torch.onnx")(v), v)
    other = torch.randn(3, 2, 9, 7)
    got = run(tmp_path / "nnl.onnx", other.numpy())[0]
    np.testing.assert_allclose(got, net(other).detach().numpy(), rtol=1e-4, atol=1e-6)


# ---- errors ----


def test_all_unsupported_functions_are_named():
    x = nn.Variable((2, 3, 3))
    y = F.add2(F.batch_inv(x), F.batch_cholesky(x))
    with pytest.raises(UnsupportedOperator) as e:
        export(F.random_flip(y), x)
    for name in ("batch_inv (ONNX has no inverse", "batch_cholesky (", "random_flip ("):
        assert name in str(e.value)


def test_function_that_needs_a_newer_opset_says_so():
    x, boxes = nn.Variable((1, 2, 4, 4)), nn.Variable((1, 5))
    y = F.roi_align(x, boxes, (2, 2))
    text = r"opset 13: roi_align \(it needs opset 16\) \(documentation: onnx_export#functions-in-"
    with pytest.raises(UnsupportedOperator, match=text):
        export(y, [x, boxes], opset=13)


def test_python_function_is_named_by_its_name():
    class Mine(PythonFunction):
        name = "Mine"

        def min_outputs(self):
            return 1

        def setup_impl(self, inputs, outputs):
            outputs[0].reset_shape(inputs[0].shape, True)

    x = nn.Variable((2, 3))
    with pytest.raises(UnsupportedOperator, match=r"Mine \(it runs Python code\)"):
        export(Mine()(x), x)


def test_gradients_are_refused():
    x, y = classifier()
    (g,) = nn.grad([F.sum(F.tanh(y))], [nn.get_parameters()["first/affine/W"]])
    with pytest.raises(UnsupportedOperator, match="it belongs to gradients or solvers"):
        export(g, x)


def test_missing_onnx_package_is_named(monkeypatch):
    x, y = classifier()
    monkeypatch.setitem(sys.modules, "onnx.defs", None)
    with pytest.raises(ModuleNotFoundError, match=r"save needs the package onnx: pip install nnl"):
        export(y, x)


@pytest.mark.parametrize("opset", [6, 99, "18"])
def test_opset_outside_of_the_range_is_refused(opset):
    x, y = classifier()
    with pytest.raises(ValueError, match=re.escape(f"opset is {opset!r}, wanted 7 to ")):
        export(y, x, opset=opset)


def test_output_without_a_recorded_function_is_refused():
    x = nn.Variable((2, 3))
    with nn.auto_forward():
        y = F.relu(x)
    with pytest.raises(ValueError, match="'y' was not computed by a recorded function"):
        export(y, x)


def test_input_that_is_computed_is_refused():
    x, y = classifier()
    h = F.relu(x)
    with pytest.raises(ValueError, match="the input 'x' is computed by relu"):
        export(F.exp(h), {"x": h})


def test_wrong_types_are_refused():
    x, y = classifier()
    with pytest.raises(TypeError, match="outputs: 'y' is ndarray, wanted nnl.Variable"):
        export({"y": np.zeros(3)}, x)
    with pytest.raises(ValueError, match="outputs is empty"):
        export([], x)
    with pytest.raises(ValueError, match=r"inputs and outputs have the names \['x'\]"):
        export({"x": y}, {"x": x})


def test_batch_axes_must_fit():
    x, y = classifier()
    with pytest.raises(ValueError, match=r"no input 'z', only \['x'\]"):
        export(y, {"x": x}, batch_axes={"z": 0})
    with pytest.raises(ValueError, match="axis 2 is outside of the 2 axes of 'x'"):
        export(y, {"x": x}, batch_axes={"x": 2})
    z = nn.Variable((3, 3))
    with pytest.raises(ValueError, match=r"different batch sizes: \[2, 3\]"):
        export(F.concatenate(y, z, axis=0), {"x": x, "z": z}, batch_axes={"x": 0, "z": 0})


def test_function_that_fixes_the_batch_size_is_refused():
    x = nn.Variable((2, 3))
    with pytest.raises(OnnxError, match="reshape does not take another batch size than 2"):
        export(F.reshape(x, (3, 2)), x)
    with pytest.raises(OnnxError, match="Where has to be told a number .*: give batch=None to fix"):
        export(F.cumprod(x, axis=0), x)


def test_sizes_that_are_computed_from_the_batch_size_stay_open():
    """A part of the samples, positions up to a size, and a matrix as wide as there are samples."""
    rng = np.random.default_rng(0)
    u = nn.Variable.from_numpy_array(rng.normal(size=3).astype(np.float32))

    def built(n):
        x = nn.Variable.from_numpy_array(rng.normal(size=(3, n)).astype(np.float32))
        y, whole = F.spectral_norm(x, u, test=True), F.sort(F.reshape(x, (-1,)), reverse=True)
        return x, [y, F.transpose(x, (1, 0))[::2], whole[1:], x[:, ::-1]]

    x, ys = built(4)
    model = export(ys, {"w": x}, batch_axes={"w": 1})
    ends = [o.type.tensor_type.shape.dim for o in model.graph.output]
    sizes = [[d.dim_param or d.dim_value for d in end] for end in ends]
    assert sizes == [[3, "N"], ["(N+1)//2", 3], ["(3*N)-1"], [3, "N"]]
    for n in (1, 2, 7):
        x, ys = built(n)
        nn.forward_all(ys)
        for got, y in zip(run(model, x.d), ys, strict=True):
            np.testing.assert_allclose(got, y.d, rtol=1e-5, atol=1e-6)


def test_input_that_nothing_reads_is_kept_with_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("nnl"), "propagate", True)
    x, y = classifier()
    with caplog.at_level("WARNING", logger="nnl"):
        model = export(y, {"x": x, "unused": nn.Variable((2, 1))})
    assert [i.name for i in model.graph.input] == ["x", "unused"]
    assert "no function reads the input 'unused'" in caplog.text


# ---- tables ----


def test_table_of_functions_in_the_docs_is_up_to_date():
    docs = Path(__file__).parents[2] / "docs" / "onnx_export.md"
    assert docs.read_text() == page()


def test_every_function_without_onnx_form_has_a_reason():
    assert [
        name for name, since, how in export_rows() if not since and how == "not available"
    ] == []


# ---- forms of old opsets ----


def equal_in_runtime(function, opset, *arrays):
    ort = pytest.importorskip("onnxruntime")
    xs = [nn.Variable.from_numpy_array(a) for a in arrays]
    y = function(*xs)
    model = export(y, xs, opset=opset, batch=None)
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString())
    (got,) = session.run(
        None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=False)}
    )
    y.forward()
    np.testing.assert_allclose(got, y.d, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [9, 10])
@pytest.mark.parametrize("test", ["equal", "not_equal", "greater_equal", "less_equal"])
def test_comparisons_of_infinities_and_nan_in_old_opsets(test, opset):
    some = np.array([1, 2, np.inf, -np.inf, np.nan, 0], np.float32)
    equal_in_runtime(getattr(F, test), opset, np.repeat(some, 6), np.tile(some, 6))


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.softmax(x, axis=1) + F.log_softmax(x, axis=0),
        lambda x: F.clip_by_value(x, -0.5, 0.5) + F.maximum_scalar(x, 0.1),
        lambda x: F.pad(x, (0, 0, 1, 2), "constant", 3.0),
        lambda x: F.slice(x, (0, 3, 0), (2, 0, 4), (1, -2, 3)),
        lambda x: F.flip(x, (0, 2)) * F.abs(x),
        lambda x: F.stack(*F.split(x, axis=1), axis=1) + F.sum(x, axis=-2, keepdims=True),
        lambda x: F.affine(x, F.transpose(F.reshape(x, (2, 12)), (1, 0))),
        lambda x: F.interpolate(F.reshape(x, (1, 2, 3, 4)), output_size=(6, 8), mode="nearest"),
        lambda x: F.interpolate(F.reshape(x, (1, 2, 3, 4)), output_size=(2, 7), mode="linear"),
        lambda x: F.broadcast(F.reshape(x, (2, 1, 3, 4)), (2, 5, 3, 4)),
    ],
)
def test_forms_of_old_opsets(function, opset):
    equal_in_runtime(function, opset, np.random.default_rng(0).normal(size=(2, 3, 4)).astype("f4"))


def test_what_an_old_opset_lacks_is_said():
    x, y = nn.Variable((2, 3)), nn.Variable((2, 3))
    for function, opset, text in (
        (lambda: F.isinf(x), 9, r"isinf \(IsInf needs opset 10\)"),
        (lambda: F.equal(x, y), 8, r"equal \(opset 8 has no Equal of float32\)"),
        (
            lambda: F.maximum2(x, F.sum(x, axis=1, keepdims=True)),
            7,
            r"opset 7 has no Max of two shapes",
        ),
        (lambda: F.sort(x), 9, r"sort \(opset 9 has no TopK with largest\)"),
        (lambda: nn.switch(F.sum(x), [F.relu, F.tanh], x), 10, r"switch \(If needs opset 11\)"),
    ):
        with pytest.raises(UnsupportedOperator, match=text):
            export(function(), [x, y], opset=opset, batch=None)
