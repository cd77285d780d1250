# SPDX-License-Identifier: Apache-2.0
"""The error of a file that cannot be used: which file, which node, and why."""

from __future__ import annotations


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


class UnsupportedOperator(OnnxError, NotImplementedError):
    """An operator, or a form of one, that has no handler."""
