# SPDX-License-Identifier: Apache-2.0
from nnl.core.function import Function
from nnl.core.python_function import PythonFunction

__all__ = ["Function", "PythonFunction"]
