# SPDX-License-Identifier: Apache-2.0
"""Graphs made anew: against networks that are built the changed way from the start."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

import nnl as nn
import nnl.experimental.graph_converters as GC
import nnl.functions as F
import nnl.parametric_functions as PF


def network(x: nn.Variable, test: bool = True, act: Callable = F.relu, drop: bool = False):
    h = PF.convolution(x, 4, (3, 3), pad=(1, 1), with_bias=False, name="c")
    h = act(PF.batch_normalization(h, batch_stat=not test, name="b1"))
    h = F.dropout(h, 0.5, seed=7) if drop else h
    h = PF.affine(F.max_pooling(h, (2, 2)), 5, name="a")
    return PF.batch_normalization(h, batch_stat=not test, name="b2")


@pytest.fixture
def x() -> nn.Variable:
    rng = np.random.default_rng(0)
    x = nn.Variable((2, 3, 8, 8))
    x.d = rng.normal(size=x.shape)
    network(x)
    for name, p in nn.get_parameters(grad_only=False).items():
        p.d = rng.uniform(0.5, 1.5, size=p.shape) if "bn/" in name else p.d
    return x


def assert_same(y: nn.Variable, wanted: nn.Variable) -> None:
    nn.forward_all([y, wanted])
    np.testing.assert_allclose(y.d, wanted.d, rtol=1e-4, atol=1e-5)


def names(y: nn.Variable) -> list[str]:
    found: list[str] = []
    y.visit(lambda f: found.append(f.name))
    return found


def convert(y: nn.Variable, *modifiers: object) -> nn.Variable:
    return GC.GraphConverter(list(modifiers)).convert(y)


def test_identity_makes_new_functions_of_the_same_inputs(x: nn.Variable) -> None:
    old = network(x)
    y = convert(old, GC.IdentityModifier())
    assert y != old and names(y) == names(old)
    assert_same(y, old)


def test_identity_takes_other_inputs_of_other_shapes(x: nn.Variable) -> None:
    other = nn.Variable((5, 3, 8, 8))
    other.d = np.random.default_rng(1).normal(size=other.shape)
    assert_same(convert(network(x), GC.IdentityModifier({x: other})), network(other))


def test_identity_copies_values_where_asked(x: nn.Variable) -> None:
    other = nn.Variable(x.shape)
    assert_same(convert(network(x), GC.IdentityModifier({x: other}, copy_value=True)), network(x))
    with pytest.raises(ValueError, match=r"shape \(5, 3, 8, 8\), the values to copy \(2, 3, 8, 8"):
        convert(network(x), GC.IdentityModifier({x: nn.Variable((5, 3, 8, 8))}, copy_value=True))


def test_test_mode_is_the_network_built_for_tests(x: nn.Variable) -> None:
    y = convert(network(x, test=False, drop=True), GC.TestModeModifier(rm_funcs=["Dropout"]))
    assert names(y) == names(network(x))
    assert_same(y, network(x))


def test_statistics_and_removal_can_be_changed_one_by_one(x: nn.Variable) -> None:
    y = convert(
        network(x, test=False, drop=True),
        GC.BatchNormBatchStatModifier(),
        [GC.RemoveFunctionModifier(["Dropout"]), GC.RemoveFunctionModifier(["ReLU"])],
    )
    assert_same(y, network(x, act=F.identity))


def test_no_grad_gives_no_parameter_a_gradient(x: nn.Variable) -> None:
    x.need_grad = True
    y = convert(network(x), GC.NoGradModifier())
    assert_same(y, network(x))
    for p in nn.get_parameters().values():
        p.grad.zero()
    x.grad.zero()
    y.backward()
    assert all(p.grad.zeroing for p in nn.get_parameters().values())
    assert np.abs(x.g).sum() > 0


class Swap(GC.FunctionModifier):
    """Replaces a function by what it was given."""

    def __init__(self, name: str, by: Callable) -> None:
        self.name, self.by, self.scopes = name, by, []

    def modify(self, f, inputs):
        if f.info.type_name == "Affine":
            self.scopes.append(self.get_parameter_scope(inputs[1]))
        return self.by(*inputs) if f.info.type_name == self.name else None


def test_own_modifiers_replace_functions(x: nn.Variable) -> None:
    swap = Swap("ReLU", F.elu)
    assert_same(convert(network(x), swap), network(x, act=F.elu))
    assert swap.scopes == ["a/affine"]


def test_several_outputs_share_what_they_shared(x: nn.Variable) -> None:
    h = F.exp(x)
    a, b = GC.GraphConverter([GC.IdentityModifier()]).convert([h * 2, h + 1])
    assert a.parent.inputs[0] == b.parent.inputs[0] != h


def test_one_modifier_need_not_be_in_a_list(x: nn.Variable) -> None:
    nested = [[GC.TestModeModifier()], (GC.RemoveFunctionModifier(["ReLU"]),)]
    y = GC.GraphConverter(nested).convert(network(x, test=False))
    assert_same(y, network(x, act=F.identity))
    y = GC.GraphConverter(GC.TestModeModifier()).convert(network(x, test=False))
    assert_same(y, network(x))


def test_modifiers_do_not_hold_the_graphs_that_they_have_changed(x: nn.Variable) -> None:
    swap, y = Swap("ReLU", F.elu), network(x)
    node = y.parent.node
    before = sys.getrefcount(node)
    convert(y, swap)
    assert sys.getrefcount(node) == before


def test_graphs_are_only_recorded_where_functions_run_at_once(x: nn.Variable) -> None:
    y = network(x)
    with nn.auto_forward():
        new = convert(y, Swap("ReLU", F.elu))
    assert_same(new, network(x, act=F.elu))


def test_wrong_modifiers_are_named(x: nn.Variable) -> None:
    with pytest.raises(TypeError, match="modifiers has a int, wanted FunctionModifier"):
        GC.GraphConverter([3])
    with pytest.raises(TypeError, match="Swap.modify: float for ReLU, wanted nnl.Variable or None"):
        convert(network(x), Swap("ReLU", lambda v: 1.0))
    halves = F.split(x, axis=0)
    with pytest.raises(ValueError, match="Swap: output 1 of Split is in use"):
        convert(F.add2(*halves), Swap("Split", F.identity))
