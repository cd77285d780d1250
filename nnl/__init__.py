# SPDX-License-Identifier: Apache-2.0
"""nnl: a deep-learning framework with NNabla's programming model."""

import importlib

__version__ = "0.1.0"

from nnl.nnabla import paths as _paths  # isort: skip  (finds modules that are imported below)
from nnl import context, ext_utils  # noqa: F401
from nnl.core.arguments.suggest import module_getattr as _module_getattr
from nnl.core.arrays.array import NdArray
from nnl.core.differentiation.grad import grad
from nnl.core.graph.variable import Variable, forward_all
from nnl.core.interpreters import callback  # noqa: F401
from nnl.core.interpreters.callback import (
    set_function_post_hook,
    set_function_pre_hook,
    set_solver_post_hook,
    set_solver_pre_hook,
    unset_function_post_hook,
    unset_function_pre_hook,
    unset_solver_post_hook,
    unset_solver_pre_hook,
)
from nnl.core.interpreters.interpreter import run_by as _run_by
from nnl.core.interpreters.switches import (
    auto_forward,
    context_scope,
    get_auto_forward,
    get_current_context,
    no_grad,
    recompute,
    recompute_fn,
    set_auto_forward,
    set_default_context,
    set_global_recompute,
)
from nnl.core.ops import random  # noqa: F401
from nnl.core.ops.caches import set_cache_size
from nnl.core.ops.random import seed
from nnl.core.parameters import parameter  # noqa: F401
from nnl.core.parameters.parameter import (
    clear_parameters,
    get_current_parameter_scope,
    get_parameters,
    parameter_scope,
)
from nnl.core.settings.context import Context
from nnl.ext import get_extension_context as _get_extension_context
from nnl.ext.native import set_threads

set_default_context(_get_extension_context("cpu", device_id="0"))

from nnl import converters as _converters  # noqa: E402, F401  (gives solvers their state files)
from nnl import functions  # noqa: E402
from nnl.logger import logger  # noqa: E402

_paths.keep_functions()

__all__ = [
    "Context", "Module", "NdArray", "ProtoVariable", "Sequential", "Variable", "at_most",
    "auto_forward", "clear_parameters", "coexecute", "coexecution", "compile", "context_scope",
    "forward_all", "functions", "get_auto_forward", "get_current_context",
    "get_current_parameter_scope", "get_parameters", "grad", "load_parameters", "load_program",
    "logger", "memory_budget", "no_grad", "parameter_scope", "print_graph", "profile", "quantize",
    "recompute", "recompute_fn", "save_parameters", "save_program", "scan", "schema", "seed",
    "set_auto_forward", "set_cache_size", "set_default_context", "set_function_post_hook",
    "set_function_pre_hook", "set_global_recompute", "set_solver_post_hook", "set_solver_pre_hook",
    "set_threads", "switch", "unset_function_post_hook", "unset_function_pre_hook",
    "unset_solver_post_hook", "unset_solver_pre_hook", "while_loop",
]  # fmt: skip

_LAZY = (
    "backward_functions",
    "communicator",
    "communicators",
    "converters",
    "data",
    "datasets",
    "function",
    "graph",
    "graph_def",
    "initializer",
    "models",
    "monitor",
    "parametric_functions",
    "solvers",
    "training",
    "utils",
    "variable",
)
_HOST = (
    "add_available_context", "array_classes", "available_contexts", "prefer_cached_array",
    "reset_array_preference",
)  # fmt: skip

_MADE = {
    "coexecute": "coexec", "coexecution": "coexec", "quantize": "converters.quantizing",
    **dict.fromkeys(
        ("at_most", "compile", "load_program", "memory_budget", "print_graph", "profile",
         "save_program", "scan", "schema", "switch", "while_loop"), "graph"),
}  # fmt: skip
_missing = _module_getattr("nnl", lambda: (*__all__, *_LAZY))


def __getattr__(name):
    if name in _LAZY or name in _paths.LOADED:
        return importlib.import_module(f"nnl.{name}")
    if name in _HOST:
        return getattr(importlib.import_module("nnl.ext.host_device"), name)
    if name in _MADE:
        return getattr(importlib.import_module(f"nnl.{_MADE[name]}"), name)
    if name in ("Module", "Sequential"):
        from nnl.parametric_functions import module

        return getattr(module, name)
    if name == "ProtoVariable":
        from nnl.converters.nnp.graph_def import ProtoVariable

        return ProtoVariable
    if name in _paths.REFUSED:
        raise AttributeError(f"no module nnl.{name}: {_paths.REFUSED[name]}")
    return _missing(name)


def load_parameters(path, proto=None, needs_proto=False, extension=".nntxt"):
    """Read parameters from a file; see nnl.converters.nnp.parameter_files.load_parameters.
    >>> nn.save_parameters("ex.h5")
    >>> nn.load_parameters("ex.h5")
    """
    from nnl.converters.nnp.parameter_files import load_parameters as load

    return load(path, proto, needs_proto, extension)


def save_parameters(path, params=None, extension=None):
    """Write parameters to a file; see nnl.converters.nnp.parameter_files.save_parameters.
    >>> nn.save_parameters("ex.h5")
    """
    from nnl.converters.nnp.parameter_files import save_parameters as save

    return save(path, params, extension)


class _Executor:
    """Runs recorded graphs; what that takes is imported when the first is to run."""

    def __getattr__(self, name):
        graph = importlib.import_module("nnl.graph.execution.executor")
        return getattr(graph.EXECUTOR, name)


parameter.FILES.update(load_parameters=load_parameters, save_parameters=save_parameters)
_run_by(_Executor())
