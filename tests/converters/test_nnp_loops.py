# SPDX-License-Identifier: Apache-2.0
"""Loops in networks of files: unrolled, or refused with a reason."""

from __future__ import annotations

import io

import numpy as np
import pytest

import nnl as nn
from nnl.converters.nnp import loops
from nnl.converters.nnp.messages import parse
from nnl.utils.load import load
from tests.converters.loop_networks import (
    AFFINE,
    NETWORKS,
    RECURRENT,
    REPEAT,
    SLICES,
    TIMES,
    function,
    net,
    variable,
)

LONG_SLICES = (
    variable("x", 1, 4) + variable("y", 1) + function("RecurrentInput", "x", "y", SLICES)
).replace("length: 3", "length: 999999999")


def text_file(text: str) -> io.BytesIO:
    return io.BytesIO(text.encode())


def filled() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    for v in nn.get_parameters().values():
        v.d = rng.normal(size=v.shape)
    return {k: v.d.copy() for k, v in nn.get_parameters().items()}


def test_a_repeated_part_runs_once_per_iteration() -> None:
    v = load(text_file(NETWORKS["repeat"])).networks["n"].variables
    w = filled()
    assert sorted(w) == ["W[0]", "W[1]", "W[2]"]
    x, y = v["x"].variable_instance, v["y"].variable_instance
    x.d = np.random.default_rng(1).normal(size=(2, 4))
    y.forward()
    np.testing.assert_allclose(y.d, np.tanh(x.d @ w["W[0]"] @ w["W[1]"] @ w["W[2]"]), rtol=1e-4)


def test_a_recurrent_part_goes_along_the_axis() -> None:
    v = load(text_file(NETWORKS["recurrent"])).networks["n"].variables
    x, init, y = (v[k].variable_instance for k in ("x", "init", "y"))
    rng = np.random.default_rng(1)
    x.d, init.d = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 4))
    y.forward()
    h, want = init.d, []
    for i in range(3):
        h = np.tanh(x.d[:, i] + h)
        want.append(np.tanh(h))
    np.testing.assert_allclose(y.d, np.stack(want, 1), rtol=1e-5)


def test_a_loop_without_repeat_info_takes_the_number_at_its_ends() -> None:
    assert len(load(text_file(net(REPEAT))).networks["n"].functions) == 4


def test_optimizers_train_the_parameters_of_all_iterations() -> None:
    text = net(REPEAT, R=3) + 'optimizer { name: "o" network_name: "n" solver { type: "Sgd" }'
    text += ' loss_variable { variable_name: "y" }'
    text += ' parameter_variable { variable_name: "W{R}" learning_rate_multiplier: 1 } }'
    assert list(load(text_file(text)).optimizers["o"].parameters) == ["W[0]", "W[1]", "W[2]"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (net(REPEAT, R=0), "network 'n': the loop 'R' has 0 iterations"),
        (net(variable("x", 1, loops="Q")), "the loop 'Q' has no number of iterations"),
        (
            net(RECURRENT.replace('input: "h" input: "init"', 'input: "h"'), L=3),
            r"function 'fd' \(Delay\): it has 1 inputs and 1 outputs, wanted 2 and 1",
        ),
        (net(REPEAT.replace('input: "s"', 'input: "q"'), R=3), "'fh': there is no variable 'q'"),
        (net(REPEAT.replace('input: "e"', 'input: "h"'), R=3), "'h' of the loop 'R' is read outs"),
        (net(REPEAT.replace('input: "e"', 'input: "s"'), R=3), "'s' of the loop 'R' is read outs"),
        (net(REPEAT, R=10**9), "unroll to .* functions and variables, more than 131072"),
        (
            net(
                variable("a", 1, loops="R")
                + variable("b", 1)
                + function("RepeatEnd", "c", "c", TIMES)
                + variable("c", 1)
                + function("Tanh", "c", "b"),
                R=3,
            ),
            r"function 'fc': it leads back to itself",
        ),
        (net(function("RecurrentInput", "x", "y", SLICES)), "'fy' .*there is no variable 'x'"),
        (net(LONG_SLICES), "unroll to .* functions and variables, more than 131072"),
    ],
)
def test_broken_loops_are_refused(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MAX_HOPS", 10_000)
    with pytest.raises(ValueError, match=message):
        load(text_file(text))
    assert nn.get_parameters(grad_only=False) == {}


def test_a_network_without_loops_is_left_alone() -> None:
    text = net(variable("x", 1) + variable("y", 1) + function("Tanh", "x", "y", AFFINE[:0]))
    message = parse("NNablaProtoBuf", text.encode(), True, "t").network[0]
    assert loops.expand_loops(message, "t") is message
