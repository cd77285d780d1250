# SPDX-License-Identifier: Apache-2.0
"""Graphs that record the ranges of their values, and graphs that round them to 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnl import functions as F
from nnl.converters.rewriting.converter import FunctionModifier, again
from nnl.converters.rewriting.recorders import PrecisionMode, QATConfig
from nnl.core.graph.function import Function
from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameter_or_create, parameter_scope

OF_TWO = ("Add2", "Sub2", "Mul2", "Div2", "Pow2")
OF_MANY = ("Concatenate", "Stack")
SHARED = ("Add2", "Concatenate")  # functions whose inputs have one scale
WITH_BIAS = (
    "Affine", "Convolution", "Deconvolution", "DepthwiseConvolution", "DepthwiseDeconvolution",
)  # fmt: skip


class _QuantizeModifier(FunctionModifier):
    """What recording and rounding have in common: names of scopes by the rank of functions."""

    def __init__(self, functions_ranks: Mapping[Function, int], config: Any = None) -> None:
        self.functions_ranks = functions_ranks
        self.config = QATConfig() if config is None else config

    def scope(self, f: Function | None) -> str:
        """Where ranges of the inputs of f are; None is what NNabla puts behind all outputs."""
        return "Sink--1" if f is None else f"{f.name}-{self.functions_ranks.get(f, -1)}"

    def count(self, f: Function, inputs: list[Variable]) -> int:
        """How many of the inputs come from other functions; the rest are parameters."""
        return len(inputs) if f.name in OF_MANY else 2 if f.name in OF_TWO else 1


class QuantizeNonQNNToRecordingModifier(_QuantizeModifier):
    """Puts recorders before the inputs of functions.

    Args:
        functions_ranks: Numbers of the functions by which the parameters of recorders are called;
            see FunctionsRankRecorder.
        config: A QATConfig.
        training: Whether the recorders do record.
    """

    def __init__(
        self, functions_ranks: Mapping[Function, int], config: Any = None, training: bool = True
    ) -> None:
        super().__init__(functions_ranks, config)
        self.training = training
        self._recorded: dict[Any, Variable] = {}  # by edge, what stands for it behind a recorder

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        if not self.is_recorded(f):
            return None
        n = self.count(f, inputs)
        with parameter_scope(self.scope(f)):
            new = [self.activation(v, f"x{i}") for i, v in enumerate(inputs[:n])]
            for i, v in enumerate(inputs[n:]):
                recorder = self.config.recorder_weight()
                new.append(recorder(v, training=self.training, name=f"w{i}"))
        if f.name in SHARED:
            self.share(inputs, new)
        y = again(f, new)
        if self.config.recorder_position.name == "BOTH" and isinstance(y, Variable):
            with parameter_scope(self.scope(self.readers(f)[0])):
                y = self.activation(y, "x0")
        return y

    def activation(self, v: Variable, name: str) -> Variable:
        """v behind a recorder, if there is one, that which another function reads."""
        recorder = self.config.recorder_activation()
        if v.parent is not None and v.parent.name == recorder.name():
            return v
        if v.edge.key in self._recorded:
            return self._recorded[v.edge.key]
        y = recorder(v, training=self.training, name=name)
        if v.parent is not None:
            self._recorded[v.edge.key] = y
        return y  # type: ignore[no-any-return]

    def share(self, inputs: list[Variable], new: list[Variable]) -> None:
        """Let all inputs of a function be recorded by the recorder of the one nearest to input."""
        first, least = 0, inputs[0].rank
        for i, v in enumerate(new[1:], start=1):
            if v.rank < least:
                first, least = i, v.rank
        scope = self.get_parameter_scope(new[first].parent.inputs[1])  # type: ignore[union-attr]
        recorder = self.config.recorder_activation()
        with parameter_scope(scope):
            for i, v in enumerate(new):
                if i != first:
                    x = v.parent.inputs[0]  # type: ignore[union-attr]
                    new[i] = recorder(x, training=self.training, name="x0")

    def is_recorded(self, f: Function) -> bool:
        """Whether the settings ask for recorders before f."""
        c = self.config
        if f.name == "BatchNormalization" or (c.record_layers and f.name not in c.record_layers):
            return False
        if f.name in c.skip_inputs_layers:
            before = {Function(n).name for n in capture([v.edge for v in f.inputs])}
            if not before & set(c.skip_inputs_layers):
                return False
        if f.name in c.skip_outputs_layers:
            return bool(self.behind(f) & set(c.skip_outputs_layers))
        return True

    def behind(self, f: Function) -> set[str]:
        """Types of the functions that f's outputs reach."""
        seen: set[Function] = set()
        left = [f]
        while left:
            new = {g for g in self.readers(left.pop()) if g is not None} - seen
            seen |= new
            left += new
        return {g.name for g in seen}

    def __finish__(self) -> None:
        self._recorded = {}


class QuantizeRecordingToTrainingModifier(_QuantizeModifier):
    """Rounds the inputs of functions to 8 bits, by the ranges that were recorded.

    Args:
        functions_ranks: As for QuantizeNonQNNToRecordingModifier, of the graph without recorders.
        config: A QATConfig.
    Raises:
        NotImplementedError: Its precision_mode is not SIM_QNN.
    """

    def __init__(self, functions_ranks: Mapping[Function, int], config: Any = None) -> None:
        super().__init__(functions_ranks, config)
        if self.config.precision_mode != PrecisionMode.SIM_QNN:
            raise NotImplementedError(
                f"QuantizeRecordingToTrainingModifier: precision_mode is "
                f"{self.config.precision_mode}, wanted PrecisionMode.SIM_QNN"
            )
        self._restored: dict[Any, Variable] = {}  # by edge of integers, the floats made of them

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        c, n = self.config, self.count(f, inputs)
        new = list(inputs)
        with parameter_scope(self.scope(f)):
            for i, v in enumerate(inputs):
                if i >= n:
                    new[i] = self.rounded(v, c.recorder_weight, f"w{i - n}")
                elif v.parent is None:
                    new[i] = self.rounded(v, c.recorder_activation, f"x{i}")
            if f.name in WITH_BIAS and len(inputs) == 3:
                new[2] = self.bias(inputs[2], *new)
        new = [self.restored(v) for v in new]
        if f.name in SHARED:
            self.share(new)
        y = again(f, new)
        return self.output(f, y) if isinstance(y, Variable) else y

    def integers(self, x: Variable, scale: Any, zero: Any) -> Variable:
        """x in units of scale, rounded; x itself without a scale."""
        c = self.config
        if scale is None:
            return x
        return F.quantize_linear(x, scale, zero, c.round_mode, c.narrow_range, c.dtype)  # type: ignore[no-any-return]

    def rounded(self, x: Variable, recorder: Any, name: str) -> Variable:
        """x as integers, if its range was recorded under this name in the current scope."""
        c = self.config
        at = {"narrow_range": c.narrow_range, "round_method": c.pow2.value}
        return self.integers(x, *recorder.get_scale_zeropoint(x, name=name, **at))

    def bias(self, b: Variable, x: Variable, w: Variable, integers: Variable) -> Variable:
        """The bias in the units of the products of x and w."""
        if self.config.skip_bias:
            return b
        if not (_are_integers(x) and _are_integers(w) and _are_integers(integers)):
            return integers
        (scale_x, zero), (scale_w, _) = _units(x), _units(w)
        value = scale_x.d.reshape(1) * scale_w.d.reshape(1)
        scale = get_parameter_or_create("scale-b", (1,), value, False)
        zero = get_parameter_or_create("zeropoint-b", (1,), zero.d.reshape(1), False)
        return self.integers(b, scale, zero)

    def restored(self, x: Variable) -> Variable:
        """Floats of integers, the same for all functions that read them."""
        if not _are_integers(x):
            return x
        if x.edge.key not in self._restored:
            self._restored[x.edge.key] = F.dequantize_linear(x, *_units(x))
        return self._restored[x.edge.key]

    def share(self, inputs: list[Variable]) -> None:
        """Round all inputs in the units of the one nearest to the input of the graph."""
        first, least = 0, inputs[0].rank
        for i, v in enumerate(inputs[1:], start=1):
            if _are_floats(v) and v.rank < least:
                first, least = i, v.rank
        units = _units(inputs[first]) if _are_floats(inputs[first]) else (None, None)
        for i, v in enumerate(inputs):
            if i == first:
                continue
            if _are_floats(v):
                v = v.parent.inputs[0].parent.inputs[0]  # type: ignore[union-attr]
            inputs[i] = self.restored(self.integers(v, *units))

    def output(self, f: Function, y: Variable) -> Variable:
        """y rounded as one of the functions that read it wants it, unless the graph ends here."""
        key = (id(f.node), 0)
        for reader in self.readers(f):
            if reader is None:
                return y
            name = "x0"
            if reader.name in OF_TWO:
                places = [i for i, e in enumerate(reader.node.inputs) if e and e.key == key]
                name = f"x{places[-1]}"
            with parameter_scope(self.scope(reader)):
                q = self.rounded(y, self.config.recorder_activation, name)
            if q is not y:
                return q
        return y

    def __finish__(self) -> None:
        self._restored = {}


def _are_integers(v: Variable) -> bool:
    return v.parent is not None and v.parent.name == "QuantizeLinear"


def _are_floats(v: Variable) -> bool:
    return v.parent is not None and v.parent.name == "DequantizeLinear"


def _units(v: Variable) -> tuple[Variable, Variable]:
    """Scale and zero point of integers, or of the floats that were made of them."""
    _, scale, zero = v.parent.inputs  # type: ignore[union-attr]
    return scale, zero
