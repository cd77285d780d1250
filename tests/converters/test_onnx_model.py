# SPDX-License-Identifier: Apache-2.0
"""The typed view of ONNX files, and that damaged and hostile files end in a clear error."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nnl.converters.onnx.file import operators  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator  # noqa: E402
from nnl.converters.onnx.file.model import EmptyVisitor, StrictVisitor  # noqa: E402
from nnl.converters.onnx.file.reader import read  # noqa: E402


def value(name, shape=None, code=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, code, shape)


def model(nodes, inputs=("x",), outputs=("y",), weights=None, opset=20, **kw):
    graph = helper.make_graph(
        nodes,
        "g",
        [value(n) for n in inputs],
        [value(n) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *kw.pop("domains", ())]
    return helper.make_model(graph, opset_imports=imports, ir_version=9, **kw)


def conv():
    w = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "first", kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    return model(nodes, weights={"w": w}), w


def test_importing_nnl_does_not_import_onnx():
    code = "import nnl, nnl.converters, nnl.converters.onnx, sys; print('onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_missing_onnx_package_is_named():
    code = "import sys; sys.modules['onnx'] = None; from nnl.converters.onnx import load"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = "load needs the package onnx: pip install 'nnl[onnx]' (documentation: start/install#"
    assert said in done.stderr


def test_attributes_inputs_and_outputs_are_typed_members():
    node = read(conv()[0].SerializeToString()).graph.nodes[0]
    assert type(node) is operators.operator_class("Conv", 20)
    assert (node.op_type, node.name, node.since) == ("Conv", "first", 11)
    assert node.kernel_shape == (3, 3) and node.pads == (1, 1, 1, 1)
    assert node.group == 1 and node.auto_pad == "NOTSET" and node.strides is None  # defaults
    assert (node.i_X, node.i_W, node.i_B, node.o_Y) == ("x", "w", "", "h")


def test_operator_classes_carry_the_documentation_of_onnx():
    assert "consumes an input tensor and a filter" in operators.Conv.__doc__
    assert operators.Conv.__annotations__["kernel_shape"] == "tuple[int, ...]"
    assert "SAME_UPPER" in operators.Conv.auto_pad.__doc__


def test_factories_check_names_types_and_numbers():
    node = operators.Conv("x", "w", outputs="y", kernel_shape=[3, 3])
    assert node.kernel_shape == (3, 3) and node.outputs == ("y",)
    with pytest.raises(OnnxError, match=r"node Conv 'y': Conv-\d+ has no attribute 'kernel'"):
        operators.Conv("x", "w", outputs="y", kernel=3)
    with pytest.raises(OnnxError, match=r"group is 'two', wanted int"):
        operators.Conv("x", "w", outputs="y", group="two")
    with pytest.raises(OnnxError, match="has 1 inputs, wanted 2 to 3"):
        operators.Conv("x", outputs="y")
    with pytest.raises(OnnxError, match=r"Cast-\d+ needs the attribute 'to'"):
        operators.Cast("x", outputs="y")


def test_the_class_of_an_operator_follows_the_version():
    assert operators.operator_class("Softmax", 12).since == 11
    assert operators.operator_class("Softmax", 12)("x", outputs="y").axis == 1
    assert operators.operator_class("Softmax", 13)("x", outputs="y").axis == -1
    with pytest.raises(UnsupportedOperator, match="no operator 'Conf' in version 20"):
        operators.operator_class("Conf", 20)


def test_nodes_are_put_in_topological_order():
    nodes = [
        helper.make_node("Relu", ["b"], ["y"]),
        helper.make_node("Abs", ["a"], ["b"]),
        helper.make_node("Neg", ["x"], ["a"]),
    ]
    graph = read(model(nodes)).graph
    assert [n.op_type for n in graph.nodes] == ["Neg", "Abs", "Relu"]


def test_weights_are_views_of_the_bytes_of_the_file(tmp_path):
    proto, w = conv()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    array = read(path).graph.initializers["w"]
    np.testing.assert_array_equal(array, w)
    assert array.base is not None and not array.flags.owndata and not array.flags.writeable


def test_external_data_is_read_from_the_folder_of_the_model(tmp_path):
    proto, w = conv()
    onnx.save(
        proto,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    np.testing.assert_array_equal(read(tmp_path / "m.onnx").graph.initializers["w"], w)


@pytest.mark.parametrize(
    "location", ("../secret.bin", "/etc/passwd", "a/../../secret.bin", "..\\secret.bin", "")
)
def test_external_data_outside_of_the_folder_is_refused(location, tmp_path):
    (tmp_path / "secret.bin").write_bytes(b"\0" * 432)
    proto, _ = conv()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(OnnxError, match=r"m\.onnx: tensor 'w' lies in the file"):
        read(folder / "m.onnx")


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "secret.bin").write_bytes(b"\0" * 432)
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "w.bin").symlink_to(tmp_path / "secret.bin")
    proto, _ = conv()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(OnnxError, match="a link that leaves the model's folder"):
        read(folder / "m.onnx")


@pytest.mark.parametrize(("offset", "length"), ((400, 432), (-1, 10), (0, 10**15), (0, 16)))
def test_external_data_beyond_its_file_is_refused(offset, length, tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\0" * 432)
    proto, _ = conv()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, number in (("location", "w.bin"), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(number))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(OnnxError, match=r"tensor 'w' is (bytes|float32)"):
        read(tmp_path / "m.onnx")


def test_every_truncation_of_a_file_is_an_error_or_a_model():
    data = conv()[0].SerializeToString()
    for end in range(0, len(data) - 1, 7):
        with pytest.raises(OnnxError):
            read(data[:end])


def test_a_file_of_something_else_is_no_model(tmp_path):
    path = tmp_path / "a.onnx"
    path.write_bytes(b"PK\x03\x04 this is no model")
    with pytest.raises(OnnxError, match=r"a\.onnx: .*(not an ONNX|truncated or damaged)"):
        read(path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.onnx")
    with pytest.raises(TypeError, match="source is int, wanted a path, bytes or ModelProto"):
        read(3)


def test_sizes_that_lie_are_refused_before_memory_is_touched():
    proto, _ = conv()
    proto.graph.initializer[0].dims[0] = 2**50
    with pytest.raises(OnnxError, match="tensor 'w' has the shape"):
        read(proto)
    proto.graph.initializer[0].dims[0] = 5
    with pytest.raises(
        OnnxError, match=r"float32\[5, 3, 3, 3\], which is 540 bytes, and holds 432"
    ):
        read(proto)
    proto.graph.initializer[0].dims[0] = -1
    with pytest.raises(OnnxError, match="sizes must be >= 0"):
        read(proto)
    proto.graph.initializer[0].data_type = 99
    with pytest.raises(OnnxError, match="element type 99, which ONNX does not define"):
        read(proto)


def test_a_cycle_is_named():
    nodes = [helper.make_node("Add", ["x", "y"], ["a"]), helper.make_node("Abs", ["a"], ["y"])]
    with pytest.raises(OnnxError, match="node Add 'a': is part of a cycle"):
        read(model(nodes))


def test_two_makers_of_one_value_are_named():
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"], "two")]
    with pytest.raises(OnnxError, match="node Abs 'two': makes the value 'y', which node Neg 'y'"):
        read(model(nodes))


def test_a_value_from_nowhere_is_named():
    with pytest.raises(OnnxError, match="node Neg 'y': reads the value 'z', which nothing makes"):
        read(model([helper.make_node("Neg", ["z"], ["y"])]))
    with pytest.raises(OnnxError, match="the output 'y' of graph 'g' is made by nothing"):
        read(model([helper.make_node("Neg", ["x"], ["a"])]))


def test_deep_nesting_is_an_error_and_no_crash():
    def field(number, payload):  # length-delimited, of a protobuf message
        size, out = len(payload), bytearray([number << 3 | 2])
        while size > 127:
            out.append(size & 127 | 128)
            size >>= 7
        return bytes(out) + bytes([size]) + payload

    graph = b""
    for _ in range(500):
        graph = field(1, field(5, field(6, graph)))  # graph: node: attribute: graph
    with pytest.raises(OnnxError, match="not an ONNX model, or a damaged one"):
        read(field(7, graph))


def test_the_strict_visitor_names_what_it_does_not_know():
    class Counter(EmptyVisitor):
        seen = 0

        def visit_Conv(self, node):
            self.seen += 1

    class Strict(StrictVisitor):
        def visit_Conv(self, node):
            pass

    view = read(conv()[0])
    counter = Counter()
    counter.visit(view)
    assert counter.seen == 1
    with pytest.raises(UnsupportedOperator, match="Strict knows no operator 'Relu' of the domain"):
        Strict().visit(view)


def test_unknown_operators_are_read_with_their_attributes():
    node = helper.make_node("Magic", ["x"], ["y"], domain="com.example", power=3)
    view = read(model([node], domains=[helper.make_opsetid("com.example", 2)]))
    (found,) = view.graph.nodes
    assert isinstance(found, operators.UnknownNode)
    assert (found.domain, found.op_type, found.attributes) == ("com.example", "Magic", {"power": 3})
    with pytest.raises(
        UnsupportedOperator, match="no operator 'Magic' of the domain 'com.example'"
    ):
        StrictVisitor().visit(view)


def test_inputs_that_are_initializers_are_not_needed():
    proto, _ = conv()
    proto.graph.input.append(value("w", (4, 3, 3, 3)))  # as in files of IR 3
    assert [v.name for v in read(proto).graph.needed_inputs] == ["x"]


def test_symbolic_and_unknown_sizes_are_told_apart():
    proto = model([helper.make_node("Neg", ["x"], ["y"])])
    proto.graph.input[0].CopyFrom(value("x", ("N", 3, None)))
    (info,) = read(proto).graph.inputs
    assert info.shape == ("N", 3, None) and info.dtype == np.float32


def test_a_printed_model_shows_its_nodes_and_no_weights():
    nodes = [helper.make_node("Constant", [], ["y"], value_float=2.0)]
    assert repr(read(model(nodes, inputs=())).graph.nodes) == "[Constant(value_float=2.0) -> y]"
    text = repr(read(conv()[0].SerializeToString()))
    assert "Conv(x, w, kernel_shape=(3, 3), pads=(1, 1, 1, 1)) -> h" in text
    assert "initializers" not in text and "array" not in text


def test_a_visitors_own_methods_are_no_operators():
    unknown = model([helper.make_node("node", ["x"], ["y"])])
    EmptyVisitor().visit(read(unknown))
    with pytest.raises(UnsupportedOperator, match="StrictVisitor knows no operator 'node'"):
        StrictVisitor().visit(read(unknown))


def test_names_of_the_package_are_listed():
    from nnl.converters import onnx as package

    assert {"load", "save", "read", "StrictVisitor"} <= set(dir(package))
