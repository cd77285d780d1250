# SPDX-License-Identifier: Apache-2.0
"""Caffe's solvers: each step is that of its published rule, computed by hand."""

import math

import numpy as np
import pytest

import nnl.dialects.caffe as caffe
from nnl.converters.caffe.messages import messages, parse_text
from nnl.workspace import Workspace

NET = """name: "line" layer { name: "data" type: "Input" top: "x" top: "t"
  input_param { shape { dim: 4 dim: 3 } shape { dim: 4 dim: 2 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" param { lr_mult: 1 decay_mult: 2 }
  param { lr_mult: 2 decay_mult: 0 } inner_product_param { num_output: 2 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }"""
RNG = np.random.default_rng(3)
X, T = RNG.normal(size=(4, 3)), RNG.normal(size=(4, 2))
W, B = RNG.normal(size=(2, 3)), RNG.normal(size=2)


@pytest.fixture(autouse=True)
def workspace():
    with Workspace({}):
        yield


def solver(text, net=NET):
    p = parse_text("SolverParameter", f"base_lr: 0.1 {text}", "solver")
    p.net_param.CopyFrom(parse_text("NetParameter", net, "net"))
    s = caffe.get_solver(p)
    feed(s.net)
    return s


def feed(net, part=slice(None)):
    net.blobs["x"].data[...], net.blobs["t"].data[...] = X[part], T[part]


def start(s):
    s.net.params["ip"][0].data[...], s.net.params["ip"][1].data[...] = W, B
    return s


def by_hand(rule, steps, decay=0.0, l1=False, clip=0.0, rate=lambda i: 0.1):
    """Weights after some steps; a rule takes the gradient, the rate, its states and the step."""
    values, mults, states = [W.copy(), B.copy()], ((1, 2), (2, 0)), [{}, {}]
    for i in range(steps):
        d = (X @ values[0].T + values[1] - T) / 4
        gradients = [d.T @ X, d.sum(0)]
        norm = math.sqrt(sum((g * g).sum() for g in gradients))
        scale = clip / norm if 0 < clip < norm else 1
        for j, (lr, dm) in enumerate(mults):
            w = values[j]
            g = gradients[j] * scale + decay * dm * (np.sign(w) if l1 else w)
            values[j] = w - rule(g, rate(i) * lr, states[j], i + 1)
    return values


def sgd(g, lr, s, t):
    s["v"] = 0.9 * s.get("v", 0) + lr * g
    return s["v"]


def nesterov(g, lr, s, t):
    old = s.get("v", 0)
    s["v"] = 0.9 * old + lr * g
    return 1.9 * s["v"] - 0.9 * old


def adagrad(g, lr, s, t):
    s["h"] = s.get("h", 0) + g * g
    return lr * g / (np.sqrt(s["h"]) + 1e-3)


def rmsprop(g, lr, s, t):
    s["h"] = 0.8 * s.get("h", 0) + 0.2 * g * g
    return lr * g / (np.sqrt(s["h"]) + 1e-3)


def adadelta(g, lr, s, t):
    s["h"] = 0.9 * s.get("h", 0) + 0.1 * g * g
    d = g * np.sqrt((1e-3 + s.get("d", 0)) / (1e-3 + s["h"]))
    s["d"] = 0.9 * s.get("d", 0) + 0.1 * d * d
    return lr * d


def adam(g, lr, s, t):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.95 * s.get("v", 0) + 0.05 * g * g
    return lr * math.sqrt(1 - 0.95**t) / (1 - 0.9**t) * s["m"] / (np.sqrt(s["v"]) + 1e-3)


RULES = {
    "SGD": ("momentum: 0.9", sgd),
    "Nesterov": ("momentum: 0.9", nesterov),
    "AdaGrad": ("delta: 0.001", adagrad),
    "RMSProp": ("delta: 0.001 rms_decay: 0.8", rmsprop),
    "AdaDelta": ("delta: 0.001 momentum: 0.9", adadelta),
    "Adam": ("delta: 0.001 momentum: 0.9 momentum2: 0.95", adam),
}


def check(s, wanted, rtol=1e-5):
    for p, value in zip(s.net.params["ip"], wanted, strict=True):
        np.testing.assert_allclose(p.data, value, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("type", RULES)
@pytest.mark.parametrize(
    "decay", ["", "weight_decay: 0.1", 'weight_decay: 0.1 regularization_type: "L1"']
)
def test_rules_with_multipliers_and_decay(type, decay):
    text, rule = RULES[type]
    s = start(solver(f'type: "{type}" {text} {decay}'))
    s.step(4)
    check(s, by_hand(rule, 4, 0.1 if decay else 0, "L1" in decay), 2e-5)


@pytest.mark.parametrize("clip", [0.5, 100])
def test_all_gradients_are_clipped_together_before_they_decay(clip):
    s = start(solver(f"momentum: 0.9 weight_decay: 0.1 clip_gradients: {clip}"))
    s.step(3)
    check(s, by_hand(sgd, 3, 0.1, clip=clip))


def test_two_halves_accumulated_are_one_whole():
    half = NET.replace("dim: 4", "dim: 2")
    p = parse_text(
        "SolverParameter", "base_lr: 0.1 momentum: 0.9 weight_decay: 0.1 iter_size: 2", ""
    )
    p.net_param.CopyFrom(parse_text("NetParameter", half, "net"))
    s = start(caffe.SGDSolver(p))
    parts = [slice(0, 2), slice(2, 4)] * 3
    s.net.next_batch = lambda: feed(s.net, parts.pop(0))
    s.step(3)
    check(s, by_hand(sgd, 3, 0.1))
    assert s.iter == 3 and not parts


POLICIES = {
    'lr_policy: "fixed"': lambda i: 0.1,
    'lr_policy: "step" gamma: 0.5 stepsize: 3': lambda i: 0.1 * 0.5 ** (i // 3),
    'lr_policy: "exp" gamma: 0.9': lambda i: 0.1 * 0.9**i,
    'lr_policy: "inv" gamma: 0.1 power: 0.75': lambda i: 0.1 * (1 + 0.1 * i) ** -0.75,
    'lr_policy: "multistep" gamma: 0.5 stepvalue: 2 stepvalue: 5': lambda i: (
        0.1 * 0.5 ** ((i >= 2) + (i >= 5))
    ),
    'lr_policy: "poly" power: 2 max_iter: 10': lambda i: 0.1 * (1 - i / 10) ** 2,
    'lr_policy: "sigmoid" gamma: -0.5 stepsize: 4': lambda i: 0.1 / (1 + math.exp(0.5 * (i - 4))),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_learning_rates_follow_their_policy(policy):
    s = start(solver(policy + " momentum: 0.9"))
    for i in range(8):
        assert s.lr == pytest.approx(POLICIES[policy](i), rel=1e-6)
        s.step(1)
    check(s, by_hand(sgd, 8, rate=POLICIES[policy]))


def test_the_rate_is_a_tensor_that_anybody_may_feed():
    s = start(solver("momentum: 0"))
    s.step(1)
    s.base_lr.workspace.feed(s.base_lr.key, 0.0)
    before = s.net.params["ip"][0].data.copy()
    s.step(1)
    np.testing.assert_array_equal(s.net.params["ip"][0].data, before)


@pytest.mark.parametrize("type", RULES)
@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_a_snapshot_goes_on_bit_for_bit(type, form, tmp_path):
    text = (
        f'type: "{type}" {RULES[type][0]} snapshot_format: {form} snapshot_prefix: "{tmp_path}/a"'
    )
    s = start(solver(f'{text} weight_decay: 0.1 lr_policy: "exp" gamma: 0.9'))
    s.step(3)
    state = s.snapshot()
    s.step(2)
    other = solver(f'{text} weight_decay: 0.1 lr_policy: "exp" gamma: 0.9')
    other.restore(state)
    assert other.iter == 3
    other.step(2)
    for p, q in zip(s.net.params["ip"], other.net.params["ip"], strict=True):
        np.testing.assert_array_equal(p.data, q.data)
    history = messages()["SolverState"]()
    with open(state, "rb") as file:
        history.ParseFromString(file.read())
    first = history.history[0]
    assert list(first.shape.dim) == [2, 3] and len(history.history) in (2, 4)
    with open(state, "rb") as file:
        content = file.read()
    for i in (0, 7, len(content) // 2, len(content) - 3):
        damaged = tmp_path / "damaged.solverstate"
        damaged.write_bytes(content[:i])
        with pytest.raises(ValueError, match="damaged"):
            other.restore(str(damaged))


def test_test_nets_have_the_parameters_of_the_net():
    half = 'type: "Power" bottom: "loss" top: "half" power_param { scale: 0.5 }'
    both = NET + f'layer {{ name: "half" {half} include {{ phase: TEST }} }}'
    s = start(solver("momentum: 0.9 test_iter: 2 test_interval: 100", both))
    (test,) = s.test_nets
    feed(test)
    s.step(2)
    (found,) = s.test_all()
    s.net.forward()
    assert found["half"] == pytest.approx(s.net.blobs["loss"].data / 2, rel=1e-6)
    assert "half" not in s.net.blobs and set(found) == {"half"}


def test_blobs_of_a_step_are_there_and_the_loss_is_averaged(caplog):
    s = start(solver("momentum: 0 average_loss: 2 display: 1"))
    with caplog.at_level("INFO", "nnl"):
        s.step(2)
    assert s.net.blobs["y"].data.shape == (4, 2) and len(s.losses) == 2
    first = ((X @ W.T + B - T) ** 2).sum() / 8
    assert s.losses[0] == pytest.approx(first, rel=1e-5)
    assert f"loss = {(s.losses[0] + s.losses[1]) / 2:g}" in caplog.text


@pytest.mark.parametrize(
    "text, told",
    [
        ('type: "SGDD"', "type 'SGDD' is none of SGD, .*did you mean SGD"),
        ('lr_policy: "stepp"', "lr_policy 'stepp' is none of .*did you mean step"),
        ('lr_policy: "step"', "lr_policy 'step' needs a positive stepsize"),
        ('regularization_type: "L3"', "regularization_type is 'L3', wanted L1 or L2"),
        ("iter_size: 0", "iter_size is 0 .*wanted at least 1"),
        ("test_iter: 1 test_iter: 2 test_net: 'a'", "2 test_iter for 1 test nets"),
    ],
)
def test_bad_solvers_say_what_is_wrong(text, told):
    with pytest.raises(ValueError, match=told):
        solver(text)
