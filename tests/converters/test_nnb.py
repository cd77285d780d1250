# SPDX-License-Identifier: Apache-2.0
"""NNB: networks for NNabla's C runtime, which runs them where it is installed."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.cli.main import main
from nnl.converters.formats import read_model
from nnl.converters.networks.lowering import CannotLower
from nnl.converters.networks.model import Network
from nnl.converters.nnb import reader, writer
from nnl.converters.nnb.table import FUNCTIONS, variant
from nnl.converters.nnb.types import read_settings
from nnl.converters.nnp.writer import write_content
from nnl.core.ops.op import OPS
from tests.cli.test_convert import write_network
from tests.converters.nnb import infer
from tests.graph.saved import NETWORKS, leaves_of, normal
from tests.test_derived import CASES, Case

# Weights that must be constants, so the samples' other inputs are none.
FIRST_ONLY = (
    "affine", "convolution", "deconvolution", "batch_normalization", "mean_subtraction",
    "binary_connect_affine", "binary_connect_convolution", "binary_weight_affine",
    "binary_weight_convolution",
)  # fmt: skip
RANDOM = ("dropout", "mean_subtraction")  # in training only


def of_sample(op: Any, i: int) -> Network | None:
    """The network of a sample; None for one whose result is empty."""
    case = Case(op, i, np.float32)
    xs = case.variables()
    with nn.context_scope(nn.Context(["numpy:float"])):
        ys = case.run(xs)
    named = {f"x{k}": x for k, x in enumerate(xs) if x is not None and k not in case.written}
    inputs = {"x0": xs[0]} if op.name in FIRST_ONLY else named
    outputs = {f"y{k}": y for k, y in enumerate(ys)}
    return Network("n", inputs, outputs) if all(y.size for y in ys) else None


def values(network: Network) -> list[np.ndarray[Any, Any]]:
    nn.forward_all([y for y in network.outputs.values() if y.parent is not None])
    return [y.d.reshape(-1) for y in network.outputs.values()]


def check_samples(file: Path, run: Any, most: int = 100) -> set[str]:
    """Write samples, compare what `run(network)` computes; names of what can be said."""
    said, refused = set(), set()
    for op, i in [p.values for p in CASES if p.values[1] < most]:
        network = None if op.name in RANDOM else of_sample(op, i)
        if network is None or any(np.isnan(v.d).any() for v in network.inputs.values()):
            continue  # the runtime's comparisons take a NaN for 0
        try:
            writer.save(file, network)
        except CannotLower as e:
            assert re.match(r"NNB cannot hold the network 'n' .*:\n  ", str(e)), e
            refused.add(op.name)
            continue
        for got, want in zip(run(network), values(network), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{op.name} {i}")
        said.add(op.name)
    assert {n for n, op in OPS.items() if op.nnp in FUNCTIONS} - said <= {*RANDOM, "identity"}
    assert len(said) > 160 and len(refused) > 100
    return said


def test_samples_run_in_the_runtime(tmp_path: Path) -> None:
    file = tmp_path / "a.nnb"
    check_samples(file, lambda network: infer(file, network))


def test_samples_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "a.nnb"

    def run(network: Network) -> list[np.ndarray[Any, Any]]:
        back = read_model([str(file)])[0].network()
        given = list(network.inputs.values())  # the variables v0, v1, ... of the file
        arrays = {k: given[int(k[1:])].d for k in back.inputs}
        return [y.reshape(-1) for y in back.run(arrays).values()]

    said = check_samples(file, run, most=3)
    assert {"layer_normalization", "attention", "max", "log_softmax"} < said


@pytest.mark.parametrize("name", ["lenet", "resnet", "mobilenet", "unet"])
def test_networks_run_in_the_runtime(name: str, tmp_path: Path) -> None:
    with nn.context_scope(nn.Context(["numpy:float"])):
        y = NETWORKS[name]()
    for v in nn.get_parameters(grad_only=False).values():  # means and variances that matter
        if v.size > 1 and not np.ptp(v.d):
            v.d = 0.5 + np.random.default_rng(0).random(v.shape)
    x = next(v for v in leaves_of(y) if v.name == "x")
    network = Network(name, {"x": x}, {"y": y})
    writer.save(tmp_path / "a.nnb", network)
    (got,), (want,) = infer(tmp_path / "a.nnb", network), values(network)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


# ---- what is in a file ----


def runtime_is_here() -> bool:
    return bool(os.environ.get("NNL_NNABLART"))


def fields(file: Path) -> dict[str, Any]:
    """Numbers of the header, and sizes of the buffers."""
    data = file.read_bytes()
    h = struct.unpack_from("<14I", data)
    index = struct.unpack_from(f"<{h[12]}I", data, 56)
    buffers = struct.unpack_from(f"<{h[2]}I", data, 56 + 4 * h[12] + index[h[3]])
    return {"version": h[0], "level": h[1], "buffers": buffers, "functions": h[6]}


def dense(batch_norm: bool = False) -> Network:
    x = nn.Variable((2, 3, 8, 8))
    with nn.context_scope(nn.Context(["numpy:float"])):
        h = PF.convolution(x, 4, (3, 3), name="c")
        if batch_norm:
            h = PF.batch_normalization(h, batch_stat=False, name="b")
        y = PF.affine(F.relu(h), 5, name="f")
    return Network("n", {"x": x}, {"y": y})


def read_back(network: Network, file: Path) -> list[np.ndarray[Any, Any]]:
    """What a network computes after it was written and read."""
    writer.save(file, network)
    back = read_model([str(file)])[0].network()
    return list(back.run({k: v.d for k, v in zip(back.inputs, network.inputs.values())}).values())  # noqa: B905


def test_a_normalization_becomes_part_of_the_weights(tmp_path: Path) -> None:
    file = tmp_path / "a.nnb"
    network = dense(batch_norm=True)
    for v in nn.get_parameters(grad_only=False).values():
        v.d = 0.5 + np.random.default_rng(0).random(v.shape)
    network.inputs["x"].d = normal(2, 3, 8, 8)
    (got,) = read_back(network, file)
    assert fields(file)["functions"] == 3
    np.testing.assert_allclose(got.reshape(-1), values(network)[0], rtol=1e-5)


def test_buffers_are_shared_and_sized_as_the_version_says(tmp_path: Path) -> None:
    x = nn.Variable((1, 10))
    y = F.tanh(F.sigmoid(F.exp(x)))
    sizes = {}
    for version in (2, 3):
        writer.save(tmp_path / "a.nnb", Network("n", {"x": x}, {"y": y}), version=version)
        found = fields(tmp_path / "a.nnb")
        assert found["version"] == version and found["level"] == 44
        sizes[version] = found["buffers"]
    assert sizes == {2: (10, 10), 3: (40, 40)}


def test_functions_take_the_form_of_a_level(tmp_path: Path) -> None:
    assert variant("Convolution", 1).number == 1 and variant("Convolution").number == 265
    network = dense()
    writer.save(tmp_path / "a.nnb", network, level=1)
    assert fields(tmp_path / "a.nnb")["level"] == 1
    back = read_model([str(tmp_path / "a.nnb")])[0].network()
    assert [v.shape for v in back.outputs.values()] == [(2, 5)]
    y = F.deconvolution(
        network.inputs["x"],
        nn.Variable.from_numpy_array(normal(3, 2, 3, 3)),
        stride=(2, 2),
        output_padding=(1, 1),
    )
    with pytest.raises(
        CannotLower, match="deconvolution .*: its argument output_padding needs a higher API level"
    ):
        writer.save(tmp_path / "b.nnb", Network("n", network.inputs, {"y": y}), level=10)
    assert not (tmp_path / "b.nnb").exists()


def test_a_pooling_that_leaves_out_the_border_needs_a_newer_level(tmp_path: Path) -> None:
    x = nn.Variable((1, 2, 6, 6))
    y = F.average_pooling(x, (3, 3), (2, 2), True, (1, 1), including_pad=False)
    network = Network("n", {"x": x}, {"y": y})
    with pytest.raises(CannotLower, match="its argument including_pad needs a higher API level"):
        writer.save(tmp_path / "a.nnb", network, level=3)
    writer.save(tmp_path / "a.nnb", network, level=4)


def test_nearest_pixels_are_those_of_the_definition(tmp_path: Path) -> None:
    x = nn.Variable.from_numpy_array(normal(1, 2, 3, 3))
    y = F.interpolate(x, scale=(2, 3), mode="nearest", align_corners=False)
    (got,) = read_back(Network("n", {"x": x}, {"y": y}), tmp_path / "a.nnb")
    np.testing.assert_array_equal(got, x.d.repeat(2, 2).repeat(3, 3))
    y = F.interpolate(x, scale=(2, 2), mode="nearest", align_corners=False, half_pixel=True)
    (got,) = read_back(Network("n", {"x": x}, {"y": y}), tmp_path / "a.nnb")
    y.forward()
    np.testing.assert_allclose(got, y.d, rtol=1e-6)
    assert np.abs(got - x.d.repeat(2, 2).repeat(2, 3)).max() > 0.1


def test_a_normalization_after_grouped_layers(tmp_path: Path) -> None:
    x = nn.Variable.from_numpy_array(normal(1, 4, 5, 5))
    rng = np.random.default_rng(1)
    for layer in (F.convolution, F.deconvolution):
        h = layer(x, nn.Variable.from_numpy_array(normal(4, 2, 3, 3)), group=2)
        shape = (1, h.shape[1], 1, 1)
        given = [nn.Variable.from_numpy_array(0.5 + rng.random(shape)) for _ in range(4)]
        y = F.batch_normalization(h, *given, batch_stat=False)
        network = Network("n", {"x": x}, {"y": y})
        (got,) = read_back(network, tmp_path / "a.nnb")
        np.testing.assert_allclose(got.reshape(-1), values(network)[0], rtol=1e-4, atol=1e-5)


def test_a_network_in_8_bits_is_written_with_what_rounds(tmp_path: Path) -> None:
    x = nn.Variable.from_numpy_array(normal(4, 8))
    y = F.affine(
        F.relu(F.affine(x, nn.Variable.from_numpy_array(normal(8, 16)))),
        nn.Variable.from_numpy_array(normal(16, 3)),
    )
    net = nn.quantize({"y": y}, normal(50, 8), {"x": x})
    writer.save(tmp_path / "a.nnb", net)
    back = read_model([str(tmp_path / "a.nnb")])[0].network()
    (got,), (want,) = (list(n.run(dict.fromkeys(n.inputs, x.d)).values()) for n in (back, net))
    assert np.abs(want - y.d).max() > 1e-3
    np.testing.assert_allclose(got, want, atol=1e-5 * np.ptp(want))


def test_slices_from_the_end_and_a_known_mean(tmp_path: Path) -> None:
    x = nn.Variable.from_numpy_array(normal(2, 6))
    y = F.slice(x, start=(0, -2), stop=(2, 0), step=(1, -2))
    (got,) = read_back(Network("n", {"x": x}, {"y": y}), tmp_path / "a.nnb")
    np.testing.assert_array_equal(got, x.d[:, -2:0:-2])
    mean = nn.Variable.from_numpy_array(normal(6))
    y = F.mean_subtraction(x, mean, nn.Variable((1,)), update_running_mean=False)
    (got,) = read_back(Network("n", {"x": x}, {"y": y}), tmp_path / "a.nnb")
    np.testing.assert_allclose(got, x.d - mean.d, rtol=1e-6)


@pytest.mark.parametrize(
    "low,high,point",
    [(-1.0, 0.5, 15), (-0.5, 1.0, 14), (-0.5, 0.99999, 14), (-3.0, 0.0, 13), (0.0, 0.0, 15)],
)
def test_weights_get_as_many_bits_after_the_point_as_fit(
    low: float, high: float, point: int
) -> None:
    x = nn.Variable((1, 2))
    w = nn.Variable.from_numpy_array(np.array([[low], [high]]))
    network = Network("n", {"x": x}, {"y": F.affine(x, w)}, names={w.edge.key: "w"})
    assert writer.types_of(network, default="FIXED16_8")["w"] == f"FIXED16_{point}"


def test_a_weight_that_others_read_too_keeps_its_order_for_them(tmp_path: Path) -> None:
    x, w = (nn.Variable.from_numpy_array(normal(3, 3)) for _ in range(2))
    (got,) = read_back(Network("n", {"x": x}, {"y": F.affine(x, w) + w}), tmp_path / "a.nnb")
    np.testing.assert_allclose(got, x.d @ w.d + w.d, rtol=1e-5)


# ---- types of variables ----


def test_fixed_point_samples_run_in_the_runtime(tmp_path: Path) -> None:
    file, unit, said = tmp_path / "a.nnb", 2.0**-8, set()
    for op, i in [p.values for p in CASES]:
        network = None if op.name in RANDOM or op.nnp not in FUNCTIONS else of_sample(op, i)
        if network is None:
            continue
        for v in network.inputs.values():
            if v.spec.dtype == np.float32:
                v.d = np.rint(v.d / unit) * unit
        try:
            writer.save(file, network, default="FIXED16_8")
        except CannotLower:
            continue
        except ValueError as e:
            assert "too large for FIXED16" in str(e)
            continue
        for got, want in zip(infer(file, network), values(network), strict=True):
            limited = np.clip(want, -128, 128)
            np.testing.assert_allclose(got, limited, rtol=0, atol=8 * unit, err_msg=f"{op} {i}")
        said.add(op.name)
    assert len(said) > 50


def test_lenet_in_fixed_point(tmp_path: Path) -> None:
    with nn.context_scope(nn.Context(["numpy:float"])):
        y = F.softmax(NETWORKS["lenet"]())
    x = next(v for v in leaves_of(y) if v.name == "x")
    network = Network("lenet", {"x": x}, {"y": y})
    sizes = {}
    for kind, most in [("FLOAT32", 1e-6), ("FIXED16_10", 3e-3), ("FIXED8_4", 0.1)]:
        file = tmp_path / f"{kind}.nnb"
        writer.save(file, network, version=3, default=kind)
        sizes[kind] = file.stat().st_size, sum(fields(file)["buffers"])
        back = read_model([str(file)])[0].network()  # whose weights are those of the file
        (got,) = back.run({k: x.d for k in back.inputs}).values()
        assert np.abs(got.reshape(-1) - values(network)[0]).max() <= most
        if runtime_is_here():
            assert np.abs(infer(file, network)[0] - values(network)[0]).max() <= most
    (full, memory), (half, half_memory), (quarter, _) = sizes.values()
    assert half < 0.52 * full and quarter < 0.28 * full and half_memory == memory // 2


@pytest.mark.parametrize("name", [n for n in FIRST_ONLY if n.startswith("binary_")])
def test_binary_weights_are_stored_as_signs(name: str, tmp_path: Path) -> None:
    for op, i in [p.values for p in CASES if p.values[0].name == name]:
        case = Case(op, i, np.float32)
        xs = case.variables()
        with nn.context_scope(nn.Context(["numpy:float"])):
            (y,) = case.run(xs)
        network = Network("n", {"x": xs[0]}, {"y": y}, names={xs[2].edge.key: "signs"})
        writer.save(tmp_path / "a.nnb", network, settings={"signs": "SIGN"})
        back = read_model([str(tmp_path / "a.nnb")])[0].network()
        (got,) = back.run({k: xs[0].d for k in back.inputs}).values()
        (want,) = values(network)
        np.testing.assert_allclose(got.reshape(-1), want, rtol=1e-5, atol=1e-5)
        if runtime_is_here():
            (got,) = infer(tmp_path / "a.nnb", network)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_template_has_the_types_of_all_variables(tmp_path: Path, capsys: Any) -> None:
    file, yaml = write_network(tmp_path / "m.nnp"), tmp_path / "m.yaml"
    assert main(["nnb_template", str(file), str(yaml), "-b", "2", "-T", "FIXED16_9"]) == 0
    assert capsys.readouterr().out.endswith("variables\n")
    text = yaml.read_text()
    assert "  x: FIXED16_9\n" in text and "  c1/conv/W: FIXED16_15\n" in text
    yaml.write_text(text.replace("FIXED16_9", "FIXED16_8"))
    assert convert("-s", yaml, file, tmp_path / "m.nnb", "-E", 0, "-b", 2, "-d", "nnb_3") == 0
    assert convert(file, tmp_path / "f.nnb", "-E", 0, "-b", 2, "-d", "nnb_3") == 0
    assert reader.ends(str(tmp_path / "m.nnb"))[0] == [("FIXED16", 8)]
    small, large = (sum(fields(tmp_path / n)["buffers"]) for n in ("m.nnb", "f.nnb"))
    assert 2 * small == large


@pytest.mark.parametrize(
    "settings,text",
    [
        ("[1]", "wanted the entries functions and variables"),
        ("variables: {x: {", "is not YAML: "),
        ("variables: [x]", "functions and variables must have names"),
        (
            "functions: {f: {implement: 5}}",
            "f: {'implement': 5}, wanted only implement: 0",
        ),
        ("variables: {x: INT4}", "NNB: x: the type is 'INT4', wanted FLOAT32, FIXED16, "),
        ("variables: {x: FIXED8_8}", "'FIXED8_8', wanted a position of at most 7"),
        ("variables: {x: SIGN_1}", "NNB: x: the type is 'SIGN_1', wanted"),
        ("variables: {z: FLOAT32}", "NNB: the network has no variables 'z'"),
        ("variables: {x: SIGN}", "NNB: x is SIGN, which is for weights of binary functions"),
        ("variables: {x: FIXED16}", "NNB: x is FIXED16, but what is computed needs a position"),
        ("variables: {c/conv/W: FIXED16}", "the runtime wants one type, not x FLOAT32, c/conv/W"),
        ("variables: {c/conv/b: FIXED8_7}", "c/conv/b FIXED8_7"),
    ],
)
def test_settings_that_do_not_fit_are_told(settings: str, text: str, tmp_path: Path) -> None:
    x = nn.Variable((1, 2, 4, 4))
    y = PF.convolution(x, 2, (3, 3), name="c")
    network = Network("n", {"x": x}, {"y": y}, nn.get_parameters(path=None) or {})
    (tmp_path / "s.yaml").write_text(settings)
    with pytest.raises((ValueError, CannotLower)) as e:
        writer.save(tmp_path / "a.nnb", network, settings=read_settings(tmp_path / "s.yaml"))
    assert text in str(e.value)
    assert not (tmp_path / "a.nnb").exists()


def test_matrices_of_batches_and_copies_have_one_type(tmp_path: Path) -> None:
    x = nn.Variable((2, 3, 3))
    y = F.batch_matmul(x, x)
    with pytest.raises(CannotLower, match="the runtime multiplies matrices of floats only, not "):
        writer.save(tmp_path / "a.nnb", Network("n", {"x": x}, {"y": y}), default="FIXED16_8")
    network = Network("n", {"x": x}, {"y": F.identity(x)})
    with pytest.raises(CannotLower, match="copies what is stored, so both must have one type"):
        writer.save(tmp_path / "a.nnb", network, settings={"x": "FIXED16_8"})


# ---- the command ----


def convert(*args: object) -> int:
    return main(["convert", *map(str, args)])


def test_a_network_goes_there_and_back(tmp_path: Path, capsys: Any) -> None:
    file = write_network(tmp_path / "m.nnp")
    assert convert(file, tmp_path / "m.nnb", "-E", 0, "-b", 2, "--verify") == 0
    assert "largest difference" in capsys.readouterr().out
    assert convert(tmp_path / "m.nnb", tmp_path / "back.nnp", "--verify") == 0
    assert convert(file, tmp_path / "old.nnb", "-E", 0, "--api", 1, "-d", "nnb_3") == 0
    assert fields(tmp_path / "old.nnb")["version"] == 3
    assert main(["dump", "-F", str(tmp_path / "m.nnb")]) == 0
    assert "Convolution" in capsys.readouterr().out


def test_verify_runs_the_runtime_where_there_is_one(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_network(tmp_path / "m.nnp")
    with monkeypatch.context() as change:
        change.setenv("NNL_NNABLART", "/bin/false")
        assert convert(file, tmp_path / "m.nnb", "-E", 0, "--verify") == 1
        assert "--verify: /bin/false does not run" in capsys.readouterr().err
    if not runtime_is_here():
        pytest.skip("NNL_NNABLART names no runtime")
    assert convert(file, tmp_path / "m.nnb", "-E", 0, "--verify") == 0
    assert capsys.readouterr().out.endswith(", by NNabla's C runtime\n")


def test_wrong_options_are_told(tmp_path: Path, capsys: Any) -> None:
    file = write_network(tmp_path / "m.nnp")
    for args, text in [
        (["-b", -1], "the batch size is -1, wanted at least 1: NNB has a fixed one"),
        (["-d", "nnb_4"], "NNB has no version 4, only 2 and 3"),
        (["--api", 45], "NNB: the API level is 45, wanted 1 to 44"),
    ]:
        assert convert(file, tmp_path / "o.nnb", "-E", 0, *args) == 1
        assert text in capsys.readouterr().err
        assert not (tmp_path / "o.nnb").exists()


def test_all_functions_that_cannot_be_said_are_named_with_their_place(tmp_path: Path) -> None:
    x = nn.Variable((2, 3))
    y = F.sort(F.sin(x), axis=1)
    with pytest.raises(CannotLower) as e:
        writer.save(tmp_path / "a.nnb", Network("n", {"x": x}, {"y": y}))
    lines = str(e.value).splitlines()
    where = "(documentation: conversion#what-can-be-converted)"
    assert lines[0] == f"NNB cannot hold the network 'n' {where}:" and len(lines) == 3
    for line, name in zip(lines[1:], ("sin", "sort"), strict=True):
        assert line.startswith(f"  {name} (test_nnb.py:")
        assert line.endswith("): NNabla's C runtime does not have it")


def test_a_place_is_the_name_of_the_function_in_the_file(tmp_path: Path, capsys: Any) -> None:
    text = write_network(tmp_path / "m.nnp")
    content = read_model([str(text)])[0].content()
    network = content.proto.network[0]
    last = next(f for f in network.function if f.type == "Softmax")
    last.type, last.name = "Sin", "ending"
    last.ClearField("softmax_param")
    write_content(str(tmp_path / "s.nnp"), content, ".protobuf")
    assert convert(tmp_path / "s.nnp", tmp_path / "s.nnb", "-E", 0) == 4
    assert "  sin in ending: NNabla's C runtime does not have it" in capsys.readouterr().err


# ---- damaged files ----


@pytest.mark.parametrize(
    "change,text",
    [
        (lambda d: b"abc", "a.nnb: 3 bytes are no .nnb file"),
        (lambda d: b"\x09" + d[1:], "a.nnb: its version is 9, wanted 2 or 3: is it an .nnb file?"),
        (lambda d: d[:-40], "a.nnb: damaged: it claims"),
        (lambda d: d[:48] + b"\0\0\0\0" + d[52:], "a.nnb: damaged: "),
    ],
)
def test_damaged_files_are_refused(change: Any, text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.nnb"
    writer.save(file, dense())
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ValueError, match=text):
        reader.read(str(file))


def test_signs_and_fixed_point_numbers_become_floats(tmp_path: Path) -> None:
    """By the format's definition: value = stored / 2^point; a bit is 1 for +1, 0 for -1."""
    file = tmp_path / "a.nnb"
    x = nn.Variable((1, 8))
    w = nn.Variable.from_numpy_array(normal(1, 8))
    writer.save(file, Network("n", {"x": x}, {"y": x + w}))
    good = file.read_bytes()
    count = struct.unpack_from("<I", good, 48)[0]
    start = 56 + 4 * count
    index = struct.unpack_from(f"<{count}I", good, 56)
    for kind, stored, want in [
        (3, bytes([0b00000101]), [1, -1, 1, -1, -1, -1, -1, -1]),
        (2 | 3 << 4, np.arange(-4, 4).astype(np.int8).tobytes(), np.arange(-4, 4) / 8),
        (1 | 10 << 4, np.arange(8).astype("<i2").tobytes(), np.arange(8) / 1024),
    ]:
        data = bytearray(good)
        for at in index:  # the record of the constant, which has data, and what that is
            number, _, _, old, place = struct.unpack_from("<I2IB3xi", data, start + at)
            if number == 1 and old == 0 and 0 <= place < count:
                data[start + at + 12] = kind
                there = start + index[place]
                data[there : there + len(stored)] = stored
                break
        file.write_bytes(bytes(data))
        (value,) = [s.value for s in reader.read(str(file)).stored]
        np.testing.assert_array_equal(value.reshape(-1), want)
