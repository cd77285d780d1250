# SPDX-License-Identifier: Apache-2.0
"""Many parameters in one launch, checks of gradients, the loss scale, random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl.ext.device.kernels  # noqa: F401  registers the setups
from nnl.core.ops import random as nnl_random
from nnl.core.ops.op import OPS
from nnl.ext.device.kernels.module import CUDA, SETUPS, laid_out_for
from tests.cuda import kernels
from tests.native.kernels import BF16, F16, F32, assert_close, run_numpy

pytestmark = pytest.mark.usefixtures("machine")
SHAPES = [(3, 5), (8193,), (), (20, 1000), (7,), (64, 33)]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Parameters:
    """Arrays of many parameters for a rule, and what numpy makes of them."""

    def __init__(self, rule: str, shapes: Any, states: int, gradient: Any = F32, **attrs: Any):
        self.op, self.attrs = OPS[rule], OPS[rule].attrs(**attrs)
        self.ins: list[Any] = []
        for k, shape in enumerate(shapes):
            moments = [np.abs(normal(*shape, seed=10 * k + s)) for s in range(states)]
            t, lr = np.array(k), np.array(0.01 * (k + 1))
            g = normal(*shape, seed=10 * k + 8).astype(gradient)
            arrays = [normal(*shape, seed=10 * k + 9), g, *moments, t, lr]
            self.ins += [np.asarray(a) for a in arrays]
        self.each = 4 + states
        self.plain = {**self.attrs.as_dict(), "rule": rule}

    def numpy(self, scale: float = 1.0, decay: float = 0.0) -> list[Any]:
        """Inputs behind one step."""
        after = [np.array(x, F32) if x.dtype.itemsize == 2 else x.copy() for x in self.ins]
        for k in range(0, len(after), self.each):
            own = after[k : k + self.each]
            own[1] = np.asarray(np.float32(scale) * own[1] + np.float32(decay) * own[0])
            run_numpy(self.op, self.attrs, own)
        return after

    def check(self, scale: float = 1.0, decay: float = 0.0, **more: Any) -> Any:
        want = self.numpy(scale, decay)
        given = [x.copy() for x in self.ins]
        if scale != 1.0 or decay:
            more |= {"gradient_scale": scale, "gradient_decay": decay}
        written = [i for i in range(len(given)) if i % self.each not in (1, self.each - 1)]
        got = kernels.run("multi_update", {**self.plain, **more}, given, [], written=written)
        assert got == []
        for i in written:
            assert_close(given[i], want[i], F32, f"array {i % self.each} of {i // self.each}")
        return want


RULES = [("momentum_update", 1, {"wd": 0.1}), ("adam_update", 2, {"wd": 0.1, "lr0": 0.01}),
         ("lars_update", 1, {"wd": 0.1}), ("lamb_update", 2, {"wd": 0.1}),
         ("sgd_update", 0, {}), ("amsgrad_update", 3, {})]  # fmt: skip


@pytest.mark.parametrize("rule,states,attrs", RULES)
@pytest.mark.parametrize("gradient", [F32, BF16], ids=str)
def test_parameters_are_updated_together(rule: str, states: int, attrs: Any, gradient: Any) -> None:
    parameters = Parameters(rule, SHAPES, states, gradient, **attrs)
    given, every = parameters.numpy(), range(len(parameters.ins))
    kernels.run("multi_update", parameters.plain, given, [], written=every)
    parameters.check()
    parameters.check(scale=0.5, decay=0.01)


def test_three_hundred_parameters_take_few_launches() -> None:
    parameters = Parameters("adam_update", [(k % 7 + 1,) for k in range(300)], 2)
    with laid_out_for(CUDA, "multi_update"):
        ins = [kernels.operand(x) for x in parameters.ins]
        kernel = SETUPS.find("multi_update", parameters.plain, ins, [])
    assert sum(len(g.launches) for g in kernel.groups) <= 4
    parameters.check()


def test_a_copy_in_16_bits_is_written_too() -> None:
    parameters = Parameters("momentum_update", SHAPES, 1, BF16)
    want, given = parameters.numpy(), [x.copy() for x in parameters.ins]
    outs = [(s, BF16) for s in SHAPES]
    copies = kernels.run("multi_update", parameters.plain, given, outs, written=range(len(given)))
    for k, y in enumerate(copies):
        w = given[k * parameters.each]
        assert_close(w, want[k * parameters.each], F32, "w")
        np.testing.assert_array_equal(y, w.astype(BF16))


def test_only_a_copy_of_the_same_type_may_be_the_weight_itself() -> None:
    parameters = Parameters("sgd_update", SHAPES, 0)
    for dtype, same in ((F32, True), (BF16, False)):
        outs = [(s, dtype) for s in SHAPES]
        kernel = kernels.find("multi_update", parameters.plain, parameters.ins, outs)
        assert kernel is not None
        assert kernel.may_overwrite(1, parameters.each) is same


@pytest.mark.parametrize("bad", [(False, False), (True, False), (False, True)])
def test_a_guarded_step_keeps_everything_if_a_gradient_is_not_finite(bad: Any) -> None:
    parameters = Parameters("adam_update", SHAPES, 2)
    flags, scale = np.array(bad), np.array([4.0], np.float32)
    given = [*(x.copy() for x in parameters.ins), flags, scale]
    attrs = {**parameters.plain, "guarded": True}
    kernels.run("multi_update", attrs, given, [], written=range(len(given)))
    want = parameters.ins if any(bad) else parameters.numpy(scale=0.25)
    for g, w in zip(given, want, strict=False):
        assert_close(g, w, F32, "")


def test_finite_check_finds_one_among_many() -> None:
    arrays = [normal(5), normal(70000).astype(BF16), normal(33, 3).astype(F16), normal(0)]

    def flags(given: Any) -> list[bool]:
        for offset in (0, 1):
            (y,) = kernels.run("finite_check", {}, given, [((2,), bool)], offset=offset)
        return y.tolist()

    assert flags(arrays) == [False, False]
    for k, i in ((0, 4), (1, 69999), (1, 0), (2, 40)):
        for value, want in ((np.inf, [True, False]), (-np.inf, [True, False]),
                            (np.nan, [False, True])):  # fmt: skip
            broken = [x.copy() for x in arrays]
            broken[k].reshape(-1)[i] = value
            assert flags(broken) == want
    arrays[1][::100], arrays[2][:] = np.inf, np.nan
    assert flags(arrays) == [True, True]


def test_the_loss_scale_follows_overflows() -> None:
    attrs = {"factor": 2.0, "low": 1.0, "high": 64.0, "steps": 3}
    scale, counts = np.array([16.0], np.float32), np.array([0, 0])
    seen = []
    for bad in (False, False, False, True, False, True, False, False, False):
        ins = [np.array([bad, False]), scale, counts]
        kernels.run("follow_loss_scale", attrs, ins, [], written=(1, 2))
        seen.append(float(scale[0]))
    assert seen == [16, 16, 32, 16, 16, 8, 8, 8, 16]
    assert counts.tolist() == [0, 2]


# ---- random numbers ----


def state(key: int = 7, counter: int = 0) -> np.ndarray:
    return np.array([key, counter], np.uint64)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 5000])
def test_the_numbers_are_those_of_the_cpu(n: int) -> None:
    for op, attrs in (
        ("rand", {"low": -1.0, "high": 2.0}),
        ("randn", {"mu": 1.0, "sigma": 2.0}),
        ("randint", {"low": -5, "high": 1000}),
    ):
        mine, theirs = state(counter=2**64 - 3), state(counter=2**64 - 3)
        attrs = {**attrs, "shape": (n,), "seed": 1}
        with np.errstate(over="ignore"):
            _, want = run_numpy(OPS[op], OPS[op].attrs(**attrs), [theirs])
        outs = [((n,), want[0].dtype)]
        (got,) = kernels.run(op, attrs, [mine], outs, written=(0,))
        if op == "randn":
            np.testing.assert_allclose(got, want[0], rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(got, want[0])
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_dropout_draws_new_numbers_at_every_launch(dtype: Any) -> None:
    x, mine, theirs = normal(1003).astype(dtype), state(), state()
    outs = [(x.shape, dtype), (x.shape, bool)]
    masks = []
    for offset in (0, 1):
        y, mask = kernels.run("dropout", {"p": 0.3}, [x, mine], outs, offset=offset, written=(1,))
        words = nnl_random.raw(theirs, 502).view(np.uint32)[:1003]
        np.testing.assert_array_equal(mask, words >= np.uint32(0.3 * 2**32))
        assert_close(y, x.astype(np.float32) * mask / 0.7, dtype, "")
        np.testing.assert_array_equal(mine, theirs)
        masks.append(mask)
    assert (masks[0] != masks[1]).any()
