# SPDX-License-Identifier: Apache-2.0
"""Every function's samples, written as ONNX and compared with ONNX Runtime."""

import numpy as np
import pytest

import nnl as nn
from nnl.core.graph.dispatch import apply
from nnl.core.graph.variable import Variable
from nnl.core.ops import random as nnl_random
from nnl.core.ops.op import OPS

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from nnl.converters.onnx.exporting.exporter import export  # noqa: E402
from nnl.converters.onnx.exporting.nodes.refusals import NO_MEANING  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator  # noqa: E402
from tests.test_derived import each_sample, samples  # noqa: E402

NEWEST_RUN = 26  # of ONNX Runtime 1.31
RANDOM = {
    "rand",
    "randn",
    "randint",
    "rand_binomial",
    "random_choice",
    "multinomial",
}  # other numbers there
NEEDS_OPSET_16 = {"roi_align", "scatter_add", "scatter_nd"}
NOT_IN_RUNTIME = {  # operators whose kernels ONNX Runtime lacks, for some types or versions
    ("bit_shift", 2): "16-bit integers",
    ("bit_shift", 3): "16-bit integers",
    ("affine_grid", 4): "products of empty matrices with a batch of 0",
    ("deformable_convolution", 6): "products of empty matrices with a batch of 0",
}
INFERENCE = {"batch_stat": False, "update_running_mean": False, "ema": False, "inq_iterations": ()}

LANGUAGE = (  # functions that NNabla does not have
    "attention cached_attention expert_product linear_cross_entropy multinomial rms_normalization "
    "rotary_embedding"
).split()

PUBLIC = [
    op
    for op in OPS.values()
    if (op.nnp or op.name in LANGUAGE) and hasattr(op.attrs_class, "samples")
]
EXPORTED = [op for op in PUBLIC if op.name not in NO_MEANING]


def cases(which):
    return [
        pytest.param(op, i, id=f"{op.name}-{i}")
        for op in EXPORTED
        for i in range(len(samples(op)))
        if (op.name, i) not in NOT_IN_RUNTIME and which(i)
    ]


class Case:
    """One sample as a graph, with the attributes that it has in inference."""

    def __init__(self, op, i, repeat=1):
        sample = samples(op)[i]
        self.op, self.name = op, op.name
        arrays = [None if a is None else np.asarray(a) for a in sample.inputs]
        arrays = [
            a.astype(np.float32) if a is not None and a.dtype.kind == "f" else a for a in arrays
        ]
        if repeat > 1:
            size = arrays[0].shape[0]
            arrays = [
                np.concatenate([a] * repeat) if a is not None and a.shape[:1] == (size,) else a
                for a in arrays
            ]
        attrs = {**sample.attrs, **{k: v for k, v in INFERENCE.items() if k in op.fields}}
        if op.name == "dropout":
            attrs["p"] = 0.0
        xs = [None if a is None else Variable.from_numpy_array(a) for a in arrays]
        named = [(f"x{j}", x) for j, x in enumerate(xs) if x is not None]
        if op.name.startswith("inq_"):  # weights are parameters
            named = named[:1]
        self.inputs = dict(named)
        self.feeds = {n: arrays[int(n[1:])] for n in self.inputs}
        if op.takes_rng:
            xs += [None] * (len(op.inputs) - 1 - len(xs)) + [nnl_random.stream(7)]
        attributes = op.attrs(**attrs)
        if op.has_resolve:
            attributes = op._resolve(attributes, tuple(xs))
        y = apply(op, attributes, tuple(xs))
        ys = (y if isinstance(y, tuple) else (y,))[: op.visible or None]
        self.outputs = {f"y{j}": v for j, v in enumerate(ys)}

    def model(self, opset, batch=None):
        return export(self.outputs, self.inputs, opset=opset, batch=batch)

    def compare(self, got, tolerance=1e-5):
        nn.forward_all(list(self.outputs.values()))
        for y, value in zip(self.outputs.values(), got, strict=True):
            want = y.d
            assert value.shape == want.shape
            if self.name in RANDOM:
                continue
            scale = max(1.0, float(np.nanmax(np.abs(want[np.isfinite(want)]), initial=0.0)))
            np.testing.assert_allclose(value, want, rtol=1e-5, atol=tolerance * scale)


def run(model, feeds):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    runtime = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = {i.name for i in runtime.get_inputs()}
    return runtime.run(None, {n: a for n, a in feeds.items() if n in wanted})


@each_sample(cases(lambda i: True))
def test_exported_sample_gives_the_same_in_onnx_runtime(op, i):
    case = Case(op, i)
    model = case.model(18)
    onnx.checker.check_model(model, full_check=True)
    case.compare(run(model, case.feeds))


@pytest.mark.parametrize("opset", [13, 20, NEWEST_RUN])
def test_first_samples_run_with_every_generation_of_operators(opset):
    for op in EXPORTED:
        if opset < 16 and op.name in NEEDS_OPSET_16:
            continue
        if opset >= 22 and op.name in {*RANDOM, "roi_align"}:  # no kernels of version 22
            continue
        case = Case(op, 0)
        case.compare(run(case.model(opset), case.feeds))


@pytest.mark.parametrize(
    ("opset", "most"), [(7, 80), (8, 75), (9, 35), (10, 28), (11, 10), (12, 4)]
)
def test_first_samples_in_old_opsets_run_or_are_refused_with_the_reason(opset, most):
    """What an opset lacks is refused; at most so many functions are."""
    refused = 0
    for op in (p.values[0] for p in cases(lambda i: i == 0)):
        case = Case(op, 0)
        try:
            model = case.model(opset)
        except UnsupportedOperator as e:
            assert f"cannot be written with opset {opset}: " in str(e)
            refused += 1
            continue
        onnx.checker.check_model(model, full_check=True)
        case.compare(run(model, case.feeds))
    assert refused <= most


@pytest.mark.parametrize("opset", [15, 23, onnx.defs.onnx_opset_version()])
def test_first_samples_are_valid_in_every_opset(opset):
    for op in EXPORTED:
        if opset < 16 and op.name in NEEDS_OPSET_16:
            continue
        onnx.checker.check_model(Case(op, 0).model(opset), full_check=True)


def test_first_samples_are_right_in_the_newest_opset():
    """By the reference implementation of ONNX: runtimes are behind."""
    from onnx.reference import ReferenceEvaluator

    for op in EXPORTED:
        if op.name == "depthwise_deconvolution":  # the reference does not place groups
            continue
        case = Case(op, 0)
        model = case.model(onnx.defs.onnx_opset_version())
        wanted = {i.name for i in model.graph.input}
        feeds = {n: a for n, a in case.feeds.items() if n in wanted}
        case.compare(ReferenceEvaluator(model).run(None, feeds))


@pytest.mark.parametrize("name", sorted({*LANGUAGE} - {"cached_attention", "multinomial"}))
def test_operators_of_language_models_are_right_in_opset_23(name):
    from onnx.reference import ReferenceEvaluator

    found = set()
    for i in range(len(samples(OPS[name]))):
        case = Case(OPS[name], i)
        model = case.model(23)
        onnx.checker.check_model(model, full_check=True)
        wanted = {i.name for i in model.graph.input}
        case.compare(
            ReferenceEvaluator(model).run(
                None, {n: a for n, a in case.feeds.items() if n in wanted}
            )
        )
        found |= {n.op_type for n in model.graph.node}
    operators = {"RMSNormalization", "RotaryEmbedding", "Attention"}
    assert found & operators == {o for o in operators if o.lower() == name.replace("_", "")}


def takes_other_batches(op, i):
    """Whether the function itself takes its sample twice over along the first axis."""
    inputs = samples(op)[i].inputs
    if not inputs or inputs[0] is None or not np.shape(inputs[0]) or np.shape(inputs[0])[0] == 0:
        return False
    try:
        case = Case(op, i, repeat=2)
        nn.forward_all(list(case.outputs.values()))
    except ValueError:
        return False
    return True


@each_sample(cases(lambda i: i < 2))
def test_sample_with_an_open_batch_size_runs_at_twice_the_batch(op, i):
    """Or says why it cannot: attributes may hold the batch size."""
    if not takes_other_batches(op, i):
        return
    case = Case(op, i)
    try:
        model = case.model(18, "N")
    except OnnxError:
        return
    onnx.checker.check_model(model, full_check=True)
    case.compare(run(model, case.feeds))
    if op.name in ("reshape", "broadcast", "tile", "slice", "onnx_resize"):
        return  # their attributes hold sizes: twice the batch is another function
    twice = Case(op, i, repeat=2)
    twice.compare(run(model, twice.feeds))


def test_every_public_function_is_exported_or_has_a_reason():
    for op in PUBLIC:
        try:
            Case(op, 0).model(18)
        except UnsupportedOperator as e:
            assert op.name in NO_MEANING, str(e)
        else:
            assert op.name not in NO_MEANING
    assert set(NO_MEANING) <= set(OPS)
    assert len(PUBLIC) - len(EXPORTED) < 15
