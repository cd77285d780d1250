# SPDX-License-Identifier: Apache-2.0
"""Co-execution: a program stays imperative Python, and its steps run as programs of the engine."""

from nnl.coexec.coexecution import coexecute, coexecution

__all__ = ["coexecute", "coexecution"]
