# SPDX-License-Identifier: Apache-2.0
"""Every native kernel against the numpy definition of its op, on the op's own samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nnl.core.arrays.spec import Spec
from nnl.core.ops.elementwise import ARITY
from nnl.core.ops.op import OPS, Op
from nnl.ext import native
from nnl.ext.library import kernel_names, native_spec, plain_attributes
from nnl.graph.program.program import LIBRARY_OPS
from tests.native.kernels import (
    BF16,
    F16,
    F32,
    assert_close,
    is_float,
    require_library,
    run_native,
    run_numpy,
)

KNOWN = kernel_names(native.library()) & set(OPS)
OF_TWO_TYPES = {"master_update"}  # see tests/solvers/test_masters.py
NAMES = sorted(KNOWN - LIBRARY_OPS - OF_TWO_TYPES)


def cases(op: Op) -> Iterator[tuple[Any, list[Any]]]:
    """(attributes, float32 inputs) of every sample, as bind() would pass them."""
    from nnl.core.ops import random as nnl_random

    for sample in op.attrs_class.samples(np.random.default_rng(0)):
        inputs = []
        for i, x in enumerate(sample.inputs):
            name = op.inputs[min(i, len(op.inputs) - 1)]
            if x is None:
                inputs.append(None)
            elif name in op.integer:
                inputs.append(np.asarray(x).astype(np.int64) if x.dtype.kind == "f" else x)
            elif name in op.keep:
                inputs.append(np.asarray(x))
            else:
                inputs.append(np.asarray(x, np.float32))
        while len(inputs) < len(op.inputs) - op.takes_rng and not op.variadic:
            inputs.append(None)
        if op.takes_rng:
            inputs.append(np.array(nnl_random.stream(7).data.read("host")))
        attrs = op.attrs(**sample.attrs)
        if op.has_resolve:
            specs = [None if x is None else Spec.of(x.shape, x.dtype) for x in inputs]
            attrs = op.attrs(**{**attrs.as_dict(), **attrs.resolve(*specs)})
        yield attrs, inputs


def rounded(x: Any, dtype: np.dtype) -> Any:
    return x.astype(dtype) if is_float(x) else x


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_the_definition(name: str, dtype: np.dtype) -> None:
    op = OPS[name]
    ran = 0
    for attrs, inputs in cases(op):
        low = [rounded(x, dtype) for x in inputs]
        exact = [x.astype(np.float32) if is_float(x) else x for x in low]
        exact = [None if x is None else x.copy() for x in exact]
        specs, want = run_numpy(op, attrs, exact)
        outs = [s.with_dtype(dtype) if s.dtype.kind == "f" else s for s in specs]
        got = run_native(op, attrs, low, outs)
        if got is None:
            continue
        ran += 1
        what = f"{attrs} {[None if x is None else x.shape for x in inputs]}"
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, dtype, what)
        for i in op.written(attrs):
            if inputs[i] is not None:
                assert_close(low[i], exact[i], dtype, f"{what}: state {i}")
    if dtype == F32:
        assert ran, f"{name}: the kernel declined every sample"


@pytest.mark.parametrize("name", NAMES)
def test_kernel_computes_the_same_channels_last(name: str) -> None:
    """All arrays of rank 3 and more channels-last; a kernel may decline."""
    op = OPS[name]
    for attrs, inputs in cases(op):
        exact = [None if x is None else x.copy() for x in inputs]
        specs, want = run_numpy(op, attrs, exact)
        last_in = {i for i, x in enumerate(inputs) if x is not None and x.ndim > 2}
        last_out = {o for o, s in enumerate(specs) if s.ndim > 2}
        if not last_in and not last_out:
            continue
        got = run_native(op, attrs, inputs, specs, (last_in, last_out))
        if got is None:
            continue
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, F32, f"{attrs} channels last")


@pytest.mark.parametrize("name", NAMES)
def test_kernel_asks_only_for_attributes_that_its_op_has(name: str) -> None:
    op, lib = OPS[name], native.library()
    for attrs, inputs in cases(op):
        specs = [None if x is None else Spec.of(x.shape, x.dtype) for x in inputs]
        made = attrs.infer(*specs)
        outs = made if isinstance(made, tuple) else (made,)
        native_specs = [[native_spec(s) for s in x] for x in (specs, outs)]
        asked = lib.attributes_asked(name, plain_attributes(attrs.as_dict()), *native_specs)
        assert set(asked) <= set(op.fields), f"{name} reads attributes that its op does not have"


def test_the_library_numbers_the_codes_of_programs_as_the_engine_does() -> None:
    assert require_library().elementwise_codes() == list(ARITY.items())
