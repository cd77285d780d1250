# SPDX-License-Identifier: Apache-2.0
"""Functions of tf that are one operation each: a row says which, and what its arguments are."""

from __future__ import annotations

import functools
import inspect

import numpy as np

import nnl.workspace as ws
from nnl.converters.tensorflow.messages import code_of_dtype
from nnl.dialects.tensorflow.graph import N, Names
from nnl.dialects.tensorflow.operation import EVERY, as_dtype, constant, convert, handled
from nnl.dialects.tensorflow.shapes import TensorShape

# Arguments that had another name in an earlier version.
ALIASES = {
    "reduction_indices": "axis",
    "keep_dims": "keepdims",
    "dimension": "axis",
    "dim": "axis",
    "squeeze_dims": "axis",
    "seq_dim": "seq_axis",
    "batch_dim": "batch_axis",
    "filter": "filters",
    "input": "value",
}

# name, operation, arguments. Behind ":" the kind of an argument: a tensor where none is said;
# c anything; p of the type of the first; s sizes; i a number; o axes, all where None; f of the
# type of the first where it is a number; l a list, a a value, d a type: attributes. "-" is not
# used. What follows ">" is the name of the attribute.
TABLE = """
abs Abs x|acos Acos x|acosh Acosh x|asin Asin x|asinh Asinh x|atan Atan x|atanh Atanh x
ceil Ceil x|cos Cos x|cosh Cosh x|erf Erf x|erfc Erfc x|exp Exp x|expm1 Expm1 x|floor Floor x
is_finite IsFinite x|is_inf IsInf x|is_nan IsNan x|log Log x|log1p Log1p x|logical_not LogicalNot x
negative Neg x|reciprocal Reciprocal x|rint Rint x|round Round x|rsqrt Rsqrt x
sigmoid Sigmoid x|sin Sin x|sinh Sinh x|sqrt Sqrt x|square Square x|tan Tan x|tanh Tanh x
elu Elu features|relu Relu features|relu6 Relu6 features|selu Selu features|l2_loss L2Loss t
softplus Softplus features|softsign Softsign features
check_numerics CheckNumerics tensor message:-
add Add x y:p|subtract Sub x y:p|multiply Mul x y:p|maximum Maximum x y:p|minimum Minimum x y:p
mod FloorMod x y:p|floormod FloorMod x y:p|pow Pow x y:p|atan2 Atan2 y x:p|xlogy Xlogy x y:p
squared_difference SquaredDifference x y:p|div_no_nan DivNoNan x y:p|truncatemod TruncateMod x y:p
floordiv FloorDiv x y:p|floor_div FloorDiv x y:p|scalar_mul Mul scalar x:p
equal Equal x y:p|not_equal NotEqual x y:p|less Less x y:p|less_equal LessEqual x y:p
greater Greater x y:p|greater_equal GreaterEqual x y:p|logical_and LogicalAnd x y:p
logical_or LogicalOr x y:p
reduce_sum Sum input_tensor axis:o=None keepdims:a=False>keep_dims
reduce_mean Mean input_tensor axis:o=None keepdims:a=False>keep_dims
reduce_max Max input_tensor axis:o=None keepdims:a=False>keep_dims
reduce_min Min input_tensor axis:o=None keepdims:a=False>keep_dims
reduce_prod Prod input_tensor axis:o=None keepdims:a=False>keep_dims
reduce_all All input_tensor axis:o=None keepdims:a=False>keep_dims
reduce_any Any input_tensor axis:o=None keepdims:a=False>keep_dims
cumsum Cumsum x axis:i=0 exclusive:a=False reverse:a=False
cumprod Cumprod x axis:i=0 exclusive:a=False reverse:a=False
shape Shape input out_type:d=int32|rank Rank input|size Size input out_type:d=int32
reshape Reshape tensor shape:s|tile Tile input multiples:s|broadcast_to BroadcastTo input shape:s
squeeze Squeeze input axis:l=None>squeeze_dims|expand_dims ExpandDims input axis:c
slice Slice input_ begin:s size:s|reverse ReverseV2 tensor axis:s
gather_nd GatherNd params indices:c|scatter_nd ScatterNd indices:c updates shape:s
gather GatherV2 params indices:c validate_indices:-=None axis:i=0 batch_dims:a=0
space_to_depth SpaceToDepth input block_size:a
depth_to_space DepthToSpace input block_size:a
space_to_batch_nd SpaceToBatchND input block_shape:s paddings:c
batch_to_space_nd BatchToSpaceND input block_shape:s crops:c
invert_permutation InvertPermutation x
lrn LRN input depth_radius:a=5 bias:a=1.0 alpha:a=1.0 beta:a=0.5
extract_image_patches ExtractImagePatches images ksizes:l strides:l rates:l padding:a
linspace LinSpace start:f stop:f num:c
softmax Softmax logits axis:a=-1|log_softmax LogSoftmax logits axis:a=-1
"""


def tensor(x, dtype=None):
    """A tensor of any value."""
    x = convert(x, dtype)
    return x if isinstance(x, ws.Tensor) else constant(x)


def pair(x, y):
    """Two values of one type."""
    if not isinstance(x, ws.Tensor):
        x = tensor(x, y.dtype if isinstance(y, ws.Tensor) else None)
    return x, convert(y, x.dtype)


def whole(value):
    """What a script gives as sizes: a shape, numbers, tensors, or a mixture of them."""
    if isinstance(value, ws.Tensor):
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(v, ws.Tensor) for v in value):
        return handled("Pack", *[cast(tensor(v), np.int32) for v in value], name="packed", axis=0)
    if isinstance(value, TensorShape):
        value = value.as_list()
    return np.array(value, np.int32)


def cast(x, dtype, name=None):
    """The elements as another type."""
    x = tensor(x)
    if x.dtype == as_dtype(dtype):
        return x
    return handled("Cast", x, name=name, DstT=code_of_dtype(as_dtype(dtype)))


def named(function):
    """With the names that its arguments had in earlier versions."""
    known = inspect.signature(function).parameters

    def call(*args, **given):
        for old, new in ALIASES.items():
            if old in given and old not in known and new in known:
                value = given.pop(old)
                if given.get(new) is None:
                    given[new] = value
        return function(*args, **given)

    return functools.wraps(function)(call)


def _parameter(word):
    """A word of the table: the argument, its kind, and the attribute that it is."""
    word, _, attribute = word.partition(">")
    word, equals, default = word.partition("=")
    argument, _, kind = word.partition(":")
    value = {"None": None, "False": False}.get(default, default)
    if equals and isinstance(value, str) and kind != "d":
        value = float(default) if "." in default else int(default)
    given = value if equals else inspect.Parameter.empty
    made = inspect.Parameter(argument, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=given)
    return made, kind, attribute or argument


def _function(name, op, words):
    rows = [_parameter(word) for word in words]
    end = _parameter("name=None")[0]
    signature = inspect.Signature([*[p for p, _, _ in rows], end])

    def function(*args, **given):
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        bound.apply_defaults()
        inputs = []
        attributes = {}
        for parameter, kind, attribute in rows:
            value = bound.arguments[parameter.name]
            if kind == "p":
                inputs[0], value = pair(bound.arguments[rows[0][0].name], value)
            elif kind == "s":
                value = whole(value)
            elif kind in ("c", "i"):
                value = convert(np.int32(value) if kind == "i" else value)
            elif kind == "o":
                if value is None and inputs[0].sizes is not None:
                    value = range(len(inputs[0].sizes))
                value = EVERY if value is None else whole(value)
            elif kind == "l":
                value = [] if value is None else np.reshape(value, -1).tolist()
            elif kind in ("", "f"):
                plain = isinstance(value, (int, float)) and kind == "f"
                value = tensor(value, np.float32 if plain else None)
            if kind in ("a", "l", "d"):
                attributes[attribute] = code_of_dtype(as_dtype(value)) if kind == "d" else value
            elif kind != "-":
                inputs.append(value)
        return handled(op, *inputs, name=bound.arguments["name"], **attributes)

    function.__name__ = name
    function.__doc__ = f"{op}({', '.join(p.name for p, kind, _ in rows if kind != '-')})."
    function.__signature__ = signature
    return named(function)


def defined(functions):
    """Functions with their names, and the names that their arguments had."""
    found = Names()
    for name, f in functions.items():
        found[name] = named(f)
        found[name].__name__ = found[name].__qualname__ = name
        found[name].__doc__ = f.__doc__ or f"{name} of TensorFlow 1."
    return found


ROWS = [row.split() for row in TABLE.replace("\n", "|").split("|") if row]
N.update({name: _function(name, op, words) for name, op, *words in ROWS})


def divide(x, y, name=None):
    """The quotient; of integers as in Python 3."""
    x, y = pair(x, y)
    if x.dtype.kind in "iu":
        x, y = cast(x, np.float64), cast(y, np.float64)
    return handled("RealDiv", x, y, name=name or "truediv")


def div(x, y, name=None):
    """The quotient; of integers as in Python 2."""
    x, y = pair(x, y)
    return handled("FloorDiv" if x.dtype.kind in "iu" else "RealDiv", x, y, name=name or "div")


N.update(divide=divide, truediv=divide, div=div)
