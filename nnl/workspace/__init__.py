# SPDX-License-Identifier: Apache-2.0
"""Tensors by name, and functions that are made of them: what other frameworks' dialects share.

A Tensor names a value. An Operator computes it of other tensors; a tensor without one is fed, or
kept by its Workspace. Nothing is computed while tensors are written down. A Function is made of the
tensors that are wanted; it runs what they need, as one program for each combination of sizes that
it is called with, see nnl.compile.
"""

from nnl.workspace.body import Body
from nnl.workspace.function import Function
from nnl.workspace.tensor import Operator, Tensor, gradients, needed, value_of
from nnl.workspace.updater import Updater
from nnl.workspace.workspace import Workspace, current

__all__ = [
    "Body",
    "Function",
    "Operator",
    "Tensor",
    "Updater",
    "Workspace",
    "current",
    "gradients",
    "needed",
    "value_of",
]
