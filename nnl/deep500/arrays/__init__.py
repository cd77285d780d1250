# SPDX-License-Identifier: Apache-2.0
"""Operators of ONNX in a few primitives, which a back end of arrays gives: shapes, indices, order.

What is heavy - convolution, pooling, normalisation - every back end may write with its own
functions; what only moves numbers or combines others is here, once.
"""

from nnl.deep500.arrays.quantised import QuantisedOperators
from nnl.deep500.arrays.recurrent import RecurrentOperators
from nnl.deep500.arrays.sequences import SequenceOperators
from nnl.deep500.arrays.signals import SignalOperators


class ArrayVisitor(QuantisedOperators, RecurrentOperators, SequenceOperators, SignalOperators):
    """What all back ends of arrays have in common."""


__all__ = ["ArrayVisitor"]
