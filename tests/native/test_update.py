# SPDX-License-Identifier: Apache-2.0
"""Update rules at sizes that threads share, for one parameter and for many in one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnl.core.ops.op import OPS
from nnl.ext.library import plain_attributes
from nnl.solvers.joined import RULES as joined_rules
from tests.native.direct import call
from tests.native.kernels import BF16, F16, F32, assert_close, run_numpy

RULES = sorted(rule.name for rule in joined_rules)
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "adabelief_update": [{"wd": 0.1}, {"rectify": True}, {"fixed_decay": True, "wd": 0.1}],
    "lamb_update": [{"wd": 0.1}, {"bias_correction": True, "gamma_l": 5.0}],
    "momentum_update": [{"wd": 0.3, "lr0": 0.2}],
    "adam_update": [{"wd": 0.3, "lr0": 0.2}],
    "lars_update": [{"wd": 0.2, "coefficient": 0.5}],
    "amsbound_update": [{"bias_correction": True}],
    "muon_update": [{"wd": 0.2, "nesterov": False}, {"match": False, "steps": 3}],
}


def inputs_of(name: str, rng: Any, shape: tuple[int, ...], step: int, optional: bool) -> list[Any]:
    """w, g, states, t, lr and what follows, as float32."""
    op = OPS[name]
    out: list[Any] = []
    for argument in op.inputs:
        if argument == "t":
            out.append(np.array(step))
        elif argument == "lr":
            out.append(np.array(0.05))
        elif argument == "s_max" and not optional:
            out.append(None)
        elif argument in ("w", op.inputs[1], "m", "mean"):
            out.append(rng.normal(size=shape).astype(F32))
        else:
            out.append(rng.uniform(1, 2, shape).astype(F32))
    if name == "rmsprop_graves_update":  # n - g^2 is a variance
        out[2] += 5
    return out


def joined(name: str, attrs: Any, count: int = 1, **more: Any) -> dict[str, Any]:
    """Attributes of multi_update for a rule with these attributes."""
    own = {"rule": name, **attrs.as_dict(), "count": count, "inputs": len(OPS[name].inputs)}
    return plain_attributes(OPS["multi_update"].attrs(**own, **more).as_dict())


def copies(arrays: list[Any], dtype: Any = None) -> list[Any]:
    return [
        None if x is None else x.astype(dtype if dtype and x.dtype == F32 else x.dtype)
        for x in arrays
    ]


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("name", RULES)
def test_many_parameters_in_one_kernel_equal_the_definition(name: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    op = OPS[name]
    for settings in [{}, *SETTINGS.get(name, [])]:
        attrs = op.attrs(**settings)
        low = []
        shapes = [(), (3, 5), (0, 2), (40_000,), (1025,), (7, 300)]
        if name == "muon_update":
            shapes = [(3, 5), (0, 2), (70, 40), (1, 1500), (64, 64)]
        for k, shape in enumerate(shapes):
            arrays = inputs_of(name, rng, shape, 4 + k, optional=True)
            arrays[1] = arrays[1].astype(dtype)  # the gradient only: weights stay float32
            low += arrays
        exact = copies(low)
        exact = [x if x is None or x.dtype != dtype else x.astype(F32) for x in exact]
        n = len(op.inputs)
        outs = [(s, F32) for s in shapes]
        ys = call("multi_update", joined(name, attrs, len(shapes)), low, *outs)
        for k, y in enumerate(ys):
            want = exact[k * n : (k + 1) * n]
            run_numpy(op, attrs, want)
            got = low[k * n : (k + 1) * n]
            for argument, g, w in zip(op.inputs, got, want, strict=True):
                assert_close(g, w, F32, f"{name} {settings} {argument} {shapes[k]}")
            assert np.array_equal(y, got[0])


@pytest.mark.parametrize("name", ["adam_update", "lars_update", "sgd_update"])
def test_weights_and_states_may_be_half_precision(name: str) -> None:
    rng = np.random.default_rng(1)
    op, attrs = OPS[name], OPS[name].attrs()
    arrays = copies(inputs_of(name, rng, (5000,), 2, False), BF16)
    exact = [x.astype(F32) if x is not None and x.dtype == BF16 else x for x in copies(arrays)]
    run_numpy(op, attrs, exact)
    call("multi_update", joined(name, attrs), arrays)
    for g, w in zip(arrays, exact, strict=True):
        assert_close(g, w, BF16, name)


def test_gradients_are_scaled_and_decayed_on_the_way() -> None:
    rng = np.random.default_rng(2)
    op = OPS["momentum_update"]
    arrays = inputs_of("momentum_update", rng, (3000,), 0, False)
    exact = copies(arrays)
    exact[1] = exact[1] * np.float32(0.25) + exact[0] * np.float32(0.1)
    run_numpy(op, op.attrs(), exact)
    before = arrays[1].copy()
    extra = {"gradient_scale": 0.25, "gradient_decay": 0.1}
    call("multi_update", joined(op.name, op.attrs(), **extra), arrays)
    for k, (g, w) in enumerate(zip(arrays, exact, strict=True)):
        assert_close(g, before if k == 1 else w, F32, str(k))


def test_a_rule_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="rule is 'adamm_update', wanted the name of an update"):
        call("multi_update", {"rule": "adamm_update", "count": 1}, [np.zeros(2, F32)])


def test_finite_check_tells_infinity_from_nan() -> None:
    for dtype in (F32, BF16, F16):
        for where, value, want in ((0, np.inf, (1, 0)), (9999, np.nan, (0, 1)), (5, 1, (0, 0))):
            x = np.ones(10_000, dtype)
            x[where] = value
            arrays = [np.zeros((0, 3), F32), x, np.zeros((), F32)]
            got = call("finite_check", {}, arrays, ((2,), np.bool_))
            assert tuple(got) == tuple(map(bool, want))


@pytest.mark.parametrize("clip_norm", [3.0, 1e6])
def test_the_norm_of_several_gradients_limits_the_scale(clip_norm: float) -> None:
    rng = np.random.default_rng(4)
    for dtype in (F32, BF16, F16):
        gs = [rng.normal(size=s).astype(dtype) for s in ((123, 457), (), (0, 2), (3000,))]
        length = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gs))
        arrays = [np.array(8.0, F32), *gs]
        got = call("clipped_scale", {"clip_norm": clip_norm}, arrays, ((), F32))
        np.testing.assert_allclose(got, max(8.0, length / clip_norm), rtol=1e-6)


@pytest.mark.parametrize("clip_norm", [0.0, 3.0, 1e6])
def test_clipping_of_a_large_gradient(clip_norm: float) -> None:
    g = np.random.default_rng(3).normal(size=(123, 457)).astype(F32)
    length = np.sqrt((g.astype(np.float64) ** 2).sum())
    factor = clip_norm / length if 0 < clip_norm < length else 1.0
    got = call("clip_gradient", {"clip_norm": clip_norm}, [g], (g.shape, F32))
    assert_close(got, g * factor, F32, "clip")
