# SPDX-License-Identifier: Apache-2.0
"""Importers of strings, and of the parts of ai.onnx.ml that are tables and trees."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.errors import OnnxError
from nnl.converters.onnx.registry import onnx_import
from nnl.converters.onnx.values import array, check_size, var

ML = "ai.onnx.ml"
MAX_TEXT = 2**20  # characters of one string


def _map(f: Any, *arrays: Any) -> Any:
    """f of every element, as an array of objects."""
    wide = np.broadcast_arrays(*arrays)
    check_size(wide[0].shape, 8)
    out = np.empty(wide[0].shape, object)
    out.reshape(-1)[:] = [f(*v) for v in zip(*(w.reshape(-1) for w in wide), strict=True)]
    return out


@onnx_import("StringConcat")
def string_concat(ctx: Any, node: Any, a: Any, b: Any) -> Any:
    """Strings joined, element by element."""

    def joined(p: str, q: str) -> str:
        if len(p) + len(q) > MAX_TEXT:  # a string may be joined with itself again and again
            raise OnnxError(f"makes a string of more than {MAX_TEXT} characters")
        return p + q

    return _map(joined, a, b)


@onnx_import("StringSplit")
def string_split(ctx: Any, node: Any, x: Any) -> Any:
    """Strings cut at a delimiter, filled up with empty ones, and how many each has."""
    limit = -1 if node.maxsplit is None else node.maxsplit
    pieces = [s.split(node.delimiter or None, limit) for s in x.reshape(-1)]
    most = max(map(len, pieces), default=0)
    check_size([len(pieces), most], 8)
    full = [p + [""] * (most - len(p)) for p in pieces]
    y = np.empty((len(full), most), object)
    y[...] = full if full and most else ""
    counts = np.array([len(p) for p in pieces], np.int64)
    return y.reshape(*x.shape, most), counts.reshape(x.shape)


@onnx_import("StringNormalizer")
def string_normalizer(ctx: Any, node: Any, x: Any) -> Any:
    """Strings without stopwords, in one case."""
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(node.case_change_action, str)
    words = list(x.reshape(-1))
    if node.is_case_sensitive:
        kept = [w for w in words if w not in set(node.stopwords or ())]
    else:
        stop = {w.lower() for w in node.stopwords or ()}
        kept = [w for w in words if w.lower() not in stop]
    y = np.array([change(w) for w in kept] or [""], object)
    return y.reshape(1, -1) if x.ndim == 2 else y


@onnx_import("TfIdfVectorizer")
def tf_idf_vectorizer(ctx: Any, node: Any, x: Any) -> Any:
    """How often each n-gram of a pool is in a sequence, weighted."""
    pool = node.pool_strings if node.pool_strings is not None else node.pool_int64s
    starts = [*node.ngram_counts, len(pool)]
    if min(starts) < 0 or starts != sorted(starts):
        raise OnnxError(
            f"ngram_counts is {node.ngram_counts}, wanted places in a pool of {len(pool)} in order"
        )
    grams: dict[tuple[Any, ...], int] = {}
    for n, (a, b) in enumerate(itertools.pairwise(starts), 1):
        for i in range(a, b, n):
            grams[tuple(pool[i : i + n])] = len(grams)
    value = array(x, "x")
    rows = value.reshape(1, -1) if value.ndim < 2 else value
    check_size([len(rows), max(node.ngram_indexes) + 1])
    y = np.zeros((len(rows), max(node.ngram_indexes) + 1), np.float32)
    weights = np.ones(len(grams), np.float32) if node.weights is None else np.float32(node.weights)
    for row, items in enumerate(rows.tolist()):
        counts = np.zeros(len(grams), np.float32)
        for n in range(max(node.min_gram_length, 1), min(node.max_gram_length, len(items)) + 1):
            for skip in range(node.max_skip_count + 1 if n > 1 else 1):
                reach = (n - 1) * (skip + 1)
                if reach >= len(items):
                    break
                for i in range(len(items) - reach):
                    found = grams.get(tuple(items[i : i + reach + 1 : skip + 1]))
                    if found is not None:
                        counts[found] += 1
        if node.mode == "IDF":
            counts = np.minimum(counts, 1)
        if node.mode != "TF":
            counts = counts * weights
        y[row, np.array(node.ngram_indexes)] = counts
    return y[0] if value.ndim < 2 else y


@onnx_import("ImageDecoder")
def image_decoder(ctx: Any, node: Any, stream: Any) -> Any:
    """The pixels (H, W, 3 or 1) of an encoded image, as uint8; needs pillow."""
    import io

    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(array(stream, "the stream").tobytes())) as image:
            if image.width * image.height > 10**8:
                raise OnnxError(f"the image has {image.width} x {image.height} pixels")
            pixels = np.asarray(image.convert("L" if node.pixel_format == "Grayscale" else "RGB"))
    except (UnidentifiedImageError, OSError) as e:
        raise OnnxError(f"the stream is no image that pillow reads: {e}") from None
    if node.pixel_format == "Grayscale":
        return pixels[..., None]
    return pixels[..., ::-1] if node.pixel_format == "BGR" else pixels


@onnx_import("LabelEncoder", domain=ML)
def label_encoder(ctx: Any, node: Any, x: Any) -> Any:
    """Values looked up in a table."""

    def entry(prefix: str) -> Any:
        for kind in ("tensor", "strings", "int64s", "floats"):
            value = node.attributes.get(f"{prefix}_{kind}")
            if value is not None:
                return list(value.reshape(-1) if kind == "tensor" else value), kind, value
        raise OnnxError(f"has no {prefix}")

    keys, _, _ = entry("keys")
    values, kind, raw = entry("values")
    default: Any
    if node.attributes.get("default_tensor") is not None:
        default = node.default_tensor.reshape(-1)[0]
    else:
        default = {
            "strings": node.default_string,
            "int64s": node.default_int64,
            "floats": node.default_float,
        }.get(kind, node.default_string if kind == "tensor" and raw.dtype == object else -1)
    dtype = {"strings": object, "int64s": np.int64, "floats": np.float32}.get(kind)
    table = {k: v for k, v in zip(keys, values, strict=True) if k == k}
    nan = next((v for k, v in zip(keys, values, strict=True) if k != k), default)
    y = _map(lambda v: nan if v != v else table.get(v, default), array(x))
    return y.astype(dtype or raw.dtype)


@onnx_import("Binarizer", domain=ML)
def binarizer(ctx: Any, node: Any, x: Any) -> Any:
    """1 above a threshold, else 0."""
    return F.greater_scalar(var(x), node.threshold)


_TESTS = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)


@onnx_import("TreeEnsemble", domain=ML)
def tree_ensemble(ctx: Any, node: Any, x: Any) -> Any:
    """Decision trees, their leaves added up by target."""
    rows = array(x, "x")
    check_size([len(rows), node.n_targets], 64)
    sets = _members(node)
    n, leaves = len(node.nodes_featureids), len(node.leaf_targetids)
    tracks = node.nodes_missing_value_tracks_true or (0,) * n
    collected: list[list[list[float]]] = []
    for row in rows:
        targets: list[list[float]] = [[] for _ in range(node.n_targets)]
        for root in node.tree_roots:
            at, leaf = root, False
            for _ in range(n + 1):  # a path longer than the tree has nodes is a cycle
                if leaf:
                    break
                value, mode = row[node.nodes_featureids[at]], int(node.nodes_modes[at])
                if mode == 6:
                    yes = float(value) in sets[at]
                else:
                    yes = bool(_TESTS[mode](value, node.nodes_splits[at]))
                yes = yes or bool(np.isnan(value) and tracks[at])
                leaf = bool((node.nodes_trueleafs if yes else node.nodes_falseleafs)[at])
                at = (node.nodes_truenodeids if yes else node.nodes_falsenodeids)[at]
            if not leaf or not 0 <= at < leaves:
                raise OnnxError(f"the tree at node {root} has a cycle or no leaf {at}")
            targets[node.leaf_targetids[at]].append(float(node.leaf_weights[at]))
        collected.append(targets)
    how = (lambda v: sum(v) / len(node.tree_roots), sum, min, max)[node.aggregate_function]
    y = np.array([[how(v) if v else 0.0 for v in t] for t in collected], rows.dtype)
    return _transformed(y, node.post_transform)


def _members(node: Any) -> dict[int, set[float]]:
    values = node.membership_values
    groups: list[set[float]] = [set()]
    for v in () if values is None else values.reshape(-1):
        if np.isnan(v):
            groups.append(set())
        else:
            groups[-1].add(float(v))
    at = [i for i, m in enumerate(node.nodes_modes.reshape(-1)) if int(m) == 6]
    return dict(zip(at, groups, strict=False))


def _transformed(y: Any, how: int) -> Any:
    if how == 0:
        return y
    if how == 2:
        return 1 / (1 + np.exp(-y))
    if how in (1, 3):
        e = np.exp(y - y.max(1, keepdims=True))
        e = np.where(y == 0, 0, e) if how == 3 else e
        return e / e.sum(1, keepdims=True)
    raise OnnxError(f"post_transform {how} is not supported, wanted 0 to 3")
