# SPDX-License-Identifier: Apache-2.0
"""Shape rules of the C++ library: what the definitions in Python say, for every sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS
from nnl.ext.library import DTYPES, native_spec, plain_attributes
from tests.native.kernels import require_library
from tests.test_derived import CASES, Case

NAMES = list(DTYPES)


def specs_of(case: Case) -> list[Spec | None]:
    """Of the inputs as a call converts them, the stream of random numbers included."""
    arrays = [*case.arrays]
    if case.op.takes_rng:
        arrays += [None] * (len(case.op.inputs) - 1 - len(arrays))
        arrays.append(np.zeros(2, np.uint64))
    return [None if a is None else Spec.of(a.shape, a.dtype) for a in arrays]


def complete(case: Case, specs: list[Spec | None]) -> Any:
    """The attributes of the sample, those left to default found for these specs."""
    attrs = case.op.attrs(**case.attrs)
    if hasattr(attrs, "resolve"):
        attrs = case.op.attrs(**{**attrs.as_dict(), **attrs.resolve(*specs)})
    return attrs


def defined(attrs: Any, specs: list[Spec | None]) -> list[tuple]:
    out = attrs.infer(*specs)
    return [(s.shape, s.dtype.name) for s in (out if isinstance(out, tuple) else (out,))]


def inferred(attrs: Any, specs: list[Spec | None]) -> list[tuple]:
    values, ins = plain_attributes(attrs.as_dict()), [native_spec(s) for s in specs]
    found = require_library().infer(attrs.op.name, values, ins)
    return [(tuple(shape), NAMES[dtype]) for shape, dtype, _ in found]


def with_rule() -> list[tuple]:
    names = set(require_library().rule_names())
    return [p.values for p in CASES if p.values[0].name in names]


def test_every_op_that_has_a_kernel_has_a_rule():
    lib = require_library()
    assert set(lib.kernel_names()) <= set(lib.rule_names()) <= set(OPS)


def test_rules_have_the_inputs_of_the_definitions():
    """Rules may want one of any number of arrays; recurrent layers' gradients want more."""
    lib, ops = require_library(), nn.schema()["ops"]
    for name in set(lib.rule_names()) - {"add_n", "mul_n", "multi_update", "recurrent_backward"}:
        want = [
            (x["name"], x["optional"], x["dtype"] == "integer", x["variadic"])
            for x in ops[name]["inputs"]
        ]
        assert lib.rule_inputs(name) == want, name


def test_types_in_files_have_the_letters_of_their_ops():
    """By which C++ finds the op of a type."""
    lib = require_library()
    plain = {name.replace("_", ""): name for name in lib.rule_names()}
    assert len(plain) == len(lib.rule_names())
    types = {op.nnp: op.name for op in OPS.values() if op.nnp and op.name in plain.values()}
    assert {t: plain[t.lower()] for t in types} == types
    others = {op.nnp.lower() for op in OPS.values() if op.nnp and op.nnp not in types}
    assert not others & set(plain)


def test_rules_give_what_the_definitions_give():
    for op, i in with_rule():
        case = Case(op, i, np.float32)
        specs = specs_of(case)
        attrs = complete(case, specs)
        assert inferred(attrs, specs) == defined(attrs, specs), (op.name, i)


def changed(rng: np.random.Generator, spec: Spec) -> Spec:
    """The spec with another size, with an axis more, or with one less."""
    shape = list(spec.shape)
    kind = rng.integers(4)
    if kind == 0 and shape:
        del shape[rng.integers(len(shape))]
    elif kind == 1 or not shape:
        shape.insert(rng.integers(len(shape) + 1), int(rng.integers(4)))
    else:
        shape[rng.integers(len(shape))] = int(rng.integers(8))
    return spec.with_shape(shape)


def test_rules_refuse_what_the_definitions_refuse():
    """Steps inside programs may be refused more often: their definitions check little."""
    rng, refused = np.random.default_rng(0), 0
    for op, i in with_rule():
        case = Case(op, i, np.float32)
        specs = specs_of(case)
        places = [k for k, s in enumerate(specs) if s is not None and s.dtype != np.uint64]
        for _ in range(20 if places else 0):
            new, k = list(specs), rng.choice(places)
            new[k] = changed(rng, specs[k])
            what = f"{case.attrs} of {new}"
            try:
                attrs = complete(case, new)
            except ValueError:  # before any rule is asked
                continue
            try:
                want = defined(attrs, new)
            except (ValueError, IndexError, TypeError) as e:
                want = e
            try:
                got = inferred(attrs, new)
            except ValueError as e:
                assert str(e).startswith(f"{op.name}: "), what
                assert isinstance(want, Exception) or not op.nnp, f"{e}: {attrs} {what}"
                refused += 1
            else:
                assert got == want, f"{attrs} {what}"
    assert refused > 2000


SLIDES = dict(base_axis=1, pad=(0, 0), stride=(1, 1), dilation=(1, 1), group=1, channel_last=False)
POOLS = dict(kernel=(2, 2), stride=(2, 2), pad=(0, 0), ignore_border=True, channel_last=False)
RESIZES = dict(mode="linear", align_corners=False, half_pixel=False, channel_last=False)
BOXES = dict(output_size=(2, 2), spatial_scale=(1.0, 1.0), sampling_ratio=2, channel_last=False)
PICTURE = (1, 3, 8, 8)
TEXTS = [
    ("fft", dict(signal_ndim=2, normalized=False), [(3, 2)], "wanted signals of 2 axes before one"),
    ("ifft", dict(signal_ndim=1, normalized=True), [(2, 0, 2)], "wanted no empty signals"),
    ("convolution", SLIDES, [(2, 3), (4, 3, 1, 1)], "wanted a spatial axis after base_axis 1"),
    ("convolution", SLIDES | dict(group=2), [(1, 4, 8, 8), (3, 2, 1, 1)],
     "weight .* has 3 maps, no multiple of group 2"),
    ("convolution", SLIDES, [(1, 3, 2, 8), (4, 3, 3, 3)],
     "wanted at least 3 pixels with the pad on spatial axis 0"),
    ("deconvolution", SLIDES | dict(output_padding=(0, 0)), [PICTURE, (4, 3, 2, 2)],
     "x .*, wanted 4 channels for weight"),
    ("deconvolution", SLIDES | dict(output_padding=(0,)), [PICTURE, (3, 3, 2, 2)],
     "output_padding has another number of entries than pad"),
    ("deconvolution", SLIDES | dict(output_padding=(1, 0)), [PICTURE, (3, 3, 2, 2)],
     "output_padding is not below stride"),
    ("deconvolution", SLIDES | dict(output_padding=(0, 0), pad=(9, 9)), [PICTURE, (3, 3, 2, 2)],
     "wanted a result with pixels for weight .* and the pad"),
    ("depthwise_convolution", SLIDES | dict(multiplier=2), [PICTURE, (5, 3, 3)],
     "weight .*, wanted 3 x multiplier maps"),
    ("average_pooling", POOLS | dict(stride=(2,)), [PICTURE],
     "kernel, stride and pad must have one number of entries, at least 1"),
    ("average_pooling", POOLS | dict(pad=(2, 2)), [PICTURE], "pad must be below kernel"),
    ("average_pooling", POOLS | dict(kernel=(9, 9)), [PICTURE],
     "wanted 9 pixels with the pad on spatial axis 0"),
    ("unpooling", dict(kernel=(), channel_last=False), [PICTURE], "kernel is empty"),
    ("interpolate", RESIZES | dict(output_size=()), [PICTURE], "output_size is empty"),
    ("interpolate", RESIZES | dict(mode="cubic"), [PICTURE],
     "mode is 'cubic', wanted one of 'linear', 'nearest'"),
    ("reshape", dict(shape=(5,)), [(2, 3)],
     r"x float32\[2, 3\], wanted 6 elements in the result, not float32\[5\]"),
    ("broadcast", dict(shape=(3, 5)), [(2, 1)], r"wanted what stretches to float32\[3, 5\]"),
    ("transpose", dict(axes=(0,)), [(2, 3)], "wanted one entry of axes for each axis"),
    ("transpose", dict(axes=(0, 0)), [(2, 3)], r"axes is \(0, 0\), wanted different axes in"),
    ("slice", dict(start=(0,), stop=(1, 2), step=(1,)), [(2, 3)],
     "start, stop and step must have one length, at most the 2 axes of the array"),
    ("slice", dict(start=(0,), stop=(1,), step=(0,)), [(2, 3)], "step has a 0"),
    ("pad", dict(pad_width=(1,), mode="constant"), [(2, 3)],
     "pad_width has 1 numbers, wanted two for each of at most 2 axes"),
    ("pad", dict(pad_width=(1, 1), mode="reflect"), [(2, 0)],
     "an axis is empty, which the mode cannot pad"),
    ("gather", dict(axis=1, batch_dims=1), [(2, 3), (4, 1)],
     "x and indices must have the same first 1 sizes"),
    ("one_hot", dict(shape=(3,)), [(2, 2)], "wanted one index for each size of shape"),
    ("batch_matmul", dict(transpose_a=False, transpose_b=False), [(2, 3), (2, 4)],
     "b .*, wanted the inner size 3"),
    ("add2", {}, [(2, 3), (2, 4)], r"x1 .*, wanted sizes that stretch to x0 float32\[2, 3\]"),
    ("where", {}, [(3,), (2, 3), (2, 3)], "condition .*, wanted the first sizes of x_true"),
    ("batch_normalization", dict(axes=(1,), batch_stat=False), [(2, 3)],
     "mean or variance is missing, wanted both when batch_stat is false"),
    ("group_normalization", dict(channel_axis=1, num_groups=2, batch_axis=(0,)), [(2, 3, 4)],
     "wanted a multiple of num_groups 2"),
    ("max", dict(axes=(1,), keep_dims=False), [(2, 0)], "wanted an element along the axes"),
    ("gather_nd", {}, [(2, 3), (3, 4)], r"indices .*, wanted \(m, ...\) with m from 1 to the rank"),
    ("attention", dict(transpose_k=False, heads=1, causal_offset=0), [(2, 3)] * 3,
     r"query float32\[2, 3\], wanted rank 3 or 4"),
    ("nms_detection2d", {}, [(1, 2, 5)], r"wanted \(B, N, 5 \+ C\) with at least one class"),
    ("affine", dict(base_axis=1), [(2, 3), None, None], "weight is missing"),
    ("roi_align", BOXES, [(3, 8, 8), (1, 5)], r"the images float32\[3, 8, 8\] have not rank 4"),
    ("roi_align", BOXES, [(1, 3, 0, 8), (1, 5)], "the images .* have no pixels"),
    ("roi_align", BOXES, [PICTURE, (1, 4)], r"boxes .*, wanted the shape \(K, 5\)"),
    ("roi_align", BOXES | dict(output_size=(2,)), [PICTURE, (1, 5)],
     "output_size and spatial_scale must have two entries"),
    ("roi_align", BOXES | dict(sampling_ratio=2000), [PICTURE, (1, 5)],
     "sampling_ratio is 2000, wanted at most 1024"),
    ("roi_align_backward", BOXES | dict(shape=PICTURE), [(1, 4, 2, 2), (1, 5)],
     r"gy .*, wanted the shape \(1, 3, 2, 2\)"),
]  # fmt: skip


@pytest.mark.parametrize("op,attrs,shapes,text", TEXTS)
def test_errors_say_what_was_wanted(op, attrs, shapes, text):
    specs = [None if s is None else native_spec(Spec.of(s)) for s in shapes]
    with pytest.raises(ValueError, match=f"^{op}: .*{text}"):
        require_library().infer(op, attrs, specs)


def test_errors_name_the_input_what_came_and_what_was_wanted():
    x, w = Spec.of((2, 3)), Spec.of((4, 5))
    with pytest.raises(ValueError) as e:
        inferred(OPS["affine"].attrs(base_axis=1), [x, w, None])
    wanted = "wanted 3 rows for x float32[2, 3] from axis 1 on"
    assert str(e.value) == f"affine: weight float32[4, 5], {wanted}"
    with pytest.raises(ValueError, match=r"affine: got 1 inputs, wanted 3"):
        inferred(OPS["affine"].attrs(base_axis=1), [x])
    with pytest.raises(ValueError, match=r"affine: base_axis is 3, wanted at least 0 and at most"):
        inferred(OPS["affine"].attrs(base_axis=3), [x, w, None])
    with pytest.raises(ValueError, match=r"concatenate: x\[1\] float32\[4, 5\], wanted the sizes"):
        inferred(OPS["concatenate"].attrs(axis=1), [x, w])
    with pytest.raises(ValueError, match=r"tile: the result .* is larger than any memory"):
        inferred(OPS["tile"].attrs(reps=(1 << 22, 1 << 22)), [Spec.of((1 << 17, 1 << 17))])
    with pytest.raises(ValueError, match="batch_inv: this build has no shape rule of it"):
        inferred(OPS["batch_inv"].attrs(), [x])
