# SPDX-License-Identifier: Apache-2.0
"""The functions of NNabla's C runtime, and how a file says them.

Each has variants, newer ones with more arguments. A variant is a number, the kinds of its
arguments in the order of the fields of NNabla's message, and the API level that it came with:
i int32 or the number of a choice, f float32, B bool, iI list of int32.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

LEVEL = 44  # of the runtime that is published
VERSIONS = (2, 3)  # of the format; 3 gives sizes of buffers in bytes, 2 in elements of 4 bytes
TYPES = ("FLOAT32", "FIXED16", "FIXED8", "SIGN")  # of variables, by their numbers
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code) for name, code in zip(TYPES, ("<f4", "<i2", "i1"), strict=False)
}  # of all but signs, which take a bit each

_TABLE = """
Abs 68:-@1
Add2 31:B@1
AddScalar 312:fB@21 37:f@1
Affine 0:i@1
AveragePooling 267:iIiIBiIBB@4 6:iIiIBiIB@1
BatchMatmul 72:BB@1
BatchNormalization 326:iIffBBB@28 22:iIffB@1
BinaryConnectAffine 235:if@2 107:i@1
BinaryConnectConvolution 233:iiIiIiIif@2 108:iiIiIiIi@1
BinarySigmoid 105:-@1
BinaryTanh 106:-@1
BinaryWeightAffine 234:if@2 109:i@1
BinaryWeightConvolution 232:iiIiIiIif@2 110:iiIiIiIi@1
CELU 20:fi@1
CReLU 19:i@1
Concatenate 74:i@1
Convolution 265:iiIiIiIiB@4 1:iiIiIiIi@1
Deconvolution 292:iiIiIiIiBiI@15 279:iiIiIiIiB@8 3:iiIiIiIi@1
DepthwiseConvolution 2:iiIiIiIi@1
Div2 310:B@21 35:-@1
Dropout 336:fi@34 86:fi@1
ELU 17:f@1
Exp 69:-@1
Flip 81:iI@1
Identity 71:-@1
LeakyReLU 128:fB@2 15:f@1
Log 70:-@1
MatrixDiag 84:-@1
MatrixDiagPart 85:-@1
MaxPooling 266:iIiIBiIB@4 5:iIiIBiI@1
Maximum2 45:-@1
MaximumScalar 47:f@1
MeanSubtraction 23:iB@1
Minimum2 44:-@1
MinimumScalar 46:f@1
Mul2 309:B@21 34:-@1
MulScalar 313:fB@21 38:f@1
PReLU 21:i@1
Pad 123:iIif@1
Pow2 311:B@21 36:-@1
PowScalar 314:fB@21 39:f@1
RDivScalar 41:f@1
RPowScalar 42:f@1
RSubScalar 40:f@1
ReLU 14:B@1
Reshape 126:iIB@2 83:iI@1
Round 73:-@1
SELU 18:ff@1
Shift 82:iIi@1
Sigmoid 11:-@1
Sign 43:f@1
Slice 77:iIiIiI@1
Softmax 16:i@1
Split 75:i@1
Stack 76:i@1
Sub2 308:B@21 33:-@1
Sum 24:iIB@1
SumPooling 268:iIiIBiIB@4 8:iIiIBiI@1
Swish 12:-@1
Tanh 13:-@1
Transpose 78:iI@1
Unpooling 287:iIB@13 9:iI@1
"""
# Arguments that are one of several words, numbered from 0.
CHOICES = {
    ("Pad", "mode"): ("constant", "reflect", "repeat"),
    ("Shift", "border_mode"): ("nearest", "reflect"),
}
# Inputs that files hold with the outputs first: (out..., in) in the place of (in, out...).
TRANSPOSED = {"Affine": (1,), "BinaryConnectAffine": (1, 2), "BinaryWeightAffine": (1, 2)}


class Variant(NamedTuple):
    """One form of a function."""

    function: str
    number: int
    kinds: tuple[str, ...]
    level: int


def _variants() -> list[Variant]:
    found = []
    for line in _TABLE.split("\n"):
        name, *variants = line.split() or [""]
        for text in variants:
            number, code, level = re.fullmatch(r"(\d+):(\S+)@(\d+)", text).groups()  # type: ignore[union-attr]
            kinds = tuple(re.findall("iI|[ifB]", code))
            found.append(Variant(name, int(number), kinds, int(level)))
    return found


VARIANTS = _variants()
BY_NUMBER = {v.number: v for v in VARIANTS}
FUNCTIONS = tuple(dict.fromkeys(v.function for v in VARIANTS))


def check_level(level: int) -> int:
    """The API level, or a ValueError."""
    if not 1 <= level <= LEVEL:
        raise ValueError(f"NNB: the API level is {level}, wanted 1 to {LEVEL}")
    return level


def variant(function: str, level: int = LEVEL) -> Variant | None:
    """The newest form of a function up to an API level; None if there is none."""
    known = [v for v in VARIANTS if v.function == function and v.level <= level]
    return max(known, key=lambda v: v.level, default=None)
