# SPDX-License-Identifier: Apache-2.0
"""Every definition computes on CuPy's terms: its samples, forward and backward, on an array module
that has what CuPy has and refuses what CuPy refuses. No GPU is needed, and none has been used."""

import numpy as np
import pytest

import nnl as nn
from nnl.core.ops import random as nnl_random
from nnl.core.ops.op import OPS
from nnl.core.ops.philox import words_on_device
from nnl.graph.execution.session import session_of
from tests.cuda import strict_xp
from tests.cuda.strict_device import DEVICE, SPACE, context
from tests.test_derived import CASES, Case, each_sample

# Definitions that look at values, or compute on the host, and so wait for the device. Solver
# updates have kernels that do not; these are for what the kernels decline.
WAITING = frozenset(
    """rand_binomial rand_beta rand_gamma random_choice inq_affine inq_convolution bool_gather
    bool_scatter nonzero unique nms_detection2d onnx_non_max_suppression pack_padded_sequence
    pad_packed_sequence random_erase roi_align roi_align_backward clip_gradient
    guarded_step cached_attention expert_product expert_weight multinomial tree_ensemble""".split()
) | {name for name in OPS if name.endswith("_update")}


def forward_and_backward(op, i, ctx, dtype):
    """Values of the outputs, input gradients, and how often forward waited for the device."""
    with nn.context_scope(ctx), nn.auto_forward(), np.errstate(all="ignore"):
        case = Case(op, i, dtype)
        xs = case.variables()
        for x in xs:
            if x is not None and SPACE in repr(ctx):
                x.data.read(SPACE)
        before = strict_xp.counts["synchronisations"]
        ys = case.run(xs)
        waited = strict_xp.counts["synchronisations"] - before
        values = [y.data for y in ys]
        return values, case.gradients(xs, ys), waited


@each_sample(CASES)
def test_the_array_module_of_the_device_gives_what_numpy_gives(op, i):
    want = forward_and_backward(op, i, nn.Context(["numpy:float"]), np.float32)
    got = forward_and_backward(op, i, context(), np.float32)
    for a, b in zip(want[0], got[0], strict=True):
        assert list(b.bufs) == [SPACE] or op.view
        buf = b.read(SPACE)
        assert (buf.shape, buf.dtype) == (b.spec.shape, b.spec.dtype) and b.spec is a.spec
        close(b.data, a.data)
    for a, b in zip(want[1], got[1], strict=True):
        close(b, a)
    assert not got[2] or op.name in WAITING, f"{op.name} waited {got[2]} times for the device"


def close(got, want):
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


HALVES = [p for p in CASES if p.values[1] == 0]


@each_sample(HALVES)
@pytest.mark.parametrize("name", ["half", "bfloat16"])
def test_16_bits_round_as_on_the_host(op, i, name):
    def run(ctx):
        with nn.context_scope(ctx), nn.auto_forward(), np.errstate(all="ignore"):
            case = Case(op, i, np.float32)
            xs = case.variables(case.rounded(ctx.target.half))
            return [(y.spec, y.d) for y in case.run(xs)]

    want, got = run(nn.Context([f"numpy:{name}"])), run(context(name))
    step = {"half": 2.0**-10, "bfloat16": 2.0**-7}[name]
    for (spec, a), (other, b) in zip(want, got, strict=True):
        assert spec is other
        if a.dtype.kind in "fV":
            a, b = a.astype(np.float32), b.astype(np.float32)
            np.testing.assert_allclose(b, a, rtol=step, atol=step)
        else:
            np.testing.assert_array_equal(b, a)


def test_definitions_that_wait_for_the_device_are_known():
    assert set(OPS) >= WAITING


def test_what_cuda_library_is_missing_for_is_computed_on_the_host(monkeypatch, caplog):
    import nnl.functions as F

    class Without:
        """cupy.linalg where cuSOLVER is not installed."""

        def __getattr__(self, name):
            raise ImportError("libcusolver.so.12: cannot open shared object file")

    monkeypatch.setattr(DEVICE.xp, "linalg", Without())
    monkeypatch.setattr(nn.logger, "propagate", True)  # so that caplog hears it
    x = nn.Variable.from_numpy_array(np.eye(7, dtype=np.float32)[None] * 2)
    with nn.context_scope(context()):
        y = F.batch_det(x)
        for _ in range(3):
            y.forward()
        (plan,) = session_of([y]).plans.values()
    np.testing.assert_allclose(y.d, [128.0])
    why = "libcusolver.so.12: cannot open shared object file"
    assert f"batch_det is computed on the host: {why}" in caplog.text
    assert plan.plan.native.reasons == [("batch_det", f"it runs on the host: {why}")]


def test_philox_in_array_operations_gives_the_words_of_numpy():
    for key, counter, n in ((0, 0, 1), (7, 5, 9), (2**64 - 1, 2**40, 64)):
        state = np.array([key, counter], np.uint64)
        want = nnl_random.raw(state, n)
        device = strict_xp.xp.array(np.array([key, counter], np.uint64))
        words = words_on_device(strict_xp.xp, device, n)
        np.testing.assert_array_equal(words.get(), want)
        np.testing.assert_array_equal(device.get(), state)


def test_a_table_of_the_host_is_copied_once():
    from nnl.ext.device.arrays import ArrayModule

    xp = ArrayModule(strict_xp.xp)
    table = np.arange(5)
    assert xp.asarray(table) is xp.asarray(table.copy()) is xp.asarray([0, 1, 2, 3, 4])
    assert xp.asarray(table, np.float32) is not xp.asarray(table)
    again = xp.asarray(table)
    assert xp.asarray(again) is again


class TestTheStrictModule:
    """What it refuses, CuPy refuses."""

    x = strict_xp.xp.asarray(np.arange(4.0))

    def test_no_implicit_conversion(self):
        with pytest.raises(TypeError, match="Implicit conversion to a NumPy array"):
            np.asarray(self.x)
        for call in (np.exp, np.sum, np.shape):
            with pytest.raises(TypeError):
                call(self.x)

    def test_no_numpy_arrays(self):
        host = np.ones(4)
        for call in (lambda: self.x + host, lambda: host * self.x, lambda: self.x[host > 0]):
            with pytest.raises(TypeError, match="Unsupported type"):
                call()
        with pytest.raises(TypeError, match="Unsupported type"):
            strict_xp.xp.maximum(self.x, host)

    def test_no_names_and_arguments_that_cupy_lacks(self):
        with pytest.raises(AttributeError, match="errstate"):
            strict_xp.xp.errstate()
        with pytest.raises(TypeError, match="initial"):
            strict_xp.xp.max(self.x, initial=0)
        with pytest.raises(TypeError, match="where"):
            strict_xp.xp.add(self.x, 1, where=self.x > 0)

    def test_sums_stay_on_the_device_and_looking_at_them_is_counted(self):
        total = self.x.sum()
        assert isinstance(total, strict_xp.StrictArray) and total.shape == ()
        before = strict_xp.counts["synchronisations"]
        assert float(total) == 6.0 and bool(total > 5) and total.item() == 6.0
        assert strict_xp.counts["synchronisations"] == before + 3
