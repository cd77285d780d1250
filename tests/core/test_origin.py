# SPDX-License-Identifier: Apache-2.0
"""Errors and profiles name the layer: parameter scope, function, and the line that called it."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.core.arrays.spec import ShapeError
from nnl.ext import native
from nnl.function import PythonFunction
from tests.core.conftest import leaf

BACKENDS = ["numpy", "cpu"] if native.library() is not None else ["numpy"]


def line_of(text):
    """The line of this file that ends with a mark."""
    with open(__file__, encoding="utf-8") as f:
        (n,) = [i for i, s in enumerate(f, 1) if s.rstrip().endswith(f"# {text}")]
    return n


@pytest.fixture(params=BACKENDS)
def context(request):
    with nn.context_scope(nn.Context([f"{request.param}:float"])):
        yield


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("flags", [{}, {"clear_buffer": True}, {"clear_no_need_grad": True}])
def test_a_static_graph_names_the_layer_and_the_line(flags):
    x = leaf([1, 7])
    y = PF.embed(x, 5, 3, name="tok")  # here
    n = line_of("here")
    text = rf"^embed in tok \(test_origin.py:{n}\): x0 holds the index 7, w has rows 0 to 4$"
    with pytest.raises(ValueError, match=text):
        y.forward(**flags)
    with nn.parameter_scope("decoder"):
        y = PF.embed(x, 5, 3, name="tok")
    with pytest.raises(ValueError, match=r"^embed in decoder/tok \(test_origin.py:"):
        y.forward(**flags)


@pytest.mark.usefixtures("context")
def test_hooks_do_not_hide_the_layer():
    y = PF.embed(leaf([7]), 5, 3, name="tok")
    with pytest.raises(ValueError, match=r"^embed in tok \(test_origin.py:"):
        y.forward(function_pre_hook=lambda f: None)


@pytest.mark.usefixtures("context")
def test_define_by_run_names_the_layer_and_has_its_own_traceback():
    with nn.auto_forward(), pytest.raises(ValueError, match="^embed in tok: x0 holds the index 7"):
        PF.embed(leaf([7]), 5, 3, name="tok")


@pytest.mark.usefixtures("context")
def test_gradients_are_named_after_the_function_they_are_of():
    class Fails(PythonFunction):
        name = "Fails"

        def min_outputs(self):
            return 1

        def setup_impl(self, inputs, outputs):
            outputs[0].reset_shape(inputs[0].shape, True)

        def forward_impl(self, inputs, outputs):
            outputs[0].d = inputs[0].d

        def backward_impl(self, inputs, outputs, propagate_down, accum):
            raise KeyError("no gradient today")

    with nn.parameter_scope("head"):
        y = Fails()(leaf([1, 2], need_grad=True))  # custom
    y.forward()
    with pytest.raises(KeyError) as e:
        y.backward()
    n = line_of("custom")
    assert e.value.__notes__ == [f"in python_function_backward in head (test_origin.py:{n})"]


def test_wrong_shapes_name_the_scope():
    with nn.parameter_scope("enc"), pytest.raises(ShapeError, match="^add2 in enc: x0 float32"):
        F.add2(nn.Variable((2, 3)), nn.Variable((4, 3)))
    with nn.parameter_scope("enc"), pytest.raises(TypeError, match="^add2 in enc needs the input"):
        F.add2(nn.Variable((2, 3)))
    with pytest.raises(ShapeError, match="^add2: x0 float32"):
        F.add2(nn.Variable((2, 3)), nn.Variable((4, 3)))


def test_a_shape_that_no_longer_fits_names_the_layer():
    x = leaf([[1, 2]])
    y = F.relu(PF.affine(x, 3, name="fc"))
    y.forward()
    x.reset_shape((1, 4), force=True)
    with pytest.raises(ShapeError, match=r"^affine in fc \(test_origin.py:\d+\): "):
        y.forward()


def test_a_variable_is_named_with_its_function():
    h = PF.affine(leaf([[1, 2]]), 3, name="fc")
    h.name = "h"
    y = F.relu(h)
    y.forward(clear_buffer=True)
    text = r"^Variable 'h', output of affine in fc \(test_origin.py:\d+\): .*had been cleared"
    with pytest.raises(ValueError, match=text):
        h.d  # noqa: B018
    node = y.edge.node
    assert node.input_label(0).startswith("x of relu (test_origin.py:")
    assert F.add_n(h, h).edge.node.input_label(1).startswith("x of add_n (test_origin.py:")
    assert nn.Variable((2,)).edge.label == "Variable"


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("dynamic", [False, True])
def test_profiles_name_layer_and_line(dynamic):
    x = leaf([[1, 2]])
    with nn.profile() as p, nn.auto_forward(dynamic):
        h = PF.affine(x, 3, name="fc1")  # first
        y = F.sum(F.sort(PF.affine(h, 4, name="fc2")))
        y.forward(clear_no_need_grad=True)
        y.backward(clear_buffer=True)
    first = [e for e in p.events if e.layer == f"fc1 (test_origin.py:{line_of('first')})"]
    assert any(e.op.startswith("affine") for e in first)
    assert len(first) >= 2  # its gradient, too
    assert any(e.layer.startswith("fc2 (test_origin.py:") for e in p.events)
    assert "fc1 (test_origin.py:" in p.table()
    assert "test_origin" not in p.table(layers=False)


@pytest.mark.usefixtures("context")
def test_steps_that_python_computes_are_counted_once():
    x = leaf([3, 1, 2])
    with nn.profile() as p:
        F.sort(x).forward()
    assert [e.op for e in p.events] == ["sort"]


def test_the_summary_of_a_plan_names_layers():
    from nnl.graph.execution.session import session_of

    y = PF.affine(leaf(np.ones((2, 3))), 4, name="fc")
    y.forward()
    assert "fc (test_origin.py:" in session_of([y]).plans["keep"].plan.summary()
