# SPDX-License-Identifier: Apache-2.0
"""numpy's .npz archives."""

from __future__ import annotations

import tokenize
from typing import BinaryIO

import numpy as np

from nnl.converters.nnp.members import BytesFile, members
from nnl.converters.weights.tensors import Array, as_array

# what numpy raises on headers, which it parses as Python
_BROKEN = (
    ValueError,
    TypeError,
    SyntaxError,
    OverflowError,
    MemoryError,
    RecursionError,
    SystemError,
    tokenize.TokenError,
)


def read_npz(file: BinaryIO, where: str) -> dict[str, Array]:
    """The arrays of an archive by name, views of what was read.

    Raises:
        ValueError: The archive or an array is damaged, or holds objects.
    """
    found = {}
    for name, packed in members(file, where, ".npz archive"):
        if not name.endswith(".npy"):
            continue
        at = f"{where}: {name!r}"
        data = packed.read()
        member = BytesFile(data)
        try:
            version = np.lib.format.read_magic(member)
            if version > (3, 0):
                raise ValueError(f"its version is {version}, wanted at most (3, 0)")
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, by_columns, dtype = read(member)
        except _BROKEN as error:
            raise ValueError(f"{at}: no array: {str(error) or type(error).__name__}") from error
        if dtype.kind not in "fiub":
            raise ValueError(f"{at}: its dtype is {dtype}, wanted numbers")
        shape = shape[::-1] if by_columns else shape
        value = as_array(data[member.tell() :], dtype, shape, at)
        found[name.removesuffix(".npy")] = value.T if by_columns else value
    return found
