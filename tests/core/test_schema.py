# SPDX-License-Identifier: Apache-2.0
"""The schema: plain data that agrees with what ops do."""

import inspect
import json

import numpy as np
import pytest

import nnl as nn
from nnl.core.graph.dispatch import apply
from nnl.core.ops.elementwise import program_of
from nnl.core.ops.op import OPS
from nnl.functions.fused.elementwise import CODES
from nnl.graph.program.program import LIBRARY_OPS

SCHEMA = nn.schema()
KINDS = {
    "int": int, "float": (int, float), "bool": bool, "str": str, "tuple[int, ...]": list,
    "tuple[float, ...]": list,
}  # fmt: skip


def test_it_is_plain_data():
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


def test_it_has_every_op_with_a_line_of_its_docstring():
    assert set(SCHEMA["ops"]) == set(OPS)
    assert all(e["doc"] and e["category"] for e in SCHEMA["ops"].values())


def test_ops_are_in_the_category_of_their_module_or_package():
    ops = SCHEMA["ops"]
    assert ops["max_pooling"]["category"] == "Layer"
    assert ops["adam_update"]["category"] == "Update"
    assert ops["convolution_fused"]["category"] == "Fused"


def test_defaults_have_the_type_that_is_stated():
    for name, attribute in [(n, a) for n in OPS for a in SCHEMA["ops"][n]["attributes"]]:
        kind, optional = attribute["type"].removesuffix(" | None"), " | None" in attribute["type"]
        if attribute["required"] or kind == "object":
            continue
        default = attribute["default"]
        assert (optional and default is None) or isinstance(default, KINDS[kind]), name


def test_what_stands_there_is_what_a_call_takes():
    """A convolution, an update and a random function, read from the schema alone."""
    entry = SCHEMA["ops"]["convolution"]
    assert [i["name"] for i in entry["inputs"]] == ["x", "weight", "bias"]
    assert [i["optional"] for i in entry["inputs"]] == [False, False, True]
    assert entry["nnp"] == "Convolution" and entry["differentiable"]
    update = SCHEMA["ops"]["momentum_update"]
    assert update["writes"] == ["w", "m", "t"] and update["view"]
    dropout = SCHEMA["ops"]["dropout"]
    assert dropout["random"] and dropout["inputs"][-1]["dtype"] == "any"
    assert SCHEMA["ops"]["softmax_cross_entropy"]["inputs"][1]["dtype"] == "integer"
    assert SCHEMA["ops"]["batch_normalization"]["outputs"][1]["hidden"]
    assert SCHEMA["ops"]["normalization_backward"]["zeros"] == ["gmean", "gvariance"]
    assert SCHEMA["ops"]["convolution_fused"]["extends"] == "convolution"
    assert SCHEMA["ops"]["relu"]["follows_order"] and not SCHEMA["ops"]["affine"]["follows_order"]


ELEMENTWISE = [n for n, e in SCHEMA["ops"].items() if e["elementwise"]]


SINGLE = {"quantize_linear"}  # rounds by what float32 cannot hold; plans fuse no wider type


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_program_of_an_op_computes_what_the_op_does(name):
    """In float64, but for SINGLE: the codes are numpy functions, the op is its own definition."""
    op = OPS[name]
    fused = OPS["fused_elementwise"]
    ran = 0
    for sample in op.attrs_class.samples(np.random.default_rng(0)):
        x = [np.asarray(a) for a in sample.inputs]
        if x[0].dtype.kind != "f":
            continue  # programs are for floating-point numbers
        x = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in x]
        attrs = op.attrs(**sample.attrs)
        with nn.context_scope(nn.Context(["numpy:double"])), nn.auto_forward():
            variables = [nn.Variable.from_numpy_array(a) for a in x]
            if op.has_resolve:
                attrs = op._resolve(attrs, tuple(variables))
            want = apply(op, attrs, tuple(variables)).d
        found = program_of(name, attrs.as_dict(), [a.shape for a in x])
        assert found is not None
        rank = want.ndim
        shapes = [n for s in found.shapes for n in (1,) * (rank - len(s)) + s]
        program = fused.attrs(
            code=found.code, constants=found.constants, shapes=tuple(shapes), shape=want.shape,
            outputs=(len(x) + len(found.code) // 4 - 1,),
        )  # fmt: skip
        with np.errstate(all="ignore"):
            kind = np.float32 if name in SINGLE else np.float64
            (got,) = program.forward(np, *[a.astype(kind) for a in x])
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-12, err_msg=str(attrs))
        ran += 1
    assert ran


def test_the_codes_are_those_that_are_defined():
    assert [name for name, _ in SCHEMA["codes"]] == list(CODES)


def test_ops_that_only_a_library_defines_are_few():
    assert LIBRARY_OPS == {"pack_convolution", "pack_weights"}


def test_every_op_tells_its_signature():
    for name, op in OPS.items():
        shown = list(inspect.signature(op).parameters)
        assert set(op.fields) < {*shown, None} and repr(op).startswith(f"<op {name}("), name
