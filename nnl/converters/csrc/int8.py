# SPDX-License-Identifier: Apache-2.0
"""Networks in C with numbers of 8 bits, for processors that have little memory.

A real number is scale (stored - zero). Convolutions, affine layers and max pooling read and write
such numbers, with weights whose scale is each map's own; loops read and write either kind, as they
come. Other functions compute with floats.

Source: Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-
Only Inference, arXiv:1712.05877.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nnl.converters.csrc.loops import (
    COPY,
    Call,
    Key,
    Loop,
    Read,
    Window,
    Work,
    Written,
    dense,
    read,
    written,
)
from nnl.converters.networks.lowering import Lowered
from nnl.converters.networks.model import Network
from nnl.converters.networks.samples import Samples, batches
from nnl.converters.networks.scale import Scale
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable, forward_all


def ranges_of(lowered: Lowered, samples: Samples) -> dict[Key, tuple[float, float]]:
    """The smallest and the largest number of inputs and of all that is computed.

    Args:
        samples: For each input an array of samples, one after the other.
    """
    network = Network("", {n: Variable.on(v) for n, v in lowered.inputs.items()}, {})
    computed = [
        Value.of(node, i, spec, False, node.outs[i])  # type: ignore[index]
        for node in lowered.nodes
        for i, spec in enumerate(node.out_specs)
    ]
    arrays = {v.key: Variable.on(v) for v in (*lowered.inputs.values(), *computed)}
    found: dict[Key, tuple[float, float]] = {}
    for values, _ in batches(samples, network):
        for name, v in network.inputs.items():
            v.d = values[name]
        forward_all([v for v in arrays.values() if v.parent is not None])
        for key, v in arrays.items():
            y = v.d[np.isfinite(v.d)]
            low, high = found.get(key, (0.0, 0.0))
            found[key] = min(low, float(y.min(initial=0))), max(high, float(y.max(initial=0)))
    return found


Array = np.ndarray[Any, Any]
_RELU = (("relu", (("x", 0),)),)


class Quantized(NamedTuple):
    """Steps with arrays of 8 bits.

    Attributes:
        scales: Of arrays that have 8 bits.
        sizes: Of arrays that were not there before.
        constants: Numbers that were not there before: int8 and int32.
    """

    steps: list[Loop | Call]
    scales: dict[Key, Scale]
    sizes: dict[Key, int]
    constants: dict[Key, Array]


def quantized(
    steps: Iterable[Loop | Call],
    ends: Iterable[Key],
    constants: Mapping[Key, Array],
    sizes: Mapping[Key, int],
    ranges: Mapping[Key, tuple[float, float]],
) -> Quantized:
    """Let steps that can do so compute with 8 bits.

    Args:
        ends: Inputs and outputs of the network, which stay floats.
        constants: Values of what no step writes.
        sizes: Of all arrays, in elements.
        ranges: The smallest and largest number of all arrays that are computed.
    """
    return _Quantizing(list(steps), set(ends), constants, sizes, ranges).run()


class _Quantizing:
    """Attributes:
    floats: Arrays that something reads or writes that knows no 8 bits.
    """

    def __init__(
        self,
        steps: list[Loop | Call],
        ends: set[Key],
        constants: Mapping[Key, Array],
        sizes: Mapping[Key, int],
        ranges: Mapping[Key, tuple[float, float]],
    ) -> None:
        self.steps, self.values, self.sizes, self.ranges = steps, constants, sizes, dict(ranges)
        self.found = Quantized([], {}, {}, {})
        self.floats = {*ends, *constants}
        for step in steps:
            if isinstance(step, Call) and not self._fits(step):
                self.floats.update((*read(step), *written(step)))

    def run(self) -> Quantized:
        """All steps."""
        self._fold_relu()
        for step in self.steps:
            if isinstance(step, Call) and self._fits(step):
                self._say(step)
            else:
                self.found.steps.append(step)
        return self.found

    def _fits(self, step: Call) -> bool:
        """Whether a call has a form in 8 bits: its weights, if it has some, are constants."""
        x, *weights = read(step)
        known = step.kernel in ("convolution", "depthwise", "max_pooling")
        if step.kernel == "matmul":
            known = step.arguments[0] == 1 and step.arguments[5:7] == (step.arguments[3], 1)
        return known and x not in self.values and all(w in self.values for w in weights)

    def _fold_relu(self) -> None:
        """Numbers below 0 become 0 where a product is stored whose range begins there."""
        readers = Counter(key for s in self.steps for key in read(s))
        makers = {
            written(s)[0]: i
            for i, s in enumerate(self.steps)
            if isinstance(s, Call) and self._fits(s)
        }

        def alone(key: Key) -> bool:
            return key in makers and readers[key] == 1 and key not in self.floats

        gone = set()
        for i, step in enumerate(self.steps):
            if not (isinstance(step, Loop) and step.body == _RELU and step.is_dense):
                continue
            key, pattern = step.reads[0]
            if not alone(key) or pattern != dense(step.space):
                continue
            maker, y = self.steps[makers[key]], step.write[0]
            assert isinstance(maker, Call)
            if (
                maker.kernel == "max_pooling"
            ):  # the largest number above 0 is above 0 before it, too
                (x,) = read(maker)
                if not alone(x):
                    continue
                self.ranges[x] = 0.0, self.ranges[x][1]
            changed = tuple(Written(y) if isinstance(a, Written) else a for a in maker.arguments)
            self.steps[makers[key]] = replace(maker, arguments=changed)
            gone.add(i)
        self.steps = [s for i, s in enumerate(self.steps) if i not in gone]

    def _say(self, step: Call) -> None:
        x, *weights = read(step)
        (y,) = (key for key in written(step) if not isinstance(key, Work))
        source = self._stored(x)
        result = ("int8", y) if y in self.floats else y
        if result != y:
            self.found.sizes[result] = self.sizes[y]
        scales = self.found.scales
        scales[result] = (
            scales[source] if step.kernel == "max_pooling" else Scale.of(*self.ranges[y])
        )
        add = self.found.steps.append
        if step.kernel == "max_pooling":
            maps, window = step.arguments[:2]
            add(Call("max_pooling_int8", (maps, window, Read(source), Written(result))))
        else:
            add(self._product(step, source, weights, result))
        if result != y:
            self._copy(result, y)

    def _stored(self, x: Key) -> Key:
        """An array with 8 bits; a copy where it is of floats."""
        if x not in self.floats:
            self.found.scales.setdefault(x, Scale.of(*self.ranges[x]))
            return x
        key = ("int8", x)
        if key not in self.found.scales:
            self.found.scales[key] = Scale.of(*self.ranges[x])
            self.found.sizes[key] = self.sizes[x]
            self._copy(x, key)
        return key

    def _copy(self, x: Key, y: Key) -> None:
        space = (self.sizes[y] if y in self.sizes else self.sizes[x],)
        self.found.steps.append(Loop(space, ((x, dense(space)),), COPY, (y, dense(space))))

    def _product(self, step: Call, x: Key, weights: list[Key], y: Key) -> Call:
        """A convolution, or an affine layer as one of a single pixel."""
        a = step.arguments
        w = self.values[weights[0]]
        if step.kernel == "matmul":
            batch, out, maps = a[1], a[2], a[3]
            assert isinstance(out, int) and isinstance(maps, int)
            groups, w, one = 1, w.reshape(maps, out).T, (1, 1, 1)
            window: Any = Window(one, one, one, one, one, (0, 0, 0))
        elif step.kernel == "depthwise":
            batch, groups, out, window = a[:4]  # type: ignore[assignment]
            maps = 1
        else:
            batch, groups, maps, out, window = a[:5]  # type: ignore[assignment]
        rows = w.reshape(int(groups) * int(out), -1).astype(np.float64)  # type: ignore[call-overload]
        steps = np.maximum(np.abs(rows).max(axis=1), 1e-8) / 127
        before, after = self.found.scales[x], self.found.scales[y]
        bias = (
            self.values[weights[1]].astype(np.float64) if len(weights) > 1 else np.zeros(len(rows))
        )
        unit = before.scale * steps
        parts = [np.frexp(r) for r in unit / after.scale]
        numbers = {
            "weights": np.rint(rows / steps[:, None]).astype(np.int8),
            "biases": np.clip(np.rint(bias / unit), -(2**31), 2**31 - 1).astype(np.int32),
            "factors": np.array([min(round(f * 2**31), 2**31 - 1) for f, _ in parts], np.int32),
            "shifts": np.array([np.clip(31 - e, 1, 62) for _, e in parts], np.int32),
        }
        self.found.constants.update({(n, y): v.reshape(-1) for n, v in numbers.items()})
        ins = (Read(x), before.zero, *(Read((n, y)) for n in numbers))
        sizes = (batch, groups, maps, out, window)
        return Call("convolution_int8", (*sizes, *ins, Written(y), after.zero))
