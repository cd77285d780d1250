# SPDX-License-Identifier: Apache-2.0
"""quantize: a network whose products have 8 bits, by ranges that samples give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.lowering import Target, lower
from nnl.converters.networks.model import Key, Network
from nnl.converters.quantizing.ranges import METHODS, Array, Range, Scale
from nnl.converters.quantizing.trained import fixed, is_trained
from nnl.core.arguments.suggest import did_you_mean
from nnl.core.graph.dispatch import apply
from nnl.core.graph.node import Node, Value
from nnl.core.graph.variable import Variable, forward_all
from nnl.core.interpreters.interpreter import STATIC
from nnl.core.parameters.parameter import get_parameters
from nnl.core.settings.context import using
from nnl.functions.fused.convolution import ACTIVATIONS
from nnl.functions.fused.product import ACTIVATIONS as AFTER_PRODUCTS

# Functions whose factors get 8 bits: the axis of the maps of their weights.
MAPS = {"convolution": 0, "affine": -1, "batch_matmul": -1}
MOVES = frozenset(["reshape", "transpose", "max_pooling", "concatenate", "slice"])
LEAST = {"min_max": 1, "percentile": 4, "entropy": 4}  # samples
REPORTED = 32  # samples that the report compares


def _refused(node: Node, constant: Any) -> str | None:
    return "is a convolution" if node.op.name == "depthwise_convolution" else None


def _depthwise(a: Any, x: Any, w: Any, b: Any = None) -> Any:
    """A depthwise convolution as one of groups."""
    kernel = w.shape[1:]
    return F.convolution(
        x, F.reshape(w, (w.shape[0], 1, *kernel)), b, base_axis=a.base_axis, pad=a.pad,
        stride=a.stride, dilation=a.dilation, group=x.shape[a.base_axis],
    )  # fmt: skip


TARGET = Target("quantize", _refused, {"depthwise_convolution": _depthwise})


class Loss:
    """How much 8 bits change the values of one layer.

    Attributes:
        layer, function: Where it was called, and what.
        scale, zero, dtype: Of its result.
        decibels: The power of the result in floats by that of the difference, as 10 log10; inf if
            there is none.
    """

    def __init__(self, layer: str, function: str, scale: Scale, decibels: float) -> None:
        self.layer, self.function, self.decibels = layer, function, decibels
        self.scale, self.zero, self.dtype = scale

    def __str__(self) -> str:
        kind = np.dtype(self.dtype).name
        return (
            f"{self.decibels:8.1f} dB  {kind:5}  {self.scale:10.3g}  {self.zero:5d}  "
            f"{self.function:14}  {self.layer}"
        )


@dataclass
class QuantizedNetwork(Network):
    """A network with quantize_linear and dequantize_linear around its products.

    Attributes:
        losses: Of every layer whose result has 8 bits, in the order in which they run.
        weights: Names or places of the layers whose weights have 8 bits.
        source, samples: What it was made from.
        excluded: Whether some layers were to stay floats.
    """

    losses: list[Loss] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    source: Network | None = None
    samples: Any = None
    excluded: bool = False

    def calibrated(self, samples: Any) -> tuple[Network, Any]:
        """
        Raises:
            ValueError: Some layers were to stay floats.
        """
        if self.excluded:
            raise ValueError(
                f"{self.name}: the format has 8 bits for all layers, and exclude= left some floats"
            )
        assert self.source is not None
        return self.source, self.samples if samples is None else samples

    def report(self) -> str:
        """A table of what 8 bits change, layer by layer: a signal-to-noise ratio for each."""
        head = "signal/noise  type        scale   zero  function        layer"
        return "\n".join([head, *map(str, self.losses)])


def quantize(
    network: Any,
    samples: Mapping[str, Any] | Sequence[Any] | Any = None,
    inputs: Mapping[str, Variable] | None = None,
    *,
    method: str = "min_max",
    percentile: float = 99.99,
    per_channel: bool = True,
    symmetric: bool = False,
    exclude: Iterable[str] = (),
) -> QuantizedNetwork:
    """A network that computes products with 8 bits, from one of floats and samples of its inputs.

    Weights of convolutions, affine layers and products of matrices become int8, with one scale for
    each map. Values get the scale that fits the range which the samples give. Normalizations become
    part of weights first, and dropout goes. Results of the network stay floats.

    Args:
        network: What has `inputs` and `outputs` by name, as networks of files do; a loaded ONNX
            model; or the outputs, by name or one Variable, with `inputs`.
        samples: An array for every input, by name, samples one after the other along the first
            axis; one array for a network of one input. None for one that was trained with
            rounding in it (`quantize_linear`, `min_max_quantize`), which knows its scales.
        inputs: By name, if network is the outputs.
        method: "min_max": the whole range. "percentile": without the values at the ends.
            "entropy": the part that loses least of the distribution.
        percentile: Of the values that stay, for that method.
        per_channel: Whether weights have a scale for each map, or one for all.
        symmetric: Whether values are int8 around 0 instead of uint8 with a zero point.
        exclude: Layers that stay floats: names of functions ("affine"), of scopes or parameters
            ("conv1"), or how messages call them.
    Returns:
        The network; `report()` tells what 8 bits change, layer by layer.
    Raises:
        ValueError: Samples do not fit the inputs, are too few, or hold NaN or infinity, or a layer
            gives such; an unknown method; exclude names no layer.
    Example:
        >>> x = nn.Variable((1, 4))
        >>> y = F.relu(PF.affine(x, 8, name="fc"))
        >>> net = nn.quantize({"y": y}, np.random.rand(16, 4), {"x": x})
        >>> net.weights
        ['fc']
    """
    if samples is None:
        known = as_network(network, inputs, samples)
        if not is_trained(known):
            raise ValueError(
                "quantize: samples are left out, and the network has no scales of its own"
            )
        return QuantizedNetwork(known.name, *fixed(known))
    return _Quantizing(
        as_network(network, inputs, samples), method, percentile, per_channel, symmetric
    ).run(samples, exclude)


def as_network(network: Any, inputs: Mapping[str, Variable] | None, samples: Any) -> Network:
    """The graph that is meant.

    Raises:
        TypeError: It is none.
    """
    if isinstance(network, Network):
        return network
    if hasattr(network, "infos"):  # an ONNX model
        shapes = {i.name: i.shape for i in network.infos if i.name in network.inputs}
        given = {}
        for name, shape in shapes.items():
            one = samples[name] if isinstance(samples, Mapping) else samples
            sizes = tuple(
                n if isinstance(n, int) else d for n, d in zip(shape, np.shape(one), strict=False)
            )
            sizes = (1, *sizes[1:]) if sizes and not isinstance(shape[0], int) else sizes
            given[name] = Variable(sizes)
        with using(auto_forward=False):
            found = network(**given)
        outs = found if isinstance(found, tuple) else (found,)
        return Network("network", given, dict(zip(network.outputs, outs, strict=True)))
    if inputs is not None:
        outputs = network if isinstance(network, Mapping) else {"y": network}
        return Network("network", dict(inputs), dict(outputs))
    try:
        return Network(getattr(network, "name", "network"), network.inputs, network.outputs)
    except AttributeError:
        raise TypeError(
            f"quantize: network is {type(network).__name__}, wanted what has inputs and outputs, "
            "or outputs with inputs="
        ) from None


class _Quantizing:
    def __init__(
        self, network: Network, method: str, percentile: float, per_channel: bool, symmetric: bool
    ) -> None:
        if method not in METHODS:
            raise ValueError(f"quantize: method is {method!r}, wanted one of {', '.join(METHODS)}")
        if not 50 < percentile <= 100:
            raise ValueError(
                f"quantize: percentile is {percentile}, wanted more than 50, at most 100"
            )
        self.network, self.method, self.percentile = network, method, percentile
        self.per_channel, self.symmetric = per_channel, symmetric
        lowered = lower(network, TARGET)
        self.nodes, self.inputs, self.outputs = lowered.nodes, lowered.inputs, lowered.outputs
        self.names = {v.key: name for name, v in lowered.inputs.items()}
        self.kept = lowered
        self.readers: dict[Key, list[Node]] = {}
        for node in self.nodes:
            for v in node.inputs:
                if v is not None:
                    self.readers.setdefault(v.key, []).append(node)
        self.computed = {(id(n), i) for n in self.nodes for i in range(len(n.out_specs))}
        self.computed |= set(self.names)
        became = {v.key: key for key, v in lowered.became.items()}
        known = {v.edge.key: n for n, v in get_parameters(grad_only=False).items()}
        known |= network.every_name()
        self.parameters = {key: known.get(old, "") for key, old in became.items()}

    def run(self, samples: Any, exclude: Iterable[str]) -> QuantizedNetwork:
        batches = list(self._batches(samples))
        exclude = [exclude] if isinstance(exclude, str) else list(exclude)
        products = self._products(exclude)
        edges = self._edges(products)
        ranges = self._ranges(edges, batches)
        scales = {
            key: r.scale(self.method, self.percentile, self.symmetric) for key, r in ranges.items()
        }
        result, seen = self._rewritten(products, edges, scales)
        self._report(result, edges, scales, seen, batches)
        result.source, result.excluded = self.network, bool(exclude)
        given = samples if isinstance(samples, Mapping) else {next(iter(self.inputs)): samples}
        result.samples = {n: np.asarray(a) for n, a in given.items()}
        return result

    # ---- samples ----

    def _batches(self, samples: Any) -> Iterator[dict[str, Array]]:
        names = list(self.inputs)
        if not isinstance(samples, Mapping):
            if len(names) != 1:
                raise ValueError(f"quantize: samples are one array, wanted one for each of {names}")
            samples = {names[0]: samples}
        if set(samples) != set(names):
            raise ValueError(f"quantize: samples are of {sorted(samples)}, wanted {sorted(names)}")
        arrays = {n: np.asarray(samples[n]) for n in names}
        for name, v in self.inputs.items():
            a, shape = arrays[name], v.spec.shape
            if a.ndim != len(shape) or not shape or a.shape[1:] != shape[1:]:
                raise ValueError(
                    f"quantize: samples of {name!r} have the shape {list(a.shape)}, wanted "
                    f"[samples, {', '.join(map(str, shape[1:]))}]"
                )
            if a.dtype.kind == "f" and not np.isfinite(a).all():
                bad = int(np.flatnonzero(~np.isfinite(a).reshape(len(a), -1).all(1))[0])
                raise ValueError(f"quantize: sample {bad} of {name!r} holds NaN or infinity")
        counts = {n: len(a) for n, a in arrays.items()}
        if len(set(counts.values())) != 1:
            raise ValueError(f"quantize: the inputs have different numbers of samples: {counts}")
        count = counts[names[0]]
        if count < LEAST[self.method]:
            raise ValueError(
                f"quantize: {count} samples are given, and the method {self.method!r} wants at "
                f"least {LEAST[self.method]}"
            )
        size = next(iter(self.inputs.values())).spec.shape[0]
        for start in range(0, count, size):
            at = np.arange(start, start + size) % count
            yield {n: a[at] for n, a in arrays.items()}

    def _run(self, inputs: Mapping[str, Variable], outs: Sequence[Variable], batch: Any) -> None:
        for name, v in inputs.items():
            v.d = batch[name]
        forward_all(list(outs))

    # ---- what gets 8 bits ----

    def _label(self, node: Node) -> str:
        """The name of a layer: the scope of its parameters, or where it was called."""
        origin = node.origin
        if isinstance(origin, tuple):
            return "/".join(origin[0]) or node.label
        return origin or node.label

    def _products(self, exclude: Sequence[str]) -> dict[int, Node]:
        found, used = {}, set()
        for node in self.nodes:
            if node.op.name not in MAPS or node.inputs[1] is None:
                continue
            label = self._label(node)
            names = {node.op.name, label, node.label, *self._own_parameters(node)}
            hit = {e for e in exclude if e in names or label.startswith(f"{e}/")}
            used |= hit
            if not hit and self._is_value(node.inputs[0]):
                found[id(node)] = node
        if unknown := [e for e in exclude if e not in used]:
            known = sorted({self._label(n) for n in self.nodes if n.op.name in MAPS})
            raise ValueError(
                f"quantize: exclude names {unknown[0]!r}, which is no layer"
                f"{did_you_mean(unknown[0], known)}"
            )
        return found

    def _own_parameters(self, node: Node) -> set[str]:
        return {self.parameters.get(v.key, "") for v in node.inputs[1:] if v is not None} - {""}

    def _is_value(self, v: Value | None) -> bool:
        """Whether an edge depends on the inputs."""
        return v is not None and v.key in self.computed

    def _origin(self, v: Value) -> Value:
        """What an edge has the numbers of: before everything that only moves them."""
        while v.node is not None and v.node.op.name in MOVES - {"concatenate"}:
            first = v.node.inputs[0]
            if first is None or not self._is_value(first):
                break
            v = first
        return v

    def _edges(self, products: Mapping[int, Node]) -> dict[Key, Value]:
        """Edges whose values become whole numbers."""
        found: dict[Key, Value] = {}
        ends = {v.key for v in self.outputs.values()}
        for node in products.values():
            for v in node.inputs[:2]:
                if v is not None and self._is_value(v):
                    origin = self._origin(v)
                    found[origin.key] = origin
            if node.op.name != "convolution":
                continue  # what is added or normalized after products of matrices stays exact
            y = self._after(node)
            if y.key not in ends and len(self.readers.get(y.key, ())):
                found[y.key] = y
        return found

    def _after(self, node: Node) -> Value:
        """The result of a product with the activation after it that its kernel can do."""
        y = Value.of(node, 0, node.out_specs[0], False, node.outs[0])  # type: ignore[index]
        readers = self.readers.get(y.key, [])
        known = ACTIVATIONS if node.op.name == "convolution" else AFTER_PRODUCTS
        if len(readers) == 1 and readers[0].op.name in known:
            last = readers[0]
            return Value.of(last, 0, last.out_specs[0], False, last.outs[0])  # type: ignore[index]
        return y

    def _ranges(self, edges: Mapping[Key, Value], batches: list[Any]) -> dict[Key, Range]:
        ranges = {key: Range() for key in edges}
        seen = {key: Variable.on(v) for key, v in edges.items()}
        inputs = {name: Variable.on(v) for name, v in self.inputs.items()}
        for v in seen.values():
            v.persistent = True
        whole = self.method == "min_max"
        for counting in (False,) if whole else (False, True):
            for batch in batches:
                self._run(inputs, list(seen.values()), batch)
                for key, v in seen.items():
                    values = v.d
                    if not np.isfinite(values).all():
                        node = edges[key].node
                        where = self.names.get(key, "") if node is None else self._label(node)
                        raise ValueError(f"quantize: {where} gives NaN or infinity for the samples")
                    (ranges[key].count if counting else ranges[key].widen)(values)
        return ranges

    # ---- the new graph ----

    def _rewritten(
        self, products: Mapping[int, Node], edges: Mapping[Key, Value], scales: Mapping[Key, Scale]
    ) -> tuple[QuantizedNetwork, dict[Key, Variable]]:
        values: dict[Key, Variable] = {}
        seen: dict[Key, Variable] = {}
        weights: list[str] = []
        inputs = {}
        with using(interpreter=STATIC, no_grad=True):
            for name, v in self.inputs.items():
                inputs[name] = x = Variable(v.spec.shape)
                x.data.set_spec(v.spec)
                x.name = name
                values[v.key] = x
            for v in self.inputs.values():
                if v.key in edges:
                    values[v.key] = seen[v.key] = self._around(values[v.key], scales[v.key])
            for node in self.nodes:
                xs: list[Any] = [
                    None if v is None else values.get(v.key, Variable.on(v)) for v in node.inputs
                ]
                w = node.inputs[1] if id(node) in products else None
                if w is not None and not self._is_value(w):
                    xs[1] = self._weight(node, w)
                    weights.append(self._label(node))
                ys = apply(node.op, node.attrs, tuple(xs))
                made = (ys[0] if isinstance(ys, tuple) else ys).edge.node
                made.origin = node.origin
                for i, spec in enumerate(made.out_specs):
                    y = Variable.on(Value.of(made, i, spec, False, made.outs[i]))
                    key = id(node), i
                    if key in edges:
                        y = seen[key] = self._around(y, scales[key])
                    values[key] = y
        outputs = {name: values[v.key] for name, v in self.outputs.items()}
        found = QuantizedNetwork(self.network.name, inputs, outputs, weights=weights)
        return found, seen

    def _around(self, x: Variable, s: Scale) -> Variable:
        shape = (1,) * x.ndim
        scale, zero = (F.constant(float(n), shape=shape) for n in (s.scale, s.zero))
        q = F.quantize_linear(x, scale, zero, "HALF_TO_EVEN", False, s.dtype)
        return F.dequantize_linear(q, scale, zero)

    def _weight(self, node: Node, w: Value) -> Variable:
        value = np.asarray(w.array.read("host"), np.float32)
        axis = MAPS[node.op.name]
        if getattr(node.attrs, "transpose_b", False):
            axis = -2
        others = tuple(i for i in range(value.ndim) if i != axis % value.ndim)
        largest = np.abs(value).max(others if self.per_channel else None, keepdims=True)
        if not np.isfinite(largest).all():
            raise ValueError(f"quantize: the weights of {self._label(node)} hold NaN or infinity")
        scale = (np.maximum(largest, 1e-8) / 127).astype(np.float32)
        stored = np.clip(np.rint(value / scale), -127, 127).astype(np.int8)
        names = self.parameters.get(w.key, "")
        bits, each = Variable.from_numpy_array(stored), Variable.from_numpy_array(scale)
        bits.name, each.name = names, names and f"{names}/scale"
        return F.dequantize_linear(bits, each, F.constant(0.0, shape=scale.shape))

    # ---- what it costs ----

    def _report(
        self, result: QuantizedNetwork, edges: Mapping[Key, Value], scales: Mapping[Key, Scale],
        seen: Mapping[Key, Variable], batches: list[Any],
    ) -> None:  # fmt: skip
        before = {key: Variable.on(v) for key, v in edges.items()}
        for name, v in self.outputs.items():
            before[v.key], seen = Variable.on(v), {**seen, v.key: result.outputs[name]}
        inputs = {name: Variable.on(v) for name, v in self.inputs.items()}
        power: dict[Key, float] = dict.fromkeys(before, 0.0)
        noise: dict[Key, float] = dict.fromkeys(before, 0.0)
        for v in (*before.values(), *seen.values()):
            v.persistent = True
        size = next(iter(self.inputs.values())).spec.shape[0]
        for batch in batches[: max(1, REPORTED // size)]:
            self._run(inputs, list(before.values()), batch)
            self._run(result.inputs, list(seen.values()), batch)
            for key, v in before.items():
                want, got = (np.asarray(y.d, np.float64) for y in (v, seen[key]))
                power[key] += float((want**2).sum())
                noise[key] += float(((want - got) ** 2).sum())
        for v in seen.values():
            v.persistent = False
        for key, v in edges.items():
            decibels = _decibels(power[key], noise[key])
            node = v.node
            name = self.names.get(key, "") if node is None else self._layer(node)
            op = "input" if node is None else node.op.name
            result.losses.append(Loss(name, op, scales[key], decibels))
        for name, v in self.outputs.items():
            loss = Loss(
                name, "output", Scale(0.0, 0, np.float32), _decibels(power[v.key], noise[v.key])
            )
            result.losses.append(loss)

    def _layer(self, node: Node) -> str:
        """The layer that a value is of: that of the product before an activation."""
        while node.op.name not in MAPS and node.inputs and node.inputs[0] is not None:
            before = node.inputs[0].node
            if before is None or node.op.name not in ACTIVATIONS:
                break
            node = before
        return self._label(node)


def _decibels(power: float, noise: float) -> float:
    if not noise:
        return float("inf")
    return float(10 * np.log10(max(power, 1e-30) / noise))
