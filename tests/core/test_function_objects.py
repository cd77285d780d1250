# SPDX-License-Identifier: Apache-2.0
"""What scripts ask of functions and of who uses a variable. Values were tried in NNabla 1.39."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn
import nnl.backward_functions as B
import nnl.functions as F
import nnl.graph_def as graph_def
import nnl.parametric_functions as PF
from tests.core.conftest import leaf


def images() -> nn.Variable:
    return nn.Variable((2, 4, 3, 3))


STATISTICS = {
    "BatchNormalization": lambda: PF.batch_normalization(images(), output_stat=True),
    "FusedBatchNormalization": lambda: PF.fused_batch_normalization(images(), output_stat=True),
    "LayerNormalization": lambda: F.layer_normalization(images(), None, None, output_stat=True),
    "InstanceNormalization": lambda: F.instance_normalization(
        images(), None, None, output_stat=True
    ),
    "GroupNormalization": lambda: F.group_normalization(images(), None, None, 2, output_stat=True),
    "WeightStandardization": lambda: F.weight_standardization(images(), output_stat=True),
    "SpectralNorm": lambda: F.spectral_norm(nn.Variable((2, 3)), nn.Variable((2,)), output_u=True),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_function_with_more_outputs_keeps_its_type_name(name: str) -> None:
    ys = STATISTICS[name]()
    assert {y.parent.name for y in ys} == {y.parent.info.type_name for y in ys} == {name}
    assert len(ys[0].parent.outputs) == len(ys)


def test_names_and_flags_set_in_visit_last() -> None:
    x = leaf([1, 2])
    h = F.tanh(x)
    y = F.relu(h)

    def name(f: nn.function.Function) -> None:
        f.outputs[0].name = f"{f.name}_out"
        f.outputs[0].persistent = f.name == "Tanh"

    y.visit(name)
    assert (h.name, y.name, h.persistent) == ("Tanh_out", "ReLU_out", True)
    assert y.parent.outputs[0].name == "ReLU_out" and y.parent.inputs[0].name == "Tanh_out"
    seen = []
    y.visit_check(lambda f: seen.append(f.outputs[0].name))
    assert seen == ["Tanh_out", "ReLU_out"]


def test_functions_that_use_a_variable_are_found_while_they_live() -> None:
    x = leaf([1, 2])
    h = F.tanh(x)
    y, z = F.relu(h), F.sum(h.parent.outputs[0])
    assert [f.name for f in h.function_references] == ["ReLU", "Sum"]
    assert [f.name for f in x.function_references] == ["Tanh"] and y.function_references == []
    assert h.get_unlinked_variable().function_references == []
    del y, z
    assert h.function_references == []
    with nn.auto_forward():
        y = F.relu(x)
    assert [f.name for f in x.function_references] == ["Tanh", "ReLU"] and y.d.tolist() == [1, 2]


def test_references_to_the_same_data_are_counted() -> None:
    x = leaf([1, 2])
    y = F.relu(x)
    assert x.get_number_of_references == y.get_number_of_references == 1
    copy = y.get_unlinked_variable()
    assert y.get_number_of_references == copy.get_number_of_references == 2


def test_recompute_leaves_running_statistics_alone() -> None:
    x, mean, variance = nn.Variable((4, 3)), nn.Variable((1, 3)), nn.Variable((1, 3))
    x.d, mean.d, variance.d = np.arange(12).reshape(4, 3) ** 2, 0, 1
    y = F.batch_normalization(x, None, None, mean, variance)
    y.forward()
    want, statistics = y.d.copy(), (mean.d.copy(), variance.d.copy())
    y.data.zero()
    assert not y.parent.need_setup_recompute(0)
    y.parent.recompute([x, mean, variance], [y])
    np.testing.assert_array_equal(y.d, want)
    np.testing.assert_array_equal((mean.d, variance.d), statistics)


def test_recompute_draws_what_followed_its_setup() -> None:
    x = nn.Variable((8, 8))
    x.d = 1
    y = F.dropout(x, 0.5)
    f = y.parent
    assert f.need_setup_recompute(0)
    f.setup_recompute([x], [y])
    f.forward([x], [y])
    first = y.d.copy()
    f.forward([x], [y])
    assert (y.d != first).any()
    for _ in range(2):
        f.recompute([x], [y])
        np.testing.assert_array_equal(y.d, first)


@pytest.mark.parametrize("clear", [False, True])
def test_masked_inputs_take_no_part(clear: bool) -> None:
    xs = [leaf([k, k + 1]) for k in (1, 2, 3)]
    hs = [F.identity(x) for x in xs]
    for function, value, gradient in ((F.add_n, [4, 6], [1, 1]), (F.mul_n, [3, 8], [3, 4])):
        y = function(*hs)
        y.forward()
        y.parent.set_active_input_mask([True, False, True])
        hs[1].data.fill(9)
        for x in xs:
            x.grad.zero()
        y.forward(clear_no_need_grad=clear)
        y.backward(clear_buffer=clear)
        np.testing.assert_array_equal(y.d, value)
        np.testing.assert_array_equal(xs[0].g, gradient)
        np.testing.assert_array_equal(xs[1].g, [0, 0])
        assert len(y.parent.inputs) == 3
        if not clear:
            out = nn.Variable()
            y.parent.forward(hs, [out])
            np.testing.assert_array_equal(out.d, value)
        y.parent.set_active_input_mask([True, True, True])
        y.forward()
        np.testing.assert_array_equal(y.d, [6, 9] if function is F.add_n else [6, 24])


@pytest.mark.parametrize(
    ("function", "mask", "text"),
    [
        (F.relu, [True], "ReLU cannot leave inputs out, wanted AddN or MulN"),
        (F.add_n, [True, True], r"mask is \[True, True\], wanted 1 values"),
        (F.add_n, [False], "and at least one True"),
    ],
)
def test_masks_that_make_no_sense_are_errors(function, mask: list, text: str) -> None:
    with pytest.raises(
        ValueError, match=f"set_active_input_mask: {function(leaf([1])).parent.name}"
    ):
        function(leaf([1])).parent.set_active_input_mask(mask)
    with pytest.raises(ValueError, match=text):
        function(leaf([1])).parent.set_active_input_mask(mask)


# ---- backward functions ----


@pytest.mark.parametrize("auto", [False, True])
def test_backward_functions_of_built_in_functions(auto: bool) -> None:
    rng = np.random.default_rng(0)
    a, b, gy = (nn.Variable.from_numpy_array(rng.normal(size=(2, 3))) for _ in range(3))
    for v in (a, b, gy):
        v.d = v.d.astype(np.float32)
    with nn.auto_forward(auto):
        (ga, gb), gt = (
            B.mul2_backward([gy], [a, b], [a.shape] * 2, [None], [a.shape], inplace=False),
            B.tanh_backward([gy], [a], [a.shape], [F.tanh(a)], [a.shape]),
        )
        twice = B.registry["Mul2"]([gy], [a, a], [a.shape] * 2, [None], [a.shape])
        gs = B.registry["Sum"](
            [gy[:, 0]], [a], [a.shape], [None], [(2,)], axes=[1], keep_dims=False
        )
    nn.forward_all([ga, gb, gt, gs, *twice])
    np.testing.assert_allclose(ga.d, gy.d * b.d, rtol=1e-6)
    np.testing.assert_allclose(gb.d, gy.d * a.d, rtol=1e-6)
    np.testing.assert_allclose(gt.d, gy.d * (1 - np.tanh(a.d) ** 2), rtol=1e-5)
    np.testing.assert_allclose([v.d for v in twice], [gy.d * a.d] * 2, rtol=1e-6)
    np.testing.assert_array_equal(gs.d, np.repeat(gy.d[:, :1], 3, 1))


def test_a_registered_rule_takes_the_place_of_a_built_in_one() -> None:
    x = leaf([-1, 2])

    def straight_through(grad_inputs, inputs, input_shapes, outputs, output_shapes, inplace):
        assert (input_shapes, output_shapes, inplace) == ([(2,)], [(2,)], False)
        return grad_inputs[0] * 7

    B.register("ReLU", straight_through)
    try:
        assert B.registry["ReLU"] is straight_through
        (g,) = nn.grad([F.relu(x)], [x])
        g.forward()
        np.testing.assert_array_equal(g.d, [7, 7])
    finally:
        del B.registry["ReLU"]
    (g,) = nn.grad([F.relu(x)], [x])
    g.forward()
    np.testing.assert_array_equal(g.d, [0, 1])


def test_backward_functions_that_do_not_exist() -> None:
    assert "ReLU" in B.registry and "Nothing" not in B.registry and len(B.registry) > 200
    with pytest.raises(AttributeError, match="no attribute 'nothing_backward'"):
        _ = B.nothing_backward
    with pytest.raises(NotImplementedError, match="draws other numbers than dropout has drawn"):
        B.dropout_backward([leaf([1])], [leaf([1])])


def test_the_registry_can_be_shown(capsys: pytest.CaptureFixture) -> None:
    B.show_registry()
    assert "ReLU <function relu_backward" in capsys.readouterr().out


# ---- the rest ----


def test_classes_of_functions_take_a_context_first() -> None:
    from nnl.function import AddScalar, Affine

    x, w = leaf([[1, 2]]), leaf([[3], [4]])
    y = AddScalar(nn.Context(["numpy:float"]), 0.5)(
        Affine(nn.get_current_context(), base_axis=1)(x, w)
    )
    y.forward()
    assert y.d.tolist() == [[11.5]] and y.parent.context.backend == ["numpy:float"]
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = nn.function.Nothing


def test_copy_from_returns_the_array() -> None:
    a, b = nn.NdArray(2), nn.NdArray(2)
    b.data = 3
    assert a.copy_from(b) is a and a.data.tolist() == [3, 3]


def test_networks_can_be_named_where_functions_are_called() -> None:
    x = nn.ProtoVariable((2, 3))
    with graph_def.graph() as g:
        with graph_def.graph_name("a"):
            y = F.relu(x)
        with graph_def.graph_name("b"):
            y = F.tanh(F.sin(y))
        F.exp(y)
    types = {k: [f.type for f in n.functions.values()] for k, n in g.networks.items()}
    assert types == {"a": ["ReLU"], "b": ["Sin", "Tanh"], "model": ["Exp"]}
    with graph_def.graph(name="whole") as g:
        with graph_def.graph_name("a"):
            y = F.relu(x)
        F.exp(y)
    assert list(g.networks) == ["a", "whole"]
