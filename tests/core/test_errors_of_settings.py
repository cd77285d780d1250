# SPDX-License-Identifier: Apache-2.0
"""Errors of contexts, hooks, seeds, the parameter registry and definitions of functions."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import Op, op
from nnl.function import PythonFunction
from nnl.parameter import get_parameter, get_parameter_or_create, pop_parameter, set_parameter
from tests.core.conftest import leaf

# ---- contexts, hooks, seeds ----


def test_contexts():
    before = nn.get_current_context()
    for call, error, text in (
        (
            lambda: nn.Context(["tpu:float"]),
            ValueError,
            "backend 'tpu:float' is unknown, known are",
        ),
        (
            lambda: nn.Context(["cpu:quarter"]),
            NotImplementedError,
            "type_config 'quarter' is not available",
        ),
        (lambda: nn.Context([]), ValueError, "Context: backend is an empty list"),
        (
            lambda: nn.set_default_context("cpu"),
            TypeError,
            "set_default_context: ctx is str, wanted",
        ),
        (lambda: nn.context_scope("cpu").__enter__(), TypeError, "context_scope: ctx is str"),
        (lambda: nn.Context()["nope"], KeyError, "Context has backend, array_class and device_id"),
        (lambda: setattr(before, "backend", ["no"]), ValueError, "backend 'no' is unknown"),
    ):
        with pytest.raises(error, match=text):
            call()
    assert nn.get_current_context() is before and before.backend == ["cpu:float"]


def test_hooks_must_be_callable():
    for f in (
        nn.set_function_pre_hook,
        nn.set_function_post_hook,
        nn.set_solver_pre_hook,
        nn.set_solver_post_hook,
    ):
        with pytest.raises(TypeError, match="hook 'k' is int, wanted a callable or None"):
            f("k", 3)
    nn.unset_function_pre_hook("never set")


def test_a_hook_that_raises_stops_the_run_and_the_next_one_works():
    x = leaf([1, 2])
    y = F.sum(x * x)

    def fail(f):
        raise RuntimeError("stop")

    for run in (y.forward, y.backward):
        y.forward()
        with pytest.raises(RuntimeError, match="stop"):
            run(function_post_hook=fail)
    x.grad.zero()
    y.forward()
    y.backward()
    assert x.g.tolist() == [2, 4]
    with nn.auto_forward():
        assert (x * 2).d.tolist() == [2, 4]


def test_seed_range():
    for bad in (-1, 2**32):
        with pytest.raises(ValueError, match=f"seed: seed_value is {bad}, wanted 0 <="):
            nn.seed(bad)


# ---- parameters ----


def test_a_parameter_reused_with_another_shape():
    get_parameter_or_create("w", (2,), lambda shape: np.ones(shape))
    text = (
        r"'w' exists with the shape \(2,\), wanted \(3,\): give each call a name of its own, or "
        r"forget all parameters by clear_parameters\(\) \(documentation: guides/sharp_bits#a-name-"
    )
    with pytest.raises(ShapeError, match=text):
        get_parameter_or_create("w", (3,), need_grad=False)
    assert get_parameter("w").need_grad and get_parameter("w").d.tolist() == [1, 1]


def test_parameters_that_cannot_be_made():
    with pytest.raises(ValueError, match="parameter 'q' does not exist, give its shape"):
        get_parameter_or_create("q")
    with pytest.raises(
        ShapeError, match=r"initial value of 'q' has the shape \(2,\), wanted \(3,\)"
    ):
        get_parameter_or_create("q", (3,), np.ones(2))
    with pytest.raises(
        ShapeError, match=r"initial value of 'q' has the shape \(5,\), wanted \(3,\)"
    ):
        get_parameter_or_create("q", (3,), lambda shape: np.ones(5))
    for bad in (3, None):
        with pytest.raises(TypeError, match="get_parameter: name is .*, wanted a str"):
            get_parameter_or_create(bad, (3,))
        with pytest.raises(TypeError, match="get_parameter: name is"):
            pop_parameter(bad)
    with pytest.raises(TypeError, match="set_parameter: param is int, wanted nnl.Variable"):
        set_parameter("q", 3)
    for bad in ("", "/"):
        with pytest.raises(ValueError, match="set_parameter: key is .*, wanted a name"):
            set_parameter(bad, leaf([1]))
    assert nn.get_parameters() == {}


def test_a_parameter_is_no_scope_and_a_scope_no_parameter():
    get_parameter_or_create("w", (2,))
    get_parameter_or_create("s/w", (2,))
    with pytest.raises(ValueError, match="parameter_scope: 'w' in 'w' is a parameter"):
        get_parameter_or_create("w/x", (2,))
    with pytest.raises(ValueError, match="set_parameter: 's' is a scope that holds parameters"):
        set_parameter("s", leaf([1]))
    with pytest.raises(TypeError, match="parameter_scope: name is 3, wanted a str"):
        with nn.parameter_scope(3):
            pass
    assert get_parameter("s") is None and get_parameter("w/x") is None
    assert list(nn.get_parameters()) == ["w", "s/w"]


# ---- definitions ----


def test_definitions_are_checked():
    class Body:
        def infer(self, x):
            return x

    with pytest.raises(
        ValueError, match="op 'add2' is already defined by nnl.functions.arithmetic"
    ):
        op("add2")(Body)

    class UnknownType(Body):
        axis: "list[int]" = ()

    UnknownType.__annotations__ = {"axis": "list[int]"}
    with pytest.raises(TypeError, match="op test_x: attribute axis has unknown type 'list"):
        op("test_x")(UnknownType)

    class UnknownName(Body):
        def vjp(self, gy, *, z):
            return gy

    with pytest.raises(TypeError, match=r"op test_x: vjp names \['z'\], neither input nor output"):
        op("test_x")(UnknownName)
    assert "test_x" not in nn.core.ops.op.OPS
    with pytest.raises(NotImplementedError, match=r"test_x: no kernel for .* in the backends"):
        Op(Body, "test_x", ("y",), 0, (), (), (), False, False, (), {}, None, None)(leaf([1]))


def test_python_function_methods_left_out():
    class Empty(PythonFunction):
        pass

    class NoBackward(Empty):
        def min_outputs(self):
            return 1

        def setup_impl(self, inputs, outputs):
            outputs[0].reset_shape(inputs[0].shape, True)

        def forward_impl(self, inputs, outputs):
            outputs[0].d = inputs[0].d

    with pytest.raises(NotImplementedError, match=r"Empty: implement min_outputs\(\)"):
        Empty()(leaf([1]))
    y = NoBackward()(leaf([1]))
    y.forward()
    with pytest.raises(NotImplementedError, match=r"NoBackward: implement backward_impl\("):
        y.backward()
    for method in ("setup_impl", "forward_impl"):
        with pytest.raises(
            NotImplementedError, match=rf"Empty: implement {method}\(inputs, outputs"
        ):
            getattr(Empty(), method)([], [])
    with pytest.raises(TypeError, match="register: func of 'Empty' is int, wanted a callable"):
        nn.backward_functions.register("Empty", 3)
