# SPDX-License-Identifier: Apache-2.0
"""How quantization-aware training records ranges, and its other settings."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np

from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameter, get_parameter_or_create
from nnl.functions.range_recorder import record_range
from nnl.parametric_functions.initializer import ConstantInitializer

LEAST_RANGE = 1e-24  # so that nothing is divided by 0 where nothing but zeros was seen
ROUNDINGS = {"CEIL": np.ceil, "ROUND": np.round, "FLOOR": np.floor}


class Recorder:
    """Records the range of an array in parameters of the current scope.

    From the range m to M the scale of 8 bits is
    $$s = (M - m) / 255,$$ with $m = -M$ where only M is recorded, and 254 in place of 255 with
    narrow_range. It becomes a power of two by round_method; the zero point is 0.

    Subclasses say which bounds and how: `bounds` are the parameters' names, "m" for the smallest
    and "M" for the largest value; see `record_range` for `moving` and `absolute`.
    Source: Jacob et al., Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference, arXiv:1712.05877.
    """

    bounds: tuple[str, ...] = ("m", "M")
    moving = False
    absolute = False

    def name(self) -> str:
        """Type name of the functions that record."""
        return type(self).__name__.removesuffix("Callback")

    def __call__(
        self, x: Variable, axes: Sequence[int] = (1,), training: bool = True, name: str = ""
    ) -> Variable:
        """x after a function that records its range.

        Args:
            axes: Ignored: there is one range for the whole array.
            training: Whether it does.
            name: End of the parameters' names.
        """
        shape, zero = (1,) * x.ndim, ConstantInitializer()
        of = {b: get_parameter_or_create(f"{b}-{name}", shape, zero, False) for b in self.bounds}
        return record_range(  # type: ignore[no-any-return]
            x, of.get("m"), of["M"], recorder=self.name(), moving=self.moving,
            absolute=self.absolute, training=training,
        )  # fmt: skip

    @classmethod
    def get_scale_zeropoint(
        cls,
        x: Variable,
        axes: Sequence[int] = (1,),
        narrow_range: bool = False,
        round_method: str = "NOTROUND",
        name: str = "",
    ) -> tuple[Variable | None, Variable | None]:
        """Scale and zero point of 8 bits for what was recorded; None if nothing was.

        They are parameters, which keep their values from then on.

        Args:
            narrow_range: Without the smallest of the 256 values.
            round_method: How the scale becomes a power of two: CEIL, ROUND, FLOOR, or NOTROUND.
        """
        found = {b: p for b in cls.bounds if (p := get_parameter(f"{b}-{name}")) is not None}
        if len(found) != len(cls.bounds):
            return None, None
        high = found["M"].d
        width = high - found["m"].d if "m" in found else 2 * high
        scale = np.maximum(width, LEAST_RANGE) / (255 - narrow_range)
        if round_method in ROUNDINGS:
            scale = 2 ** ROUNDINGS[round_method](np.log2(scale))
        shape = (1,) * x.ndim
        zero = get_parameter_or_create(f"zeropoint-{name}", shape, ConstantInitializer(), False)
        return get_parameter_or_create(f"scale-{name}", shape, scale, False), zero


class MinMaxMinMaxRecorderCallback(Recorder):
    r"""Smallest and largest value so far, and 0: $m \leftarrow \min(m, \min x)$, M likewise."""


class AbsMaxRecorderCallback(Recorder):
    r"""The largest absolute value so far: $M \leftarrow \max(M, \max |x|)$."""

    bounds, absolute = ("M",), True


class MinMaxMvaRecorderCallback(Recorder):
    r"""Averages of the smallest, $m \leftarrow 0.99\,m + 0.01 \min x$, and so the largest value."""

    moving = True


class MaxMaxRecorderCallback(Recorder):
    r"""The largest value so far, and 0: $M \leftarrow \max(M, \max x)$."""

    bounds = ("M",)


class MaxMvaRecorderCallback(Recorder):
    r"""The moving average of the largest value: $M \leftarrow 0.99\,M + 0.01 \max x$."""

    bounds, moving = ("M",), True


class PrecisionMode(Enum):
    """Which functions compute with integers; so far none does, SIM_QNN rounds between them."""

    QNN = 0
    SIM_QNN = 1
    MIXED_QNN = 2


class QNNState(Enum):
    """How far a QATScheduler is."""

    NON_QNN = 0
    RECORDING = 1
    TRAINING = 2
    DEPLOYMENT = 3


class QATConfig:
    """Settings of quantization-aware training.

    Attributes:
        niter_to_recording, niter_to_training: The steps at which ranges begin to be recorded, and
            values to be rounded.
        bn_folding, bn_self_folding: Fold batch normalisations into their neighbours; make those
            that are left a product and a sum.
        recorder_weight, recorder_activation: Classes that record ranges.
        record_layers: Types of functions whose inputs are recorded; all if empty.
        recorder_position: Before these functions, or after them as well.
        skip_inputs_layers: Types of functions left alone where none of these types comes before.
        skip_outputs_layers: The same for the end of the network.
        skip_bias: Leave biases alone.
        pow2: How scales become powers of two.
        narrow_range, round_mode, dtype: Those of F.quantize_linear.
        learning_rate_scale: Factor of the learning rate once values are rounded.
        precision_mode: SIM_QNN.
        channel_last, channel_wise, ext_name, zero_point: Ignored.
    """

    class RoundingMethod(Enum):
        """How a scale becomes a power of two."""

        CEIL = "CEIL"
        ROUND = "ROUND"
        FLOOR = "FLOOR"
        NOTROUND = "NOTROUND"

    class RecorderPosition(Enum):
        """Where ranges are recorded."""

        BEFORE = 0
        BOTH = 1

    ext_name = "cudnn"
    zero_point = False
    dtype: Any = np.int8
    precision_mode = PrecisionMode.SIM_QNN
    channel_last = False
    channel_wise = False
    niter_to_recording = 0
    niter_to_training = -1
    pow2 = RoundingMethod.ROUND
    narrow_range = False
    round_mode = "HALF_TO_EVEN"
    bn_folding = False
    bn_self_folding = False
    recorder_weight: Any = MinMaxMinMaxRecorderCallback
    recorder_activation: Any = MaxMvaRecorderCallback
    record_layers: Sequence[str] = ()
    recorder_position = RecorderPosition.BEFORE
    skip_inputs_layers: Sequence[str] = ("Convolution", "Deconvolution")
    skip_outputs_layers: Sequence[str] = ("Affine",)
    learning_rate_scale = 0.1
    skip_bias = False


class QATTensorRTConfig(QATConfig):
    """The settings with which the result can be run by TensorRT."""

    bn_folding = True
    bn_self_folding = True
    record_layers = ("Convolution", "Deconvolution", "Affine", "BatchMatmul", "ReLU")


qat_default_config = QATTensorRTConfig()
