# SPDX-License-Identifier: Apache-2.0
"""Labels and indices given as floats: whole numbers, or an error."""

import ml_dtypes
import numpy as np
import pytest

import nnl as nn
from nnl.core.ops.op import OPS
from tests.test_derived import Case

CASES = [
    pytest.param(op, k, id=f"{op.name}-{name}")
    for op in OPS.values()
    if hasattr(op.attrs_class, "samples") and op.nnp
    for k, name in enumerate(op.inputs)
    if name in op.integer
]


def run(op, k, values, mode, dtype=np.float32):
    """The first output of a function whose input k is a floating-point array with these values."""
    case = Case(op, 0, np.float32)
    labels = case.arrays[k].astype(dtype)
    labels.reshape(-1)[-len(values) :] = values
    case.arrays[k] = labels
    with nn.auto_forward(mode == "dynamic"):
        if mode == "compiled":
            return nn.compile(lambda: case.run(case.variables()))()[0].d
        y = case.run(case.variables())[0]
        if mode == "static":
            y.forward()
        return y.d


@pytest.mark.parametrize("mode", ["dynamic", "static", "compiled"])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("op,k", CASES)
def test_what_is_no_whole_number_is_an_error(op, k, backend, mode):
    with nn.context_scope(nn.Context([f"{backend}:float"], device_id="labels")):
        for bad, text in (
            (np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf"), (1e30, r"1e\+30"), (0.5, r"0\.5"),
        ):  # fmt: skip
            wanted = rf"^{op.name}( \(.*\))?: {op.inputs[k]} holds {text}, wanted whole numbers"
            with pytest.raises(ValueError, match=wanted):
                run(op, k, [bad], mode)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op,k", CASES)
def test_whole_numbers_of_any_type_are_the_integers(op, k, dtype):
    whole = Case(op, 0, np.float32).arrays[k].reshape(-1)[-1:]
    for mode in ("dynamic", "static"):
        want = run(op, k, whole, mode, np.int64)
        np.testing.assert_array_equal(run(op, k, whole, mode, dtype), want)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_the_bad_label_is_found_among_many(backend):
    """More than one block of the check, more than one thread."""
    x = nn.Variable.from_numpy_array(np.zeros((200_000, 2), np.float32))
    labels = np.zeros((200_000, 1), np.float32)
    labels[150_001] = np.nan
    t = nn.Variable.from_numpy_array(labels)
    with nn.context_scope(nn.Context([f"{backend}:float"])):
        y = nn.functions.softmax_cross_entropy(x, t)
        with pytest.raises(ValueError, match="target holds nan"):
            y.forward()
        labels[150_001] = -1
        t.d = labels
        y.forward()
    assert y.d.sum() == pytest.approx(199_999 * np.log(2), rel=1e-4)
