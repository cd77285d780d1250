# SPDX-License-Identifier: Apache-2.0
"""Weights in files of the safetensors format."""

from __future__ import annotations

from nnl.converters.weights.tensors import Array, as_array
from nnl.core.parameters.safetensors import read_header


def read_safetensors(data: Array, where: str) -> dict[str, Array]:
    """The arrays of a file by name; views of `data` where they begin as they must.

    Raises:
        ValueError: The file is not what the format says; the text names the array.
    """
    entries, _ = read_header(data, where)
    return {
        name: as_array(
            data[e.begin : e.end],
            "bf16" if e.dtype == "bfloat16" else e.dtype,
            e.shape,
            f"{where}: {name!r}",
        )
        for name, e in entries.items()
    }
