# SPDX-License-Identifier: Apache-2.0
"""Models that others wrote, imported, written again and run in ONNX Runtime: the official PyTorch
cases of the onnx package, compared with their stored outputs."""

import numpy as np
import pytest

from nnl.core.graph.variable import Variable

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from nnl.converters.onnx import load  # noqa: E402
from nnl.converters.onnx.exporting.exporter import export  # noqa: E402
from nnl.converters.onnx.report import cases  # noqa: E402


def float_graph(case, arrays):
    """The imported model as a graph on Variables; integers stay arrays."""
    inputs = [Variable.from_numpy_array(a) if a.dtype == np.float32 else a for a in arrays]
    outputs = load(case.model)(*inputs)
    return inputs, outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("opset", [20])
@pytest.mark.parametrize("case", list(cases("pytorch-operator")), ids=lambda c: c.name)
def test_imported_model_is_written_with_the_same_outputs(case, opset):
    arrays, wanted = case.data[0]
    inputs, outputs = float_graph(case, arrays)
    recorded = {
        f"y{i}": y
        for i, y in enumerate(outputs)
        if isinstance(y, Variable) and y.edge.node is not None
    }
    if not recorded:
        return  # the model is a constant of its integer inputs
    given = {f"x{i}": x for i, x in enumerate(inputs) if isinstance(x, Variable)}
    model = export(recorded, given, opset=opset, batch=None)
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    runtime = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {i.name: arrays[int(i.name[1:])] for i in runtime.get_inputs()}
    for name, got in zip(recorded, runtime.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, wanted[int(name[1:])], rtol=1e-4, atol=1e-5)
