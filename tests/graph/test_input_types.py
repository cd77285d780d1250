# SPDX-License-Identifier: Apache-2.0
"""Inputs of saved programs and ONNX files: the types that the context computes in."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF


def given(value):
    return nn.Variable.from_numpy_array(np.asarray(value))


def saved(tmp_path, y, inputs):
    nn.save_program(tmp_path / "a.nnlp", {"y": y}, inputs)
    return nn.load_program(tmp_path / "a.nnlp")


FLOATS = np.random.default_rng(0).random((2, 3))  # float64, as numpy makes them


@pytest.mark.parametrize("value", [FLOATS, np.arange(6).reshape(2, 3)])
@pytest.mark.parametrize(
    "network",
    [
        lambda x: x + 1,
        lambda x: F.reshape(x, (6,)) * 2,
        lambda x: F.concatenate(x, F.reshape(F.reshape(x, (6,)), (2, 3)), F.tanh(x)),
        lambda x: F.reshape(F.transpose(x, (1, 0)), (6,)),
        lambda x: PF.affine(x, 3),
    ],
)
def test_an_input_in_a_default_type_of_numpy_takes_floats(tmp_path, value, network):
    x = given(value)
    y = network(x)
    y.forward()
    programs = saved(tmp_path, y, {"x": x})
    assert programs.inputs("main")["x"].dtype == np.float32
    assert " = cast(" not in programs["main"].text()
    assert programs.run(x=value)["y"].tobytes() == y.d.tobytes()
    assert x.data.spec.dtype == value.dtype  # the Variable keeps what it was given


def test_labels_take_whole_numbers_and_other_readers_floats(tmp_path):
    x, t = given(FLOATS), given(np.zeros((2, 1)))
    programs = saved(tmp_path, F.softmax_cross_entropy(x, t), {"x": x, "t": t})
    assert programs.inputs("main")["t"].dtype == np.int64
    both = saved(tmp_path, F.softmax_cross_entropy(x, t) * t, {"x": x, "t": t})
    assert both.inputs("main")["t"].dtype == np.float32
    want = np.log(np.exp(FLOATS).sum(1, keepdims=True)) - FLOATS[:, 1:2]
    assert np.allclose(both.run(x=FLOATS, t=np.ones((2, 1)))["y"], want, atol=1e-6)


def test_other_types_and_what_is_handed_on_stay(tmp_path):
    pixels = given(np.zeros((2, 3), np.uint8))
    assert saved(tmp_path, pixels / 255, {"x": pixels}).inputs("main")["x"].dtype == np.uint8
    x = given(FLOATS)
    assert saved(tmp_path, F.reshape(x, (6,)), {"x": x}).outputs("main")["y"].dtype == np.float64
    counter = given(np.arange(3))
    kept = saved(tmp_path, F.identity(counter) + counter * 2, {"x": counter})
    assert kept.run(x=np.arange(3))["y"].tolist() == [0, 3, 6]


def test_a_recorded_function_takes_floats(tmp_path):
    twice = nn.compile(lambda x: F.tanh(x) * 2)
    want = twice(nn.NdArray.from_numpy_array(FLOATS)).d
    twice.save(tmp_path / "f.nnlp")
    programs = nn.load_program(tmp_path / "f.nnlp")
    (name,) = programs
    assert [s.dtype for s in programs.inputs(name).values()] == [np.float32]
    (x,) = programs.inputs(name)
    (y,) = programs.run(name, **{x: FLOATS}).values()
    assert y.tobytes() == want.tobytes()


def test_onnx_files_take_floats_and_whole_numbers(tmp_path):
    pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    from nnl.converters.onnx import export

    x, t = given(FLOATS), given(np.zeros((2, 1)))
    y = F.softmax_cross_entropy(PF.affine(x, 4), t)
    y.forward()
    model = export({"y": y}, {"x": x, "t": t}).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert [i.type for i in session.get_inputs()] == ["tensor(float)", "tensor(int64)"]
    found = session.run(None, {"x": FLOATS.astype("f4"), "t": np.zeros((2, 1), np.int64)})
    assert np.allclose(found[0], y.d, atol=1e-6)
