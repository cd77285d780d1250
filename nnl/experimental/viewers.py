# SPDX-License-Identifier: Apache-2.0
from nnl.graph.drawing import SimpleGraph

__all__ = ["SimpleGraph"]
