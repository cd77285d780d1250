# SPDX-License-Identifier: Apache-2.0
"""nn.quantize: networks of floats become networks whose products have 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.models as M
import nnl.parametric_functions as PF
from nnl.converters.quantizing.ranges import Range, Scale
from nnl.core.graph.node import capture
from nnl.ext.native import library
from nnl.graph.plan.plan import Plan

rng = np.random.default_rng(0)
SAMPLES = rng.normal(size=(8, 3, 16, 16)).astype(np.float32)


def pictures(x: nn.Variable) -> nn.Variable:
    """Convolutions of three kinds with normalizations, an addition, pooling and a layer."""
    h = F.relu(PF.batch_normalization(PF.convolution(x, 8, (3, 3), name="a"), batch_stat=False))
    g = PF.depthwise_convolution(h, (3, 3), pad=(1, 1), name="b")
    g = PF.convolution(F.relu6(g), 8, (1, 1), name="c", with_bias=False)
    h = F.max_pooling(F.relu(g + h), (2, 2))
    with nn.parameter_scope("head"):
        return PF.affine(F.reshape(h, (h.shape[0], -1)), 10, name="fc")


def network() -> tuple[nn.Variable, nn.Variable]:
    x = nn.Variable((1, 3, 16, 16))
    y = pictures(x)
    for name, v in nn.get_parameters(grad_only=False).items():
        if name.endswith("var"):
            v.d = rng.uniform(0.5, 1.5, v.shape)
    return x, y


def steps(net: Any) -> list[str]:
    (y,) = net.outputs.values()
    plan = Plan(capture([y.edge]), kept={y.edge.key})
    return [s.op for s in plan.steps if s.op.startswith("quantized")]


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("method", ["min_max", "percentile", "entropy"])
def test_products_get_8_bits(method: str, symmetric: bool, per_channel: bool) -> None:
    x, y = network()
    net = nn.quantize(
        {"y": y}, {"x": SAMPLES}, {"x": x}, method=method, symmetric=symmetric,
        per_channel=per_channel, percentile=99.9,
    )  # fmt: skip
    assert net.weights == ["a", "b", "c", "head/fc"]
    x.d = SAMPLES[:1]
    y.forward()
    got = net.run({"x": SAMPLES[:1]})["y"]
    assert np.abs(got - y.d).max() < 0.15 * np.abs(y.d).max()
    assert all(loss.decibels > 15 for loss in net.losses)
    if library() is not None:
        products = ["quantized_convolution"] * 3
        assert steps(net) == [*products, "quantized_pair", "quantized_affine"]


def test_report_has_a_line_for_every_layer() -> None:
    x, y = network()
    net = nn.quantize({"y": y}, SAMPLES, {"x": x})
    lines = net.report().splitlines()
    assert lines[0].split() == ["signal/noise", "type", "scale", "zero", "function", "layer"]
    functions = [line.split()[5:7] for line in lines[1:]]
    assert functions[:4] == [["input", "x"], ["relu", "a"], ["relu6", "b"], ["convolution", "c"]]
    assert functions[-1] == ["output", "y"]
    found = {loss.layer: loss for loss in net.losses}
    assert found["x"].dtype == np.uint8 and 0 < found["x"].zero < 255
    assert found["a"].zero == 0  # nothing is below 0 after relu
    assert found["x"].scale == pytest.approx((SAMPLES.max() - SAMPLES.min()) / 255)


def test_layers_may_stay_floats() -> None:
    x, y = network()
    for exclude, left in (
        (["affine"], ["a", "b", "c"]),
        (["head"], ["a", "b", "c"]),
        ("b", ["a", "c", "head/fc"]),
        (["a/conv/W", "c"], ["b", "head/fc"]),
        (["convolution", "affine"], []),
    ):
        net = nn.quantize({"y": y}, SAMPLES, {"x": x}, exclude=exclude)
        assert net.weights == left, exclude


def test_files_hold_the_quantized_network(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    import onnx

    from nnl.converters.onnx import load, save

    x, y = network()
    net = nn.quantize({"y": y}, SAMPLES, {"x": x})
    want = net.run({"x": SAMPLES[:1]})["y"]
    nn.save_program(tmp_path / "q.nnlp", net.outputs, net.inputs)
    found = nn.load_program(tmp_path / "q.nnlp").run(x=SAMPLES[:1])["y"]
    np.testing.assert_allclose(found, want, atol=1e-5)
    path = tmp_path / "q.onnx"
    save(path, net)
    nodes = [n.op_type for n in onnx.load(path).graph.node]
    assert nodes.count("Conv") == 3 and nodes.count("QuantizeLinear") == 5
    assert set(nodes) <= {
        "Conv", "QuantizeLinear", "DequantizeLinear", "Relu", "Clip", "Add", "MaxPool", "Reshape",
        "Gemm", "Flatten",
    }  # fmt: skip
    kinds = {t.data_type for t in onnx.load(path).graph.initializer}
    assert onnx.TensorProto.INT8 in kinds
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {"x": SAMPLES[:1]})
    np.testing.assert_allclose(theirs, want, atol=0.01 * np.abs(want).max())
    with nn.parameter_scope("read"):
        np.testing.assert_allclose(load(path).run(SAMPLES[:1])[0], want, atol=1e-5)


def test_tflite_and_c_get_8_bits_from_the_same_samples(tmp_path: Path) -> None:
    from nnl.converters.csrc.writer import save as save_c
    from nnl.converters.tflite.reader import TfliteFile
    from nnl.converters.tflite.writer import save as save_tflite

    x, y = network()
    net = nn.quantize({"y": y}, SAMPLES, {"x": x})
    save_tflite(tmp_path / "q.tflite", net)
    (got,) = TfliteFile(str(tmp_path / "q.tflite")).network().run({"x": SAMPLES[:1]}).values()
    want = net.run({"x": SAMPLES[:1]})["y"]
    assert np.abs(got - want).max() < 0.1 * np.abs(want).max()
    save_c(tmp_path / "c", net)
    assert any("int8_t" in f.read_text() for f in (tmp_path / "c").rglob("*.c"))
    part = nn.quantize({"y": y}, SAMPLES, {"x": x}, exclude="a")
    with pytest.raises(ValueError, match="8 bits for all layers, and exclude= left some floats"):
        save_tflite(tmp_path / "p.tflite", part)


def test_models_of_onnx_are_quantized(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from nnl.converters.onnx import load, save

    x, y = network()
    save(tmp_path / "m.onnx", y, {"x": x})
    with nn.parameter_scope("read"):
        model = load(tmp_path / "m.onnx")
        net = nn.quantize(model, SAMPLES)
    assert len(net.weights) == 4 and list(net.inputs) == ["x"]
    x.d = SAMPLES[:1]
    y.forward()
    got = net.run({"x": SAMPLES[:1]})["y"]
    assert np.abs(got - y.d).max() < 0.1 * np.abs(y.d).max()


def test_text_models_keep_what_is_added_exact() -> None:
    tokens = nn.Variable((2, 6))
    y, _ = M.bert(tokens, vocabulary=30, width=16, layers=2, heads=4, longest=8, test=True)
    samples = rng.integers(0, 30, (8, 6))
    net = nn.quantize({"y": y}, samples, {"tokens": tokens})
    tokens.d = samples[:2]
    y.forward()
    got = net.run({"tokens": samples[:2]})["y"]
    assert np.abs(got - y.d).max() < 0.1 * np.abs(y.d).max()
    if library() is not None:
        assert len(steps(net)) >= 8  # of rows, or of batches of them


def test_ranges_leave_out_what_is_rare() -> None:
    values = rng.normal(size=100_000)
    values[:2] = 40, -40
    found = {}
    for method in ("min_max", "percentile", "entropy"):
        r = Range()
        r.widen(values)
        if method != "min_max":
            r.count(values)
        found[method] = r.scale(method, 99.99, False).scale
    assert found["min_max"] == pytest.approx(80 / 255)
    assert 7 / 255 < found["percentile"] < 10 / 255
    assert 5 / 255 < found["entropy"] < 40 / 255


@pytest.mark.parametrize("low, high", [(-1.0, 3.0), (0.5, 2.0), (-2.0, -1.0), (0.0, 0.0)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_zero_is_exact(low: float, high: float, symmetric: bool) -> None:
    scale, zero, dtype = Scale.of(low, high, symmetric)
    info = np.iinfo(dtype)
    assert info.min <= zero <= info.max and scale > 0
    for value in (low, high):
        stored = np.rint(value / scale) + zero
        assert abs((np.clip(stored, info.min, info.max) - zero) * scale - value) <= scale


def calls() -> dict[str, tuple[Any, str]]:
    x, y = network()
    bad = SAMPLES.copy()
    bad[3, 0, 0, 0] = np.nan
    large = nn.Variable((1, 4))
    z = PF.affine(F.exp(large), 2, name="z")

    def quantize(samples: Any, **options: Any) -> Any:
        return lambda: nn.quantize({"y": y}, samples, {"x": x}, **options)

    return {
        "nan": (quantize(bad), "sample 3 of 'x' holds NaN or infinity"),
        "infinite inside": (
            lambda: nn.quantize(z, np.full((2, 4), 100.0), {"x": large}),
            "exp.* gives NaN or infinity for the samples",
        ),
        "none": (quantize(SAMPLES[:0]), "0 samples are given, .* 'min_max' wants at least 1"),
        "few": (quantize(SAMPLES[:3], method="entropy"), "3 samples .* wants at least 4"),
        "shape": (quantize(SAMPLES[:, :2]), r"'x' have the shape \[8, 2, 16, 16\], wanted"),
        "names": (quantize({"z": SAMPLES}), r"samples are of \['z'\], wanted \['x'\]"),
        "method": (quantize(SAMPLES, method="best"), "method is 'best', wanted one of min_max"),
        "percentile": (quantize(SAMPLES, percentile=20), "percentile is 20, wanted more than 50"),
        "layer": (quantize(SAMPLES, exclude=["head/fd"]), "'head/fd', which is no layer.*head/fc"),
        "network": (lambda: nn.quantize(y, SAMPLES), "network is Variable, wanted what has inputs"),
    }


@pytest.mark.parametrize("name", ["few", "infinite inside", "layer", "method", "names", "nan",
                                  "network", "none", "percentile", "shape"])  # fmt: skip
def test_bad_samples_and_options(name: str) -> None:
    call, text = calls()[name]
    with pytest.raises((ValueError, TypeError), match=f"^quantize: .*{text}"):
        call()


def test_networks_that_trained_with_rounding_know_their_scales() -> None:
    """What QATScheduler leaves; zero points are parameters of the graph there."""
    import nnl.solvers as S
    from nnl.utils import qnn

    x = nn.Variable.from_numpy_array(rng.normal(size=(2, 3, 6, 6)))
    h = F.relu(PF.convolution(x, 8, (3, 3), name="c1"))
    h = F.relu(PF.convolution(h, 8, (3, 3), name="c2"))
    y = PF.affine(h, 2, name="a")
    config = qnn.QATConfig()
    config.niter_to_recording, config.niter_to_training = 1, 3
    solver = S.Sgd(0.1)
    solver.set_parameters(nn.get_parameters())
    scheduler = qnn.QATScheduler(config, solver)
    scheduler(y)
    for _ in range(5):
        scheduler.step()
        y.forward()
    net = nn.quantize(y, inputs={"x": x})
    got = net.run({"x": x.d})["y"]
    np.testing.assert_allclose(got, y.d, atol=0.05 * np.abs(y.d).max())
    if library() is not None:
        assert steps(net) == ["quantized_convolution"]  # the scheduler leaves the ends floats


@pytest.mark.parametrize("first, last", [(0, 255), (-128, 127)])
def test_min_max_quantize_becomes_8_bits(first: float, last: float) -> None:
    x = nn.Variable((2, 3, 8, 8))
    x.d = rng.normal(size=x.shape)
    one = (1, 1, 1, 1)
    low, high = nn.Variable.from_numpy_array(-2.1 * np.ones(one)), nn.Variable(one)
    high.d = 2.3
    levels = [nn.Variable.from_numpy_array(np.full(one, n, np.float32)) for n in (first, last)]
    w = nn.Variable.from_numpy_array(rng.normal(size=(4, 3, 3, 3)).astype(np.float32))
    of_w = [nn.Variable.from_numpy_array(np.zeros(one, np.float32)) for _ in range(2)]
    y = F.convolution(
        F.min_max_quantize(x, low, high, *levels),
        F.min_max_quantize(w, *of_w, *levels, x_min_max=True),
    )
    net = nn.quantize(y, inputs={"x": x})
    y.forward()
    got = net.run({"x": x.d})["y"]
    np.testing.assert_allclose(got, y.d, atol=0.02 * np.abs(y.d).max())
    (out,) = net.outputs.values()
    kinds = {v.spec.type_name for node in capture([out.edge]) for v in node.inputs if v}
    assert ("uint8" if first == 0 else "int8") in kinds  # the weights


def test_a_network_without_scales_needs_samples() -> None:
    x, y = network()
    with pytest.raises(ValueError, match="quantize: samples are left out, and the network has no"):
        nn.quantize(y, inputs={"x": x})
