# SPDX-License-Identifier: Apache-2.0
"""Importers of ai.onnx.ml that prepare features and name results: scaling, categories, labels."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.importing.indexing import take
from nnl.converters.onnx.importing.learning.models import ML, constant, fit, floats, rows
from nnl.converters.onnx.values.strings import STRING, chosen, is_text, words_of
from nnl.converters.onnx.values.values import (
    array,
    check_size,
    dtype_of,
    is_float,
    known,
    reshape,
    shape_of,
    tagged,
    var,
)


@onnx_import("Binarizer", domain=ML)
def binarizer(ctx: Any, node: Any, x: Any) -> Any:
    """1 above a threshold, else 0."""
    return F.greater_scalar(var(x), node.threshold)


@onnx_import("Scaler", domain=ML)
def scaler(ctx: Any, node: Any, x: Any) -> Any:
    """(x - offset) * scale, by feature."""
    y, n = var(x), shape_of(x)[-1]
    shape = (1,) * (len(shape_of(x)) - 1) + (-1,)
    offset, scale = floats(node, "offset"), floats(node, "scale")
    if len(offset):
        y = y - constant(fit("offset", offset, n, 1)).reshape(shape)
    return y * constant(fit("scale", scale, n, 1)).reshape(shape) if len(scale) else y


@onnx_import("Normalizer", domain=ML)
def normalizer(ctx: Any, node: Any, x: Any) -> Any:
    """Rows divided by their norm."""
    y = rows(x)
    size, norm = F.abs(y), node.norm
    if norm == "MAX":
        by = F.max(size, axis=1, keepdims=True)
    elif norm == "L1":
        by = F.sum(size, axis=1, keepdims=True)
    elif norm == "L2":
        by = F.sum(size * size, axis=1, keepdims=True) ** 0.5
    else:
        raise OnnxError(f"norm is {norm!r}, wanted MAX, L1 or L2")
    return reshape(y / F.maximum_scalar(by, 1e-30), shape_of(x))


@onnx_import("Imputer", domain=ML)
def imputer(ctx: Any, node: Any, x: Any) -> Any:
    """x with one value, such as NaN, replaced by that of the feature."""
    whole = not is_float(dtype_of(x))
    name = "int64" if whole else "float"
    values = np.asarray(node.attributes.get(f"imputed_value_{name}s") or ())
    fit(f"imputed_value_{name}s", values, shape_of(x)[-1], 1)
    replaced = getattr(node, f"replaced_value_{name}")
    if known(x) and whole:
        return np.where(array(x) == replaced, values, array(x))
    y = var(x)
    missing = F.isnan(y) if np.isnan(replaced) else F.equal_scalar(y, float(replaced))
    new = constant(values).reshape((1,) * (y.ndim - 1) + (-1,))
    return tagged(F.where(missing, F.broadcast(new, y.shape), y), dtype_of(x))


@onnx_import("FeatureVectorizer", domain=ML)
def feature_vectorizer(ctx: Any, node: Any, *values: Any) -> Any:
    """Columns of all inputs side by side, each cut or filled up with zeros to its width."""
    widths = fit("inputdimensions", node.inputdimensions or (), len(values))
    parts = []
    for x, width in zip(values, widths, strict=True):
        y = reshape(var(x), (-1, 1)) if len(shape_of(x)) == 1 else rows(x)
        n, now = shape_of(y)
        check_size([n, width])
        if width < now:
            y = F.slice(y, (0, 0), (n, width), (1, 1))
        parts.append(F.pad(y, (0, 0, 0, width - now)) if width > now else y)
    return F.concatenate(*parts, axis=1)


# ---- categories ----


def positions(ctx: Any, x: Any, keys: Any) -> Any:
    """Where the elements of x stand among the keys; the number of keys where they do not."""
    count = len(keys)
    if known(x):
        place = {k: i for i, k in reversed([*enumerate(keys.tolist())]) if k == k}
        nan = next((i for i, k in enumerate(keys.tolist()) if k != k), count)
        values = array(x)
        at = [nan if v != v else place.get(v, count) for v in values.reshape(-1).tolist()]
        return np.array(at, np.int64).reshape(values.shape)
    if (keys.dtype == STRING) != is_text(x):
        raise OnnxError(f"compares {dtype_of(x)} with {keys.dtype}")
    if is_text(x):
        table = np.full(len(words_of(ctx.model).strings) + 1, count, np.int64)
        numbers = words_of(ctx.model).numbers(keys)
        table[numbers[::-1] + 1] = np.arange(count)[::-1]
        return F.gather(var(table), x + 1.0, axis=0)
    if np.abs(keys[keys == keys]).max(initial=0) > 2**24 and keys.dtype.kind in "iu":
        raise OnnxError("has keys above 2^24, which static graphs do not hold")
    check_size([*shape_of(x), count])
    y = reshape(var(x), (*shape_of(x), 1))
    keys = keys.reshape((1,) * len(shape_of(x)) + (-1,))
    same = F.equal(y, constant(keys))
    if np.isnan(keys.astype(np.float64)).any():
        same = same + F.isnan(y) * constant(np.isnan(keys.astype(np.float64)))
    before = constant(np.arange(count).reshape(keys.shape) - count)
    return F.min(same * before, axis=y.ndim - 1) + float(count)


def _list(node: Any, prefix: str) -> Any:
    """The keys or values of a node, as an array."""
    kinds = {"tensor": None, "strings": object, "int64s": np.int64, "floats": np.float32}
    for kind, dtype in kinds.items():
        value = node.attributes.get(f"{prefix}_{kind}")
        if value is not None and len(value):
            return np.array(value, dtype or value.dtype).reshape(-1)
    raise OnnxError(f"has no {prefix}")


@onnx_import("LabelEncoder", domain=ML)
def label_encoder(ctx: Any, node: Any, x: Any) -> Any:
    """Values looked up in a table."""
    if node.since == 1:
        return _by_names(ctx, node, x, _list(node, "classes"), None)
    keys, values = _list(node, "keys"), _list(node, "values")
    default = node.attributes.get("default_tensor")
    if default is None:
        kinds = {"O": "default_string", "i": "default_int64", "f": "default_float"}
        default = np.array([getattr(node, kinds.get(values.dtype.kind, "default_int64"))])
    fit("values", values, len(keys))
    default = default.reshape(-1)[:1].astype(values.dtype)
    return chosen(ctx, positions(ctx, x, keys), np.concatenate([values, default]))


def _by_names(ctx: Any, node: Any, x: Any, strings: Any, numbers: Any) -> Any:
    """Strings as their numbers, or numbers as their strings."""
    numbers = np.arange(len(strings)) if numbers is None else np.array(numbers, np.int64)
    fit("cats_int64s", numbers, len(strings))
    if dtype_of(x) == STRING:
        table = np.append(numbers, node.default_int64)
        return chosen(ctx, positions(ctx, x, strings), table)
    table = np.append(strings, np.array([node.default_string], object))
    return chosen(ctx, positions(ctx, x, numbers), table)


@onnx_import("CategoryMapper", domain=ML)
def category_mapper(ctx: Any, node: Any, x: Any) -> Any:
    """Strings as their numbers, or numbers as their strings."""
    return _by_names(ctx, node, x, _list(node, "cats"), node.cats_int64s or ())


@onnx_import("OneHotEncoder", domain=ML)
def one_hot_encoder(ctx: Any, node: Any, x: Any) -> Any:
    """1 at the place of the category, else 0, along a new last axis.

    Without `zeros` there are no others than the categories: another one has no row to be read.
    """
    cats = _list(node, "cats")
    at = positions(ctx, x, cats)
    count = len(cats)
    check_size([*shape_of(x), count])
    if not node.zeros and known(at):
        other = np.asarray(array(at) == count)
        if other.any():
            value = array(x)[other][0]
            raise OnnxError(f"holds {value!r}, which is none of the {count} categories")
    table = np.eye(count, dtype=np.float32)
    if node.zeros:
        table = np.concatenate([table, np.zeros((1, count), np.float32)])
    return take(table, at, 0) if known(at) else F.gather(constant(table), at, axis=0)


@onnx_import("ZipMap", domain=ML)
def zip_map(ctx: Any, node: Any, x: Any) -> Any:
    """Scores by label, a dict for each row; in static graphs the scores (N, C)."""
    names = labels(node)
    if len(names) != shape_of(x)[-1]:
        raise OnnxError(f"has {len(names)} labels for scores of the shape {shape_of(x)}")
    return [dicts(names, array(x))] if known(x) else x


def labels(node: Any) -> Any:
    """The labels of a ZipMap."""
    return _list(node, "classlabels")


def dicts(names: Any, scores: Any) -> list[Any]:
    """Rows of scores as dicts from labels to numbers."""
    rows = scores.reshape(-1, len(names)).tolist()
    return [dict(zip(names.tolist(), row, strict=True)) for row in rows]
