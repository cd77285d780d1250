# SPDX-License-Identifier: Apache-2.0
"""Every function with a type in .nnp files comes back from a file with the same outputs."""

from __future__ import annotations

import io

import numpy as np
import pytest

import nnl as nn
from nnl.converters.nnp.function_messages import argument_field, op_of_type
from nnl.converters.nnp.messages import messages
from nnl.converters.nnp.network_reader import LoadedNetwork
from nnl.converters.nnp.reader import load
from nnl.converters.nnp.writer import save
from nnl.core.graph.variable import Variable, forward_all
from nnl.core.ops.op import OPS
from tests.test_derived import each_sample, samples

WIDER = tuple(n for n in OPS if n.endswith(("_with_statistics", "_with_u")))
CASES = [
    pytest.param(op, i, id=f"{op.name}-{i}")
    for op in OPS.values()
    if (op.nnp or op.name in WIDER) and hasattr(op.attrs_class, "samples")
    for i in range(len(samples(op)))
]
# What the file does not say: the attribute is read from the data, or from the inputs.
KIND = {
    "int64": "int",
    "float": "float",
    "double": "float",
    "bool": "bool",
    "string": "str",
    "Shape": "tuple[int, ...]",
}


def graph(op, i):
    """Inputs by name, outputs by name, of sample i as a static graph."""
    sample = samples(op)[i]
    arrays = [None if a is None else np.asarray(a) for a in sample.inputs]
    xs = [
        None
        if a is None
        else Variable.from_numpy_array(a.astype(np.float32) if a.dtype.kind == "f" else a)
        for a in arrays
    ]
    more = {"output_u": True} if op.name.endswith("_with_u") else {}
    y = op(*xs, **sample.attrs, **more)
    ys = y if isinstance(y, tuple) else (y,)
    inputs = {f"x{k}": x for k, x in enumerate(xs) if x is not None}
    return inputs, {f"y{k}": y for k, y in enumerate(ys)}


def through_file(inputs, outputs, extension=".nntxt") -> LoadedNetwork:
    file = io.BytesIO()
    network = {"name": "n", "batch_size": 1, "names": inputs, "outputs": outputs}
    save(file, {"networks": [network]}, variable_batch_size=False, extension=extension)
    return load(io.BytesIO(file.getvalue()), extension=extension).networks["n"]


@each_sample(CASES)
def test_a_function_comes_back_from_a_file(op, i):
    inputs, outputs = graph(op, i)
    network = through_file(inputs, outputs, ".nntxt" if i % 2 == 0 else ".protobuf")
    before = {k: v.d.copy() for k, v in inputs.items()}
    for name, value in before.items():
        network.variables[name].variable_instance.d = value
    nn.seed(3)
    forward_all(list(outputs.values()))
    nn.seed(3)
    loaded = {k: network.variables[k].variable_instance for k in outputs}
    forward_all(list(loaded.values()))
    for k, y in outputs.items():
        assert loaded[k].shape == y.shape
        np.testing.assert_array_equal(loaded[k].d, y.d)
    for k, x in inputs.items():  # running statistics are written alike
        np.testing.assert_array_equal(network.variables[k].variable_instance.d, x.d)
    ours, theirs = next(iter(outputs.values())).parent, next(iter(loaded.values())).parent
    if ours is not None:
        assert theirs.node.op is ours.node.op
        floats = {k: v for k, v in ours.args.items() if isinstance(v, float)}
        assert {k: v for k, v in theirs.args.items() if k not in floats} == {
            k: v for k, v in ours.args.items() if k not in floats
        }
        for k, v in floats.items():
            assert np.float32(theirs.args[k]) == np.float32(v)


@pytest.mark.parametrize("op", [pytest.param(o, id=o.name) for o in OPS.values() if o.nnp])
def test_arguments_have_nnablas_names_and_types(op):
    field = argument_field().get(op.nnp)
    ours = {
        f: k.removesuffix(" | None")
        for f, k in zip(op.fields, op.kinds, strict=True)
        if f != "count"
    }
    if field is None:
        assert ours == {}
        return
    group = messages()["Function"].DESCRIPTOR.fields_by_name[field].message_type
    assert [f.name for f in group.fields if f.name not in ours] == []
    assert set(ours) == {f.name for f in group.fields}
    for f in group.fields:
        if f.message_type is not None:
            kind = KIND[f.message_type.name]
        else:
            kind = {
                f.TYPE_INT64: "int",
                f.TYPE_FLOAT: "float",
                f.TYPE_DOUBLE: "float",
                f.TYPE_BOOL: "bool",
                f.TYPE_STRING: "str",
            }[f.type]
            repeated = type(getattr(messages()[group.name](), f.name)).__name__
            if repeated == "RepeatedScalarContainer":
                kind = f"tuple[{kind}, ...]"
        assert ours[f.name] == kind, f.name


def test_every_type_has_one_op():
    assert len(op_of_type()) == sum(bool(op.nnp) for op in OPS.values())


def test_all_messages_are_there_with_nnablas_numbers():
    table = messages()
    assert len(table) == 207
    numbers = {f.name: f.number for f in table["Function"].DESCRIPTOR.fields}
    assert numbers["affine_param"] == 1001 and numbers["dropout_param"] == 1173
    assert len(table["Function"].DESCRIPTOR.oneofs_by_name["parameter"].fields) == 156
    solvers = {f.name: f.number for f in table["Solver"].DESCRIPTOR.fields}
    assert solvers["sgd_param"] == 100 and solvers["lion_param"] == 117
