# SPDX-License-Identifier: Apache-2.0
"""From a `Graph` to a graph of NVIDIA's cuDNN front end, and to the plan that runs it."""

from __future__ import annotations

import logging
from typing import Any

from nnl.ext.cuda.cudnn.spec import Array, Graph, Node

logger = logging.getLogger("nnl")

__all__ = ["NotSupported", "build", "declines", "lower"]

# Outputs of the front end's operations in the order in which it returns them.
RETURNED = {
    "batchnorm": ("Y", "mean", "inv_var", "next_running_mean", "next_running_var"),
    "layernorm": ("Y", "mean", "inv_var"),
    "batchnorm_backward": ("DX", "DScale", "DBias"),
    "layernorm_backward": ("DX", "DScale", "DBias"),
    "genstats": ("SUM", "SQ_SUM"),
    "sdpa": ("O", "Stats"),
    "sdpa_backward": ("dQ", "dK", "dV"),
}
# Ports that the front end takes by name; pointwise operations take theirs by position.
NAMED = frozenset(RETURNED) | {
    "batchnorm_inference", "conv_fprop", "conv_dgrad", "conv_wgrad", "matmul", "reduction",
}  # fmt: skip


class NotSupported(RuntimeError):
    """cuDNN has no engine for a graph on this device."""


def lower(cudnn: Any, graph: Graph, **settings: Any) -> Any:
    """The front end's graph, not validated yet.

    Args:
        cudnn: The front end's module.
        settings: Further arguments of its constructor: the handle, or the properties of a device.
    """
    types = {
        "float32": cudnn.data_type.FLOAT,
        "float16": cudnn.data_type.HALF,
        "bfloat16": cudnn.data_type.BFLOAT16,
    }
    halves = [a.dtype for a in graph.operands if a.dtype != "float32"]
    g = cudnn.pygraph(
        io_data_type=types[halves[0] if halves else "float32"],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        **settings,
    )
    arrays, tensors = graph.by_uid, {}
    for a in graph.arrays:
        if not a.virtual and a.uid not in graph.written:
            # A constant is read from the host's memory when the graph runs: cuDNN 9.19 fails to
            # compile kernels with constants within them.
            tensors[a.uid] = g.tensor(
                dim=list(a.dim), stride=list(a.stride), data_type=types[a.dtype], uid=a.uid,
                name=f"t{a.uid}", is_pass_by_value=a.value is not None,
            )  # fmt: skip
    for node in graph.nodes:
        made = _call(cudnn, g, node, {port: tensors[uid] for port, uid in node.ins})
        for port, uid in node.outs:
            tensors[uid] = made[port]
            _describe(made[port], arrays[uid], types)
    return g


def _describe(tensor: Any, a: Array, types: dict[str, Any]) -> None:
    tensor.set_uid(a.uid)
    tensor.set_data_type(types[a.dtype])
    tensor.set_dim(list(a.dim))
    if not a.virtual:  # the front end chooses the order of values within a graph
        tensor.set_output(True)
        tensor.set_stride(list(a.stride))


def _call(cudnn: Any, g: Any, node: Node, ins: dict[str, Any]) -> dict[str, Any]:
    attrs: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in node.attrs}
    if node.op == "reduction":
        attrs["mode"] = getattr(cudnn.reduction_mode, attrs["mode"])
    if node.op == "layernorm":
        attrs["norm_forward_phase"] = cudnn.norm_forward_phase.TRAINING
    if node.op in ("sdpa", "sdpa_backward"):
        attrs = _attention(cudnn, node, attrs)
    method = getattr(g, node.op)
    made = method(**ins, **attrs) if node.op in NAMED else method(*ins.values(), **attrs)
    ports = RETURNED.get(node.op)
    if ports is None:
        return {node.outs[0][0]: made}
    return dict(zip(ports, made, strict=False))


def _attention(cudnn: Any, node: Node, attrs: dict[str, Any]) -> dict[str, Any]:
    """Query i sees the keys j <= i + causal: from the top left corner, or the bottom right one."""
    causal = attrs.pop("causal")
    corner = attrs.pop("corner")
    if causal is not None:
        attrs["diagonal_alignment"] = getattr(cudnn.diagonal_alignment, corner)
        attrs["diagonal_band_right_bound"] = 0
    if node.op == "sdpa":
        attrs["generate_stats"] = any(port == "Stats" for port, _ in node.outs)
    return attrs


def build(cudnn: Any, graph: Graph, **settings: Any) -> Any:
    """A front-end graph with its first plan built: the heuristics' choice, else a fallback.

    Raises:
        NotSupported: There is no engine; the message is cuDNN's.
    """
    g = lower(cudnn, graph, **settings)
    try:
        g.validate()
        g.build_operation_graph()
        g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        if not graph.tf32 and graph.multiplies_float32:
            note = cudnn.numerical_note
            g.deselect_numeric_notes([note.TENSOR_CORE, note.DOWN_CONVERT_INPUTS])
        g.check_support()
        g.build_plans()
    except declines(cudnn) as e:
        raise NotSupported(str(e)) from e
    except (RuntimeError, ValueError) as e:
        logger.warning("cuDNN: a graph is not built, and slower kernels do its work: %s", e)
        raise NotSupported(str(e)) from e
    return g


def declines(cudnn: Any) -> tuple[type[Exception], ...]:
    """What the front end raises where there is no engine."""
    return cudnn.cudnnGraphNotSupportedError, NotImplementedError
