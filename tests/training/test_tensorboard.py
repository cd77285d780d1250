# SPDX-License-Identifier: Apache-2.0
"""Graphs in event files, read back with tensorboardX's own messages."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF


def test_without_tensorboardx_the_error_says_what_to_install(monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "nnl.nnabla.tensorboard", raising=False)
    monkeypatch.delitem(sys.modules, "nnl.experimental.tb_graph_writer", raising=False)
    with pytest.raises(ModuleNotFoundError, match="pip install tensorboardX"):
        import nnl.experimental.tb_graph_writer  # noqa: F401


def graphs(folder: Path) -> list:
    """The graphs in the event files of a folder."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.graph_pb2 import GraphDef

    found = []
    for file in folder.iterdir():
        content, at = file.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + size])
            at += 12 + size + 4
            if event.HasField("graph_def"):
                found.append(GraphDef.FromString(event.graph_def))
    return found


def test_a_variable_s_graph_is_written_in_scopes(tmp_path) -> None:
    pytest.importorskip("tensorboardX")
    from nnl.experimental.tb_graph_writer import TBGraphWriter

    nn.clear_parameters()
    x = nn.Variable((2, 3, 4, 4))
    with nn.parameter_scope("c1"):
        h = F.relu(PF.convolution(x, 8, (3, 3), pad=(1, 1)))
    with nn.parameter_scope("f1"):
        y = PF.affine(h + h, 10)
    with TBGraphWriter(log_dir=str(tmp_path)) as tb:
        tb.from_variable(y, output_name="y")
        tb.add_scalar("loss", 1.0, 0)
    (graph,) = graphs(tmp_path)
    nodes = {n.name: n for n in graph.node}
    assert len(nodes) == len(graph.node)
    assert list(nodes["c1/conv/Convolution_0"].input) == ["Input_0", "c1/conv/W", "c1/conv/b"]
    assert nodes["c1/conv/Convolution_0"].op == "Convolution"
    assert b"pad=[1, 1]" in nodes["c1/conv/Convolution_0"].attr["parameters"].s
    assert list(nodes["c1/conv/v_Convolution_0_0"].input) == ["c1/conv/Convolution_0"]
    assert list(nodes["Add2_0"].input) == ["v_ReLU_0_0"] * 2
    assert list(nodes["y"].input) == ["f1/affine/Affine_0"]
    assert [d.size for d in nodes["y"].attr["shape"].shape.dim] == [2, 10]
    nn.clear_parameters()


def test_a_network_as_data_is_written(tmp_path) -> None:
    pytest.importorskip("tensorboardX")
    from nnl.experimental.tb_graph_writer import TBGraphWriter

    nn.clear_parameters()
    with nn.graph_def.graph(name="net") as g:
        PF.affine(F.relu(nn.ProtoVariable((2, 3), name="x")), 4, name="fc")
    with TBGraphWriter(log_dir=str(tmp_path)) as tb:
        tb.from_graph_def(g)
    (graph,) = graphs(tmp_path)
    assert sorted(n.op for n in graph.node) == ["Affine", "ReLU", *["Variable"] * 5]
    affine = next(n for n in graph.node if n.op == "Affine")
    made = {n.name for n in graph.node if n.op == "Variable"}
    assert set(affine.input) < made
    nn.clear_parameters()
