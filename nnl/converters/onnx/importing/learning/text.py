# SPDX-License-Identifier: Apache-2.0
"""Importers of strings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.values.values import array, check_size

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
