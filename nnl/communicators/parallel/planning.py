# SPDX-License-Identifier: Apache-2.0
"""What a training step takes on a mesh that is not there: memory, exchanged bytes, time.

The network is built as one rank would build it, and its step is planned but not run: memory is
what that plan would allocate. Time is the sum over the steps of the plan of the larger of
arithmetic and reading and writing, at rates that have been measured on the device, and of the
exchanges at those of its links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nnl import functions as F
from nnl.communicators.parallel import layers as C
from nnl.communicators.parallel.layout import LaidOut, layout_of, with_pieces
from nnl.communicators.parallel.mesh import Axis, Mesh
from nnl.communicators.parallel.sharding import rewire
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import (
    get_parameter_or_create,
    get_parameters,
    parameter_scope,
    without_values,
)
from nnl.core.settings.context import STATE
from nnl.graph.execution.session import session_of
from nnl.graph.printing.profile import peak_bytes, peak_flops
from nnl.graph.program.costs import cost
from nnl.parametric_functions.initializer import ONE
from nnl.solvers.base import Solver

EXTRAPOLATED = 3  # layers of a decoder that are planned; what each more adds is the same


class Absent:
    """The communicator of one rank of a job that does not run, for plans on paper.

    Args:
        size: Ranks of the job, of which this is the first.
    """

    space, rank = "host", 0

    def __init__(self, size: int) -> None:
        self.size = size
        self.groups: dict[str, Sequence[int]] = {"world": range(size)}

    def find_group(self, group: str) -> Sequence[int]:
        return self.groups[group]

    def list_groups(self) -> list[str]:
        return [*self.groups]

    def new_group(self, name: str, ranks: Sequence[int]) -> None:
        self.groups[name] = tuple(ranks)

    def meet(self, call: str, extra: bytes = b"", group: str = "world") -> list[bytes]:
        """As if all others were here."""
        return [extra] * len(self.groups[group])

    def __repr__(self) -> str:
        return f"{self.size} ranks (absent)"


@dataclass(frozen=True)
class Device:
    """What a rank computes with, and the links to others.

    Attributes:
        flops: Operations per second in large products of matrices, by bytes of an element.
        rate: Bytes per second that memory reads and writes. memory: its size in bytes.
        near, far: Bytes per second that a rank sends to others of its machine, and beyond.
        node: Ranks of a machine. latency: Seconds of an exchange between two ranks.
    """

    flops: dict[int, float]
    rate: float
    memory: float
    near: float
    far: float
    node: int
    latency: float


# Data sheet (H100 SXM5: 989 Tflop/s dense in 16 bits, 495 in TF32, 3.35 TB/s, 80 GB; NVLink 450
# GB/s and one 400 Gbit/s port a direction), of which large products and copies reach these shares.
H100 = Device({2: 0.72 * 989e12, 4: 0.72 * 495e12, 8: 0.72 * 67e12},
              0.9 * 3.35e12, 80e9, 0.8 * 450e9, 0.9 * 50e9, 8, 1e-5)  # fmt: skip


def this_device() -> Device:
    """The processor of the current context, measured; its ranks exchange through memory."""
    import os

    target = STATE.target
    rate = peak_bytes(target)
    flops = peak_flops(target, target.float_dtype)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device({2: flops, 4: flops, 8: flops}, rate, memory, rate / 3, rate / 3, 1 << 30, 1e-4)


Quantities = dict[str, float]


def quantities(
    loss: Variable, solver: Solver, mesh: Mesh, level: int, device: Device, micro_batches: int = 1
) -> Quantities:
    """What a step of one rank takes.

    Args:
        loss: Of this rank's part of the network and one micro batch; it is changed by this.
        solver: With the parameters of loss; it does not change.
        level: As of C.shard; 0 for plain data parallelism.
    Returns:
        Bytes of "parameters", "gradients", "states" and the "step"; seconds of "arithmetic" and
        "memory"; and for each axis of the mesh, bytes that are "sent ..." and seconds that "links
        ..." take.
    """
    params = solver.get_parameters().values()
    pieces = mesh.shard.size if level > 0 else 1
    elements = [p.size for p in params]
    cut = [-(-n // pieces) for n in elements]
    width = STATE.target.float_dtype.itemsize
    stored = sum(
        n * p.spec.dtype.itemsize
        for n, p in zip(cut if level > 1 else elements, params, strict=True)
    )
    states = sum(cut) * len(solver.states) * width
    if level > 1 and pieces > 1:
        shapes = {
            p.data: with_pieces(layout_of(p), mesh.shard, mesh.data, level == 3) for p in params
        }
        now = {
            data: LaidOut.over(Variable(layout.stored, need_grad=True), layout, "")
            for data, layout in shapes.items()
        }
        rewire([loss], now)
    plan = session_of([loss]).plan_on_paper()
    axes = {a.group: a for a in (mesh.pipe, mesh.data, mesh.shard, mesh.model) if a.size > 1}
    found: Quantities = {"parameters": stored, "gradients": stored, "states": states}
    found["step"] = plan.nbytes - stored
    found |= {"arithmetic": 0.0, "memory": 0.0}
    slots = plan.program.slots
    for step in plan.steps:
        arrays = [slots[i].spec for i in (*step.ins, *step.outs) if i]
        sent = _sent(step, slots)
        for group, (nbytes, turns) in sent.items():
            _send(found, axes[group], device, nbytes * micro_batches, turns * micro_batches)
        if not sent and not step.view:
            costs = cost(plan.program, step)
            size = min([s.dtype.itemsize for s in arrays if s.dtype.kind in "fV"], default=4)
            times = costs.flops / device.flops[size], costs.bytes / device.rate
            kind = "arithmetic" if times[0] > times[1] else "memory"
            found[kind] += max(times) * micro_batches
    if level < 2 and mesh.batch.size > 1:
        n = mesh.batch.size
        _send(found, mesh.batch, device, 2 * stored * (n - 1) / n, 2 * (n - 1))
    if level == 1 and pieces > 1:
        _send(found, mesh.shard, device, stored * (pieces - 1) / pieces, pieces - 1)
    found["memory"] += 2 * (states + 2 * stored / (pieces if level == 1 else 1)) / device.rate
    return found


def _sent(step: Any, slots: Sequence[Any]) -> dict[str, tuple[float, int]]:
    """{group: (bytes that a ring lets this rank send, turns)} of a collective step."""
    comm = step.attrs.get("comm")
    if comm is None or step.op in ("replicate", "local_part"):
        return {}
    group = step.attrs["group"]
    n = len(comm.find_group(group))
    ins, outs = ([slots[i].spec.nbytes for i in some if i] for some in (step.ins, step.outs))
    if step.op == "permute":
        return {group: (ins[0], 1)}
    if step.op == "all_reduce":
        return {group: (2 * sum(ins) * (n - 1) / n, 2 * (n - 1))}
    sent = {group: (max(sum(ins), sum(outs)) * (n - 1) / n, n - 1)}
    if step.attrs.get("data") and step.op == "shard_gradient":
        m = len(comm.find_group(step.attrs["data"]))
        sent[step.attrs["data"]] = 2 * outs[0] * (m - 1) / m, 2 * (m - 1)
    return sent


def _send(found: Quantities, over: Axis, device: Device, nbytes: float, turns: int) -> None:
    near = over.ranks[0] // device.node == over.ranks[-1] // device.node
    seconds = nbytes / (device.near if near else device.far) + turns * device.latency
    for key, value in ((f"sent {over.name}", nbytes), (f"links {over.name}", seconds)):
        found[key] = found.get(key, 0.0) + value


def step_s(q: Quantities) -> tuple[float, float]:
    """Seconds of a step whose exchanges run in turn with the rest, as they do now; and of one where
    those of data and shard run meanwhile."""
    apart = sum(q.get(f"links {name}", 0.0) for name in ("data", "shard", "batch"))
    rest = q["arithmetic"] + q["memory"] + sum(v for k, v in q.items() if k[:6] == "links ") - apart
    waiting = q.get("waiting", 0.0)
    return rest + apart + waiting, max(rest, apart) + waiting


def bound(q: Quantities) -> str:
    """What takes the most of a step."""
    return max((k for k in q if k in ("arithmetic", "memory", "waiting") or k[:6] == "links "),
               key=lambda k: q[k])  # fmt: skip


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder like Llama: RMS norms, rotary positions, grouped queries, gated layers.

    Attributes:
        width, hidden: Elements of a position, and within the gated layers.
        layers, heads, keys: Numbers of layers, of heads of queries and of keys and values.
        vocabulary: Tokens.
    """

    width: int
    hidden: int
    layers: int
    heads: int
    keys: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        d = self.width // self.heads
        layer = (2 * self.heads + 2 * self.keys) * d * self.width + 3 * self.width * self.hidden
        return self.layers * (layer + 2 * self.width) + (2 * self.vocabulary + 1) * self.width


def decoder_stage(
    c: DecoderSizes, over: Axis, shape: Sequence[int], layers: int, first: bool, last: bool
) -> Variable:
    """Some layers of a decoder over the ranks of `over`, with its embedding or its loss.

    Args:
        shape: (batch, positions), which are split over the ranks between layers.
    Returns:
        The mean of cross entropies if last, else the sum of what goes to the next stage.
    """
    batch, length = shape
    d, run = c.width // c.heads, c.heads // c.keys + 2

    def norm(h: Any, name: str) -> Any:
        gamma = get_parameter_or_create(name, (1, 1, c.width), ONE)
        return F.rms_normalization(h, over.replicate(gamma))

    def linear(x: Any, n: int, name: str, **how: Any) -> Any:
        return C.affine(x, n, over, sequence=1, with_bias=False, name=name, **how)

    if first:
        h = C.embed(Variable(shape), c.vocabulary, c.width, over, name="tokens")
        h = over.local_part(h, 1)
    else:
        h = Variable((batch, length // over.size, c.width), need_grad=True)
    at = F.arange(0, length)
    frequencies = Variable.from_numpy_array(F.rotary_frequencies(d).frequencies)
    for k in range(layers):
        with parameter_scope(f"layer{k}"):
            y = linear(norm(h, "attention"), c.keys * run * d, "qkv")
            y = F.reshape(y, (batch, length, c.keys // over.size, run, d))
            heads = (0, 2, 3, 1, 4)  # (batch, keys, run, positions, d)
            q, key, v = (
                F.reshape(F.transpose(y[:, :, :, a:b], heads), (batch, -1, length, d))
                for a, b in ((0, run - 2), (run - 2, run - 1), (run - 1, run))
            )
            q, key = (F.rotary_embedding(x, at, frequencies) for x in (q, key))
            y = F.transpose(F.attention(q, key, v, causal=True), (0, 2, 1, 3))
            y = F.reshape(y, (batch, length, c.heads // over.size * d))
            h = h + linear(y, c.width, "out", split="in")
            y = linear(norm(h, "gated"), 2 * c.hidden, "up", groups=2)
            gate, up = F.split(F.reshape(y, (batch, length, 2, c.hidden // over.size)), axis=2)
            h = h + linear(F.swish(gate) * up, c.width, "down", split="in")
    if not last:
        return F.sum(h)
    y = linear(norm(h, "out"), c.vocabulary, "head")
    return F.mean(C.softmax_cross_entropy(y, Variable((batch, length, 1)), over))


def decoder_quantities(
    c: DecoderSizes,
    solver: Solver,
    mesh: Mesh,
    level: int,
    device: Device,
    shape: Sequence[int],
    micro_batches: int = 1,
    chunks: int = 1,
) -> Quantities:
    """As `quantities`, of the first or the last of the stages of a decoder, whatever is more.

    Args:
        shape: (sequences, positions) of a micro batch of one rank.
        chunks: Stages on each rank of pipe; see C.Pipeline.
    """
    n = mesh.pipe.size
    if c.layers < n * chunks:
        raise ValueError(f"plan: {c.layers} layers, wanted one for each of {n * chunks} stages")
    own = -(-c.layers // n)
    ends = {(True, n == 1), (n == 1, True)}
    found = [_stage(c, solver, mesh, level, device, shape, micro_batches, own, e) for e in ends]
    most = {k: max(f.get(k, 0.0) for f in found) for k in {k for f in found for k in f}}
    if n > 1:
        width = 2 if STATE.target.half is not None else STATE.target.float_dtype.itemsize
        sent = 2 * shape[0] * shape[1] // mesh.model.size * c.width * width * micro_batches * chunks
        _send(most, mesh.pipe, device, sent, 2 * micro_batches * chunks)
        on_way = min(micro_batches, n + (n - 1) / chunks if chunks > 1 else n)
        most["step"] *= on_way
        busy = most["arithmetic"] + most["memory"] + most.get("links model", 0.0)
        most["waiting"] = busy * (n - 1) / (chunks * micro_batches)
    return most


def _stage(
    c: DecoderSizes, solver: Solver, mesh: Mesh, level: int, device: Device,
    shape: Sequence[int], micro_batches: int, layers: int, ends: tuple[bool, bool],
) -> Quantities:  # fmt: skip
    few = min(layers, EXTRAPOLATED)
    found = []
    for n in sorted({few, min(few + 1, layers)}):
        with parameter_scope("plan", type(get_parameters())()), without_values():
            loss = decoder_stage(c, mesh.model, shape, n, *ends)
            solver.set_parameters(get_parameters())
            found.append(quantities(loss, solver, mesh, level, device, micro_batches))
    return {k: v + (layers - few) * (found[-1][k] - v) for k, v in found[0].items()}
