# SPDX-License-Identifier: Apache-2.0
"""The error of a file that cannot be used: which file, which node, and why."""

from __future__ import annotations

import re


class OnnxError(ValueError):
    """An ONNX file or node that cannot be read, built or run.

    Args:
        reason: What is wrong, and what was wanted.
        file: Path of the model, if known.
        node: Label of the node, if the reason lies in one.
    """

    def __init__(self, reason: str, file: str = "", node: str = "") -> None:
        self.reason, self.file, self.node = reason, file, node
        super().__init__(": ".join(part for part in (file, node, reason) if part))


# What Python raises on data that is not what its schema says: names that are no text, sizes that
# overflow, and the like.
DAMAGE = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError)


def reason_of(error: BaseException) -> str:
    """What an error that is no OnnxError tells the reader of a file."""
    if isinstance(error, MemoryError):
        return f"there is not enough memory: {error}" if str(error) else "there is no memory for it"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError):
        return f"it cannot be computed: {error}"
    own = isinstance(error, TypeError) and re.match(r"\w+: ", str(error))  # of a function of nnl
    if isinstance(error, DAMAGE) and not own:  # its words are about our code
        return "something in it is not of the kind that ONNX describes"
    return str(error) if own else f"{type(error).__name__}: {error}"


class UnsupportedOperator(OnnxError, NotImplementedError):
    """An operator, or a form of one, that has no handler."""
