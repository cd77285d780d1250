# SPDX-License-Identifier: Apache-2.0
"""Ops that only passes over programs make: each stands for several steps, or for a conversion.

They are not offered as functions. Their definitions are what kernels are tested against, and what
their attributes and results are.
"""

import importlib
import pkgutil

CATEGORY = "Fused"

__all__: list[str] = []

for _info in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_info.name}")
