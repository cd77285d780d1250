# SPDX-License-Identifier: Apache-2.0
"""Normalisations folded, fused and taken apart: the new graph computes what the old one does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.experimental.graph_converters as GC
import nnl.functions as F
import nnl.parametric_functions as PF

FOLD = GC.BatchNormalizationFoldingModifier()
OPPOSITE = GC.BatchNormalizationFoldingModifier(opposite=True)


@pytest.fixture
def x() -> nn.Variable:
    return nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=(2, 4, 6, 6)))


def bn(x: nn.Variable, name: str, **kw: Any) -> nn.Variable:
    return PF.batch_normalization(x, name=name, **{"batch_stat": False, **kw})


def randomize() -> None:
    rng = np.random.default_rng(1)
    for name, p in nn.get_parameters(grad_only=False).items():
        if not name.endswith("folded"):
            p.d = rng.uniform(0.5, 1.5, size=p.shape)


def types(y: nn.Variable) -> list[str]:
    found: list[str] = []
    y.visit(lambda f: found.append(f.name))
    return found


def check(old: nn.Variable, wanted: list[str], *modifiers: Any) -> nn.Variable:
    """The graph has these functions after the modifiers, and the values that it had before."""
    randomize()
    y = GC.GraphConverter(list(modifiers)).convert(old)
    assert types(y) == wanted
    nn.forward_all([y, old])
    np.testing.assert_allclose(y.d, old.d, rtol=1e-4, atol=1e-4)
    return y


LAYERS = {
    "convolution": lambda x, **kw: PF.convolution(x, 6, (3, 3), stride=(2, 2), **kw),
    "groups": lambda x, **kw: PF.convolution(x, 6, (3, 3), group=2, **kw),
    "channel_last": lambda x, **kw: PF.convolution(x, 4, (3, 3), channel_last=True, **kw),
    "deconvolution": lambda x, **kw: PF.deconvolution(x, 6, (3, 3), stride=(2, 2), **kw),
    "deconvolution in groups": lambda x, **kw: PF.deconvolution(x, 6, (3, 3), group=2, **kw),
    "deconvolution channel_last": lambda x, **kw: PF.deconvolution(
        x, 6, (3, 3), channel_last=True, **kw
    ),
    "affine": lambda x, **kw: PF.affine(x, 5, **kw),
    "affine of two axes": lambda x, **kw: PF.affine(x, (5, 3), base_axis=2, **kw),
}


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_folding_backwards(x: nn.Variable, layer: str, with_bias: bool) -> None:
    h = LAYERS[layer](x, with_bias=with_bias, name="l")
    axis = -1 if "last" in layer or "two" in layer else 1
    old = F.relu(bn(h, "b", axes=[axis]))
    check(old, [h.parent.name, "ReLU"], FOLD)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_folding_forwards(x: nn.Variable, layer: str, with_bias: bool) -> None:
    h = bn(F.relu(x), "b", axes=[-1 if "last" in layer or "two" in layer else 1])
    old = LAYERS[layer](h, with_bias=with_bias, name="l")
    names = ["ReLU", old.parent.name]
    if "deconvolution" in layer:  # its border would be another one
        names.insert(1, "BatchNormalization")
    check(old, names, OPPOSITE)


def test_padding_keeps_a_normalization_that_shifts(x: nn.Variable) -> None:
    old = PF.convolution(bn(x, "b"), 3, (3, 3), pad=(1, 1), name="l")
    check(old, ["BatchNormalization", "Convolution"], OPPOSITE)
    for name in ("b/bn/beta", "b/bn/mean"):
        nn.get_parameters(grad_only=False)[name].d = 0
    y = GC.GraphConverter(OPPOSITE).convert(old)
    assert types(y) == ["Convolution"]
    nn.forward_all([y, old])
    np.testing.assert_allclose(y.d, old.d, rtol=1e-4, atol=1e-4)


def test_folding_on_both_sides_and_several_times(x: nn.Variable) -> None:
    h = PF.convolution(bn(x, "b0"), 4, (3, 3), name="l")
    old = bn(bn(h, "b1"), "b2")
    check(old, ["Convolution"], FOLD, OPPOSITE)
    y = GC.GraphConverter([FOLD, OPPOSITE]).convert(old)  # from parameters that exist by now
    nn.forward_all([y, old])
    np.testing.assert_allclose(y.d, old.d, rtol=1e-4, atol=1e-4)


def test_a_weight_with_two_normalizations_becomes_two(x: nn.Variable) -> None:
    a, b = (bn(PF.convolution(x, 4, (3, 3), name="l"), name) for name in ("b1", "b2"))
    check(a * b, ["Convolution", "Convolution", "Mul2"], FOLD)
    assert {"l/conv/w-folded", "l/conv/w-folded-2"} <= set(nn.get_parameters())


def test_what_others_read_is_not_folded(x: nn.Variable) -> None:
    h = PF.convolution(x, 4, (3, 3), name="l")
    check(h + bn(h, "b"), ["Convolution", "BatchNormalization", "Add2"], FOLD)


def test_folding_takes_running_statistics_where_the_batch_counted(x: nn.Variable) -> None:
    y = bn(PF.convolution(x, 4, (3, 3), name="l"), "b", batch_stat=True)
    randomize()
    y = GC.GraphConverter(FOLD).convert(y)
    wanted = bn(PF.convolution(x, 4, (3, 3), name="l"), "b")
    assert types(y) == ["Convolution"]
    nn.forward_all([y, wanted])
    np.testing.assert_allclose(y.d, wanted.d, rtol=1e-4, atol=1e-4)


def test_computed_weights_are_not_folded(x: nn.Variable) -> None:
    h = PF.convolution(x, 4, (3, 3), apply_w=lambda w: w * 2, name="l")
    check(bn(h, "b"), ["MulScalar", "Convolution", "BatchNormalization"], FOLD)


def test_folded_weights_are_parameters_that_keep_their_values(
    x: nn.Variable, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = bn(PF.convolution(x, 4, (3, 3), with_bias=False, name="l"), "b")
    check(old, ["Convolution"], FOLD)
    for name in ("l/conv/w-folded", "l/conv/b-folded"):
        nn.get_parameters()[name].d = 1
    said: list[str] = []
    monkeypatch.setattr(nn.logger, "warning", lambda text, *args: said.append(text % args))
    y = GC.GraphConverter(FOLD).convert(old)
    y.forward()
    wanted = F.convolution(
        x, *(nn.Variable.from_numpy_array(np.ones(s)) for s in ((4, 4, 3, 3), 4))
    )
    wanted.forward()
    np.testing.assert_allclose(y.d, wanted.d, rtol=1e-5, atol=1e-5)
    assert said[0].endswith(
        "the parameter l/conv/w-folded exists and keeps its value, which is not the one that "
        "l/conv/W gives now"
    )


def test_weights_that_are_no_parameters_are_folded_into_new_variables(x: nn.Variable) -> None:
    w = nn.Variable.from_numpy_array(np.random.default_rng(2).normal(size=(4, 4, 3, 3)))
    check(bn(F.convolution(x, w), "b"), ["Convolution"], FOLD)
    assert not [name for name in nn.get_parameters() if "folded" in name]


def test_folded_graphs_train(x: nn.Variable) -> None:
    y = bn(PF.convolution(x, 4, (3, 3), name="l"), "b", batch_stat=True)
    y = F.sum(GC.GraphConverter(FOLD).convert(y))
    y.forward(clear_no_need_grad=True)
    y.backward(clear_buffer=True)
    assert np.abs(nn.get_parameters()["l/conv/w-folded"].g).sum() > 0


def test_biases_of_zeros_are_added_beside_normalizations(x: nn.Variable) -> None:
    h = bn(PF.convolution(x, 4, (3, 3), with_bias=False, name="l"), "b")
    h = PF.convolution(F.relu(h), 4, (3, 3), with_bias=False, name="m")
    old = PF.affine(bn(h, "c"), (5, 2), with_bias=False, name="a")
    far = PF.affine(F.relu(old), 3, with_bias=False, name="far")
    y = check(far, types(far), GC.AddBiasModifier())
    biases = {n: p.shape for n, p in nn.get_parameters().items() if n.endswith("/b")}
    assert biases == {"l/conv/b": (4,), "m/conv/b": (4,), "a/affine/b": (5, 2)}
    check(y, ["Convolution", "ReLU", "Convolution", "Affine", "ReLU", "Affine"], FOLD, OPPOSITE)


def test_self_folding_is_a_product_and_a_sum(x: nn.Variable) -> None:
    old = bn(F.relu(bn(x, "b")), "c", axes=[3], no_bias=True)
    check(old, ["Mul2", "Add2", "ReLU", "Mul2", "Add2"], GC.BatchNormalizationSelfFoldingModifier())
    assert "b/bn/c0-bn-self-folding" in nn.get_parameters()


@pytest.mark.parametrize("batch_stat", [False, True])
def test_fusing_and_taking_apart(x: nn.Variable, batch_stat: bool) -> None:
    h = bn(x, "b", batch_stat=batch_stat)
    fused = ["MulScalar", "FusedBatchNormalization"]
    fused = check(F.relu(x * 2 + h), fused, GC.FusedBatchNormalizationModifier())
    plain = ["MulScalar", "BatchNormalization", "Add2", "ReLU"]
    check(fused, plain, GC.UnfusedBatchNormalizationModifier())
    alone = PF.fused_batch_normalization(x, batch_stat=batch_stat, name="f")
    check(alone, ["BatchNormalization", "ReLU"], GC.UnfusedBatchNormalizationModifier())


def test_of_two_normalizations_that_are_added_one_is_fused_and_the_other_stays(
    x: nn.Variable,
) -> None:
    """A block of a residual network whose shortcut is a convolution has this end."""
    old = F.relu(bn(x, "b") + bn(x * 2, "shortcut"))
    wanted = ["MulScalar", "BatchNormalization", "FusedBatchNormalization"]
    check(old, wanted, GC.FusedBatchNormalizationModifier())


def test_what_others_read_is_not_fused(x: nn.Variable) -> None:
    h = bn(x, "b")
    old = F.relu(h + x) + h
    check(old, types(old), GC.FusedBatchNormalizationModifier())
    s = bn(x, "c") + x
    old = F.relu(s) + s
    check(old, types(old), GC.FusedBatchNormalizationModifier())


@pytest.mark.parametrize("layer", LAYERS)
def test_pruning_clears_whole_maps(x: nn.Variable, layer: str) -> None:
    old = LAYERS[layer](x, name="l")
    randomize()
    w = next(p for n, p in nn.get_parameters().items() if n.endswith("W"))
    w.d = before = np.linspace(0.1, 2, w.size).reshape(w.shape)
    axis = 1 if layer.startswith(("deconvolution", "affine")) else 0
    axis = -1 if layer == "deconvolution channel_last" else axis
    others = tuple(i for i in range(w.ndim) if i != axis % w.ndim)
    sums = (before**2).sum(0 if "affine" in layer else others)
    y = GC.GraphConverter(GC.PruningModifier(float(np.median(sums)))).convert(old)
    nn.forward_all([y, old])
    if "affine" in layer:
        axes = tuple(range(y.ndim - sums.ndim))
    else:
        axes = (0, 1, 2) if "last" in layer else (0, 2, 3)
    zero, same = (y.d == 0).all(axes), np.isclose(y.d, old.d, rtol=1e-5).all(axes)
    groups = (2,) if layer == "deconvolution in groups" else ()
    np.testing.assert_array_equal(same, np.tile(sums > np.median(sums), groups))
    np.testing.assert_array_equal(zero, ~same)
    np.testing.assert_array_equal(w.d, before)
