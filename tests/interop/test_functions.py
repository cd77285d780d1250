# SPDX-License-Identifier: Apache-2.0
"""Every function that NNabla has gives NNabla's outputs and gradients, over its samples."""

import numpy as np
import pytest

import nnl as nn
from nnl.core.ops.op import OPS
from tests.interop.bridge import NnablaError
from tests.test_derived import Case, each_sample, samples

pytestmark = pytest.mark.interop

# What NNabla's CPU build refuses although its interface has it; and what it cannot differentiate.
REFUSES = (
    "not implemented in CPU yet",
    "channel_last",
    "Channel last",
    "is not supported",
    "only if auto_forward is true",
)
# Samples at which NNabla's gradient is not the derivative; only values are compared.
WRONG_GRADIENT = {
    ("adaptive_separable_convolution", 0): "wrong by the horizontal kernel",
    ("prod", 10): "NNabla divides by a zero factor",
    ("prod", 11): "NNabla divides by a zero factor",
    ("mish", 4): "NaN for large x",
    ("mean_subtraction", 0): "the mean's own gradient is left out",
    ("mean_subtraction", 2): "the mean's own gradient is left out",
    **{("sort", i): "permuted by the inverse of the right order" for i in range(2, 7)},
    **{("top_k_data", i): "wrong with with_index=True" for i in range(5, 10)},
    ("scatter_nd", 3): "out gets no gradient",
    ("scatter_nd", 4): "out gets no gradient",
    ("spectral_norm", 3): "NaN with test=True",
    ("spectral_norm", 4): "NaN with test=True",
}
REFUSED = {("clip_grad_by_value", 2): "NNabla refuses scalars"}
INTERNAL = ("count",)  # attributes that NNabla reads from the data
FORWARD_ONLY = ("Backward operation", "not_implemented error in backward_impl")

CASES = [
    pytest.param(op, i, id=f"{op.name}-{i}")
    for op in OPS.values()
    if op.nnp and hasattr(op.attrs_class, "samples")
    if not op.takes_rng or "dropout" in op.fields  # of which samples leave nothing out
    for i in range(len(samples(op)))
]


def ask(nnabla, case, starts, arguments):
    """What NNabla gives; forward only where it has no gradient."""
    name, need = case.op.name, list(case.grad)
    try:
        grads = None if all(u is None for u in starts) else starts
        return nnabla.function(
            name, case.arrays, need_grad=need, grads=grads, base=True, **arguments
        )
    except NnablaError as e:
        if any(text in str(e) for text in FORWARD_ONLY):
            return nnabla.function(name, case.arrays, need_grad=False, base=True, **arguments)
        if any(text in str(e) for text in REFUSES):
            pytest.skip(f"NNabla's CPU build refuses this: {e.text.splitlines()[-1][:80]}")
        raise


@each_sample(CASES)
def test_function_equals_nnabla(nnabla, op, i):
    if (op.name, i) in REFUSED:
        pytest.skip(REFUSED[op.name, i])
    case = Case(op, i, np.float32)
    if any(a is not None and a.size == 0 for a in case.arrays):
        pytest.skip("NNabla crashes on some empty arrays")
    rng = np.random.default_rng(5)
    xs = case.variables()
    with nn.auto_forward():
        ys = case.run(xs)
        starts = [rng.normal(size=y.shape).astype(np.float32) for y in ys]
        attrs = case.resolved_attrs
        arguments = {
            k: list(v) if isinstance(v, tuple) else v
            for k, v in attrs.as_dict().items()
            if v is not None and k not in INTERNAL
        }
        for y, u in zip(ys, starts, strict=True):
            if y.need_grad and y.spec.dtype.kind == "f":
                (y * nn.Variable.from_numpy_array(u)).backward()
    if op.variadic_out:
        arguments["n_outputs"] = len(ys)
    starts = [u if y.spec.dtype.kind == "f" else None for y, u in zip(ys, starts, strict=True)]
    if (op.name, i) in WRONG_GRADIENT:
        starts = [None] * len(ys)
    want = ask(nnabla, case, starts, arguments)
    for y, w in zip(ys, want.outputs, strict=True):
        np.testing.assert_allclose(y.d, w, rtol=2e-4, atol=2e-5, err_msg="output")
        assert y.d.shape == w.shape
    for k, (x, w) in enumerate(zip(xs, want.grads, strict=True)):
        if w is not None:
            np.testing.assert_allclose(x.g, w, rtol=1e-3, atol=1e-4, err_msg=f"gradient {k}")
    for k, (x, w) in enumerate(zip(xs, want.inputs, strict=True)):
        if k in case.written:
            np.testing.assert_allclose(x.d, w, rtol=2e-4, atol=2e-5, err_msg=f"written {k}")
