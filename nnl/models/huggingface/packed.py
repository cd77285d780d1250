# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose weights GPTQ or AWQ have packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnl.converters.weights.groups import Groups, from_awq, from_gptq
from nnl.models.huggingface.family import Array


def unpacked(
    arrays: Mapping[str, Array], config: Any, where: str
) -> tuple[dict[str, Array], dict[str, Groups]]:
    """(arrays, groups) of a checkpoint: of the layers in groups the arrays have only the shape.

    Args:
        config: The `quantization_config` of config.json; None where all weights are arrays.
    Raises:
        ValueError: The method or its settings are not known, or a layer does not fit itself.
    """
    if config is None:
        return dict(arrays), {}
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    bits = config.get("bits") if isinstance(config, Mapping) else None
    if method not in ("gptq", "awq") or bits not in (4, 8):
        raise ValueError(
            f"{where}: quantization_config has the quant_method {method!r:.40} and {bits!r:.20} "
            "bits, wanted gptq or awq, and 4 or 8"
        )
    added = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
    left, groups = dict(arrays), {}
    for name in [n for n in arrays if n.endswith(".qweight")]:
        stem = name.removesuffix("qweight")
        qweight = left.pop(name)
        try:
            qzeros, scales = left.pop(f"{stem}qzeros"), left.pop(f"{stem}scales")
            order = left.pop(f"{stem}g_idx", None)
            if not all(a.ndim == 2 for a in (qweight, qzeros, scales)):
                raise ValueError("qweight, qzeros and scales are no matrices")
            if method == "gptq":
                found = from_gptq(qweight, qzeros, scales, order, bits, added)
            else:
                found = from_awq(qweight, qzeros, scales, bits)
        except KeyError as e:
            raise ValueError(f"{where}: {name} has no {e} beside it") from None
        except ValueError as e:
            raise ValueError(f"{where}: {stem.rstrip('.')}: {e}") from None
        groups[f"{stem}weight"] = found
        left[f"{stem}weight"] = shape_of(found)
    return left, groups


def shape_of(groups: Groups) -> Array:
    """An array of the matrix's shape that takes no memory."""
    rows, columns = len(groups.w), groups.scale.shape[1] * groups.group_size
    return np.broadcast_to(np.float16(0), (rows, columns))
