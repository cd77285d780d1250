# SPDX-License-Identifier: Apache-2.0
"""Files with open sizes become programs that run at these sizes, as ONNX Runtime runs the file."""

import numpy as np
import pytest

import nnl as nn
import nnl.parametric_functions as PF
from nnl.cli.main import main
from nnl.converters.networks.model import OnnxFile
from nnl.converters.networks.open_sizes import OpenSizes, named, words
from nnl.converters.onnx import load
from nnl.utils.save import save
from tests.native.kernels import require_library

onnx = pytest.importorskip("onnx")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def saved(path, nodes, inputs, outputs, weights=()):
    tensors = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in weights]
    ends = [
        [helper.make_tensor_value_info(k, FLOAT, shape) for k, shape in some]
        for some in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "net", *ends, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def weight(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def picture(path):
    """A backbone, flattened by computing with the shape, and joined with an upsampled one."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "two", "four"], ["pixels"]),
        node("Shape", ["r"], ["small"]),
        node("Slice", ["small", "zero", "two"], ["maps"]),
        node("Concat", ["maps", "pixels"], ["size"], axis=0),
        node("Resize", ["r", "", "", "size"], ["up"], mode="nearest"),
        node("Concat", ["x", "up"], ["all"], axis=1),
        node("Reshape", ["all", "flat"], ["rows"]),
        node("Transpose", ["rows"], ["y"], perm=[0, 2, 1]),
    ]
    numbers = {"zero": [0], "two": [2], "four": [4], "flat": [0, 7, -1]}
    weights = [("w", weight(4, 3, 3, 3)), *[(k, np.array(v)) for k, v in numbers.items()]]
    saved(path, nodes, [("x", ["batch", 3, "height", "width"])], [("y", [None, None, 7])], weights)


def tokens(path):
    """Numbers of positions by Range, and rows that are repeated as often as there are samples."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["time"]),
        node("Range", ["zero", "time", "one"], ["at"]),
        node("Gather", ["table", "at"], ["positions"]),
        node("Add", ["x", "positions"], ["h"]),
        node("MatMul", ["h", "w"], ["q"]),
        node("Transpose", ["q"], ["k"], perm=[0, 2, 1]),
        node("MatMul", ["q", "k"], ["scores"]),
        node("Softmax", ["scores"], ["p"]),
        node("MatMul", ["p", "q"], ["y"]),
    ]
    numbers = [("zero", np.array(0)), ("one", np.array(1))]
    weights = [("w", weight(8, 8)), ("table", weight(256, 8)), *numbers]
    saved(path, nodes, [("x", ["N", "T", 8])], [("y", [None, None, 8])], weights)


def mask(path):
    """A padding mask for attention as PyTorch writes it: x[b, t] by places in all rows as one."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Split", ["shape", "ones"], ["batch", "time"], axis=0),
        node("Squeeze", ["batch"], ["b"]),
        node("Squeeze", ["time"], ["t"]),
        node("Range", ["zero", "b", "one"], ["samples"]),
        node("Reshape", ["samples", "column"], ["sample"]),
        node("Range", ["zero", "t", "one"], ["at"]),
        node("Mul", ["sample", "t"], ["row"]),
        node("Add", ["row", "at"], ["places"]),
        node("Reshape", ["x", "flat"], ["all"]),
        node("Gather", ["all", "places"], ["chosen"]),
        node("Mul", ["chosen", "chosen"], ["y"]),
    ]
    numbers = {"zero": 0, "one": 1, "ones": [1, 1], "flat": [-1], "column": [-1, 1, 1, 1]}
    weights = [(k, np.array(v)) for k, v in numbers.items()]
    saved(path, nodes, [("x", ["N", "T"])], [("y", [None, 1, 1, None])], weights)


def distances(path):
    """Biases by the logarithm of how far tokens are apart, as in T5, for what came before alone."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["time"]),
        node("Range", ["zero", "time", "one"], ["at"]),
        node("Unsqueeze", ["at", "last"], ["row"]),
        node("Sub", ["at", "row"], ["far"]),
        node("Abs", ["far"], ["apart"]),
        node("Add", ["apart", "one"], ["more"]),
        node("Cast", ["more"], ["real"], to=FLOAT),
        node("Log", ["real"], ["log"]),
        node("Cast", ["log"], ["bucket"], to=INT64),
        node("Min", ["bucket", "two"], ["known"]),
        node("Gather", ["table", "known"], ["bias"]),
        node("LessOrEqual", ["far", "zero"], ["before"]),
        node("ConstantOfShape", ["pair"], ["ones"], value=helper.make_tensor("v", INT64, [1], [1])),
        node("Mul", ["ones", "time"], ["square"]),
        node("Expand", ["minus", "square"], ["never"]),
        node("Where", ["before", "bias", "never"], ["scores"]),
        node("Softmax", ["scores"], ["p"]),
        node("MatMul", ["p", "x"], ["y"]),
    ]
    numbers = {"zero": 0, "one": 1, "two": 2, "last": [-1], "pair": [2]}
    weights = [("minus", np.float32(-1e9)), ("table", weight(3))]
    weights += [(k, np.array(v)) for k, v in numbers.items()]
    saved(path, nodes, [("x", ["N", "T", 8])], [("y", [None, None, 8])], weights)


@pytest.mark.parametrize(
    "write,shapes",
    [
        (distances, [(1, 1, 8), (3, 17, 8), (2, 30, 8)]),
        (mask, [(1, 1), (3, 17), (2, 1), (1, 9)]),
        (picture, [(1, 3, 32, 32), (2, 3, 31, 64), (5, 3, 9, 20)]),
        (tokens, [(1, 8, 8), (3, 17, 8), (2, 1, 8)]),
    ],
)
def test_an_open_file_becomes_an_open_program(write, shapes, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    file, program = str(tmp_path / "net.onnx"), str(tmp_path / "net.nnlp")
    write(file)
    assert main(["convert", "--verify", file, program]) == 0
    session, found = runtime.InferenceSession(file), nn.load_program(program)
    for shape in shapes:
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        (want,) = session.run(None, {"x": x})
        np.testing.assert_allclose(found.run(x=x)["y"], want, atol=2e-5, rtol=2e-5)


def test_networks_of_one_file_share_their_weights(tmp_path):
    tokens(tmp_path / "net.onnx")
    model = OnnxFile(tmp_path / "net.onnx")
    first, second = (model.sized({"N": 2, "T": t}) for t in (5, 7))
    with nn.parameter_scope("", first.parameters):
        weights = nn.get_parameters()
    with nn.parameter_scope("", second.parameters):
        assert all(v.data.bufs is weights[k].data.bufs for k, v in nn.get_parameters().items())
    assert {k: v.shape for k, v in weights.items()} == {"w": (8, 8), "table": (256, 8)}
    net = load(str(tmp_path / "net.onnx"))  # what is trained has weights of its own
    with nn.parameter_scope("a"):
        net(nn.Variable((2, 5, 8)))
    with nn.parameter_scope("b"):
        net(nn.Variable((2, 5, 8)))
    a, b = (nn.get_parameters()[f"{scope}/w"] for scope in "ab")
    assert not np.shares_memory(a.d, b.d)


def test_names_ranges_and_numbers_can_be_said(tmp_path, capsys):
    file, program = str(tmp_path / "net.onnx"), str(tmp_path / "net.nnlp")
    picture(file)
    assert main(["convert", "--open", "x=n,3,h:16..64:16,32", file, program]) == 0
    text = nn.load_program(program).text()
    assert "h: any size, at least 16 and at most 64, a multiple of 16" in text
    assert "x:f32[n, 3, h, 32] input" in text
    np.save(tmp_path / "x.npy", np.ones((2, 3, 48, 32), np.float32))
    capsys.readouterr()
    given = ["infer", "-c", program, "-o", str(tmp_path / "y"), str(tmp_path / "x.npy")]
    assert main(given) == 0
    assert "y float32 (2, 1536, 7)" in capsys.readouterr().out
    np.save(tmp_path / "x.npy", np.ones((2, 3, 40, 32), np.float32))
    assert main(given) != 0
    assert "axis 2: h is 40, wanted at least 16 and at most 64" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["net.nnlp", "net.tflite"])
def test_a_shape_closes_sizes(output, tmp_path):
    file, closed = str(tmp_path / "net.onnx"), str(tmp_path / output)
    picture(file)
    assert main(["convert", "--verify", "--shape", "x=1,3,16,24", file, closed]) == 0


@pytest.mark.parametrize(
    "options,text",
    [
        (["--shape", "z=1,3,8,8"], "there is no input 'z' among x"),
        (["--shape", "x=1,3,8"], "x has 4 axes, got 3: 1,3,8"),
        (["--shape", "x=1,4,8,8"], "x has the size 3 in the file, got 4"),
        (["--shape", "x1,3,8,8"], "'x1,3,8,8' is no shape, wanted one such as x=1,3,640,640"),
        (["--open", "x=n,3,h:9,w"], "'h:9' is no size, wanted a number, or a name as in height"),
        (["--open", "x=n,3,h:9..4,w"], "'h:9..4' is no range, wanted least..greatest:multiple"),
    ],
)
def test_wrong_shapes(options, text, tmp_path, capsys):
    file = str(tmp_path / "net.onnx")
    picture(file)
    assert main(["convert", *options, file, str(tmp_path / "net.nnlp")]) != 0
    assert text in capsys.readouterr().err


def test_sizes_that_the_network_fixes_are_told(tmp_path, capsys):
    file = str(tmp_path / "net.onnx")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    saved(file, nodes, [("x", ["n", 6])], [("y", [4, 3])], [("shape", np.array([4, 3]))])
    assert main(["convert", file, str(tmp_path / "net.nnlp")]) != 0
    error = capsys.readouterr().err
    assert "net.onnx: with the open sizes n: node Reshape" in error
    assert "--open says of what they are multiples, --shape closes them" in error
    assert 'as in --shape "x=1,6"' in error


def test_names_that_can_only_be_one_size_are_one(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(nn.logger, "propagate", True)  # so that caplog hears it
    file = str(tmp_path / "net.onnx")
    nodes = [helper.make_node("Mul", ["ids", "mask"], ["y"])]
    ends = [("ids", ["batch", "tokens", 4]), ("mask", ["batch", "tokens_1", 1])]
    saved(file, nodes, ends, [("y", [None, None, 4])])
    assert main(["convert", file, str(tmp_path / "net.nnlp")]) == 0
    told = '--open "mask=batch,tokens,1"'
    assert (
        f"it does not take all sizes that the file leaves open, but those of {told}" in caplog.text
    )
    caplog.clear()
    options = ["--open", told.split('"')[1]]
    assert main(["convert", *options, file, str(tmp_path / "net.nnlp")]) == 0
    assert not caplog.text
    found = nn.load_program(str(tmp_path / "net.nnlp"))
    assert found.run(ids=np.ones((3, 7, 4)), mask=np.ones((3, 7, 1)))["y"].shape == (3, 7, 4)


def compared(tmp_path, shapes):
    """Convert net.onnx without options, and run program and file at shapes of x."""
    ort = pytest.importorskip("onnxruntime")
    file, program = str(tmp_path / "net.onnx"), str(tmp_path / "net.nnlp")
    assert main(["convert", file, program]) == 0
    found = nn.load_program(program)
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    for shape in shapes:
        x = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
        for y, want in zip(found.run(x=x).values(), session.run(None, {"x": x}), strict=True):
            assert y.shape == want.shape
            np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
    return found


def test_sound_is_filled_to_whole_frames_and_transformed(tmp_path):
    """Pads to a multiple of 256, a mask that one frame does not show, frames of STFT."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"], start=1),
        node("Neg", ["shape"], ["negative"]),
        node("Mod", ["negative", "frame"], ["lack"]),
        node("Concat", ["zeros", "lack"], ["pads"], axis=0),
        node("Pad", ["x", "pads"], ["whole"]),
        node("Reshape", ["whole", "rows"], ["frames"]),
        node("Where", ["mask", "frames", "none"], ["y"]),
        node("STFT", ["x", "step", "", "length"], ["spectrum"]),
    ]
    numbers = {"frame": [256], "zeros": [0, 0, 0], "rows": [0, -1, 256], "step": 160, "length": 256}
    weights = [(k, np.array(v)) for k, v in numbers.items()]
    weights += [("mask", np.arange(256) % 3 > 0), ("none", np.float32(0))]
    ends = [("y", [None, None, 256]), ("spectrum", [None, None, 129, 2])]
    saved(tmp_path / "net.onnx", nodes, [("x", ["n", "samples"])], ends, weights)
    sizes = 256, 257, 415, 416, 512, 513, 5000, 16000
    compared(tmp_path, [(1 + n % 3, n) for n in sizes])


def test_outputs_that_no_input_decides(tmp_path):
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["rows"], end=1),
        node("ConstantOfShape", ["rows"], ["y"], value=helper.make_tensor("v", FLOAT, [1], [3.0])),
        node("Relu", ["x"], ["z"]),
    ]
    ends = [("y", [None]), ("z", [None, 2])]
    saved(tmp_path / "net.onnx", nodes, [("x", ["n", 2])], ends)
    compared(tmp_path, [(1, 2), (5, 2)])


def test_sizes_that_a_network_takes_are_found(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(nn.logger, "propagate", True)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["h"], strides=[128]),
        node("Conv", ["h", "v"], ["s"], strides=[2], pads=[1, 0]),
        node("Squeeze", ["s", "last"], ["y"]),  # of one frame alone
    ]
    weights = [("w", weight(4, 1, 256)), ("v", weight(2, 4, 2)), ("last", np.array([2]))]
    saved(tmp_path / "net.onnx", nodes, [("x", ["n", 1, "samples"])], [("y", [None, 2])], weights)
    program = compared(tmp_path, [(1, 1, 256), (3, 1, 511)])
    assert '--open "x=n,1,samples:256..511"' in caplog.text
    with pytest.raises(ValueError, match="samples is 512, wanted at least 256 and at most 511"):
        program.run(x=np.zeros((1, 1, 512)))


def test_sizes_by_one_name_are_one_size():
    sizes = OpenSizes({"a": ("n", 3), "b": ("n", "m")})
    assert sizes.closed({"a": ["5", "3"]}, "f").axes == {"a": (5, 3), "b": (5, "m")}
    with pytest.raises(ValueError, match="f: n is one size in the file, got 5 and 6"):
        sizes.closed({"a": ["5", "3"], "b": ["6", "m"]}, "f")


def test_names_of_files_become_names():
    assert named("x:0", 2, None) == "x_0_2" and named("x", 0, None) == "batch"
    assert named("x", 1, "past + 1") == "past_1" and named("x", 3, "?") == "x_3"
    assert words("a=b=1, 2") == ("a=b", ["1", " 2"])


def test_an_open_batch_of_nnp_stays_open(tmp_path):
    x = nn.Variable((4, 3))
    x.name = "x"
    y = PF.affine(x, 2)
    y.name = "y"
    content = {
        "networks": [
            {"name": "net", "batch_size": 4, "outputs": {"y": y}, "names": {"x": x}},
        ],
        "executors": [{"name": "e", "network": "net", "data": ["x"], "output": ["y"]}],
    }
    save(str(tmp_path / "net.nnp"), content)
    assert main(["convert", str(tmp_path / "net.nnp"), str(tmp_path / "net.nnlp")]) == 0
    found = nn.load_program(str(tmp_path / "net.nnlp"))
    for n in (1, 4, 7):
        assert found.run(x=np.ones((n, 3)))["y"].shape == (n, 2)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("kind", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("by", ["scales", "sizes"])
def test_resized_pictures_in_cpp(mode, kind, by, tmp_path):
    """Resize is one kernel at any size, in C++ too, where it had no shape rule."""
    runtime, lib = pytest.importorskip("onnxruntime"), require_library()
    node = helper.make_node
    how = {"mode": mode, "coordinate_transformation_mode": kind, "nearest_mode": "floor"}
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Add", ["shape", "more"], ["size"]),
        node("Resize", ["x", "", *(["scale"] if by == "scales" else ["", "size"])], ["y"], **how),
    ]
    weights = [("more", np.array([0, 0, 3, 5]))]
    if by == "scales":
        nodes, weights = (
            nodes[2:],
            [("scale", np.float32([1, 1, 2, 2 if kind == "align_corners" else 1.5]))],
        )
    pictures = ["batch", 2, "height", "width"]
    saved(tmp_path / "a.onnx", nodes, [("x", pictures)], [("y", [None] * 4)], weights)
    assert main(["convert", str(tmp_path / "a.onnx"), str(tmp_path / "a.nnlp")]) == 0
    session = runtime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    model = lib.Model(str(tmp_path / "a.nnlp"))
    for shape in [(1, 2, 4, 6), (2, 2, 7, 2), (1, 2, 12, 16)]:
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        model.resize("x", shape)
        y = np.frombuffer(model.run({"x": x})["y"], np.float32).reshape(model.shape("y"))
        np.testing.assert_allclose(y, session.run(None, {"x": x})[0], rtol=1e-4, atol=2e-5)


def test_pictures_of_one_cell_may_be_special(tmp_path):
    """Anchors of a detector with strides of 32: at one row or column there is nothing to repeat."""

    def net(x):
        if x.shape[1] % 32:
            raise ValueError("wanted multiples of 32")
        return x + x if x.shape[1] > 32 else x * 2

    path = tmp_path / "a.nnlp"
    nn.save_program(path, net, {"x": nn.Variable((1, 64))}, open={"x": ("n", "size")})
    program = nn.load_program(path)
    assert program["main"].dims["size"].multiple == 32
    for n in (32, 320):
        assert (program.run(x=np.ones((3, n)))["y"] == 2 * np.ones((3, n))).all()
