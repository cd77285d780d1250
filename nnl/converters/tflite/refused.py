# SPDX-License-Identifier: Apache-2.0
"""Builtin operators that nnl does not read, and why."""

from __future__ import annotations

from nnl.converters.tflite.schema import OPERATORS

_VALUES = "how many results it has depends on values, and shapes are known when a file is read"
_TEXTS = "it is about texts, and values here are numbers"
_NO_KERNEL = "LiteRT has no kernel for it either"
_ONE_WAY = "nnl reads layers of one direction; two of them, one between REVERSE_V2, are the same"
_BITS = "it is about the bits of numbers, which are in real numbers here"
_DIALECT = "it is of StableHLO, which converters turn into other operators for LiteRT"

REFUSED: dict[str, str] = {
    **dict.fromkeys(("WHERE", "UNIQUE"), _VALUES),
    **dict.fromkeys(("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"), _VALUES),
    **dict.fromkeys(("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE"), _TEXTS),
    **dict.fromkeys(("HASHTABLE_LOOKUP", "LSH_PROJECTION", "SKIP_GRAM"), _TEXTS),
    "EMBEDDING_LOOKUP_SPARSE": _VALUES,
    "CONCAT_EMBEDDINGS": _NO_KERNEL,
    **dict.fromkeys(("BIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_LSTM"), _ONE_WAY),
    "REDUCE_WINDOW": "pooling has operators of its own, and nnl has no products over windows",
    **dict.fromkeys(("BITCAST", "BITWISE_XOR", "RIGHT_SHIFT"), _BITS),
    "MULTINOMIAL": "nnl draws other numbers, and LiteRT's kernel depends on the order of its own",
    "DELEGATE": "it is a part of a network for one device, whose content only that one knows",
    "CUSTOM": "its meaning is with who made it; Convolution2DTransposeBias of MediaPipe is read",
    **dict.fromkeys([n for n in OPERATORS if n.startswith("STABLEHLO_")], _DIALECT),
}
del REFUSED["STABLEHLO_COMPOSITE"]  # is made of operators
