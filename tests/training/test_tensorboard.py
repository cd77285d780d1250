# SPDX-License-Identifier: Apache-2.0
"""Graphs in event files, read back with tensorboardX's own messages."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.monitor import (
    Monitor,
    MonitorImage,
    MonitorImageTile,
    MonitorSeries,
    MonitorTimeElapsed,
)


def test_without_tensorboardx_the_error_says_what_to_install(monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "nnl.nnabla.tensorboard", raising=False)
    monkeypatch.delitem(sys.modules, "nnl.experimental.tb_graph_writer", raising=False)
    with pytest.raises(ModuleNotFoundError, match="pip install tensorboardX"):
        import nnl.experimental.tb_graph_writer  # noqa: F401


def events(folder: Path) -> list:
    """The events in the event files of a folder."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    found = []
    for file in sorted(folder.glob("events*")):
        content, at = file.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            body, sums = content[at + 12 : at + 12 + size], (at + 8, at + 12 + size)
            for part, place in zip((content[at : at + 8], body), sums, strict=True):
                assert struct.unpack_from("<I", content, place)[0] == masked_crc32c(part)
            found.append(Event.FromString(body))
            at += 12 + size + 4
    return found


def graphs(folder: Path) -> list:
    from tensorboardX.proto.graph_pb2 import GraphDef

    found = [e.graph_def for e in events(folder) if e.HasField("graph_def")]
    return [GraphDef.FromString(g) for g in found]


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


def test_monitors_write_an_event_file(tmp_path) -> None:
    pytest.importorskip("tensorboardX")
    monitor = Monitor(str(tmp_path), tensorboard=True)
    series = MonitorSeries("train/loss of it", monitor, interval=2, verbose=False)
    clock = MonitorTimeElapsed("time", monitor, interval=2, verbose=False)
    pictures = MonitorImage("noise", monitor, interval=4, verbose=False, num_images=2)
    tiles = MonitorImageTile("tiles", monitor, interval=9, verbose=False)
    batch = np.random.default_rng(0).random((3, 1, 5, 200))
    for i in range(4):
        series.add(i, np.nan if i == 3 else 0.5 * i)
        clock.add(i)
        pictures.add(i, batch)
    tiles.add(0, batch)
    MonitorSeries("large", monitor, verbose=False).add(0, -1e50)
    found = events(tmp_path)
    assert found[0].file_version == "brain.Event:2" and abs(time.time() - found[0].wall_time) < 60
    values = [(e.step, v) for e in found for v in e.summary.value]
    loss = [(n, v.simple_value) for n, v in values if v.tag == "train/loss of it"]
    np.testing.assert_array_equal(loss, [(1, 0.25), (3, np.nan)])
    assert [v.simple_value for _, v in values if v.tag == "large"] == [-np.inf]
    assert [n for n, v in values if v.tag == "time" and 0 <= v.simple_value < 10] == [1, 3]
    images = [(n, v.tag, v.image) for n, v in values if v.HasField("image")]
    wanted = [(0, "noise/0"), (0, "noise/1"), (3, "noise/0"), (3, "noise/1"), (0, "tiles")]
    assert [(n, tag) for n, tag, _ in images] == wanted
    assert (images[0][2].height, images[0][2].width, images[4][2].height) == (5, 200, 12)
    file = tmp_path / "noise" / "000003-001.png"
    assert images[3][2].encoded_image_string == file.read_bytes()
    assert not list(tmp_path.glob("*/events*"))


def test_without_being_asked_there_is_no_event_file(tmp_path) -> None:
    MonitorSeries("loss", Monitor(str(tmp_path)), verbose=False).add(0, 1.0)
    assert [p.name for p in tmp_path.iterdir()] == ["loss.series.txt"]
