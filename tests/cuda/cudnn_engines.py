# SPDX-License-Identifier: Apache-2.0
"""Which graphs cuDNN has an engine for on an H200, asked without a GPU: a table for docs/cudnn.md.

    python -m tests.cuda.cudnn_engines [--samples]

cuDNN takes the properties of a device as JSON instead of a device, and compiles kernels for it. The
one thing missing is the driver, whose place a library takes that answers "loaded" where kernels are
loaded and "no device" else. So an engine that is found here was compiled, and never ran.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from nnl.ext.cuda.cublas import SIGNATURES, Blas
from nnl.ext.cuda.cudnn.assemble import Declined
from nnl.ext.cuda.cudnn.builders import BUILDERS
from nnl.ext.cuda.cudnn.lower import NotSupported
from nnl.ext.cuda.cudnn.run import Engine
from nnl.ext.cuda.cudnn.setups import front_end
from nnl.ext.cuda.cudnn.spec import Graph
from nnl.ext.device.registry import Operand

H200 = {
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536, "multiProcessorCount": 132, "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
    "supportCoopLaunch": 1, "totalGlobalMem": 150_000_000_000, "smClockRateKHz": 1_980_000,
    "memClockRateKHz": 3_201_000, "l2CacheSize": 62_914_560, "cudaDeviceId": 0, "deviceVer": 900,
    "driverVer": 13000, "deviceName": "NVIDIA H200",
}  # fmt: skip
# Functions of the driver that cuDNN looks up when it finalizes a plan; a handle is never used.
LOADS = ("cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction", "cuModuleLoadData",
         "cuModuleLoadDataEx", "cuModuleGetFunction", "cuLibraryGetModule")  # fmt: skip
SETS = ("cuLibraryUnload", "cuModuleUnload", "cuKernelSetAttribute", "cuFuncSetAttribute")
OTHERS = (
    "cuInit", "cuDriverGetVersion", "cuGetProcAddress", "cuGetProcAddress_v2", "cuDeviceGet",
    "cuDeviceGetCount", "cuDeviceGetAttribute", "cuGetErrorString", "cuGetErrorName",
    "cuCtxGetCurrent", "cuCtxGetDevice", "cuFuncGetAttribute", "cuFuncGetName", "cuLaunchKernel",
    "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col", "cuOccupancyMaxActiveClusters",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuMemGetAddressRange_v2", "cuPointerGetAttribute", "cuStreamGetCtx", "cuStreamIsCapturing",
    "cuModuleGetGlobal_v2", "cuLibraryGetGlobal", "cuGetExportTable", "cuMemsetD8Async",
    "cuMemsetD32Async", "cuGraphAddKernelNode_v2", "cuGraphKernelNodeSetParams_v2",
    "cuLinkCreate", "cuLinkAddData", "cuLinkComplete", "cuLinkDestroy", "cuLibraryLoadFromFile",
    "cuKernelGetAttribute", "cuOccupancyMaxPotentialClusterSize", "cuCtxGetLimit",
    "cuCtxPushCurrent", "cuCtxPopCurrent", "cuGraphAddMemsetNode", "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
)  # fmt: skip
TYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


def no_driver() -> None:
    """Load what stands in for the CUDA driver, unless there is one."""
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        return
    except OSError:
        pass
    text = "".join(f"int {n}(void** p) {{ *p = (void*)4096; return 0; }}\n" for n in LOADS)
    text += "".join(f"int {n}(void) {{ return 0; }}\n" for n in SETS)
    text += "".join(f"int {n}(void) {{ return 100; }}\n" for n in OTHERS)
    folder = Path(tempfile.mkdtemp())
    (folder / "driver.c").write_text(text)
    made = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["gcc", *flags, str(folder / "driver.c"), "-o", str(made)], check=True)
    ctypes.CDLL(str(made), mode=ctypes.RTLD_GLOBAL)


def engine(cache: Any = None) -> Engine:
    """An engine for an H200 that need not be there."""
    cudnn = front_end()
    properties = cudnn.create_device_properties(json.dumps(H200))
    settings = {"sm_version": 90, "device_property": properties}
    blas = Blas(SimpleNamespace(**{name: lambda *args: 0 for name in SIGNATURES}))
    return Engine(cudnn, "H200 9.0", cache, blas=blas, settings=settings)


Call = tuple[str, str, dict[str, Any], list[Any], list[Any]]


def calls(d: str, batch: int = 64, side: int = 56, words: int = 128) -> Iterator[Call]:
    """(what, op, attributes, inputs, outputs) in the sizes of ResNet-50 and BERT, or smaller."""
    f = "float32"
    conv = {"base_axis": 1, "channel_last": False, "group": 1, "pad": (1, 1), "stride": (1, 1),
            "dilation": (1, 1)}  # fmt: skip
    image, w, v = ((batch, 64, side, side), d, True), ((64, 64, 3, 3), f), ((64,), f)
    relu = {**conv, "activation": "relu"}
    stem = {**conv, "pad": (3, 3), "stride": (2, 2)}
    yield "3x3", "convolution", conv, [image, w, None], [image]
    yield "3x3 with bias", "convolution", conv, [image, w, v], [image]
    yield "scale, bias, add, relu", "convolution_fused", relu, [image, w, v, image, v], [image]
    data = ((batch, 3, 4 * side, 4 * side), f)
    first = ((batch, 64, 2 * side, 2 * side), d, True)
    yield "first layer, 3 channels", "convolution", stem, [data, ((64, 3, 7, 7), f), None], [first]
    grouped = {**conv, "group": 8}
    yield "8 groups", "convolution", grouped, [image, ((64, 8, 3, 3), f), None], [image]
    each = {**conv, "group": 64}
    yield "depthwise", "convolution", each, [image, ((64, 1, 3, 3), f), None], [image]
    yield "depthwise with bias", "convolution", each, [image, ((64, 1, 3, 3), f), v], [image]
    gray, few = ((batch, 1, side, side), d), ((batch, 10, side, side), d, True)
    odd = [gray, ((10, 1, 3, 3), f), ((10,), f)]
    yield "1 channel to 10, with bias", "convolution", conv, odd, [few]
    yield "", "convolution_data", conv, [image, w], [image]
    yield "", "convolution_weight", conv, [image, image], [w]
    yield "", "convolution_weight_bias", conv, [image, image], [w, v]
    yield "", "deconvolution", conv, [image, w, v], [image]
    line = ((batch, 64, words), d, True)
    one = {**conv, "pad": (1,), "stride": (1,), "dilation": (1,)}
    yield "1 axis", "convolution", one, [line, ((64, 64, 3), f), v], [line]
    cube = ((4, 32, 16, 16, 16), d, True)
    three = {**conv, "pad": (1,) * 3, "stride": (1,) * 3, "dilation": (1,) * 3}
    yield "3 axes", "convolution", three, [cube, ((32, 32, 3, 3, 3), f), None], [cube]
    p = ((1, 64, 1, 1), f)
    norm = {"axes": (1,), "decay_rate": 0.9, "eps": 1e-5, "batch_stat": True}
    act = {**norm, "nonlinearity": "relu"}
    out = [image, p, p]
    yield "training", "batch_normalization", norm, [image, p, p, p, p], out
    yield "relu", "fused_batch_normalization", act, [image, p, p, p, p, None], out
    yield "add, relu", "fused_batch_normalization", act, [image, p, p, p, p, image], out
    known = {**act, "batch_stat": False}
    yield "inference, relu", "fused_batch_normalization", known, [image, p, p, p, p, None], out
    name, act = "batch_normalization_backward_fused", {**norm, "activation": "relu"}
    yield "relu", name, act, [image, None, image, None, p, p, p, p], out
    residual = [image, image, image, image, p, p, p, p]
    yield "add, relu, two gradients", name, act, residual, [*out, image]
    axes = {"axes": (0, 2, 3), "eps": 1e-5, "parameter": (1, 64, 1, 1)}
    none = [None, None]
    yield "of a batch", "normalization_backward", axes, [image, *none, image, p, p, p], out
    x, g, r = ((8, words, 768), d), ((1, 1, 768), f), ((8, words, 1), f)
    layer = {"batch_axis": (0, 1), "eps": 1e-12}
    yield "", "layer_normalization", layer, [x, g, g], [x, r, r]
    axes = {"axes": (2,), "eps": 1e-5, "parameter": (1, 1, 768)}
    yield "of a layer", "normalization_backward", axes, [x, *none, x, r, r, g], [x, g, g]
    m, y, b = ((768, 3072), f), ((8, words, 3072), d), ((3072,), f)
    base = {"base_axis": 2}
    yield "with bias", "affine", base, [x, m, b], [y]
    gelu = {**base, "activation": "gelu"}
    yield "bias, add, gelu", "affine_fused", gelu, [x, m, b, y], [y]
    tall, wide = ((8 * words, 768), d), ((8 * words, 3072), d)
    yield "", "affine_weight", {}, [tall, wide], [m]
    q, lse = ((8, 12, words, 64), d), ((8, 12, words), f)
    s = ((8, 12, words, words), d)
    swap = {"transpose_a": False, "transpose_b": True}
    yield "q k^T", "batch_matmul", swap, [q, q], [s]
    table, scores = ((1, 30522, 768), f), ((8, words, 30522), d)
    single = ((1, 8 * words, 768), d)
    of_words = [single, table, ((1, 1, 30522), f)]
    yield "scores of words", "batch_matmul_bias", swap, of_words, [scores]
    yield "causal", "attention", {"scale": 0.125, "causal": True}, [q, q, q], [q, lse]
    mask = ((8, 1, 1, words), f)
    yield "padding mask", "attention", {"scale": 0.125}, [q, q, q, mask], [q, lse]
    back = [q, q, q, q, q, lse]
    yield "causal", "attention_backward", {"scale": 0.125, "causal": True}, back, [q, q, q]
    yield "padding mask", "attention_backward", {"scale": 0.125}, [*back, mask], [q, q, q]
    x, y = ((8, words, 3, 12, 64), d), ((8, words, 12, 64), d)
    causal = {"scale": 0.125, "causal": True}
    yield "causal", "attention_packed", causal, [x], [y, lse]
    yield "causal", "attention_packed_backward", causal, [y, x, y, lse], [x]


def operand(x: Any) -> Operand | None:
    return None if x is None else Operand(tuple(x[0]), TYPES[x[1]], len(x) > 2 and x[2])


def answer(made: Engine, call: Call) -> str:
    """How many graphs, and copies, the first way that has engines takes; "none"; "declined"."""
    _, name, attrs, ins, outs = call
    try:
        ways = BUILDERS[name](attrs, [operand(x) for x in ins], [operand(x) for x in outs])
    except Declined:
        return "declined"
    for work in ways:
        graphs = [s for s in work.steps if isinstance(s, Graph)]
        try:
            for graph in graphs:
                made.plan(graph)
        except NotSupported:
            continue
        copies = len(work.steps) - len(graphs)
        return f"{len(graphs)} + {copies}" if copies else str(len(graphs))
    return "none"


def table(made: Engine) -> str:
    lines = [f"| op | case | {' | '.join(TYPES)} |", "|---|---|" + "---|" * len(TYPES)]
    for row in zip(*(list(calls(d)) for d in TYPES), strict=True):
        cells = " | ".join(answer(made, call) for call in row)
        lines.append(f"| {row[0][1]} | {row[0][0]} | {cells} |")
    return "\n".join(lines)


def samples(made: Engine) -> None:
    """How many of the ops' small samples have engines."""
    from nnl.core.ops.op import OPS
    from tests.cuda.test_cudnn_samples import converted
    from tests.native.kernels import run_numpy
    from tests.native.test_kernels import cases

    for name in sorted(set(BUILDERS) & set(OPS)):
        for d, dtype in TYPES.items():
            found = []
            for attrs, inputs in cases(OPS[name]):
                copies = [None if x is None else x.copy() for x in inputs]
                specs, _ = run_numpy(OPS[name], attrs, copies)
                low, outs = converted(OPS[name], name, inputs, specs, dtype)
                ins = [None if x is None else (x.shape, x.dtype.name) for x in low]
                call = ("", name, attrs.as_dict(), ins, [(y.shape, y.dtype.name) for y in outs])
                found.append(answer(made, call))
            print(name, d, ", ".join(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", action="store_true", help="the ops' samples instead")
    given = parser.parse_args()
    no_driver()
    made = engine()
    if given.samples:
        samples(made)
    else:
        print(table(made))


if __name__ == "__main__":
    main()
