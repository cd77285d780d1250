# SPDX-License-Identifier: Apache-2.0
"""Graphs whose channels are moved: the same values, in the other order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import nnl as nn
import nnl.experimental.graph_converters as GC
import nnl.functions as F
import nnl.parametric_functions as PF


def first_to_last(a: np.ndarray) -> np.ndarray:
    return np.moveaxis(a, 1, -1)


def last_to_first(a: np.ndarray) -> np.ndarray:
    return np.moveaxis(a, -1, 1)


def network(x: nn.Variable, last: bool) -> nn.Variable:
    at, axis = {"channel_last": last}, -1 if last else 1

    def bn(x: nn.Variable, name: str) -> nn.Variable:
        return PF.batch_normalization(x, axes=[axis], batch_stat=False, name=name)

    h = F.relu(bn(PF.convolution(x, 6, (3, 3), pad=(1, 1), name="c1", **at), "b1"))
    h = h + PF.fused_batch_normalization(h, h, axes=[axis], batch_stat=False, name="b2")
    h = F.concatenate(h, PF.convolution(h, 2, (1, 1), with_bias=False, name="c2", **at), axis=axis)
    h = F.max_pooling(h, (2, 2), **at)
    h = F.average_pooling(
        PF.deconvolution(h, 3, (2, 2), stride=(2, 2), name="d", **at), (2, 2), **at
    )
    return F.sigmoid(h * 0.5)


def types(y: nn.Variable) -> list[str]:
    found: list[str] = []
    y.visit(lambda f: found.append(f.name))
    return found


def made(last: bool, network: Callable = network) -> tuple[nn.Variable, nn.Variable]:
    nn.clear_parameters()
    rng = np.random.default_rng(0)
    value = rng.normal(size=(2, 4, 6, 6)).astype(np.float32)
    x = nn.Variable.from_numpy_array(first_to_last(value) if last else value)
    y = network(x, last)
    for p in nn.get_parameters(grad_only=False).values():
        p.d = rng.uniform(0.2, 1, size=p.shape)
    return x, y


@pytest.mark.parametrize("last", [True, False])
def test_a_network_of_images_has_all_channels_moved(last: bool) -> None:
    x, old = made(not last)
    modifier = GC.ChannelLastModifier([x]) if last else GC.ChannelFirstModifier([x])
    y = GC.GraphConverter(modifier).convert(old)
    assert types(y) == types(old)
    moved = first_to_last if last else last_to_first
    new = (modifier.inputs_cl if last else modifier.inputs_cf)[0]
    np.testing.assert_array_equal(new.d, moved(x.d))
    nn.forward_all([y, old])
    np.testing.assert_allclose(y.d, moved(old.d), rtol=1e-4, atol=1e-5)
    names = nn.get_parameters(grad_only=False)
    assert ("c1/conv/W_cl" if last else "c1/conv/W_cf") in names
    assert ("b1/bn/var_cl" if last else "b1/bn/var_cf") in names


def ends(kind: str) -> Callable:
    def network_with_end(x: nn.Variable, last: bool) -> nn.Variable:
        at = {"channel_last": last}
        h = F.relu(PF.convolution(x, 6, (3, 3), name="c1", **at))
        if kind == "affine":
            return PF.affine(PF.affine(h, 5, name="a1"), 3, name="a2")
        if kind == "reshape":
            return F.reshape(h, (2, -1))
        if kind == "softmax":
            return F.softmax(h, axis=1)
        if kind == "mean":
            return F.mean(h, axis=(1, 2))
        if kind == "parameter":
            return h * nn.parameter.get_parameter_or_create("s", (1, *h.shape[1:]))
        if kind == "computed weight":
            return PF.convolution(h, 2, (3, 3), apply_w=lambda w: w * 2, name="c2", **at)
        return F.split(h, axis=1)[0] + 1

    return network_with_end


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    "kind", ["affine", "reshape", "softmax", "mean", "parameter", "computed weight", "split"]
)
def test_other_functions_see_the_channels_where_they_were(kind: str, last: bool) -> None:
    x, old = made(not last, ends(kind))
    modifier = GC.ChannelLastModifier([x]) if last else GC.ChannelFirstModifier([x])
    y = GC.GraphConverter([modifier]).convert(old)
    nn.forward_all([y, old])
    stays_moved = kind in ("parameter", "computed weight")
    wanted = (first_to_last if last else last_to_first)(old.d) if stays_moved else old.d
    np.testing.assert_allclose(y.d, wanted, rtol=1e-4, atol=1e-5)


def test_given_inputs_take_the_place_of_the_old_ones() -> None:
    x, old = made(False)
    new = nn.Variable((2, 6, 6, 4))
    new.d = first_to_last(x.d)
    y = GC.GraphConverter(GC.ChannelLastModifier([x], [new])).convert(old)
    nn.forward_all([y, old])
    np.testing.assert_allclose(y.d, first_to_last(old.d), rtol=1e-4, atol=1e-5)
    wrong = GC.ChannelLastModifier([x], [nn.Variable((2, 4, 6, 6))])
    text = r"ChannelLastModifier: an input has the shape \(2, 4, 6, 6\), wanted \(2, 6, 6, 4\)"
    with pytest.raises(ValueError, match=text):
        GC.GraphConverter(wrong).convert(old)
