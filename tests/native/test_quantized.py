# SPDX-License-Identifier: Apache-2.0
"""What stands between quantize_linear and dequantize_linear is computed with 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.graph.node import capture
from nnl.ext.native import library
from nnl.graph.plan.plan import Plan

pytestmark = pytest.mark.skipif(
    library() is None or "quantized_affine" not in library().kernel_names(),
    reason="products of 8 bits are oneDNN's",
)
rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def the_same_numbers() -> None:
    global rng
    rng = np.random.default_rng(0)


def number(value: float, rank: int) -> nn.Variable:
    return F.constant(value, shape=(1,) * rank)


def quantized(x: nn.Variable, scale: float, zero: float, dtype: Any = np.uint8) -> nn.Variable:
    s, z = number(scale, x.ndim), number(zero, x.ndim)
    return F.quantize_linear(x, s, z, "HALF_TO_EVEN", False, dtype)


def around(x: nn.Variable, scale: float, zero: float, dtype: Any = np.uint8) -> nn.Variable:
    q = quantized(x, scale, zero, dtype)
    return F.dequantize_linear(q, number(scale, x.ndim), number(zero, x.ndim))


def weight(*shape: int, axis: int = 0, dtype: Any = np.int8, zero: float = 0) -> nn.Variable:
    return stored(*shape, axis=axis, dtype=dtype, zero=zero)()


def stored(*shape: int, axis: int = 0, dtype: Any = np.int8, zero: float = 0) -> Any:
    """What gives weights with a scale for each map, made of whole numbers."""
    bounds = np.iinfo(dtype)
    w = nn.Variable.from_numpy_array(
        rng.integers(bounds.min + 1, bounds.max + 1, shape).astype(dtype)
    )
    sizes = [n if i == axis else 1 for i, n in enumerate(shape)]
    scale = nn.Variable.from_numpy_array(rng.uniform(0.001, 0.002, sizes).astype(np.float32))
    return lambda: F.dequantize_linear(w, scale, F.constant(zero, shape=sizes))


def plan_of(y: nn.Variable, rewrite: bool = True) -> tuple[Plan, np.ndarray]:
    plan = Plan(capture([y.edge]), kept={y.edge.key}, rewrite=rewrite)
    plan.run_both()
    return plan, np.array(plan.slots[plan.slot_of[y.edge.key]])


def check(y: nn.Variable, *ops: str, step: float, share: float = 0.01) -> Plan:
    """The plan has these steps, and gives what the definitions give: a few results are rounded the
    other way, by one step."""
    plan, got = plan_of(y)
    _, want = plan_of(y, rewrite=False)
    assert all(s.kernel is not None or s.view for s in plan.steps), plan.summary()
    assert [s.op for s in plan.steps if s.op.startswith("quantized")] == list(ops)
    assert np.abs(got - want).max() < 1.01 * step and np.ptp(want) > 20 * step
    assert (np.abs(got - want) > step / 2).mean() <= share
    return plan


def random(*shape: int) -> nn.Variable:
    x = nn.Variable(shape)
    x.d = rng.normal(size=shape)
    return x


def bytes_of(plan: Plan) -> list[str]:
    """Ops of steps that make 8 bits from 8 bits."""
    specs = [s.spec.type_name for s in plan.program.slots]
    both = [
        s.op
        for s in plan.steps
        if {specs[s.ins[0]], specs[s.outs[0]]} <= {"int8", "uint8"} and not s.once
    ]
    return [op for op in both if op != "to_layout"]


@pytest.mark.parametrize("dtype, zero", [(np.uint8, 120.0), (np.uint8, 0.0), (np.int8, -7.0)])
def test_a_network_keeps_8_bits_from_step_to_step(dtype: Any, zero: float) -> None:
    h = around(random(1, 16, 12, 12), 0.03, zero, dtype)
    bias = nn.Variable.from_numpy_array(rng.normal(size=32).astype(np.float32))
    a = F.relu(F.convolution(h, weight(32, 16, 3, 3), bias, pad=(1, 1)))
    a = around(a, 0.03, zero, dtype)
    a = F.convolution(a, weight(32, 1, 3, 3), None, pad=(1, 1), stride=(2, 2), group=32)
    b = F.convolution(h, weight(32, 16, 1, 1), None, stride=(2, 2))
    h = F.relu(around(a, 0.0213, zero, dtype) + around(b, 0.0331, zero, dtype))  # no ties
    h = F.max_pooling(around(h, 0.0419, zero, dtype), (2, 2))
    h = F.reshape(F.transpose(h, (0, 2, 3, 1)), (1, -1))
    y = around(F.affine(h, weight(288, 40, axis=1)), 0.02, zero, dtype)
    products = [*["quantized_convolution"] * 3, "quantized_pair", "quantized_affine"]
    plan = check(y, *products, step=0.02, share=0.05)
    assert sorted(bytes_of(plan)) == sorted([*products, "max_pooling", "transpose", "reshape"])


@pytest.mark.parametrize("zero", [0.0, 9.0])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_products_of_two_values(dtype: Any, zero: float) -> None:
    """Weights and values; batches; signs; a result that stays float."""
    x, y = random(2, 3, 8, 32), random(2, 3, 10, 32)
    a, b = around(x, 0.03, 120), around(y, 0.03, zero + 128 * (dtype == np.uint8), dtype)
    both = F.batch_matmul(a, b, transpose_b=True)
    check(around(both, 0.2, 130), "quantized_batch_matmul", step=0.2)
    check(both, "quantized_batch_matmul", step=1e-3)
    w = weight(1, 1, 32, 20, axis=3, dtype=dtype, zero=128 * (dtype == np.uint8))
    check(F.relu(F.batch_matmul(a, w)) * 2, "quantized_batch_matmul", step=1e-4)


def test_weights_that_are_floats_are_quantized_once() -> None:
    w = random(16, 8, 3, 3)
    x = around(random(1, 8, 6, 6), 0.03, 120)
    y = F.convolution(x, around(w, 0.02, 0, np.int8))
    plan = check(around(y, 0.2, 120), "quantized_convolution", step=0.2)
    assert [s.op for s in plan.steps if s.once] == ["cast", "quantize_linear", "pack_weights"]


def test_weights_are_packed_once() -> None:
    """Constants among what is prepared, which programs hold, do not make that run again."""
    y = F.affine(around(random(4, 32), 0.03, 120), weight(32, 64, axis=1, dtype=np.uint8, zero=128))
    plan, _ = plan_of(y)
    assert [s.op for s in plan.steps if s.once] == ["add_scalar", "pack_weights"]
    assert plan.binding.prepared()


def test_new_weights_are_packed_again() -> None:
    w = random(8, 16)
    y = F.affine(around(random(4, 8), 0.03, 120), around(w, 0.02, 0, np.int8))
    y.forward(clear_buffer=True)
    before = y.d.copy()
    w.d = -w.d
    y.forward(clear_buffer=True)
    np.testing.assert_allclose(y.d, -before, atol=1e-4)


def test_concatenation_quantizes_its_parts() -> None:
    a, b = around(random(2, 4, 5, 5), 0.03, 120), around(random(2, 6, 5, 5), 0.04, 110)
    same = around(F.concatenate(a, F.relu(a), axis=1), 0.03, 120)
    plan = check(same, step=0.03)
    assert bytes_of(plan).count("concatenate") == 1
    plan = check(around(F.concatenate(a, b, axis=1), 0.05, 100), step=0.05)
    assert bytes_of(plan).count("concatenate") == 1


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("thin", [True, False])
def test_sums_and_products_of_two_values(thin: bool, relu: bool) -> None:
    a = around(random(2, 16, 9, 9), 0.0313, 120)
    b = around(random(2, 16, 1 if thin else 9, 1 if thin else 9), 0.0217, -3, np.int8)
    for y, scale in ((a + b, 0.0519), (b + a, 0.0519), (a * b, 0.0391)):
        plan = check(around(F.relu(y) if relu and scale > 0.04 else y, scale, 110),
                     "quantized_pair", step=scale)  # fmt: skip
        assert "fused_elementwise" not in [s.op for s in plan.steps]


def test_functions_of_one_value_are_looked_up() -> None:
    """What comes out is what the definition gives, for each of the 256 numbers."""
    x = around(random(3, 1000), 0.03, 120)
    y = around(F.sigmoid(x) * x + 1, 0.03, 100)
    check(y, step=0.03, share=0)
    check(around(F.tanh(around(x * 2, 0.04, 5, np.int8)), 0.01, 0, np.int8), step=0.01, share=0)


def test_rows_of_tables_stay_8_bits() -> None:
    table = around(random(50, 24), 0.03, 120)
    index = nn.Variable.from_numpy_array(rng.integers(0, 50, (4, 6)))
    for y in (F.embed(index, table), F.gather(table, index, axis=0)):
        plan = check(F.relu(y) * 2, step=1e-6, share=0)
        sizes = [plan.program.slots[o].spec.size for s in plan.steps for o in s.outs if not s.once]
        assert max(sizes) == 50 * 24 and sizes.count(50 * 24) == 2  # cast and quantized, once


def test_means_read_8_bits() -> None:
    x = around(random(2, 40, 8, 8), 0.0313, 120)
    plan = check(around(F.mean(x, axis=(2, 3), keepdims=True), 0.0077, 128), step=0.0077)
    assert "mean" not in [s.op for s in plan.steps]
    plan = check(around(F.average_pooling(x, (8, 8)), 0.0077, 128), step=0.0077)
    assert "average_pooling" not in [s.op for s in plan.steps]


def float_paths() -> dict[str, Callable[[], nn.Variable]]:
    x = around(random(1, 4, 6, 6), 0.03, 120)
    each = nn.Variable.from_numpy_array(rng.uniform(0.01, 0.02, (1, 4, 1, 1)).astype(np.float32))
    channels = F.dequantize_linear(
        F.quantize_linear(random(1, 4, 6, 6), each, number(0, 4) + each * 0, dtype=np.int8),
        each, each * 0,
    )  # fmt: skip
    return {
        "weights with a zero point": lambda: F.convolution(
            x, weight(4, 4, 3, 3, dtype=np.uint8, zero=100)
        ),
        "weights with scales along another axis": lambda: F.convolution(
            x, weight(4, 4, 3, 3, axis=1)
        ),
        "a scale for every channel": lambda: F.convolution(channels, weight(4, 4, 3, 3)),
        "values that are read as they are": lambda: quantized(random(3, 40), 0.03, 120) * 2,
    }


@pytest.mark.parametrize("name", sorted(float_paths()))
def test_what_kernels_do_not_take_is_computed_with_floats(name: str) -> None:
    y = float_paths()[name]()
    _, got = plan_of(y)
    _, want = plan_of(y, rewrite=False)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_files_hold_the_program_of_8_bits_and_run_without_kernels(tmp_path: Path) -> None:
    x = random(1, 3, 8, 8)
    h = around(F.convolution(around(x, 0.03, 120), weight(8, 3, 3, 3)), 0.05, 128)
    y = around(F.affine(h, weight(288, 10, axis=1)), 0.05, 128)
    y.forward(clear_buffer=True)
    path = tmp_path / "q.nnlp"
    nn.save_program(path, {"y": y}, {"x": x})
    text = nn.load_program(path)["main"].text()
    assert "quantized_convolution" in text and "i8[8, 3, 3, 3]" in text
    np.testing.assert_array_equal(nn.load_program(path).run(x=x.d)["y"], y.d)
    with nn.context_scope(nn.Context(["numpy:float"])):
        found = nn.load_program(path).run(x=x.d)["y"]
    assert np.abs(found - y.d).max() < 0.051


def in_cpp(path: Path, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What the program of a file gives in C++."""
    lib = library()
    model = lib.Model(lib.ModelFile(str(path)), "main")
    model.give("x", x)
    model.execute()
    y = np.empty(shape, np.float32)
    model.take("y", y)
    return y


def test_cpp_runs_the_same_program(tmp_path: Path) -> None:
    x = random(2, 3, 12, 12)
    h = around(F.relu(F.convolution(around(x, 0.03, 120), weight(16, 3, 3, 3))), 0.05, 0)
    h = around(F.max_pooling(h, (2, 2)) * F.mean(h, axis=(2, 3), keepdims=True), 0.0217, 20)
    y = F.affine(F.reshape(h, (2, -1)), weight(400, 10, axis=1))
    y.forward(clear_buffer=True)
    nn.save_program(tmp_path / "q.nnlp", {"y": y}, {"x": x})
    got = in_cpp(tmp_path / "q.nnlp", x.d.astype(np.float32), y.shape)
    np.testing.assert_allclose(got, y.d, atol=1e-4)


def test_programs_of_any_size_compute_with_8_bits(tmp_path: Path) -> None:
    w, v = stored(16, 3, 3, 3), stored(16, 10, axis=1)
    x = random(2, 3, 12, 12)

    def network(x: nn.Variable) -> nn.Variable:
        h = around(F.relu(F.convolution(around(x, 0.03, 120), w())), 0.05, 0)
        return F.affine(around(F.mean(h, axis=(2, 3)), 0.02, 0), v())

    path = tmp_path / "q.nnlp"
    nn.save_program(path, lambda x: {"y": network(x)}, {"x": x}, open={"x": ("n", None, "h", "h")})
    assert "quantized_convolution" in nn.load_program(path)["main"].text()
    for n, h in ((1, 9), (5, 20)):
        x = random(n, 3, h, h)
        y = network(x)
        y.forward(clear_buffer=True)
        got = in_cpp(path, x.d.astype(np.float32), y.shape)
        np.testing.assert_allclose(got, y.d, atol=0.05)
        np.testing.assert_allclose(nn.load_program(path).run(x=x.d)["y"], y.d, atol=0.05)
