# SPDX-License-Identifier: Apache-2.0
"""The functions. Each module defines some and lists them in __all__; all are offered here."""

import gc
import importlib
import pkgutil

from nnl.core.arguments.suggest import module_getattr

__all__: list[str] = []

_collects = gc.isenabled()
gc.disable()  # all that is defined stays: there is nothing to collect, and looking takes a tenth
for _info in pkgutil.iter_modules(__path__):
    _module = importlib.import_module(f"{__name__}.{_info.name}")
    for _name in _module.__all__:
        globals()[_name] = getattr(_module, _name)
    __all__ += _module.__all__
if _collects:
    gc.enable()

__getattr__ = module_getattr(__name__, lambda: __all__)
