# SPDX-License-Identifier: Apache-2.0
"""Contexts that store 16 bits: every op against float32, native against numpy, and trainings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.arrays.spec import Spec
from nnl.core.graph.dispatch import bind
from nnl.core.ops.op import OPS, Op
from nnl.core.settings.context import Context, using
from nnl.graph.execution.session import session_of
from nnl.training.loss_scaling import DynamicLossScalingUpdater
from tests.native.kernels import BF16, F16, is_float, require_library
from tests.native.test_kernels import cases

TYPES = {"half": F16, "bfloat16": BF16}
# 2^-11 and 2^-8 are one rounding of a value near 1; results that are sums of products of rounded
# values carry a few of them. The arrays of samples are small.
CLOSE = {"half": 4e-3, "bfloat16": 3e-2}
# Random numbers are compared nowhere else than in test_random; what decides by comparing values
# jumps when they are rounded.
NAMES = sorted(n for n in OPS if hasattr(OPS[n].attrs_class, "samples") and "python" not in n)


def targets(config: str) -> tuple[Any, Any, Any]:
    names = "numpy:float", f"numpy:{config}", f"cpu:{config}"
    # a device of its own: what is bound here with tiny arrays must not be found by other tests
    return tuple(Context([c], device_id="half").target for c in names)


def call(op: Op, attrs: Any, target: Any, inputs: list[Any]) -> tuple[Any, list[np.ndarray]]:
    """(bound, outputs) of one op on copies of arrays."""
    given = [None if x is None else x.copy() for x in inputs]
    with using(target=target), np.errstate(all="ignore"):
        bound = bind(op, attrs, target, tuple(None if x is None else Spec.of(x.shape, x.dtype)
                                              for x in given))  # fmt: skip
        y = bound.call(*given)
    return bound, [
        *(y if isinstance(y, tuple) else (y,)),
        *(given[i] for i in bound.writes if given[i] is not None),
    ]


def rounded(op: Op, inputs: list[Any], dtype: Any) -> list[Any]:
    """Inputs as activations would come; what an op writes, or takes as it is, stays."""
    out = []
    for i, x in enumerate(inputs):
        name = op.inputs[min(i, len(op.inputs) - 1)]
        stays = not is_float(x) or name in op.keep or name == "rng"
        out.append(x if stays else x.astype(dtype))
    return out


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest error relative to the largest magnitude; 0 where both are not finite."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    both = np.isfinite(got) & np.isfinite(want)
    scale = max(1.0, float(np.abs(want[both]).max(initial=0)))
    return float(np.abs(got[both] - want[both]).max(initial=0)) / scale


@pytest.mark.parametrize("config", TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_op_in_16_bits_is_float32_rounded(name: str, config: str) -> None:
    """The inputs are the same rounded values in all three; results differ by rounding only."""
    op, (exact, half, native) = OPS[name], targets(config)
    for attrs, inputs in cases(op):
        low = rounded(op, inputs, TYPES[config])
        high = [x.astype(np.float32) if is_float(x) else x for x in low]
        _, want = call(op, attrs, exact, high)
        bound, got = call(op, attrs, half, low)
        _, fast = call(op, attrs, native, low)
        for o, (w, g, f) in enumerate(zip(want, got, fast, strict=True)):
            what = f"{attrs} output {o}"
            assert g.shape == f.shape == w.shape and g.dtype == f.dtype, what
            if o < len(bound.out_specs):
                assert g.dtype == bound.out_specs[o].dtype, what
            assert error(g, w) <= CLOSE[config], f"{what}: numpy"
            assert error(f, w) <= CLOSE[config], f"{what}: native"


def digits_network(x: nn.Variable, test: bool = False) -> nn.Variable:
    """A few layers of every kind that has a rule of its own."""
    h = PF.convolution(x, 4, (3, 3), name="c")
    h = F.max_pooling(F.relu(PF.batch_normalization(h, batch_stat=not test, name="b")), (2, 2))
    h = PF.prelu(PF.deconvolution(h, 4, (2, 2), name="d"), name="p")
    h = PF.affine(h, 8, name="a")
    h = h + PF.embed(nn.Variable.from_numpy_array(np.arange(8)), 8, 8, name="e")
    h = F.softmax(PF.layer_normalization(h, name="n"))
    zero = F.constant(0, (1, 1, 8, 4))
    y, _, _ = PF.lstm(F.reshape(h, (1, 8, 8)), zero, zero, training=not test, name="l")
    return PF.affine(F.reshape(y, (8, 4)), 3, name="o")


def of_each_mode(f: Any) -> Any:
    return pytest.mark.parametrize("mode", ["static", "dynamic", "compiled"])(
        pytest.mark.parametrize("config", TYPES)(
            pytest.mark.parametrize("kind", ["numpy", "cpu"])(f)
        )
    )


@of_each_mode
def test_activations_have_16_bits_and_parameters_gradients_statistics_and_losses_32(
    kind: str, config: str, mode: str
) -> None:
    dynamic = mode == "dynamic"
    x = nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=(8, 3, 8, 8)))
    t = nn.Variable.from_numpy_array(np.zeros((8, 1), np.int64))
    with nn.context_scope(Context([f"{kind}:{config}"])), nn.auto_forward(dynamic):
        digits_network(x)
        solver = S.Adam(1e-3)
        solver.set_parameters(nn.get_parameters())

        def step() -> tuple[nn.Variable, nn.Variable]:
            y = digits_network(x)
            loss = F.mean(F.softmax_cross_entropy(y, t))
            if mode != "dynamic":
                y.persistent = True
                loss.forward(clear_no_need_grad=True)
            loss.backward(clear_buffer=True)
            solver.update()
            return y, loss

        y, loss = nn.compile(step)() if mode == "compiled" else step()
    assert y.d.dtype == TYPES[config] and loss.d.dtype == np.float32
    for name, v in nn.get_parameters(grad_only=False).items():
        assert v.d.dtype == np.float32, name
        assert not v.need_grad or v.g.dtype == np.float32, f"gradient of {name}"
    for state in solver.get_states().values():
        assert all(s.d.dtype == np.float32 for s in state.pstate.values())


@pytest.mark.parametrize("config", TYPES)
def test_gradients_of_several_passes_add_up_in_float32(config: str) -> None:
    """In 16 bits, adding 2^-9 to 1 would change nothing."""
    x = nn.Variable.from_numpy_array(np.ones((1, 2), np.float32), need_grad=True)
    with nn.context_scope(Context([f"cpu:{config}"])):
        h = F.identity(F.mul_scalar(F.batch_matmul(x, np_variable(np.eye(2))), 1.0))
        h.forward()
        h.backward(1.0)
        for _ in range(8):
            h.backward(2.0**-12)
    assert x.g.dtype == np.float32 and (x.g == 1 + 8 * 2.0**-12).all()


def np_variable(a: Any) -> nn.Variable:
    return nn.Variable.from_numpy_array(np.asarray(a, np.float32))


def test_the_memory_of_activations_halves() -> None:
    require_library()

    def arena(config: str) -> int:
        nn.clear_parameters()
        x = np_variable(np.zeros((8, 16, 32, 32)))
        with nn.context_scope(Context([f"cpu:{config}"])):
            h = x
            for k in range(12):
                h = PF.convolution(h, 16, (3, 3), pad=(1, 1), with_bias=False, name=f"c{k}")
                h = F.relu(PF.batch_normalization(h, name=f"b{k}"))
            loss = F.mean(h)
            loss.forward(clear_no_need_grad=True)
            (plan,) = [p.plan for p in session_of([loss]).plans.values()]
            activations = [
                s.spec.nbytes for s in plan.program.slots if s.spec.shape == (8, 16, 32, 32)
            ]
            assert activations
            return int(plan.arena_bytes)

    full = arena("float")
    assert arena("bfloat16") < 0.65 * full  # workspaces and weights stay as they are


def lenet(x: nn.Variable, test: bool) -> nn.Variable:
    h = F.max_pooling(F.relu(PF.convolution(x, 16, (3, 3), pad=(1, 1), name="c1")), (2, 2))
    h = F.max_pooling(F.relu(PF.convolution(h, 16, (3, 3), pad=(1, 1), name="c2")), (2, 2))
    return PF.affine(F.relu(PF.affine(h, 50, name="a1")), 10, name="a2")


def resnet(x: nn.Variable, test: bool) -> nn.Variable:
    def conv(h: nn.Variable, n: int, stride: int, name: str) -> nn.Variable:
        h = PF.convolution(h, n, (3, 3), pad=(1, 1), stride=(stride,) * 2, with_bias=False,
                           name=name)  # fmt: skip
        return PF.batch_normalization(h, batch_stat=not test, name=f"{name}_bn")

    h = F.relu(conv(x, 16, 1, "c0"))
    h = F.relu(h + conv(F.relu(conv(h, 16, 1, "c1")), 16, 1, "c2"))
    h = F.relu(conv(h, 32, 2, "c3"))
    h = F.relu(h + conv(F.relu(conv(h, 32, 1, "c4")), 32, 1, "c5"))
    return PF.affine(F.global_average_pooling(h), 10, name="a")


def accuracy(network: Any, config: str, epochs: int, seed: int) -> float:
    """Test accuracy in percent after training on the digits of scikit-learn."""
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1297], order[1297:]
    nn.clear_parameters()
    rng = np.random.default_rng(seed)
    with nn.context_scope(Context([f"cpu:{config}"])):
        x, t = nn.Variable((64, 1, 8, 8)), nn.Variable((64, 1))
        loss = F.mean(F.softmax_cross_entropy(network(x, False), t))
        first = np.random.default_rng(seed)
        for v in nn.get_parameters().values():
            if v.ndim > 1 and v.d.std() > 0:
                fan = v.size / (v.shape[1] if v.ndim == 2 else v.shape[0])
                v.d = first.normal(size=v.shape) * (2 / fan) ** 0.5
        solver = S.Adam(3e-3)
        solver.set_parameters(nn.get_parameters())

        def feed() -> None:
            batch = rng.choice(train, 64, replace=False)
            x.d, t.d = images[batch], labels[batch, None]

        steps = epochs * len(train) // 64
        updater = DynamicLossScalingUpdater(solver, loss, feed, scale=2.0**10)
        for k in range(steps):
            solver.set_learning_rate(3e-3 * 0.5 * (1 + np.cos(np.pi * k / steps)))
            updater.update()
        x = np_variable(images[test])
        y = network(x, True)
        y.forward(clear_buffer=True)
    return 100 * float((y.d.astype(np.float32).argmax(1) == labels[test]).mean())


@pytest.mark.long
@pytest.mark.parametrize("config", TYPES)
@pytest.mark.parametrize("network,epochs", [(lenet, 25), (resnet, 15)])
def test_digits_reach_the_accuracy_of_float32(network: Any, epochs: int, config: str) -> None:
    """Within 0.3 points, of 500 images 1.5, in the mean over seeds: one seed varies by more."""
    require_library()
    seeds = range(4)
    full = np.mean([accuracy(network, "float", epochs, s) for s in seeds])
    half = np.mean([accuracy(network, config, epochs, s) for s in seeds])
    assert full > 97.5
    assert half > full - 0.3


@pytest.mark.parametrize("clear", [False, True])
def test_an_overflow_is_skipped_and_lowers_the_loss_scale(clear: bool) -> None:
    """Gradients of 16 bits end at 65504: the first passes overflow, and change no parameter."""
    x = np_variable(np.random.default_rng(0).normal(size=(8, 4)) * 4)
    t = np_variable(np.random.default_rng(1).normal(size=(8, 3)))
    with nn.context_scope(Context(["cpu:half"])):
        h = F.relu(PF.affine(F.tanh(PF.affine(x, 16, name="a")), 16, name="b"))
        loss = F.sum(F.squared_error(PF.affine(h, 3, name="c"), t))
        solver = S.Sgd(1e-3)
        solver.set_parameters(nn.get_parameters())
        loss.forward()
        before = float(loss.d)
        updater = DynamicLossScalingUpdater(solver, loss, scale=2.0**20, N=5, clear_buffer=clear)
        for _ in range(20):
            updater.update()
            assert all(np.isfinite(v.d).all() for v in nn.get_parameters().values())
        loss.forward()
    assert 0 < updater.overflows <= 12 and updater.scale < 2.0**20
    assert float(loss.d) < before


def test_an_overflow_is_skipped_in_dynamic_mode() -> None:
    w = nn.Variable.from_numpy_array(np.ones((4, 2), np.float32), need_grad=True)
    x = np_variable(np.full((2, 4), 8.0))
    solver = S.Sgd(0.1)
    solver.set_parameters({"w": w})
    with nn.context_scope(Context(["cpu:half"])), nn.auto_forward():
        for scale, finite in ((2.0**20, False), (2.0**4, True)):
            solver.zero_grad()
            F.sum(F.relu(F.affine(x, w))).backward(scale)
            assert solver.check_inf_or_nan_grad() is not finite
            if finite:
                solver.scale_grad(1 / scale)
                solver.update()
    np.testing.assert_allclose(w.d, 1 - 0.1 * 16.0, rtol=1e-6)


@pytest.mark.parametrize("config", TYPES)
def test_parameters_of_a_16_bit_context_are_saved_and_loaded_in_float32(
    config: str, tmp_path: Any
) -> None:
    x = np_variable(np.random.default_rng(0).normal(size=(8, 3, 8, 8)))
    with nn.context_scope(Context([f"cpu:{config}"])):
        y = digits_network(x, test=True)
        y.forward()
        want = {k: v.d.copy() for k, v in nn.get_parameters(grad_only=False).items()}
        for name in ("p.h5", "p.protobuf"):
            path = str(tmp_path / name)
            nn.save_parameters(path)
            nn.clear_parameters()
            nn.load_parameters(path)
            got = {k: v.d for k, v in nn.get_parameters(grad_only=False).items()}
            assert got.keys() == want.keys()
            for k, a in want.items():
                assert got[k].dtype == np.float32
                np.testing.assert_array_equal(got[k], a)
        z = digits_network(x, test=True)
        z.forward()
    np.testing.assert_array_equal(z.d, y.d)
