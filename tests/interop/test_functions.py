# SPDX-License-Identifier: Apache-2.0
"""Every function that NNabla has gives NNabla's outputs and gradients, over its samples."""

import numpy as np
import pytest

import nnl as nn
from nnl.core.op import OPS
from tests.interop.bridge import NnablaError
from tests.test_derived import Case, samples

pytestmark = pytest.mark.interop

# What NNabla's CPU build refuses although its interface has it; and what it cannot differentiate.
REFUSES = ("channel_last", "Channel last", "is not supported", "The function is not")
# Samples at which NNabla's gradient is not the derivative, or its shape rule refuses scalars.
KNOWN = {
    ("prod", 10): "gradient of a product with a zero factor: NNabla divides by the factor",
    ("prod", 11): "gradient of a product with a zero factor: NNabla divides by the factor",
    ("clip_grad_by_value", 2): "NNabla refuses scalars",
    ("mish", 4): "NNabla's gradient is NaN for large x",
}
FORWARD_ONLY = ("Backward operation", "not_implemented error in backward_impl")

CASES = [
    pytest.param(op, i, id=f"{op.name}-{i}")
    for op in OPS.values()
    if op.nnp and hasattr(op.attrs_class, "samples") and not op.takes_rng
    for i in range(len(samples(op)))
]


def ask(nnabla, case, starts, arguments):
    """What NNabla gives; forward only where it has no gradient."""
    name, need = case.op.name, list(case.grad)
    try:
        grads = starts if any(need) else None
        return nnabla.function(
            name, case.arrays, need_grad=need, grads=grads, base=True, **arguments
        )
    except NnablaError as e:
        if any(text in str(e) for text in FORWARD_ONLY):
            return nnabla.function(name, case.arrays, need_grad=False, base=True, **arguments)
        if any(text in str(e) for text in REFUSES):
            pytest.skip(f"NNabla's CPU build refuses this: {e.text.splitlines()[-1][:80]}")
        raise


@pytest.mark.parametrize("op,i", CASES)
def test_function_equals_nnabla(nnabla, op, i):
    if (op.name, i) in KNOWN:
        pytest.skip(KNOWN[op.name, i])
    case = Case(op, i, np.float32)
    if any(a is not None and a.size == 0 for a in case.arrays):
        pytest.skip("NNabla crashes on some empty arrays")
    rng = np.random.default_rng(5)
    xs = case.variables()
    with nn.auto_forward():
        ys = case.run(xs)
        starts = [rng.normal(size=y.shape).astype(np.float32) for y in ys]
        attrs = case.resolved_attrs
        arguments = {k: list(v) if isinstance(v, tuple) else v for k, v in attrs.as_dict().items()}
        for y, u in zip(ys, starts, strict=True):
            if y.need_grad:
                (y * nn.Variable.from_numpy_array(u)).backward()
    if op.variadic_out:
        arguments["n_outputs"] = len(ys)
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
