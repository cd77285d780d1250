# SPDX-License-Identifier: Apache-2.0
"""Formulas of element-wise programs: Python computes from them what the program computes."""

import re

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.ops.elementwise import ARITY, Writer, formula
from nnl.functions.fused.elementwise import CODES

RNG = np.random.default_rng(313)


def known(inputs):
    """What a formula may name."""
    calls = {n: lambda *x, code=code: code(np, *x) for n, code in CODES.items()}
    return {"sqrt": np.sqrt, "abs": np.abs, **calls, **inputs}


def evaluated(writer, inputs, output):
    """The value of the formula for arrays by name."""
    (text,), shared = formula(writer.code, writer.constants, list(inputs), [output])
    names = known(inputs)
    for one in shared:
        name, _, value = one.partition(" = ")
        names[name] = eval(value, {}, names)
    return text, shared, eval(text, {}, names)


@pytest.mark.parametrize("name", sorted(ARITY))
def test_every_code_is_written_as_what_it_computes(name):
    n = ARITY[name]
    inputs = {f"x{i}": RNG.uniform(0.1, 0.9, 4) + (name == "acosh") for i in range(n)}
    writer = Writer([()] * n)
    y = writer(name, *range(n))
    *_, value = evaluated(writer, inputs, y)
    np.testing.assert_allclose(value, CODES[name](np, *inputs.values()), rtol=1e-12)


# What binds otherwise than it is written, if brackets are left out.
NESTED = ["add", "subtract", "multiply", "divide", "negative", "square", "power", "multiply_add",
          "inverse", "inverse_root", "greater", "squared_difference", "root", "tanh"]  # fmt: skip


@pytest.mark.parametrize("outer", NESTED)
def test_brackets_are_where_they_are_needed(outer):
    for inner in NESTED:
        if inner == "greater" and outer in ("negative", "tanh"):
            continue  # not of a bool, in numpy
        for place in range(ARITY[outer]):
            inputs = {f"x{i}": RNG.uniform(0.1, 0.9, 4) for i in range(3)}
            writer = Writer([()] * 3)
            h = writer(inner, 2, 1, 0)
            operands = [writer.number(-0.5), 0, 1][: ARITY[outer]]
            operands[place] = h
            y = writer(outer, *operands)
            x = list(inputs.values())
            hidden = CODES[inner](np, *[x[2], x[1], x[0]][: ARITY[inner]])
            values = [-0.5, x[0], x[1]][: ARITY[outer]]
            values[place] = hidden * 1.0
            with np.errstate(invalid="ignore", divide="ignore"):
                text, _, value = evaluated(writer, inputs, y)
                wanted = CODES[outer](np, *values)
            np.testing.assert_allclose(value, wanted, rtol=1e-12, err_msg=text)


def test_what_is_used_twice_has_a_name():
    writer = Writer([()])
    t = writer("tanh", 0)
    y = writer("multiply", t, writer("subtract", writer.number(1.0), t))
    text, shared, value = evaluated(writer, {"a": np.array(0.5)}, y)
    assert text == "t1 * (1 - t1)" and shared == ["t1 = tanh(a)"]
    np.testing.assert_allclose(value, np.tanh(0.5) * (1 - np.tanh(0.5)))


def test_programs_show_formulas_in_place_of_numbers(tmp_path):
    x = nn.Variable((4, 8))
    y = F.sigmoid(x) * F.tanh(x) + (x + 1e-8) ** 0.5
    nn.save_program(tmp_path / "p.nnlp", {"y": F.sum(y, axis=1)}, {"x": x})
    text = nn.load_program(tmp_path / "p.nnlp")["main"].text()
    if "fused_elementwise" not in text:
        pytest.skip("numpy fuses nothing")
    assert '"' in text and "code=" not in text and "constants=" not in text
    (written,) = re.findall(r'fused_elementwise\(x\) "(.*?)"', text)
    assert "sigmoid(x) * tanh(x) + sqrt(x + 1e-08)" in written


def test_copies_do_not_repeat_what_they_copy():
    writer = Writer([()])
    y = 0
    for _ in range(40):
        y = writer("copy", writer("add", y, y))
    text, shared, value = evaluated(writer, {"a": np.array(1.0)}, y)
    assert text == "t39 + t39" and len(shared) == 39 and value == 2.0**40


def test_steps_that_are_damaged_show_their_numbers(tmp_path):
    x = nn.Variable((4,))
    nn.save_program(tmp_path / "p.nnlp", {"y": F.tanh(x * x + 3.0)}, {"x": x})
    program = nn.load_program(tmp_path / "p.nnlp")["main"]
    (step,) = program.steps if len(program.steps) == 1 else [None]
    if step is None:
        pytest.skip("numpy fuses nothing")
    step.attrs["code"] = (1, 7, 0, 0)
    assert "code=(1,7,0,0)" in program.text()
