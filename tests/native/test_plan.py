# SPDX-License-Identifier: Apache-2.0
"""Errors of the Python face of the library, and of plans."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.graph.node import capture
from nnl.graph.plan.plan import Plan
from nnl.graph.program.program import Step
from tests.native.kernels import require_library

SPEC = ((2, 3), 0, False)


def test_a_kernel_belongs_to_one_plan():
    k = require_library().kernel("softmax", {"axis": 1}, [SPEC], [SPEC])
    plan = require_library().Plan([-1, -1, -1], 0)
    plan.add("softmax", k, [1], [2], -1)
    with pytest.raises(ValueError, match="this kernel belongs to a plan already"):
        plan.add("softmax", k, [1], [2], -1)
    with pytest.raises(ValueError, match="this kernel belongs to a plan already"):
        _ = k.workspace


@pytest.mark.parametrize(
    "inputs,text",
    [
        ([[1.0]], "an input is not a numpy array"),
        ([], "wrong number of arrays"),
        ([np.ones((3, 3), np.float32)], r"input 0 is not float32\[2, 3\]"),
        ([np.ones((2, 3))], r"input 0 is not float32\[2, 3\]"),
    ],
)
def test_a_kernel_refuses_what_it_was_not_made_for(inputs, text):
    lib, f32 = require_library(), np.dtype(np.float32)
    call = lib.array_kernel("softmax", {"axis": 1}, [SPEC], [SPEC], [f32])
    with pytest.raises(ValueError, match=text):
        call(*inputs)


def test_attributes_are_numbers_texts_and_sequences_of_numbers():
    with pytest.raises(ValueError, match="an attribute is neither number, text nor a sequence"):
        require_library().kernel("softmax", {"inplace": object()}, [SPEC], [SPEC])


def test_a_step_without_kernel_and_definition_is_an_error(monkeypatch):
    x = nn.Variable.from_numpy_array(np.ones((2, 3), np.float32))
    y = F.relu(x)

    def lose(program, lib, begin):
        (old,) = program.steps
        program.steps = [Step("no_such_kernel", {}, old.ins, old.outs)]

    require_library()
    monkeypatch.setattr("nnl.graph.plan.plan.optimise", lose)
    with pytest.raises(NotImplementedError, match="has neither a kernel nor a definition"):
        Plan(capture([y.edge]), {y.edge.key})
