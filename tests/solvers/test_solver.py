# SPDX-License-Identifier: Apache-2.0
"""What all solvers share: parameters, skipping, gradients, hooks, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.solvers as S
from nnl.core.ops.op import OPS
from nnl.solvers.rule import Rule, update_op
from tests.solvers.cases import FUSED, NAMES, RATE


def parameter(*shape: int, seed: int = 0, need_grad: bool = True) -> nn.Variable:
    rng = np.random.default_rng(seed)
    v = nn.Variable.from_numpy_array(rng.normal(size=shape).astype(np.float32), need_grad=need_grad)
    v.g = rng.normal(size=shape).astype(np.float32)
    return v


def t_of(solver: S.Solver) -> dict[str, int]:
    return {k: s.t for k, s in solver.get_states().items()}


# ---- skipping ----


@pytest.mark.parametrize("name", NAMES)
def test_a_lazily_zero_gradient_skips_everything(name: str) -> None:
    a, b = parameter(3), parameter(3, seed=1)
    solver = getattr(S, name)()
    solver.set_parameters({"a": a, "b": b})
    solver.update()
    before = a.d.copy()
    for zero in (a.grad.zero, lambda: setattr(a, "g", 0), solver.zero_grad):
        zero()
        solver.weight_decay(0.1)
        solver.clip_grad_by_norm(0.1)
        solver.scale_grad(3.0)
        assert not solver.check_inf_or_nan_grad()
        solver.update()
        assert a.grad.zeroing
        np.testing.assert_array_equal(a.d, before)
    assert t_of(solver) == {"a": 1, "b": 3}


def test_momentum_does_not_coast_without_a_gradient_but_does_with_zeros() -> None:
    a = parameter(3)
    solver = S.Momentum(0.1)
    solver.set_parameters({"a": a})
    solver.update()
    before = a.d.copy()
    solver.zero_grad()
    solver.update()
    np.testing.assert_array_equal(a.d, before)
    a.g = np.zeros(3)
    solver.update()
    assert (a.d != before).all()


def test_fused_decay_of_a_skipped_parameter_is_lost() -> None:
    a = nn.Variable.from_numpy_array(np.ones(2, np.float32))
    solver = S.AdamW(wd=0.0)
    solver.set_parameters({"a": a})
    solver.weight_decay(0.5)
    solver.update()
    a.g = np.zeros(2)
    solver.update()
    np.testing.assert_array_equal(a.d, 1.0)


def test_need_grad_does_not_matter() -> None:
    a = parameter(3, need_grad=False)
    before = a.d.copy()
    solver = S.Sgd(1.0)
    solver.set_parameters({"a": a})
    solver.update()
    np.testing.assert_allclose(a.d, before - a.g)


# ---- parameters ----


def test_reset_and_retain_state() -> None:
    a, b = parameter(3), parameter(2, 2)
    solver = S.Adam()
    solver.set_parameters({"a": a, "b": b})
    solver.update()
    solver.set_parameters({"b": b}, reset=False, retain_state=True)
    assert t_of(solver) == {"a": 1, "b": 1}
    solver.set_parameters({"b": b}, reset=False)
    assert t_of(solver) == {"a": 1, "b": 0}
    solver.set_parameters({"b": b}, retain_state=True)
    assert t_of(solver) == {"b": 0}
    assert solver.get_parameters() == {"b": b}


def test_remove_and_clear_parameters() -> None:
    solver = S.Adam()
    solver.set_parameters({"a": parameter(3), "b": parameter(2)})
    solver.remove_parameters(["a", "not there"])
    assert list(solver.get_parameters()) == ["b"]
    solver.clear_parameters()
    assert solver.get_parameters() == {} and solver.get_states() == {}


def test_retaining_states_of_another_shape_is_refused_and_changes_nothing() -> None:
    a = parameter(3)
    solver = S.Adam()
    solver.set_parameters({"a": a})
    solver.update()
    with pytest.raises(ValueError, match=r"Adam.set_parameters: 'a' has the shape \(2, 2\), the"):
        solver.set_parameters({"c": a, "a": parameter(2, 2)}, reset=False, retain_state=True)
    assert solver.get_parameters() == {"a": a} and t_of(solver) == {"a": 1}


def test_parameters_must_be_variables_by_name() -> None:
    with pytest.raises(TypeError, match="Sgd.set_parameters: param_dict is list, wanted a dict"):
        S.Sgd().set_parameters([parameter(3)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"param_dict\['a'\] is ndarray, wanted nnl.Variable"):
        S.Sgd().set_parameters({"a": np.zeros(3)})  # type: ignore[dict-item]


def test_parameters_of_whole_numbers_become_floats() -> None:
    w = parameter(2)
    w.d, solver = [5, -3], S.Sgd(0.25)
    solver.set_parameters({"w": w})
    w.g = [1, 2]
    solver.update()
    np.testing.assert_array_equal(w.d, np.array([4.75, -3.5], np.float32), strict=True)
    w.d = [5, -3]
    with pytest.raises(
        TypeError, match=r"sgd_update: w is int64\[2\] and would be written with fr"
    ):
        solver.update()
    np.testing.assert_array_equal(w.d, [5, -3])


def test_a_parameter_that_changed_its_shape_is_named() -> None:
    a = parameter(4)
    solver = S.Momentum()
    solver.set_parameters({"a": a})
    a.reset_shape((2, 2))
    a.g = np.ones((2, 2))
    with pytest.raises(ValueError, match=r"momentum_update: m is float32\[4\], wanted the"):
        solver.update()


# ---- hyperparameters ----


@pytest.mark.parametrize("name", NAMES)
def test_name_info_and_learning_rate(name: str) -> None:
    rate = RATE.get(name, "lr")
    solver = getattr(S, name)(**{rate: 0.25})
    assert solver.name == name and solver.info[rate] == 0.25 and solver.learning_rate() == 0.25
    assert solver.weight_decay_is_fused() == (name in FUSED)
    solver.set_learning_rate(0.125)
    assert solver.learning_rate() == 0.125 and solver.info[rate] == 0.25


BAD = [
    ("Sgd", {"lr": -1}, "Sgd: lr is -1, wanted a finite number >= 0"),
    ("Sgd", {"lr": float("nan")}, "Sgd: lr is nan, wanted a finite number >= 0"),
    ("Lamb", {"eta": float("inf")}, "Lamb: eta is inf, wanted a finite number >= 0"),
    ("Adam", {"alpha": -0.1}, "Adam: alpha is -0.1, wanted a finite number >= 0"),
    ("Adam", {"beta1": 1.0}, r"Adam: beta1 is 1.0, wanted in \[0, 1\)"),
    ("AdamW", {"beta2": -0.1}, r"AdamW: beta2 is -0.1, wanted in \[0, 1\)"),
    ("AdamW", {"wd": -1}, "AdamW: wd is -1, wanted a finite number >= 0"),
    ("Momentum", {"momentum": 1.5}, r"Momentum: momentum is 1.5, wanted in \[0, 1\]"),
    ("RMSprop", {"eps": -1e-8}, "RMSprop: eps is -1e-08, wanted a finite number >= 0"),
    ("AdaBound", {"gamma": 0}, "AdaBound: gamma is 0, wanted a finite number > 0"),
    ("Lamb", {"gamma_l": 3, "gamma_u": 2}, "Lamb: gamma_l is 3, wanted at most gamma_u 2"),
    ("Muon", {"adam": (1, 2)}, r"Muon: adam is \(1, 2\), wanted a regular expression as a text"),
    ("Muon", {"adam": "("}, r"Muon: adam is '\(', which is no pattern: missing \)"),
]


@pytest.mark.parametrize(("name", "kw", "text"), BAD)
def test_bad_hyperparameters_are_named(name: str, kw: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        getattr(S, name)(**kw)


def test_a_hyperparameter_that_is_no_number_is_named() -> None:
    with pytest.raises(TypeError, match="Sgd: lr is 'fast', wanted a number"):
        S.Sgd("fast")  # type: ignore[arg-type]


def test_other_hyperparameters_are_what_the_rule_of_a_solver_declares(
    request: pytest.FixtureRequest,
) -> None:
    request.addfinalizer(lambda: OPS.pop("stretched_update", None))

    @update_op("stretched_update")
    class stretched_update(Rule):
        """Gradient descent with a factor."""

        factor: float = 1.0
        upwards: bool = False

        def infer(self, w, g, t, lr):  # type: ignore[no-untyped-def]
            return self.same_shape(w, g=g)

        def forward(self, xp, w, g, t, lr):  # type: ignore[no-untyped-def]
            w += (1 if self.upwards else -1) * self.factor * float(lr) * g
            return w

    class Own(S.Solver):
        rule = stretched_update

        def __init__(self, **others: Any) -> None:
            super().__init__(lr=1.0, **others)

    a = parameter(2)
    a.d, a.g = [1.0, 1.0], [1.0, 1.0]
    solver = Own(factor=3, upwards=True)
    solver.set_parameters({"a": a})
    solver.update()
    np.testing.assert_array_equal(a.d, 4.0)
    assert solver.info == {"lr": 1.0, "factor": 3.0, "upwards": True}
    for given, text in [
        ({"factr": 3}, "^Own: factr is no hyperparameter of solvers, nor an attribute of "
         "stretched_update.*factor"),
        ({"factor": "much"}, "^Own: factor is 'much', wanted a number$"),
        ({"upwards": "yes"}, "^Own: upwards is 'yes', wanted a bool$"),
    ]:  # fmt: skip
        with pytest.raises(TypeError, match=text):
            Own(**given)


def test_bad_numbers_in_calls_change_nothing() -> None:
    a = parameter(3)
    before = a.g.copy()
    solver = S.Sgd(0.5)
    solver.set_parameters({"a": a})
    nan = float("nan")
    for call, text in [
        (lambda: solver.set_learning_rate(-1), "Sgd.set_learning_rate: learning_rate is -1"),
        (lambda: solver.set_learning_rate(nan), "Sgd.set_learning_rate: learning_rate is nan"),
        (lambda: solver.weight_decay(-1), "Sgd.weight_decay: decay_rate is -1, wanted a finite"),
        (lambda: solver.clip_grad_by_norm(-1), "Sgd.clip_grad_by_norm: clip_norm is -1, wanted"),
        (lambda: solver.clip_grad_by_norm(nan), "Sgd.clip_grad_by_norm: clip_norm is nan"),
        (lambda: solver.scale_grad(nan), "Sgd.scale_grad: scale is nan, wanted a finite number"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()
    assert solver.learning_rate() == 0.5
    np.testing.assert_array_equal(a.g, before)


# ---- gradients ----


def test_clipping_is_per_parameter_and_zero_does_not_clip() -> None:
    a, b = parameter(4), parameter(4)
    solver = S.Sgd()
    solver.set_parameters({"a": a, "b": b})
    a.g, b.g = np.full(4, 3.0), np.full(4, 0.25)
    solver.clip_grad_by_norm(0)
    np.testing.assert_array_equal(a.g, 3.0)
    solver.clip_grad_by_norm(2.0)
    np.testing.assert_allclose(a.g, 1.0)
    np.testing.assert_array_equal(b.g, 0.25)


def test_gradients_change_in_place_for_those_who_share_their_memory() -> None:
    flat = nn.NdArray.from_numpy_array(np.arange(6, dtype=np.float32))
    a, b = parameter(2), parameter(4)
    a.grad, b.grad = flat.narrow(0, 0, 2), flat.narrow(0, 2, 4)
    a.d, b.d = np.zeros(2), np.zeros(4)
    solver = S.Sgd()
    solver.set_parameters({"a": a, "b": b})
    solver.scale_grad(2.0)
    solver.weight_decay(0.5)
    np.testing.assert_array_equal(flat.data, 2 * np.arange(6))


@pytest.mark.parametrize(
    ("value", "inf", "nan"), [(np.inf, 1, 0), (-np.inf, 1, 0), (np.nan, 0, 1), (1.0, 0, 0)]
)
def test_checks_tell_inf_from_nan(value: float, inf: int, nan: int) -> None:
    a = parameter(3)
    solver = S.Sgd()
    solver.set_parameters({"ok": parameter(2), "a": a})
    a.g = np.array([1, value, 2])
    assert solver.check_inf_grad() == bool(inf)
    assert solver.check_nan_grad() == bool(nan)
    assert solver.check_inf_or_nan_grad() == bool(inf or nan)


# ---- hooks ----


def test_hooks_run_around_each_parameter_that_is_not_skipped() -> None:
    a, b = parameter(2), parameter(2)
    solver = S.Sgd()
    solver.set_parameters({"a": a, "b": b})
    a.grad.zero()
    log: list[str] = []
    pre, post = lambda: log.append("pre"), lambda: log.append("post")
    nn.set_solver_pre_hook("k", lambda: log.append("global pre"))
    nn.set_solver_post_hook("k", lambda: log.append("global post"))
    try:
        for call in (
            lambda: solver.update(pre, post),
            lambda: solver.weight_decay(0.1, pre, post),
            lambda: solver.clip_grad_by_norm(0.1, pre, post),
            lambda: solver.scale_grad(0.1, pre, post),
            lambda: solver.check_inf_grad(pre, post),
        ):
            log.clear()
            call()
            assert log == ["global pre", "pre", "post", "global post"]
    finally:
        nn.unset_solver_pre_hook("k")
        nn.unset_solver_post_hook("k")
