# SPDX-License-Identifier: Apache-2.0
"""Programs as data: what is damaged is told, by the reader and by `verify`."""

import copy

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import Spec
from nnl.core.graph.node import capture
from nnl.core.ops.op import OPS
from nnl.graph.lowering.lowering import lower
from nnl.graph.program.program import VerifyError, verify
from nnl.graph.program.program_data import Damaged, from_dict, to_dict


def program():
    """%1 affine(%1, %2, %3) -> %4, reshaped -> %5"""
    x, w, b = (nn.Variable(s) for s in ((2, 3), (3, 4), (4,)))
    edge = F.reshape(F.affine(x, w, b), (8,)).edge
    return lower(capture([edge]), {edge.key}, plain={edge.key})[0]


DATA = to_dict(program())


def value(n, **fields):
    def change(data):
        data["values"][n - 1] = [*data["values"][n - 1][:2], {"role": "state", **fields}]

    return change


def step(**fields):
    return lambda data: data["steps"][0].update(fields)


def top(**fields):
    return lambda data: data.update(fields)


def first(*entry):
    def change(data):
        data["values"][0] = entry

    return change


def nested(depth):
    def change(data):
        entry = data["steps"][0]
        for _ in range(depth):
            entry["parts"] = [{k: v for k, v in entry.items() if k != "parts"}]
            entry = entry["parts"][0]

    return change


DAMAGED = [
    (nested(9), "there is no op 'affine'"),
    (value(5, root=77), "value 5 is a view of value 77"),
    (value(4, root=5), "value 4 is a view of value 5"),
    (value(3, copies=77), "value 3 is a copy of value 77"),
    (value(3, copies=2), "value 3 is no copy of value 2"),
    (value(3, root="3"), r"\['3', 0\] are not whole numbers"),
    (value(3, role="guest"), "value 3 has the role 'guest' and the order 'host'"),
    (value(3, order="up"), "value 3 has the role 'state' and the order 'up'"),
    (first("float31", [2, 3]), "value 1 has the unknown type 'float31'"),
    (first("float32", [2, -3]), r"value 1 has the shape \(2, -3\)"),
    (first("float32", [2, 3.0]), r"\[2, 3.0\] are not whole numbers"),
    (first("float32", 3), "its fields are not those of a program"),
    (step(op="afine"), "there is no op 'afine'"),
    (step(ins=[1, 2, 9]), "there is no value 9"),
    (step(outs=[0]), "there is no value 0"),
    (step(writes=[3]), r"affine writes inputs \(3,\) of 3"),
    (step(source=9), "affine has the source 9"),
    (step(parts=3), "its fields are not those of a program"),
    (top(outputs={"y": "5"}), "there is no value '5'"),
    (top(results=[[5, 4]]), "value 4 is not a given one"),
    (top(carries=[[4, 0]]), "value 4 is not a given one"),
    (top(carries=[[3, 5]]), "value 3 gets another shape or type, that of value 5"),
    (top(sources=[["f", "f", "", "float9"]]), "a function has the type configuration 'float9'"),
    (top(values=None), "its fields are not those of a program"),
]


def test_what_is_not_changed_is_read():
    assert to_dict(from_dict(copy.deepcopy(DATA))) == DATA
    verify(from_dict(DATA))
    data = copy.deepcopy(DATA)
    nested(8)(data)
    assert to_dict(from_dict(data))["steps"][0]["parts"]


@pytest.mark.parametrize("change,text", DAMAGED)
def test_the_reader_tells_what_is_damaged(change, text):
    data = copy.deepcopy(DATA)
    change(data)
    with pytest.raises(Damaged, match=text):
        from_dict(data)


def attribute(**fields):
    return lambda p: p.steps[0].attrs.update(fields)


def change_step(n, **fields):
    def change(p):
        for k, v in fields.items():
            setattr(p.steps[n], k, v)

    return change


def shape(n, *size):
    def change(p):
        p.slots[n].spec = Spec.of(size)

    return change


UNSOUND = [
    (change_step(0, op="afine"), "there is no op of that name"),
    (attribute(axis=1), r"has the attributes \{'axis'\} too many, and lacks set\(\)"),
    (lambda p: p.steps[0].attrs.clear(), r"and lacks \{'base_axis'\}"),
    (change_step(0, ins=(1,)), r"has the inputs \(1,\), its op \('x', 'weight', 'bias'\)"),
    (change_step(0, ins=(1, 0, 3)), r"has the inputs \(1, 0, 3\), its op"),
    (change_step(0, writes=(3,)), "writes input 3, which it does not have"),
    (attribute(base_axis=7), "its definition does not take that: affine"),
    (shape(4, 2, 5), r"makes arrays of the shapes \[\(2, 5\)\], its definition \[\(2, 4\)\]"),
    (lambda p: setattr(p.slots[5], "root", 5), "a view of 4 has the root 5"),
    (change_step(1, view=False), "is no view, and makes slot 5 of 4"),
    (
        lambda p: setattr(p.slots[5], "spec", p.slots[5].spec.with_dtype(np.dtype(np.float64))),
        "slot 5 is not as large as its root 4",
    ),
]


@pytest.mark.parametrize("change,text", UNSOUND)
def test_verify_tells_what_cannot_run(change, text):
    """Also where a pass has changed what was sound after the pass before."""
    p, known = program(), {}
    verify(p, known)
    change(p)
    with pytest.raises(VerifyError, match=text):
        verify(p, known)


FUSED = {"code": (0, 0, 0, 0), "outputs": (1,), "constants": (), "shape": ()}


@pytest.mark.parametrize(
    "attrs,text",
    [
        ({"code": (999, 0, 0, 0)}, r"\(999, 0, 0, 0\) is no instruction"),
        ({"code": (0, 0)}, r"\(0, 0\) is no instruction"),
        ({"code": (0, 3, 0, 0)}, "copy reads the value 3 of 1"),
        ({"code": (0, -1, 0, 0)}, "copy reads the value -1 of 1"),
        ({"outputs": ()}, r"outputs are \(\) of 2 values"),
        ({"outputs": (5,)}, r"outputs are \(5,\) of 2 values"),
        ({"reductions": (4,)}, r"reductions is \(4,\)"),
        ({"scales": (1.0, 2.0)}, r"scales is \(1.0, 2.0\), wanted one for each of 1 outputs"),
        ({"shape": (5, 2)}, "do not stretch to one shape"),
    ],
)
def test_a_fused_chain_tells_what_is_no_program(attrs, text):
    found = OPS["fused_elementwise"].attrs(**{**FUSED, **attrs})
    with pytest.raises(ValueError, match=f"fused_elementwise: .*{text}"):
        found.infer(Spec.of((2, 3)))
