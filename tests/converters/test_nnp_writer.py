# SPDX-License-Identifier: Apache-2.0
"""save(): names, shapes, formats and errors of what it writes."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.converters.nnp.messages import parse
from nnl.core.ops.python_function import PythonFunction
from nnl.utils.load import load
from nnl.utils.save import create_proto, save


def network(outputs: dict[str, Any], names: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "networks": [{"name": "n", "batch_size": 4, "outputs": outputs, "names": names}],
        **more,
    }


def classifier() -> tuple[Any, Any]:
    x = nn.Variable((4, 6))
    h = PF.batch_normalization(PF.affine(x, 8, name="a"), axes=[1], name="b")
    return x, PF.affine(F.relu(F.dropout(h)), 3, name="c")


def everything() -> dict[str, Any]:
    nn.random.set_parameter_seed(1)
    x, y = classifier()
    t = nn.Variable((4, 1))
    loss = F.mean(F.softmax_cross_entropy(y, t))
    solver = S.Adam(0.01)
    solver.set_parameters(nn.get_parameters())
    return network(
        {"y": y, "loss": loss},
        {"x": x, "t": t},
        optimizers=[{"name": "o", "solver": solver, "network": "n", "dataset": "d"}],
        monitors=[{"name": "m", "network": "n", "dataset": ["d"]}],
        datasets=[{"name": "d", "uri": "u.csv", "variables": ["x", "t"], "batch_size": 4}],
        executors=[{"name": "e", "network": "n", "data": ["x"], "output": ["y"]}],
        training_config={"max_epoch": 2, "iter_per_epoch": 3, "save_best": True},
        global_config={"default_context": nn.Context()},
    )


def written(contents: dict[str, Any], **more: Any) -> Any:
    file = io.BytesIO()
    save(file, contents, extension=".nntxt", **more)
    return parse("NNablaProtoBuf", file.getvalue(), True, "test")


def shapes(message: Any) -> dict[str, tuple[int, ...]]:
    return {v.name: tuple(v.shape.dim) for v in message.network[0].variable}


@pytest.mark.parametrize("extension", [".nnp", ".nntxt", ".prototxt", ".protobuf"])
def test_equal_contents_give_equal_bytes(tmp_path: Path, extension: str) -> None:
    contents = []
    for name in ("first", "second"):
        nn.clear_parameters()
        path = tmp_path / (name + extension)
        save(path, everything(), include_solver_state=True)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert [p.suffix for p in tmp_path.iterdir()] == [extension] * 2  # no temporary file stays


def test_members_of_an_archive(tmp_path: Path) -> None:
    formats = {
        ".h5": ["parameter.h5", "o_Adam_optimizer.h5.optimizer"],
        ".protobuf": ["parameter.protobuf", "optimizer.protobuf.optimizer"],
    }
    for kind, names in formats.items():
        save(
            tmp_path / "a.nnp",
            everything(),
            include_solver_state=True,
            parameter_format=kind,
            solver_state_format=kind,
        )
        with zipfile.ZipFile(tmp_path / "a.nnp") as archive:
            assert archive.namelist() == ["nnp_version.txt", "network.nntxt", *names]
            assert archive.read("nnp_version.txt") == b"0.1\n"
            assert all(i.compress_type == zipfile.ZIP_STORED for i in archive.infolist())


def test_names_of_variables_and_functions() -> None:
    x, y = classifier()
    mid = y.parent.inputs[0]
    message = written(network({"y": y}, {"x": x, "mid": mid})).network[0]
    assert [v.name for v in message.variable] == [
        "x",
        "@n/Affine_out",
        "@n/BatchNormalization_out",
        "@n/Dropout_out",
        "mid",
        "y",
        *("a/affine/W", "a/affine/b", "b/bn/beta", "b/bn/gamma", "b/bn/mean", "b/bn/var"),
        *("c/affine/W", "c/affine/b"),
    ]
    assert [v.type for v in message.variable] == ["Buffer"] * 6 + ["Parameter"] * 8
    names = ["@n/Affine", "@n/BatchNormalization", "@n/Dropout", "@n/ReLU", "@n/Affine_1"]
    assert [f.name for f in message.function] == names
    assert list(message.function[2].input) == ["@n/BatchNormalization_out"]  # no random state
    assert list(message.function[2].output) == ["@n/Dropout_out"]  # no mask


def test_unnamed_inputs_are_numbered_by_function() -> None:
    y = F.add2(nn.Variable((2,)), nn.Variable((2,)))
    assert list(shapes(written(network({"y": y}, {})))) == ["@n/Add2_in", "@n/Add2_in_1", "y"]


def test_the_batch_size_is_written_as_minus_one() -> None:
    x = nn.Variable((4, 6))
    p = nn.parameter.get_parameter_or_create("p", (4, 6))
    h = PF.affine(x + p, 6)
    noise, row = F.randn(0, 1, (4, 6)), F.broadcast(F.constant(1, (1, 6)), (4, 6))
    y = F.reshape(h * noise + row, (4, 2, 3))
    message = written(network({"y": y}, {"x": x}))
    got = shapes(message)
    assert got["x"] == got["@n/Affine_out"] == got["@n/Randn_out"] == (-1, 6)
    assert got["y"] == (-1, 2, 3) and got["p"] == (4, 6) and got["@n/Constant_out"] == (1, 6)
    arguments = {f.type: f for f in message.network[0].function}
    assert list(arguments["Reshape"].reshape_param.shape.dim) == [-1, 2, 3]
    assert list(arguments["Randn"].randn_param.shape.dim) == [-1, 6]
    assert list(arguments["Broadcast"].broadcast_param.shape.dim) == [-1, 6]
    fixed = shapes(written(network({"y": y}, {"x": x}), variable_batch_size=False))
    assert fixed["x"] == (4, 6) and fixed["y"] == (4, 2, 3)


def test_without_a_base_axis_no_size_is_variable() -> None:
    x = nn.Variable((4, 6))
    assert shapes(written(network({"y": F.relu(x)}, {"x": x}))) == {"x": (4, 6), "y": (4, 6)}


def test_a_reshape_that_moves_the_batch_is_refused() -> None:
    x = nn.Variable((4, 6))
    y = F.reshape(PF.affine(x, 6), (2, 2, 6))
    with pytest.raises(ValueError, match=r"function '@n/Reshape': reshape to \(2, 2, 6\) does not"):
        written(network({"y": y}, {"x": x}))


def test_two_names_of_one_variable_are_both_understood() -> None:
    x, y = classifier()
    executors = [{"name": "e", "network": "n", "data": {"x": "image"}, "output": ["y", "score"]}]
    message = written(network({"y": y, "score": y}, {"x": x}, executors=executors))
    out = message.executor[0].output_variable
    assert [o.data_name for o in out] == ["y", "score"]
    assert out[0].variable_name == out[1].variable_name == message.network[0].variable[5].name
    assert message.executor[0].data_variable[0].data_name == "image"


def test_more_outputs_on_request_are_the_plain_type() -> None:
    x, b, g, m, v = nn.Variable((4, 3)), *(nn.Variable((1, 3)) for _ in range(4))
    y, mean, _ = F.batch_normalization(x, b, g, m, v, output_stat=True)
    w, u = F.spectral_norm(nn.Variable((2, 3)), nn.Variable((2,)), output_u=True)
    message = written(network({"y": y, "mean": mean, "w": w, "u": u}, {"x": x})).network[0]
    assert [f.type for f in message.function] == ["BatchNormalization", "SpectralNorm"]
    assert list(message.function[0].output) == ["y", "mean", "@n/BatchNormalization_out"]
    assert list(message.function[1].output) == ["w", "u"]


def test_a_sink_with_gradients_is_a_sink() -> None:
    a, b = F.relu(nn.Variable((2,))), F.relu(nn.Variable((3,)))
    message = written(network({"s": F.sink(a, b, one_input_grad=False)}, {})).network[0]
    sink = message.function[2]
    assert (sink.type, len(sink.input), sink.sink_param.one_input_grad) == ("Sink", 2, False)


def test_parameters_are_written_with_the_network_on_request() -> None:
    x, y = classifier()
    assert len(written(network({"y": y}, {"x": x})).parameter) == 0
    stored = written(network({"y": y}, {"x": x}), include_params=True).parameter
    assert [p.variable_name for p in stored] == list(nn.get_parameters(grad_only=False))
    values = np.array(stored[0].data, np.float32).reshape(6, 8)
    np.testing.assert_array_equal(values, nn.get_parameters()["a/affine/W"].d)
    assert create_proto(network({"y": y}, {"x": x}), True).parameter == stored


def test_given_parameters_replace_those_of_the_scope() -> None:
    x, w = nn.Variable((4, 6)), nn.Variable((6, 3))
    message = written(network({"y": F.affine(x, w)}, {"x": x}), parameters={"mine": w})
    assert [v.name for v in message.network[0].variable if v.type == "Parameter"] == ["mine"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.nnp"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="no network 'other'"):
        save(path, {**everything(), "executors": [{"name": "e", "network": "other"}]})
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


class Twice(PythonFunction):
    name = "Twice"

    def min_outputs(self) -> int:
        return 1

    def setup_impl(self, inputs: Any, outputs: Any) -> None:
        outputs[0].reset_shape(inputs[0].shape, True)

    def forward_impl(self, inputs: Any, outputs: Any) -> None:
        outputs[0].d = inputs[0].d * 2

    def backward_impl(self, inputs: Any, outputs: Any, propagate_down: Any, accum: Any) -> None:
        pass


def test_functions_without_a_type_are_named() -> None:
    y = Twice()(nn.Variable((2,)))
    with pytest.raises(NotImplementedError, match="network 'n': the function .* has no type in"):
        written(network({"y": y}, {}))
    x = nn.Variable((2,), need_grad=True)
    (gx,) = nn.grad([F.tanh(x)], [x])
    with pytest.raises(NotImplementedError, match="the function tanh_backward has no type in .nnp"):
        written(network({"gx": gx}, {"x": x}))


X = nn.Variable((4, 6))
Y = F.relu(X)
OK = network({"y": Y}, {"x": X})
EXECUTOR = {"name": "e", "network": "n", "data": ["x"], "output": ["y"]}
DATASET = {"name": "d", "variables": ["x"], "batch_size": 4}


@pytest.mark.parametrize(
    ("contents", "error", "text"),
    [
        ([], TypeError, "contents is list, wanted a dict"),
        ({"network": []}, ValueError, "contents has the key 'network', known are global_config"),
        ({"networks": [{}]}, ValueError, "an entry whose 'name' is None, wanted a str"),
        ({"networks": [{"name": "n"}]}, ValueError, "whose 'outputs' is None, wanted a mapping"),
        (network({"y": 1}, {}), TypeError, "network 'n': 'y' is int, wanted nnl.Variable"),
        (network({"y": Y}, {"y": X}), ValueError, "two variables have the name 'y'"),
        (network({"x": X}, {}), ValueError, "the output 'x' was computed by no function"),
        ({"networks": OK["networks"] * 2}, ValueError, "two networks have the name 'n'"),
        ({"datasets": [{"name": "d"}]}, ValueError, "dataset 'd' has no 'batch_size' in the"),
        (
            {**OK, "executors": [{**EXECUTOR, "output": ["z"]}]},
            ValueError,
            r"executor 'e': 'z' is no variable of the network 'n', which has \['x', 'y'\]",
        ),
        ({**OK, "executors": [{**EXECUTOR, "remp": True}]}, TypeError, "remp is True, wanted"),
        ({**OK, "executors": [{"name": "e"}]}, ValueError, "executor 'e' has no 'network'"),
        (
            {**OK, "monitors": [{"name": "m", "network": "n", "dataset": "d"}]},
            ValueError,
            "monitor 'm': there is no dataset 'd'",
        ),
        (
            {**OK, "optimizers": [{"name": "o", "network": "n", "solver": 1}]},
            TypeError,
            "optimizer 'o': solver is int, wanted a Solver",
        ),
        (
            {**OK, "executors": [{**EXECUTOR, "generator_variables": {"x": 3}}]},
            ValueError,
            r"executor 'e': the generator is 3, wanted \(type, multiplier\)",
        ),
        ({"global_config": {"default_context": 1}}, TypeError, "default_context is int"),
    ],
)
def test_errors_name_what_is_wrong(contents: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        written(contents)


def test_a_name_of_a_parameter_is_not_given_to_another_variable() -> None:
    x, y = classifier()
    with pytest.raises(ValueError, match="the variable 'a/affine/W' has the name of a parameter"):
        written(network({"y": y}, {"a/affine/W": x}))


def test_extensions_and_formats_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"save: the extension is '.onnx', wanted .nnp, .nntxt,"):
        save(tmp_path / "a.onnx", OK)
    with pytest.raises(ValueError, match="parameter_format is '.npz', wanted '.h5' or '.protobuf'"):
        save(tmp_path / "a.nnp", OK, parameter_format=".npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extension", [".nntxt", ".nnp", ".protobuf"])
def test_values_that_left_the_registry_are_missed(
    extension: str, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = classifier()
    save(io.BytesIO(), network({"y": y}, {"x": x}), extension=extension)
    assert caplog.text == ""
    nn.clear_parameters()
    save(io.BytesIO(), network({"y": y}, {"x": x}), extension=extension)
    assert (
        "save: network 'n': 8 of its inputs are neither in `names` nor parameters of the current "
        "scope, so their values are not saved: 'W', 'b', 'beta', 'gamma' ..." in caplog.text
    )


def test_networks_cut_anywhere_are_refused(tmp_path: Path) -> None:
    save(path := tmp_path / "n.protobuf", everything(), include_params=True)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"load: .*n.protobuf"):
            load(path)


def test_messages_in_text_form_go_to_files_of_text(tmp_path: Path) -> None:
    x, y = classifier()
    file = io.StringIO()
    save(file, network({"y": y}, {"x": x}), extension=".nntxt", include_params=True)
    nn.clear_parameters()
    assert load(file, extension=".nntxt").networks["n"].outputs.keys() == {"y"}
    assert len(nn.get_parameters(grad_only=False)) == 8
    with pytest.raises(TypeError, match="save: the file is open for text, wanted one for bytes"):
        save(io.StringIO(), network({"y": y}, {"x": x}), extension=".nnp")
