# SPDX-License-Identifier: Apache-2.0
"""Net: a network from a prototxt, with the values of its blobs and their gradients."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.caffe.messages import included, lines_of, messages
from nnl.converters.caffe.weights import fits, read_net, read_weights
from nnl.core.arguments.suggest import did_you_mean
from nnl.core.arrays.array import NdArray
from nnl.dialects.caffe import layer_types as _layer_types  # noqa: F401  (they note themselves)
from nnl.dialects.caffe import python_layer as _python_layer  # noqa: F401
from nnl.dialects.caffe.description import Described
from nnl.dialects.caffe.graph import Graph
from nnl.dialects.caffe.layer import KINDS, MANY, Blob, Layer, Parameter
from nnl.dialects.caffe.layer_types.data import Rows, feed
from nnl.dialects.caffe.weighted import Weighted
from nnl.workspace import Function, Operator, Tensor, current

Array = np.ndarray[Any, Any]
TRAIN, TEST = 0, 1


class Net(Described, Weighted):
    """A network, as a prototxt describes it, in the current workspace.

    Args:
        network_file: Path of a prototxt, or a NetParameter.
        phase, weights: caffe.TRAIN or caffe.TEST, and the path of a .caffemodel; in either order.
        level, stages: Of the state that include and exclude rules see.
        shapes: {top: sizes} of layers that read databases: their tops are fed instead.
        deploy: To be converted: no layer in Python runs, running statistics are divided at once,
            and DetectionOutput gives all rows that there may be.
    Attributes:
        blobs: By name; of those that layers change in place, what they are in the end, except of
            inputs: what they are given.
        ends: All blobs as they are in the end, inputs too.
        params: {layer: its parameters}.
        inputs, outputs: Names of blobs that are given, and of those that no layer reads.
    Raises:
        ValueError: The prototxt, or the weights, cannot be used; the text lists what is wrong.
    """

    def __init__(
        self,
        network_file: Any,
        *args: Any,
        phase: int | None = None,
        weights: str | None = None,
        level: int = 0,
        stages: Sequence[str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        deploy: bool = False,
    ) -> None:
        for a in args:
            if isinstance(a, (str, os.PathLike)):
                weights = os.fspath(a)
            elif phase is None and isinstance(a, int):
                phase = a
            elif isinstance(a, int):
                level = a
            elif isinstance(a, Sequence):
                stages = a
            else:
                raise TypeError(f"Net: got {a!r}, wanted a phase and the path of weights")
        self.message, text, self.where = read_net(network_file)
        state = messages()["NetState"]()
        state.CopyFrom(self.message.state)
        if phase is not None:
            state.phase = phase
        state.level = level or state.level
        state.stage.extend(stages or ())
        self.phase = state.phase
        self.message.state.CopyFrom(state)
        self.deploy, self.stale, self.behind = deploy, False, False
        self.workspace = current()
        name = self.message.name or "net"
        taken = {n.partition("/")[0] for n in self.workspace.tensors}
        self.name = next(
            n for i in range(len(taken) + 1) if (n := f"{name}_{i}" if i else name) not in taken
        )
        self.layers: list[Layer] = []
        self.blobs: OrderedDict[str, Blob] = OrderedDict()
        self.ends: dict[str, Blob] = {}
        self.params: OrderedDict[str, list[Parameter]] = OrderedDict()
        self.parameters: list[Parameter] = []
        self.shared: dict[str, Parameter] = {}
        self.memory: tuple[tuple[Rows, tuple[int, ...]], ...] = ()
        self.normalized: dict[Tensor, Any] = {}
        self.loss_weights: dict[Tensor, float] = {}
        self._starts: dict[Tensor, NdArray] = {}
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._latest: Graph | None = None
        self._loss: Tensor | None = None
        self._stored = {} if weights is None else read_weights(weights)
        self._problems: list[str] = []
        self._build(text, state, dict(shapes or {}))
        for name in [n for n in self.params if n in self._stored]:
            n, wanted = len(self._stored[name]), len(self.params[name])
            if n > wanted:
                self._problems.append(f"layer {name!r} has {n} parameters, wanted {wanted}")
        if self._problems:
            raise ValueError(f"{weights}: shapes of weights:\n  " + "\n  ".join(self._problems))
        self._stored = {}

    # ---- building ----

    def _build(self, text: str, state: Any, shapes: dict[str, Sequence[int]]) -> None:
        try:
            kept = [m for m in self.message.layer if included(m, state)]
        except ValueError as error:
            raise ValueError(f"{self.where}: {error}") from None
        for m in kept:
            if m.top and not m.bottom and all(top in shapes for top in m.top):
                m.type = "Input"
                m.ClearField("input_param")
                for top in m.top:
                    m.input_param.shape.add(dim=shapes[top])
            if m.type in KINDS and KINDS[m.type].loss and not m.top:
                m.top.append(m.name)
        unknown = list(dict.fromkeys(m.type for m in kept if m.type not in KINDS))
        if unknown:
            lines = lines_of(text, unknown)
            told = [
                f"{t!r}{', line ' if lines[t] else ''}{', '.join(map(str, lines[t]))}"
                f"{did_you_mean(t, KINDS)}"
                for t in unknown
            ]
            raise ValueError(f"{self.where}: unknown types of layers:\n  " + "\n  ".join(told))
        del self.message.layer[:]
        self.message.layer.extend(kept)
        self._last = {top: i for i, m in enumerate(kept) for top in m.top}
        makers: dict[str, str] = {}
        for m in reversed(kept):
            makers.update((top, m.name) for top in m.top)
        unread: dict[str, None] = {}
        for i, m in enumerate(self.message.layer):
            layer = Layer(self, m, i)
            try:
                self._add(layer, makers, unread)
            except (ValueError, TypeError, IndexError, OverflowError) as error:
                told = str(error)
                where = "" if told.startswith(self.where) else f"{self.where}: "
                told = told if str(layer) in told else f"{layer}: {told}"
                raise ValueError(f"{where}{told}") from error
        self.outputs = [name for name in self.blobs if name in unread]
        self.inputs = [
            name for layer in self.layers if layer.type == "Input" for name in layer.message.top
        ]
        self._names = {layer.name: i for i, layer in enumerate(self.layers)}

    def _add(self, layer: Layer, makers: Mapping[str, str], unread: dict[str, None]) -> None:
        m, kind = layer.message, KINDS[layer.type]
        for what, names, (low, high) in (
            ("bottom", m.bottom, kind.bottoms),
            ("top", m.top, kind.tops),
        ):
            if not low <= len(names) <= high:
                most = f" to {high}" if high < MANY else " or more"
                wanted = f"{low}{'' if low == high else most}"
                raise layer.fail(f"has {len(names)} {what} blobs, wanted {wanted}")
        for name in m.bottom:
            if name not in self.blobs:
                if name in makers:
                    raise layer.fail(
                        f"bottom {name!r} is made by layer {makers[name]!r}, after it or in a cycle"
                    )
                raise layer.fail(f"no layer makes bottom {name!r}{did_you_mean(name, self.blobs)}")
            layer.bottoms.append(self.ends[name])
            unread.pop(name, None)
        for name in m.top:
            if name in self.blobs and name not in m.bottom:
                raise layer.fail(f"top {name!r} is made by layer {makers[name]!r} already")
        kind.build(layer, *layer.bottoms)
        self.layers.append(layer)
        for i, (name, t) in enumerate(zip(m.top, layer.tops, strict=True)):
            self.ends[name] = t
            if name not in self.blobs or self.blobs[name].operator is not None:
                self.blobs[name] = t
            unread[name] = None
            weight = m.loss_weight[i] if i < len(m.loss_weight) else float(kind.loss and i == 0)
            if weight:
                self.loss_weights[t] = weight
        if layer.blobs:
            self.params[layer.name] = layer.blobs
        self.parameters += [p for p in layer.blobs if p not in self.parameters]

    def name_of(self, layer: Layer, i: int) -> str:
        """The name of a top in the workspace: that of the blob, if no later layer changes it."""
        if i >= len(layer.message.top):
            return f"{self.name}/{layer.name}:{i}"
        top = layer.message.top[i]
        return f"{self.name}/{top}" + ("" if self._last[top] == layer.index else f"@{layer.name}")

    def stored(self, layer: Layer, i: int, sizes: tuple[int, ...]) -> Array | None:
        """What the file of weights has for a parameter."""
        found = self._stored.get(layer.name)
        if found is None:
            return None
        if i >= len(found) or not fits(found[i].shape, sizes):
            has = found[i].shape if i < len(found) else f"{len(found)} parameters"
            self._problems.append(f"{layer}: parameter {i} of the file has {has}, wanted {sizes}")
            return None
        return found[i].reshape(sizes)

    def path(self, name: str) -> str:
        """A path of the prototxt: as it is, or beside the prototxt."""
        beside = os.path.join(os.path.dirname(self.where), name)
        return beside if not os.path.exists(name) and os.path.exists(beside) else name

    # ---- values ----

    def value(self, t: Tensor) -> NdArray:
        """The array of a blob."""
        values = self.workspace.values
        if t.key not in values:
            if t.operator is not None and self.behind:
                self._run(0, len(self.layers) - 1, False)
                return values[t.key]
            nd = NdArray.from_numpy_array(np.zeros(t.sizes, np.float32))
            if t.operator is not None:
                return nd
            values[t.key] = nd
        return values[t.key]

    def start(self, t: Tensor) -> NdArray:
        """What a backward pass begins with at a head: its weight in the loss, or what was set."""
        nd, shape = self._starts.get(t), t.sizes
        if nd is None or nd.shape != shape:
            value = self.loss_weights.get(t, 0.0)
            nd = self._starts[t] = NdArray.from_numpy_array(np.full(shape, value, np.float32))
        return nd

    def gradient(self, t: Tensor) -> NdArray:
        """The gradient of a blob."""
        graph = self._latest or self._graph(0, len(self.layers) - 1)
        if t in graph.heads or t not in graph.values:
            return self.start(t)
        return graph.values[t].grad

    @property
    def loss(self) -> Tensor:
        """The sum of all losses, by their weights, as a tensor of the workspace."""
        if self._loss is None:
            if not self.loss_weights:
                raise ValueError(f"{self.where}: no layer is part of the loss")
            weights = list(self.loss_weights.values())

            def compute(*tops: Any) -> Any:
                sums = [F.sum(t) if t.shape else t for t in tops]
                each = [s if w == 1 else s * w for s, w in zip(sums, weights, strict=True)]
                return each[0] if len(each) == 1 else F.add_n(*each)

            made = Operator(
                self.workspace, "loss", compute, list(self.loss_weights), name=f"{self.name}/loss"
            )
            self._loss = made.outputs[0]
        return self._loss

    def function(self, outputs: Iterable[str] = (), inputs: Iterable[str] = ()) -> Function:
        """A function of the workspace from blobs to blobs; the network's own if none are named."""
        return Function(
            [self.blobs[n] for n in inputs or self.inputs],
            [self.ends[n] for n in outputs or self.outputs],
            name=self.name,
        )

    # ---- running ----

    def _graph(self, first: int, last: int) -> Graph:
        if (first, last) not in self._graphs:
            self._graphs[first, last] = Graph(self, self.layers[first : last + 1])
        return self._graphs[first, last]

    def _run(self, first: int, last: int, update: bool) -> None:
        self.behind = False
        graph = self._latest = self._graph(first, last)
        graph.run(self)
        if update:
            for p, v in graph.updates:
                p.variable.d = v.d

    def _index(self, name: str | None, default: int, where: str) -> int:
        if name is None:
            return default
        if name not in self._names:
            raise ValueError(
                f"{where}: no layer is called {name!r}{did_you_mean(name, self._names)}"
            )
        return self._names[name]

    def _blob(self, name: str, where: str) -> Blob:
        if name not in self.blobs:
            raise ValueError(f"{where}: no blob is called {name!r}{did_you_mean(name, self.blobs)}")
        return self.blobs[name]

    def next_batch(self, first: int = 0, last: int | None = None) -> None:
        """Let the layers that read data put their next batch into their tops."""
        for layer in self.layers[first : None if last is None else last + 1]:
            if layer.source is not None:
                for top, array in zip(layer.tops, layer.source(), strict=True):
                    if top.shape != array.shape:
                        top.reshape(*array.shape)
                    feed(top, array, str(layer))

    def forward(
        self,
        blobs: Sequence[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **inputs: Any,
    ) -> dict[str, Array]:
        """Compute the blobs of layers, from `start` to `end`, both included.

        Args:
            blobs: More that are returned.
            start, end: Names of layers; the first and the last if left out.
            inputs: Values of inputs by name.
        Returns:
            {name: value} of the outputs, or of the tops of `end`.
        """
        where = "Net.forward"
        for name, value in inputs.items():
            if name not in self.inputs:
                raise ValueError(
                    f"{where}: no input is called {name!r}, only {', '.join(self.inputs)}"
                )
            feed(self.blobs[name], value, where)
        returned = [self._blob(name, where) and name for name in blobs or ()]
        first = self._index(start, 0, where)
        last = self._index(end, len(self.layers) - 1, where)
        self.next_batch(first, last)
        if self.stale:
            self.reshape()
        self._run(first, last, True)
        names = self.outputs if end is None else list(self.layers[last].message.top)
        return {name: self.ends[name].data for name in (*names, *returned)}

    def backward(
        self,
        diffs: Sequence[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **tops: Any,
    ) -> dict[str, Array]:
        """Compute gradients from the tops of `start` down to the bottoms of `end`.

        Gradients of parameters are added to what is there, see `clear_param_diffs`; those of inputs
        are computed with `force_backward: true`.

        Args:
            diffs: Blobs whose gradients are returned as well.
            start, end: Names of layers; the last and the first if left out.
            tops: Gradients to begin with, by the names of outputs.
        """
        where = "Net.backward"
        last = self._index(start, len(self.layers) - 1, where)
        first = self._index(end, 0, where)
        graph = self._graph(first, last)
        before = self._latest
        if before is not None and before is not graph:  # what is there is where a part begins
            for t in graph.heads:
                if t in before.values and t not in before.heads:
                    self.start(t).data = before.values[t].grad.data
        for name, value in tops.items():
            t = self._blob(name, where) and self.ends[name]
            if t not in graph.heads:
                raise ValueError(f"{where}: {name!r} is no output of these layers")
            a = np.asarray(value, np.float32)
            if a.shape != t.sizes:
                raise ValueError(f"{where}: {name!r} got the shape {a.shape}, wanted {t.shape}")
            self.start(t).data = a
        if before is not graph or not graph.has_run:
            self._run(first, last, False)
        if graph.total is None:
            raise ValueError(f"{where}: nothing that these layers compute has a gradient")
        graph.total.backward()
        given = [n for n in self.inputs if self.message.force_backward]
        return {name: self._blob(name, where).diff for name in (*given, *(diffs or ()))}

    def forward_all(self, blobs: Sequence[str] | None = None, **inputs: Any) -> dict[str, Array]:
        """Run rows of inputs, any number of them, in batches of the network's size."""
        n = self.blobs[self.inputs[0]].num
        rows = len(next(iter(inputs.values())))
        found: dict[str, list[Array]] = {}
        for at in range(0, rows, n):
            part = {k: np.asarray(v[at : at + n], np.float32) for k, v in inputs.items()}
            count = min(n, rows - at)
            padded = {
                k: np.pad(v, [(0, n - count)] + [(0, 0)] * (v.ndim - 1)) for k, v in part.items()
            }
            for name, y in self.forward(blobs, **padded).items():
                found.setdefault(name, []).append(np.array(y[:count]))
        return {name: np.concatenate(ys) for name, ys in found.items()}

    def reshape(self) -> None:
        """Let the shapes of all blobs follow those of the inputs.

        Raises:
            ValueError: A layer does not take what it would get; the text names it.
        """
        for layer in self.layers:
            for op in layer.operators:
                try:
                    op.infer_again()
                except (ValueError, TypeError, IndexError) as error:
                    raise ValueError(f"Net.reshape: {layer}: {error}") from None
                for t in op.outputs:
                    self.workspace.values.pop(t.key, None)
        self.stale = False
        self._graphs.clear()
        self._latest = None

    def clear_param_diffs(self) -> None:
        """Set the gradients of all parameters to 0."""
        for p in self.parameters:
            p.variable.grad.zero()

    def set_input_arrays(self, data: Any, labels: Any) -> None:
        """Give the MemoryData layer its rows.

        Raises:
            ValueError: There is no such layer, or the arrays do not fit it.
        """
        if not self.memory:
            raise ValueError("Net.set_input_arrays: the network has no MemoryData layer")
        rows, shape = self.memory[0]
        d, t = np.asarray(data, np.float32), np.asarray(labels, np.float32).reshape(-1)
        if d.shape[1:] != shape[1:] or len(d) != len(t) or len(d) % shape[0]:
            raise ValueError(
                f"Net.set_input_arrays: got the shapes {d.shape} and {t.shape}, wanted rows of "
                f"{shape[1:]}, a multiple of {shape[0]} of them, and as many labels"
            )
        rows.set([d, t])
