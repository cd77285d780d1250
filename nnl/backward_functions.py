# SPDX-License-Identifier: Apache-2.0
from nnl.core.python_function import PYTHON_GRADS as registry
from nnl.core.python_function import register

__all__ = ["registry", "register"]
