# SPDX-License-Identifier: Apache-2.0
"""Weights of 4 or 8 bits in networks of `nnl.models.stack`: `name/W` becomes codes and scales."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.converters.weights.groups import Groups, calibrated, rounded
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameter, pop_parameter, set_parameter

Array = np.ndarray[Any, Any]
PARTS = ("codes", "scale", "offset", "order")
TABLES = ("tokens", "positions", "types", "distances")  # of which embeddings take rows
MOST_ROWS = 4096  # inputs of a layer that a calibration looks at


def present() -> bool:
    """Whether the weights of the current scope are quantized."""
    return get_parameter(PARTS[0]) is not None


def product(x: Any, w: Callable[[], Any]) -> Any:
    """The product of x (m, n) with the weights of the current scope: `w`, unless quantized."""
    codes, scale, offset, order = map(get_parameter, PARTS)
    if codes is None:
        return F.batch_matmul(x, w(), transpose_b=True)
    if order is not None:
        x = F.gather(x, order, axis=1)
    bits, group_size = sizes_of(codes, scale, x.shape[-1])
    return F.quantized_matmul(x, codes, scale, offset, bits=bits, group_size=group_size)


def sizes_of(codes: Any, scale: Any, columns: int) -> tuple[int, int]:
    """(bits, group_size) of weights in `columns` columns."""
    return codes.shape[1] * 8 // columns, columns // scale.shape[1]


def groups_of(name: str, columns: int) -> Groups | None:
    """The quantized weights `name` of the current scope; None where there are none."""
    found = [get_parameter(f"{name}/{part}") for part in PARTS]
    codes, scale, offset, order = (None if v is None else v.data.read("host") for v in found)
    if codes is None:
        return None
    return Groups(codes, scale, offset, *sizes_of(codes, scale, columns), order)


def put(name: str, groups: Groups) -> None:
    """Let `name` of the current scope have these weights; a table that embeds keeps its W too."""
    values = (groups.w, groups.scale, groups.offset, groups.order)
    for part, value in zip(PARTS, values, strict=True):
        pop_parameter(f"{name}/{part}")
        if value is not None:
            v = Variable(value.shape)
            v.data.become(NdArray.holding(Spec.of(value.shape, value.dtype), "host", value))
            set_parameter(f"{name}/{part}", v)
    if not is_table(name):
        pop_parameter(f"{name}/W")


def is_table(name: str) -> bool:
    """Whether embeddings take rows of the weights of that name."""
    return name.rpartition("/")[2] in TABLES


def layers_of(parameters: Mapping[str, Variable], tied: bool) -> dict[str, Variable]:
    """{a layer: its weights}, of those that products take: no embedding, no router, no experts."""
    found = {
        path.removesuffix("/W"): v
        for path, v in parameters.items()
        if path.endswith("/W") and len(v.shape) == 2 and not path.endswith("/router/W")
    }
    return {k: v for k, v in found.items() if not is_table(k) or (k == "tokens" and tied)}


def quantized(
    model: Any, bits: int, group_size: int, symmetric: bool, texts: Sequence[Sequence[int]],
    skip: str,
) -> Iterator[tuple[str, float]]:  # fmt: skip
    """Quantize a model's weights, layer by layer; see `Pretrained.quantize`.

    Returns:
        Name of a layer, and the relative error of its weights.
    """
    where = "quantize"
    for i, text in enumerate(texts):
        check_text(i, text, model.config)
    try:
        left = re.compile(skip or "(?!)")
    except re.error as e:
        raise ValueError(f"{where}: skip is {skip!r:.60}, which is no pattern: {e}") from None
    layers = layers_of(model.parameters(), getattr(model.config, "tied", False))
    layers = {k: v for k, v in layers.items() if not left.search(k)}
    for name, v in layers.items():
        if v.shape[1] % group_size:
            raise ValueError(
                f"{where}: {name} has {v.shape[1]} columns, wanted a multiple of group_size "
                f"{group_size}; name it in skip, or take another group_size"
            )
    parts: dict[str, list[str]] = {}  # what calibrates together: a layer of the stack
    for name in layers:
        parts.setdefault(name.partition("/")[0], []).append(name)
    for names in parts.values():
        weights = {n: layers[n].data.read("host").astype(np.float32) for n in names}
        inputs = seen(model, {n: layers[n] for n in names}, texts) if texts else {}
        for name, w in weights.items():
            try:
                if name in inputs:
                    groups = calibrated(w, inputs[name], bits, group_size, symmetric)
                else:
                    groups = rounded(w, bits, group_size, symmetric)
            except ValueError as e:
                raise ValueError(f"{where}: {name}: {e}") from None
            with model.scoped():
                put(name, groups)
            norm = np.linalg.norm(w)
            yield name, float(np.linalg.norm(groups.array() - w) / norm) if norm else 0.0


def check_text(i: int, text: Sequence[int], config: Any) -> None:
    """Raise a ValueError unless a text of a calibration can be read."""
    if not 0 < len(text) <= config.longest:
        raise ValueError(
            f"quantize: text {i} of the calibration has {len(text)} tokens, wanted 1 to "
            f"{config.longest}"
        )
    for token in text:
        if not 0 <= token < config.vocabulary:
            raise ValueError(
                f"quantize: text {i} of the calibration has the token {token}, wanted 0 to "
                f"{config.vocabulary - 1}"
            )


def seen(
    model: Any, layers: Mapping[str, Variable], texts: Sequence[Sequence[int]]
) -> dict[str, Array]:
    """The inputs (n, columns) that products with these weights get while texts are read."""
    rows: dict[str, list[Array]] = {name: [] for name in layers}
    of_array = {id(v.data): name for name, v in layers.items()}

    def look(f: Any) -> None:
        for x, w in zip(f.inputs, f.inputs[1:], strict=False):
            name = of_array.get(id(w.data))
            if name is not None and f.info.type_name == "BatchMatmul":
                a = x.d.reshape(-1, x.shape[-1])
                if sum(map(len, rows[name])) < MOST_ROWS:
                    rows[name].append(a.astype(np.float32))

    for text in texts:
        y = model(Variable.from_numpy_array(np.asarray([text], np.int64)))
        y.forward(function_pre_hook=look)
    return {name: np.concatenate(found)[:MOST_ROWS] for name, found in rows.items() if found}
