# SPDX-License-Identifier: Apache-2.0
"""TFLITE: networks for TensorFlow Lite, whose interpreter runs them where it is installed."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.cli.main import main
from nnl.converters.networks.lowering import CannotLower
from nnl.converters.networks.model import Network
from nnl.converters.networks.scale import Scale
from nnl.converters.nnp.network_reader import END
from nnl.converters.runtimes.others import in_litert
from nnl.converters.tflite import writer
from nnl.converters.tflite.flatbuffer import Damaged, pack, unpack
from nnl.converters.tflite.quantize import Scales
from nnl.converters.tflite.reader import TfliteFile
from nnl.converters.tflite.schema import OPERATORS, TABLES
from nnl.core.graph.node import capture
from nnl.core.ops.op import OPS
from nnl.ext.library import kernel_names
from nnl.ext.native import library
from nnl.graph.plan.plan import Plan
from nnl.utils.save import save as save_nnp
from tests.cli.test_convert import write_network
from tests.converters.test_nnb import of_sample, values
from tests.graph.saved import NETWORKS, leaves_of
from tests.test_derived import CASES

RANDOM = ("dropout", "mean_subtraction")  # in training only
Arrays = list[np.ndarray[Any, Any]]
Run = Callable[[dict[str, Any]], Arrays]


FEW = 2  # samples of a function in the quick tests


@pytest.fixture(scope="module", params=["first", pytest.param("others", marks=pytest.mark.long)])
def samples(request: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Files of samples that can be said, with their inputs and what the networks give."""
    folder, found = tmp_path_factory.mktemp("samples"), {}
    for op, i in [p.values for p in CASES]:
        if op.name in RANDOM or not op.nnp or (i < FEW) != (request.param == "first"):
            continue
        network = of_sample(op, i)
        if network is None:
            continue
        file = folder / f"{op.name}_{i}.tflite"
        try:
            writer.save(file, network)
        except CannotLower as e:
            assert re.match(r"TFLITE cannot hold the network 'n' .*:\n  ", str(e)), e
            continue
        given = {k: v.data.read("host") for k, v in network.inputs.items()}
        found[f"{op.name} {i}"] = file, given, values(network)
    said = {OPS[key.split()[0]].nnp for key in found}
    if request.param == "first":
        assert len(said) >= 190
    return found


def check(samples: dict[str, Any], run: Callable[[Path], Run]) -> None:
    for key, (file, given, want) in samples.items():
        for got, y in zip(run(file)(given), want, strict=True):
            got = got.reshape(-1).astype(np.float64)
            np.testing.assert_allclose(got, y, rtol=1e-4, atol=1e-5, err_msg=key)


def interpreted(file: Path) -> Run:
    runtime = in_litert(str(file), file.name)
    if runtime is None:
        pytest.skip("ai-edge-litert, the interpreter of TensorFlow Lite, is not installed")
    return lambda given: list(runtime.run(given))


def read_back(file: Path) -> Run:
    network = TfliteFile(str(file)).network()
    return lambda given: list(network.run({k: given[k] for k in network.inputs}).values())


def test_samples_run_in_the_interpreter(samples: dict[str, Any]) -> None:
    check(samples, interpreted)


def test_samples_are_read_back(samples: dict[str, Any]) -> None:
    check(samples, read_back)


# ---- networks ----


def built(name: str) -> Network:
    """A network with weights that matter."""
    scope: OrderedDict[str, Any] = OrderedDict()
    with nn.parameter_scope("", scope), nn.context_scope(nn.Context(["numpy:float"])):
        y = NETWORKS[name]()
        for v in nn.get_parameters(grad_only=False).values():  # means and variances that matter
            if v.size > 1 and not np.ptp(v.d):
                v.d = 0.5 + np.random.default_rng(0).random(v.shape, np.float32)
    y = y[0] if isinstance(y, tuple) else y
    x = next(v for v in leaves_of(y) if v.name == "x")
    return Network(name, {"x": x}, {"y": y}, scope)


@pytest.mark.parametrize("way", [interpreted, read_back])
@pytest.mark.parametrize("name", ["lenet", "resnet", "mobilenet", "unet", "bert"])
def test_networks_run(name: str, way: Callable[[Path], Run], tmp_path: Path) -> None:
    file = tmp_path / "a.tflite"
    network = built(name)
    writer.save(file, network)
    (got,) = way(file)({"x": network.inputs["x"].data.read("host")})
    (want,) = values(network)
    assert np.abs(got.reshape(-1) - want).max() <= 1e-5 * np.abs(want).max()


def operators(network: Network) -> Counter[str]:
    return Counter(op.name for op in writer.emitted(network).ops)


def test_images_are_transposed_once() -> None:
    found = operators(built("resnet"))
    assert found["TRANSPOSE"] == 1 and found["CONV_2D"] == 20
    assert found["RELU"] == 0 == found["MUL"]  # part of convolutions and sums
    assert operators(built("lenet"))["TRANSPOSE"] == 0  # one channel
    assert operators(built("mobilenet"))["TRANSPOSE"] == 1


def test_what_is_flattened_is_not_transposed_before() -> None:
    x = nn.Variable((2, 3, 8, 8))
    with nn.context_scope(nn.Context(["numpy:float"])):
        h = F.reshape(PF.convolution(x, 4, (3, 3), name="c"), (2, -1))
        y = PF.affine(h, 5, name="f")
    found = operators(Network("n", {"x": x}, {"y": y}))
    assert found == {"TRANSPOSE": 1, "CONV_2D": 1, "RESHAPE": 1, "FULLY_CONNECTED": 1}


def test_products_become_one_operator_where_nothing_else_reads_their_parts() -> None:
    found = operators(built("mobilenet"))
    assert found["HARD_SWISH"] == 21 and found["RELU6"] == 0
    found = operators(built("bert"))
    assert found["GELU"] == 2 and found["ABS"] == 0
    x = nn.Variable((2, 3))
    swish = x * F.relu6(x + 3.0)
    assert operators(Network("n", {"x": x}, {"y": swish * (1 / 6)})) == {"HARD_SWISH": 1}
    both = operators(Network("n", {"x": x}, {"y": swish * (1 / 6), "z": swish}))
    assert both["HARD_SWISH"] == 0 and both["MUL"] == 2
    half = x * 0.5
    for y in (half * (F.erf(x / 2**0.5) + 1.0), x * (F.erf(x * 0.5**0.5) + 1.0) * 0.5):
        assert operators(Network("n", {"x": x}, {"y": y})) == {"GELU": 1}
    third = operators(Network("n", {"x": x}, {"y": half * (F.erf(x / 3.0) + 1.0)}))
    assert third["GELU"] == 0 and third["SIGN"] == 1


def test_files_name_inputs_outputs_and_weights(tmp_path: Path) -> None:
    file = tmp_path / "a.tflite"
    writer.save(file, built("lenet"))
    model = unpack(TABLES, "Model", file.read_bytes())
    (signature,) = model["signature_defs"]
    assert signature["signature_key"] == "serving_default"
    assert [m["name"] for m in signature["inputs"] + signature["outputs"]] == ["x", "y"]
    assert model["metadata"][0]["name"] == "min_runtime_version"
    assert model["description"] == "nnl"
    names = {t["name"] for t in model["subgraphs"][0]["tensors"]}
    assert {"conv1/conv/W", "conv1/conv/b"} <= names, names


# ---- the command ----


def convert(*args: object) -> int:
    return main(["convert", *map(str, args)])


def test_a_network_goes_there_and_back(tmp_path: Path, capsys: Any) -> None:
    file = write_network(tmp_path / "m.nnp")
    assert convert(file, tmp_path / "m.tflite", "-E", 0, "-b", 2, "--verify") == 0
    assert "largest difference" in capsys.readouterr().out
    assert convert(tmp_path / "m.tflite", tmp_path / "back.nnp", "--verify") == 0
    assert main(["dump", "-F", str(tmp_path / "m.tflite")]) == 0
    assert "Convolution" in capsys.readouterr().out
    assert main(["function_info", "-f", "TFLITE"]) == 0
    assert "Convolution" in capsys.readouterr().out.split()
    assert main(["function_info", str(file), "-f", "TFLITE", "-t"]) == 0
    assert {"CONV_2D", "FULLY_CONNECTED"} < set(capsys.readouterr().out.split())


def test_wrong_options_are_told(tmp_path: Path, capsys: Any) -> None:
    file = write_network(tmp_path / "m.nnp")
    for args, text in [
        (["-b", 0], "the batch size is 0, wanted at least 1, or -1 to leave it open"),
        (["-d", "3"], "the format TFLITE has no versions to choose from"),
    ]:
        assert convert(file, tmp_path / "o.tflite", "-E", 0, *args) == 1
        assert text in capsys.readouterr().err
        assert not (tmp_path / "o.tflite").exists()


def test_all_functions_that_cannot_be_said_are_named_with_their_place(tmp_path: Path) -> None:
    x = nn.Variable((2, 3, 3))
    y = F.batch_det(F.batch_inv(x))
    with pytest.raises(CannotLower) as e:
        writer.save(tmp_path / "a.tflite", Network("n", {"x": x}, {"y": y}))
    lines = str(e.value).splitlines()
    where = "(documentation: conversion#what-can-be-converted)"
    assert lines[0] == f"TFLITE cannot hold the network 'n' {where}:" and len(lines) == 3
    for line, name in zip(lines[1:], ("batch_inv", "batch_det"), strict=True):
        assert line.startswith(f"  {name} (test_tflite.py:")
        assert line.endswith("): there is no operator for it")
    assert not (tmp_path / "a.tflite").exists()


# ---- 8 bits ----


def pictures(network: Network, count: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shape = (count, *network.inputs["x"].shape[1:])
    return {"x": rng.standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("name", ["lenet", "unet", "mobilenet"])
def test_networks_in_8_bits_are_close(name: str, tmp_path: Path) -> None:
    """By the interpreter, and by the rounding that the file's scales mean."""
    file, network = tmp_path / "a.tflite", built(name)
    samples = pictures(network)
    writer.save(file, network, samples)
    given = {"x": samples["x"][: network.inputs["x"].shape[0]]}
    want = network.run(given)["y"]
    read = TfliteFile(str(file)).network()
    got, y = read.run(given)["y"], read.outputs["y"].edge
    plan = Plan(capture([y]), kept={y.key})
    if "quantized_affine" in kernel_names(library()):
        assert "quantized_convolution" in {s.op for s in plan.steps}
    span = np.ptp(want)
    assert 0 < np.abs(got - want).max() < 0.1 * span
    (exact,) = interpreted(file)(given)
    assert np.abs(exact - want).max() < 0.1 * span
    assert np.abs(exact - got).mean() < 0.01 * span


def test_nothing_in_a_file_of_8_bits_is_a_float(tmp_path: Path) -> None:
    file, network = tmp_path / "a.tflite", built("lenet")
    writer.save(file, network, pictures(network))
    model = unpack(TABLES, "Model", file.read_bytes())
    (graph,) = model["subgraphs"]
    types = Counter(t["type"] for t in graph["tensors"])
    assert set(types) == {2, 9} and types[9] > 10  # int32 and int8
    weights = next(t for t in graph["tensors"] if t["name"] == "conv2/conv/W")
    assert len(weights["quantization"]["scale"]) == weights["shape"][0] == 16
    assert weights["quantization"]["zero_point"] == [0] * 16
    numbers = model["buffers"][weights["buffer"]]["data"].view(np.int8)
    assert numbers.max() == 127 or numbers.min() == -127


def test_scales_are_those_of_the_definition() -> None:
    """A range with 0 in 255 steps; 0 is a stored number."""
    s = Scales.of(Scale.of(-1.0, 3.0))
    np.testing.assert_allclose(s.scale, 4 / 255, rtol=1e-6)
    assert s.zero == -64
    np.testing.assert_array_equal(s.stored(np.array([-1.0, 0.0, 3.0, 9.0])), [-128, -64, 127, 127])
    assert Scale.of(2.0, 3.0).zero == -128


@pytest.mark.parametrize("name", ["o.tflite", "o.pb"])
def test_batch_sizes_stay_open(tmp_path: Path, capsys: Any, name: str) -> None:
    def saved(y: nn.Variable) -> Path:
        net = {"name": "n", "batch_size": 4, "outputs": {"y": y}, "names": {"x": x}}
        run = {"name": "e", "network": "n", "data": ["x"], "output": ["y"]}
        save_nnp(tmp_path / "m.nnp", {"networks": [net], "executors": [run]})
        return tmp_path / "m.nnp"

    x = nn.Variable((4, 3, 8, 8))
    h = F.max_pooling(F.relu(PF.convolution(x, 5, (3, 3))), (2, 2))
    h = PF.deconvolution(h, 5, (3, 3), pad=(1, 1))
    scores = F.softmax(PF.affine(F.concatenate(h, F.slice(h, stop=(END, 2, 3, 3)), axis=1), 7))
    options = ["-b", "-1", "--verify", str(saved(scores)), str(tmp_path / name)]
    assert main(["convert", *options]) == 0
    assert "largest difference" in capsys.readouterr().out


def test_what_has_no_form_in_8_bits_is_listed(tmp_path: Path) -> None:
    x = nn.Variable((2, 3))
    network = Network("n", {"x": x}, {"y": F.greater(F.sin(x), F.cos(x))})
    with pytest.raises(CannotLower) as e:
        writer.save(tmp_path / "a.tflite", network, {"x": np.ones((4, 3), np.float32)})
    assert str(e.value).splitlines() == [
        "TFLITE in 8 bits cannot hold the network 'n' "
        "(documentation: conversion#what-can-be-converted):",
        "  sin: the operator SIN has no form in 8 bits",
        "  cos: the operator COS has no form in 8 bits",
        "  greater: the operator GREATER has no form in 8 bits",
    ]


def test_the_command_writes_8_bits_and_says_what_they_cost(tmp_path: Path, capsys: Any) -> None:
    file, data = write_network(tmp_path / "m.nnp"), tmp_path / "d.npy"
    np.save(data, np.random.default_rng(0).standard_normal((9, 1, 8, 8)))
    args = [file, tmp_path / "o.tflite", "-E", 0, "-b", 2, "--quantization", "--dataset"]
    assert convert(*args, data) == 0
    out = capsys.readouterr().out
    assert "8 bits against float on 9 samples, by " in out and "same class for " in out
    np.savez(tmp_path / "d.npz", z=np.ones(3))
    (tmp_path / "d.txt").write_text("1 2")
    np.save(tmp_path / "e.npy", np.ones((9, 8, 8)))
    np.save(tmp_path / "f.npy", np.array(["a"]))
    for name, text in [
        ("d.npz", "d.npz: has the arrays ['z'], wanted the inputs ['x']"),
        ("d.txt", "d.txt: is no .npy or .npz file of numbers"),
        ("e.npy", "e.npy: 'x' is float64[9, 8, 8], wanted samples of the shape [1, 8, 8]"),
        ("f.npy", "f.npy: 'x' is <U1[1], wanted samples of the shape"),
    ]:
        assert convert(*args, tmp_path / name) == 1
        assert text in capsys.readouterr().err


# ---- files of others, and damaged ones ----


def dense(path: Path) -> Path:
    x = nn.Variable((2, 3, 8, 8))
    with nn.context_scope(nn.Context(["numpy:float"])):
        h = F.relu(PF.convolution(x, 4, (3, 3), pad=(1, 1), name="c"))
        y = PF.affine(F.max_pooling(h, (2, 2)), 5, name="f")
    writer.save(path, Network("n", {"x": x}, {"y": y}))
    return path


def test_an_open_batch_size_is_chosen(tmp_path: Path) -> None:
    """A file as other converters write it: the first size is open, and the shape computed."""
    tensors = [
        {"shape": [1, 2, 3], "shape_signature": [-1, 2, 3], "name": "x"},
        {"shape": [1, 1], "shape_signature": [-1, -1], "name": "y"},  # sizes of 1 are open ones
    ]
    last = {"shape": [2], "type": 2, "buffer": 1, "name": "s"}
    model = {
        "version": 3,
        "operator_codes": [{"builtin_code": OPERATORS["RESHAPE"].number, "short_code": 22}],
        "subgraphs": [
            {
                "tensors": [*tensors, last],
                "inputs": [0],
                "outputs": [1],
                "operators": [{"inputs": [0, 2], "outputs": [1]}],
            }
        ],
        "buffers": [{}, {"data": np.array([-1, 6], "<i4").view(np.uint8)}],
    }
    (tmp_path / "a.tflite").write_bytes(pack(TABLES, "Model", model, b"TFL3"))
    file = TfliteFile(str(tmp_path / "a.tflite"))
    assert file.network(4).outputs["y"].shape == (4, 6)
    assert file.network().outputs["y"].shape == (1, 6)
    with pytest.raises(ValueError, match="the batch size is fixed at 2, so it cannot be 3"):
        TfliteFile(str(dense(tmp_path / "b.tflite"))).network(3)


def test_many_axes_are_cut_and_padded_where_others_have_size_1(tmp_path: Path) -> None:
    x = nn.Variable.from_numpy_array(np.arange(96, dtype="f4").reshape(1, 2, 4, 2, 6))
    part = F.slice(x, (0, 1, 0, 0, 0), (1, 2, 4, 2, 6), (1,) * 5)
    wide = F.pad(x, (0, 0, 1, 0, 0, 0, 0, 0, 0, 0))
    network = Network("n", {"x": x}, {"part": part, "wide": wide})
    writer.save(tmp_path / "a.tflite", network)
    got = TfliteFile(str(tmp_path / "a.tflite")).network().run({"x": x.d})
    np.testing.assert_array_equal(got["part"], x.d[:, 1:])
    np.testing.assert_array_equal(got["wide"], np.pad(x.d, ((0, 0), (1, 0), *[(0, 0)] * 3)))


@pytest.mark.parametrize(
    "change,text",
    [
        (lambda d: b"abc", "a.tflite: is no .tflite file"),
        (lambda d: d[:400], "a.tflite: damaged: .* are outside of its 400"),
        (lambda d: b"\xff\xff\xff\x7f" + d[4:], "damaged: 4 bytes at .* are outside"),
    ],
)
def test_damaged_files_are_refused(change: Any, text: str, tmp_path: Path) -> None:
    file = dense(tmp_path / "a.tflite")
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ValueError, match=text):
        TfliteFile(str(file))


def test_unknown_operators_are_named(tmp_path: Path) -> None:
    file = dense(tmp_path / "a.tflite")
    data = file.read_bytes()
    model = unpack(TABLES, "Model", data)
    assert [c["builtin_code"] for c in model["operator_codes"]][:2] == [39, 3]
    codes = [dict(c) for c in model["operator_codes"]]
    codes[1] |= {"builtin_code": OPERATORS["WHERE"].number, "short_code": 109}
    model |= {"operator_codes": codes}
    for graph in model["subgraphs"]:
        for op in graph["operators"]:
            op.pop("options")
    file.write_bytes(pack(TABLES, "Model", model, b"TFL3"))
    with pytest.raises(NotImplementedError, match=r"nnl does not read operator 1 \(WHERE\): how"):
        TfliteFile(str(file))


def test_parts_that_are_named_too_often_are_no_work() -> None:
    """A vector of many places that all hold one large vector."""
    inner = {"inputs": list(range(3000)), "outputs": []}
    graph = {"operators": [inner]}
    data = bytes(pack(TABLES, "SubGraph", graph, b"TFL3"))
    found = unpack(TABLES, "SubGraph", data)
    assert found["operators"][0]["inputs"] == list(range(3000))
    at = data.index((1).to_bytes(4, "little"), 8)
    many = 3000
    target = at + 4 + int.from_bytes(data[at + 4 : at + 8], "little")
    head, tail = data[:at], data[at + 8 :]
    places = many.to_bytes(4, "little")
    for i in range(many):
        places += (target + 4 * (many - 1) - (at + 4 + 4 * i)).to_bytes(4, "little")
    with pytest.raises(Damaged, match="it refers to its parts too often"):
        unpack(TABLES, "SubGraph", head + places + tail)
