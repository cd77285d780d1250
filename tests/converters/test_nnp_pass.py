# SPDX-License-Identifier: Apache-2.0
"""NnpNetworkPass: changes to a network before it is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.core.graph.node import capture
from nnl.utils.nnp_graph import NnpLoader, NnpNetworkPass
from nnl.utils.save import save


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Any]:
    """Build the network after changes."""
    x = nn.Variable((4, 1, 8, 8))
    h = PF.batch_normalization(PF.convolution(x, 3, (3, 3), name="c1"), name="b1")
    mid = F.dropout(F.relu(h), 0.3)
    y = PF.affine(F.average_pooling(mid, (6, 6)), 5, name="f")
    names = {"x": x, "mid": mid, "y": y}
    net = {"name": "n", "batch_size": 4, "outputs": {"out": F.softmax(y)}, "names": names}
    save(tmp_path / "p.nnp", {"networks": [net]})
    nn.clear_parameters()

    def run(*changes: Callable[[NnpNetworkPass], Any], **kwargs: Any) -> Any:
        callback = NnpNetworkPass()
        for change in changes:
            change(callback)
        return NnpLoader(tmp_path / "p.nnp").get_network("n", callback=callback, **kwargs)

    return run


def types(network: Any) -> list[str]:
    nodes = capture([v.edge for v in network.outputs.values()])
    return [n.op.name for n in nodes]


ALL = ["convolution", "batch_normalization", "relu", "dropout", "average_pooling", "affine"]


def test_use_up_to_ends_the_network(build: Any) -> None:
    n = build(lambda c: c.use_up_to("mid"))
    assert list(n.inputs) == ["x"] and list(n.outputs) == ["mid"] and types(n) == ALL[:4]


def test_a_dropped_function_leaves_its_output_as_an_input(build: Any) -> None:
    n = build(lambda c: c.drop_function("@n/Dropout"))
    assert list(n.inputs) == ["x", "mid"] and list(n.outputs) == ["@n/ReLU_out", "out"]


def test_a_removed_function_is_bridged(build: Any) -> None:
    n = build(lambda c: c.remove_and_rewire("@n/Dropout"))
    assert types(n) == [*ALL[:3], *ALL[4:], "softmax"] and list(n.inputs) == ["x"]


def test_parameters_can_be_fixed_in_a_network(build: Any) -> None:
    n = build(lambda c: c.fix_parameters())
    assert not n.outputs["out"].need_grad
    assert nn.get_parameters()["c1/conv/W"].need_grad


def test_an_input_can_be_given(build: Any) -> None:
    x = nn.Variable((2, 1, 8, 8))
    n = build(lambda c: c.set_variable("x", x))
    assert n.inputs["x"] is x and n.outputs["out"].shape == (2, 5)


def test_average_pooling_follows_the_size_of_its_input(build: Any) -> None:
    x = nn.Variable((4, 1, 12, 12))
    n = build(
        lambda c: c.set_variable("x", x),
        lambda c: c.force_average_pooling_global("AveragePooling", by_type=True),
    )
    pooled = capture([n.outputs["out"].edge])[4]
    assert pooled.attrs.kernel == (10, 10) and pooled.out_specs[0].shape == (4, 3, 1, 1)
    build(lambda c: c.check_average_pooling_global("@n/AveragePooling"))
    with pytest.raises(ValueError, match=r"the kernel \(6, 6\) does not cover the whole input"):
        build(
            lambda c: c.set_variable("x", x),
            lambda c: c.check_average_pooling_global("@n/AveragePooling"),
        )


def test_batch_normalisation_takes_the_running_statistics(build: Any) -> None:
    n = build(lambda c: c.set_batch_normalization_batch_stat_all(False))
    assert capture([n.outputs["out"].edge])[1].attrs.batch_stat is False


def test_callbacks_see_and_change_messages(build: Any) -> None:
    seen = []

    def change(c: NnpNetworkPass) -> None:
        @c.on_generate_variable("x")
        def batch(v: Any) -> Any:
            seen.append((v.name, v.num_referrers, v.parent))
            v.need_grad = True
            v.proto.shape.dim[0] = 3
            return v

        @c.on_generate_function_by_type("Dropout")
        def half(f: Any) -> None:
            f.proto.dropout_param.p = 0.5

        @c.on_generate_function_by_name("@n/ReLU")
        def look(f: Any) -> None:
            seen.append((f.type, [v.name for v in f.outputs]))

        @c.on_function_pass_by_name("@n/Affine")
        def stop(f: Any, variables: Any, scope: Any) -> None:
            f.inputs[0].stop()
            assert variables["y"].parent is f and scope == nn.get_current_parameter_scope()

    n = build(change)
    assert seen == [("x", 1, None), ("ReLU", ["@n/ReLU_out"])]
    assert n.inputs["x"].need_grad and n.inputs["x"].shape[0] == 3
    assert capture([v.edge for v in n.outputs.values()])[3].attrs.p == 0.5
    assert list(n.outputs) == ["@n/AveragePooling_out"]


def test_networks_of_a_loader_share_parameters_and_leave_others_alone(
    build: Any, tmp_path: Path
) -> None:
    """As in NNabla 1.39."""
    loader = NnpLoader(tmp_path / "p.nnp")
    loader.get_network("n")
    w = nn.get_parameters()["c1/conv/W"]
    want = w.d.copy()
    w.d = 7
    loader.get_network("n", batch_size=2)
    assert (nn.get_parameters()["c1/conv/W"].d == 7).all()  # what training has made of them
    NnpLoader(tmp_path / "p.nnp").get_network("n")
    assert (nn.get_parameters()["c1/conv/W"].d == want).all()
    assert (w.d == 7).all()
    nn.clear_parameters()
    PF.convolution(nn.Variable((1, 9, 5, 5)), 2, (3, 3), name="c1")  # another network's
    other = nn.get_parameters()["c1/conv/W"]
    NnpLoader(tmp_path / "p.nnp").get_network("n")
    assert other.shape == (2, 9, 3, 3)
    assert (nn.get_parameters()["c1/conv/W"].d == want).all()


@pytest.mark.parametrize("by_function", [False, True])
def test_a_variable_given_in_the_middle_cuts_the_network(build: Any, by_function: bool) -> None:
    """NNabla takes the assignment and goes on as if nothing had been given."""
    mid = nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=(4, 3, 6, 6)))

    def give(f: Any) -> None:
        f.outputs[0].variable = mid

    if by_function:
        n = build(lambda c: c.on_generate_function_by_name("@n/Dropout")(give))
    else:
        n = build(lambda c: c.set_variable("mid", mid))
    assert types(n) == [*ALL[4:], "softmax"]
    assert list(n.inputs) == ["mid"] and list(n.outputs) == ["out"] and "x" not in n.variables
    weights = {k: v.d for k, v in nn.get_parameters().items()}
    y = mid.d.mean((2, 3)) @ weights["f/affine/W"] + weights["f/affine/b"]
    n.outputs["out"].forward()
    want = np.exp(y) / np.exp(y).sum(1, keepdims=True)
    np.testing.assert_allclose(n.outputs["out"].d, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda c: c.drop_function("No"), ValueError, "there is no function 'No', only"),
        (lambda c: c.use_up_to("No"), ValueError, "there is no variable 'No', only"),
        (
            lambda c: c.remove_and_rewire("@n/ReLU", i=1),
            ValueError,
            "'@n/ReLU' has 1 inputs and 1 outputs, asked for input 1 and output 0",
        ),
        (
            lambda c: c.on_generate_variable("mid")(lambda v: setattr(v, "need_grad", True)),
            ValueError,
            "variable 'mid' is computed by a function: need_grad can be set for inputs",
        ),
        (lambda c: c.set_variable("x", 3), TypeError, "input_var is int, wanted nnl.Variable"),
        (
            lambda c: c.on_generate_variable("x")(lambda v: 3),
            TypeError,
            "variable 'x': the callback returned int",
        ),
    ],
)
def test_changes_that_cannot_be_made_are_errors(
    build: Any, change: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build(change)
    assert nn.get_parameters(grad_only=False) == {}
