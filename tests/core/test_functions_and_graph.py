# SPDX-License-Identifier: Apache-2.0
"""Function objects, visiting, rewiring, PythonFunction. Values were tried in NNabla 1.39."""

import io

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.function import PythonFunction
from tests.core.conftest import leaf


def test_a_function_knows_its_type_and_resolved_arguments():
    x = leaf([[1, 2]])
    y = F.sum(x, axis=1)
    f = y.parent
    assert f.name == f.info.type_name == "Sum"
    assert f.info.args == f.args == f.arguments == {"axes": [1], "keep_dims": False}
    assert f.inputs == [x] and f.outputs == [y] and f == y.parent
    assert (f.need_grad, f.rank, f.min_outputs()) == (True, 0, 1)
    assert f.context.backend == ["cpu:float"]
    assert (x + 2.5).parent.info.args == {"val": 2.5, "inplace": False}
    assert F.reshape(x, (-1,)).parent.info.args == {"shape": [2], "inplace": True}
    f.tags = {"a": 1}
    assert y.parent.tags == {"a": 1}


def test_setup_forward_and_backward_can_be_called_directly():
    x = leaf([[1, 2]])
    y = F.sum(x, axis=1)
    f, out = y.parent, nn.Variable()
    f.setup([x], [out])
    assert out.shape == (1,)
    f.forward([x], [out])
    np.testing.assert_array_equal(out.d, [3])
    out.g = 2
    x.g = np.nan
    f.backward([x], [out], accum=[False])  # overwrites even a NaN
    np.testing.assert_array_equal(x.g, [[2, 2]])
    f.backward([x], [out], accum=[True])
    np.testing.assert_array_equal(x.g, [[4, 4]])
    f.backward([x], [out])
    np.testing.assert_array_equal(x.g, [[6, 6]])
    np.testing.assert_array_equal(out.g, [2])


def test_functions_called_directly_know_what_was_left_out():
    x, gamma = leaf([[1, 2], [3, 7]]), leaf([[2, 3]])
    y = F.layer_normalization(x, None, gamma)
    y.forward()
    y.g = [[1, 2], [-1, 4]]
    y.backward(None)
    f, out = y.parent, nn.Variable()
    want, gx, ggamma = y.d.copy(), x.g.copy(), gamma.g.copy()
    for inputs in ([x, gamma], [x, None, gamma]):
        f.setup(inputs, [out])
        f.forward(inputs, [out])
        np.testing.assert_array_equal(out.d, want)
        out.g = [[1, 2], [-1, 4]]
        x.grad.zero()
        gamma.g = 5
        f.backward(inputs, [out], [True, False])
        np.testing.assert_allclose(x.g, gx, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(gamma.g, ggamma, rtol=1e-5, atol=1e-6)
    text = "LayerNormalization: inputs has 1 Variables, wanted the 2 that the function was called"
    with pytest.raises(ValueError, match=text):
        f.forward([x], [out])


def test_function_backward_skips_inputs_that_need_no_gradient():
    x, w = leaf([1, 2]), leaf([3, 4], False)
    y = x * w
    y.g = 1
    w.g = 10
    y.parent.backward([x, w], [y], [False, False])
    np.testing.assert_array_equal(x.g, [3, 4])
    np.testing.assert_array_equal(w.g, [10, 10])


def test_visit_goes_from_inputs_to_outputs_and_sees_each_function_once():
    x, w = leaf([1, 2]), leaf([1, 2])
    a = x * w
    b = a + x
    y = F.sum(b * a)
    names = []
    y.visit(lambda f: names.append(f.name))
    assert names == ["Mul2", "Add2", "Mul2", "Sum"]
    assert y.visit_check(lambda f: f.name == "Add2")
    assert not y.visit_check(lambda f: f.name == "ReLU")
    assert [v.rank for v in (x, a, b, y)] == [0, 1, 2, 4]


def test_handles_got_from_functions_share_data_and_gradient():
    x = leaf([1, 2])
    y = x * 2
    other = y.parent.outputs[0]
    assert other == y and hash(other) == hash(y)
    other.d = 7
    other.g = 5
    np.testing.assert_array_equal(y.d, [7, 7])
    np.testing.assert_array_equal(y.g, [5, 5])
    y.parent.inputs[0].need_grad = False
    assert not x.need_grad


# ---- rewiring ----


def test_rewire_on_replaces_what_a_graph_is_computed_from():
    x, other = leaf([1, 2]), leaf([10, 20])
    h = x * 2
    y = h * 3
    y.forward()
    k = other * other
    h.rewire_on(k)
    y.forward()
    y.backward()
    np.testing.assert_array_equal(y.d, [300, 1200])
    np.testing.assert_array_equal(x.g, [0, 0])
    np.testing.assert_array_equal(other.g, [60, 120])
    assert h == k and h.parent.name == "Mul2"


def test_rewiring_the_end_of_a_graph_shortens_it():
    x = leaf([1, 2])
    h = x * 2
    y = h * 3
    y.rewire_on(h)
    y.forward()
    np.testing.assert_array_equal(y.d, [2, 4])


def test_rewiring_a_leaf_puts_a_graph_below_it():
    x = leaf([1, 2])
    y = x * 2
    y.forward()
    k = leaf([3, 4]) * 10  # made after y, so the order of creation is not the order to run in
    x.rewire_on(k)
    y.forward(clear_no_need_grad=True)
    y.backward(clear_buffer=True)
    np.testing.assert_array_equal(y.d, [60, 80])


def test_clear_all_graph_links_makes_a_leaf():
    x = leaf([1, 2])
    h = x * 2
    y = h * 3
    y.forward()
    h.clear_all_graph_links()
    assert h.parent is None
    x.d = 100
    y.forward()
    np.testing.assert_array_equal(h.d, [2, 4])
    np.testing.assert_array_equal(y.d, [6, 12])
    y.parent = None
    assert y.parent is None


# ---- PythonFunction ----


class Square(PythonFunction):
    def __init__(self):
        super().__init__()
        self.calls = []

    @property
    def name(self):
        return "OwnSquare"

    def min_outputs(self):
        return 1

    def setup_impl(self, inputs, outputs):
        outputs[0].reset_shape(inputs[0].shape, True)

    def forward_impl(self, inputs, outputs):
        outputs[0].d = inputs[0].d ** 2

    def backward_impl(self, inputs, outputs, propagate_down, accum):
        self.calls.append((list(propagate_down), list(accum)))
        if propagate_down[0]:
            g = 2 * inputs[0].d * outputs[0].g
            inputs[0].g = inputs[0].g + g if accum[0] else g


class ScaleAndAdd(PythonFunction):
    """y = k a, z = a + b."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def min_outputs(self):
        return 2

    def setup_impl(self, inputs, outputs):
        for y in outputs:
            y.reset_shape(inputs[0].shape, True)

    def forward_impl(self, inputs, outputs):
        outputs[0].d = self.k * inputs[0].d
        outputs[1].data.data = inputs[0].data.data + inputs[1].data.data

    def backward_impl(self, inputs, outputs, propagate_down, accum):
        gradients = (self.k * outputs[0].g + outputs[1].g, outputs[1].g)
        for x, g, down, add in zip(inputs, gradients, propagate_down, accum, strict=True):
            if down:
                x.g = x.g + g if add else g


@pytest.mark.parametrize("dynamic", [False, True])
def test_python_function_runs_in_both_modes(dynamic):
    with nn.auto_forward(dynamic):
        x = leaf([1, 2])
        square = Square()
        y = square(x * 1) * 2
        y.forward()
        np.testing.assert_array_equal(y.d, [2, 8])
        y.backward()
        np.testing.assert_array_equal(x.g, [4, 8])
        assert square.calls == [([True], [False])]
        y.backward()
        np.testing.assert_array_equal(x.g, [8, 16])
    assert y.parent.inputs[0].parent.info.type_name == "OwnSquare"


def test_python_function_with_several_inputs_and_outputs():
    a, b = leaf([1, 2]), leaf([3, 4])
    y, z = ScaleAndAdd(3)(a, b)
    loss = F.sum(y * z)  # sum of 3 a (a + b)
    loss.forward()
    loss.backward()
    assert loss.d == 48
    np.testing.assert_array_equal(a.g, [15, 24])  # 6 a + 3 b
    np.testing.assert_array_equal(b.g, [3, 6])
    assert y.parent.name == "ScaleAndAdd"
    for v in (a, b):
        v.reset_shape((3,), True)
        v.d = np.float32([1, 2, 3])
    loss.forward()
    assert loss.d == 84


def test_python_function_is_told_which_gradients_are_wanted():
    x = leaf([1, 2], need_grad=False)
    square, w = Square(), leaf([1, 1])
    y = square(x) * w
    y.forward()
    y.backward()
    assert square.calls == []
    np.testing.assert_array_equal(w.g, [1, 4])


def test_a_registered_rule_makes_a_python_function_differentiable_twice():
    told = []

    def rule(grad_inputs, inputs, input_shapes, outputs, output_shapes, **arguments):
        told.append((input_shapes, output_shapes, arguments))
        return [grad_inputs[0] * inputs[0] * 2]

    nn.backward_functions.register("OwnSquare", rule)
    x = leaf([1, 2])
    try:
        (g,) = nn.grad([Square()(x)], [x])
        (g2,) = nn.grad([g * x], [x])  # (2 x^2)'
        nn.forward_all([g, g2])
    finally:
        del nn.backward_functions.registry["OwnSquare"]
    np.testing.assert_array_equal(g.d, [2, 4])
    np.testing.assert_array_equal(g2.d, [4, 8])
    assert told[0] == ([(2,)], [(2,)], {})


# ---- printing ----


def test_reprs_say_what_a_thing_is():
    x = leaf([1, 2])
    x.name = "x"
    assert repr(x).startswith("<Variable(float32[2], name='x', need_grad=True) at 0x")
    assert "parent=mul_scalar" in repr(x * 2)
    assert repr((x * 2).parent) == "<Function MulScalar {'val': 2.0, 'inplace': False}>"
    assert repr(nn.NdArray((2,))) == "<NdArray[2] float32\n[0. 0.]>"
    assert repr((x * 2).data) == "<NdArray[2] float32, not written>"


def test_print_graph_lists_functions_in_order():
    x = leaf([1, 2])
    x.name = "x"
    h = x * 2
    h.name = "h"
    text = io.StringIO()
    nn.print_graph(F.sum(h), file=text)
    lines = text.getvalue().splitlines()
    assert lines[0] == "%0 h: float32[2] = mul_scalar(x:float32[2] grad) [val=2.0]"
    assert lines[1].startswith("%1: float32[] = sum(%0)")
    assert lines[2].startswith("2 functions, ")
