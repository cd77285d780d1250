# SPDX-License-Identifier: Apache-2.0
"""Networks as frozen graphs: read back, and run by TensorFlow where NNL_TENSORFLOW_PYTHON names a
Python that has it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
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
from nnl.converters.runtimes.tensorflow import TensorFlow, python_with_tensorflow
from nnl.converters.tensorflow.messages import dtype_of_code, parse
from nnl.converters.tensorflow.writing import operators, writer
from nnl.core.ops.op import OPS
from tests.cli.test_convert import write_network
from tests.converters.test_nnb import of_sample, values
from tests.converters.test_tflite import built
from tests.graph.saved import normal
from tests.test_derived import CASES

RANDOM = ("dropout", "mean_subtraction")  # in training only
Arrays = list[np.ndarray[Any, Any]]
Run = Callable[[Path, dict[str, Any], list[str]], Arrays]


@pytest.fixture(scope="module")
def tensorflow() -> Iterator[Run]:
    python = python_with_tensorflow()
    if python is None:
        pytest.skip("TensorFlow is not installed (NNL_TENSORFLOW_PYTHON names a Python with it)")
    process = TensorFlow(python)

    def run(file: Path, given: dict[str, Any], outputs: list[str]) -> Arrays:
        placeholders = [n for n in nodes(file) if n.op == "Placeholder"]
        types = {n.name: dtype_of_code(n.attr["dtype"].type) for n in placeholders}
        feeds = {name: np.asarray(given[name], dtype) for name, dtype in types.items()}
        return process.run(file, feeds, outputs)

    yield run
    process.close()


def nodes(file: Path) -> list[Any]:
    return list(parse("GraphDef", file.read_bytes(), str(file)).node)


def read_back(file: Path, given: dict[str, Any], outputs: list[str]) -> Arrays:
    network = read_model([str(file)])[0].between(None, outputs).network()
    return list(network.run({k: given[k] for k in network.inputs}).values())


@pytest.fixture(scope="module", params=["first", pytest.param("others", marks=pytest.mark.long)])
def samples(request: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Files of samples that can be said, with their inputs and what the networks give."""
    folder, found = tmp_path_factory.mktemp("samples"), {}
    for op, i in [p.values for p in CASES]:
        if op.name in RANDOM or not op.nnp or (i < 1) != (request.param == "first"):
            continue
        network = of_sample(op, i)
        if network is None:
            continue
        file = folder / f"{op.name}_{i}.pb"
        try:
            writer.save(file, network)
        except CannotLower as e:
            assert re.match(r"TF_PB cannot hold the network 'n' .*:\n  ", str(e)), e
            continue
        given = {k: v.data.read("host") for k, v in network.inputs.items()}
        found[f"{op.name} {i}"] = file, given, list(network.outputs), values(network)
    said = {OPS[key.split()[0]].nnp for key in found}
    assert len(said) >= (185 if request.param == "first" else 130)
    return found


def check(samples: dict[str, Any], run: Run, skipped: tuple[str, ...] = ()) -> None:
    for key, (file, given, outputs, want) in samples.items():
        if key.split()[0] in skipped:
            continue
        for got, y in zip(run(file, given, outputs), want, strict=True):
            got = got.reshape(-1).astype(np.float64)
            np.testing.assert_allclose(got, y, rtol=1e-4, atol=1e-5, err_msg=key)


def test_samples_run_in_tensorflow(samples: dict[str, Any], tensorflow: Run) -> None:
    check(samples, tensorflow)


def test_samples_are_read_back(samples: dict[str, Any]) -> None:
    constants = ("arange", "constant", "eye_like", "linspace", "prune", "shape", "sink")
    check(samples, read_back, skipped=constants)  # nothing depends on an input there


# ---- networks ----


def check_network(name: str, run: Run, file: Path) -> None:
    network = built(name)
    writer.save(file, network)
    given = {k: v.d for k, v in network.inputs.items()}
    (got,), (want,) = run(file, given, list(network.outputs)), values(network)
    assert np.abs(got.reshape(-1) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("name", ["lenet", "resnet", "mobilenet", "unet", "bert"])
def test_networks_run_in_tensorflow(name: str, tensorflow: Run, tmp_path: Path) -> None:
    check_network(name, tensorflow, tmp_path / "a.pb")


@pytest.mark.parametrize("name", ["lenet", "resnet", "mobilenet", "unet", "bert"])
def test_networks_are_read_back(name: str, tmp_path: Path) -> None:
    check_network(name, read_back, tmp_path / "a.pb")


def test_images_are_transposed_once_and_weights_named(tmp_path: Path) -> None:
    writer.save(tmp_path / "a.pb", built("resnet"))
    found = nodes(tmp_path / "a.pb")
    counts = Counter(n.op for n in found)
    assert counts["Transpose"] == 1 and counts["Conv2D"] == counts["BiasAdd"] - 1 > 2
    assert not counts["FusedBatchNormV3"] and {"x", "y"} < {n.name for n in found}
    assert any(n.name.endswith("/W") for n in found)


def test_a_bias_of_groups_is_added_by_itself(tmp_path: Path, tensorflow: Run) -> None:
    """TensorFlow fuses BiasAdd into convolutions, and has none with groups there."""
    x = nn.Variable.from_numpy_array(normal(2, 4, 7, 6))
    y = F.relu(PF.convolution(x, 6, (3, 3), group=2, b_init=lambda s: normal(*s)))
    writer.save(tmp_path / "a.pb", network := Network("n", {"x": x}, {"y": y}))
    (got,) = tensorflow(tmp_path / "a.pb", {"x": x.d}, ["y"])
    np.testing.assert_allclose(got.reshape(-1), values(network)[0], rtol=1e-4, atol=1e-5)


def test_one_value_is_not_concatenated(tmp_path: Path) -> None:
    """ConcatV2 takes two or more."""
    x = nn.Variable.from_numpy_array(normal(2, 3))
    writer.save(tmp_path / "a.pb", Network("n", {"x": x}, {"y": F.stack(F.exp(x), axis=1)}))
    assert "ConcatV2" not in {n.op for n in nodes(tmp_path / "a.pb")}


def test_names_become_those_that_graphs_may_have(tmp_path: Path) -> None:
    x = nn.Variable.from_numpy_array(normal(2, 3))
    writer.save(tmp_path / "a.pb", Network("n", {"x'": x}, {"_y 1": F.exp(x), "_y_1": F.tanh(x)}))
    assert {"x_", "n_y_1", "n_y_1_1"} <= {n.name for n in nodes(tmp_path / "a.pb")}


# ---- the command, and what is refused ----


def test_the_command_writes_and_verifies(tmp_path: Path, capsys: Any) -> None:
    source, out = write_network(tmp_path / "m.nnp"), str(tmp_path / "m.pb")
    assert main(["convert", str(source), out, "-E", "0", "-b", "3", "--verify"]) == 0
    text = capsys.readouterr().out
    assert ("TensorFlow" in text) == (python_with_tensorflow() is not None)
    assert main(["function_info", str(source), "-f", "TF_PB", "-t"]) == 0
    assert {"Conv2D", "MaxPool", "MatMul"} < set(capsys.readouterr().out.split())
    assert main(["convert", str(source), out, "-b", "0"]) == 1
    assert "wanted at least 1, or -1 to leave it open" in capsys.readouterr().err


def test_all_that_cannot_be_said_is_listed(tmp_path: Path) -> None:
    x = nn.Variable((1, 3, 8, 8))
    y = F.random_flip(F.random_crop(x, (3, 4, 4)))
    with pytest.raises(CannotLower) as error:
        writer.save(tmp_path / "a.pb", Network("n", {"x": x}, {"y": y}))
    first, *lines = str(error.value).splitlines()
    where = "(documentation: conversion#what-can-be-converted)"
    assert first == f"TF_PB cannot hold the network 'n' {where}:" and len(lines) == 2
    assert all(line.endswith("): there is no operator for it") for line in lines)
    assert not (tmp_path / "a.pb").exists()


def test_weights_larger_than_a_message_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "MOST_BYTES", 100)
    x = nn.Variable((1, 30))
    with pytest.raises(ValueError, match="TF_PB: the weights have more than 100 bytes, which a"):
        writer.save(tmp_path / "a.pb", Network("n", {"x": x}, {"y": PF.affine(x, 5)}))
    assert not (tmp_path / "a.pb").exists()
