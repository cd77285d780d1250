# SPDX-License-Identifier: Apache-2.0
"""Print the public names of every module of NNabla as JSON; run by NNabla's Python.

A module that cannot be imported for want of another package has null.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import types
import warnings

import nnabla


def names_of(module):
    """What a module defines itself or, as a package, offers of the modules below it."""
    found = []
    for name, value in vars(module).items():
        if name.startswith("_") or isinstance(value, types.ModuleType):
            continue
        home = getattr(value, "__module__", None)
        if isinstance(home, str) and home.partition(".")[0] != "nnabla":
            continue
        if isinstance(home, str) and not (home + ".").startswith(module.__name__ + "."):
            continue
        found.append(name)
    return sorted(found)


warnings.simplefilter("ignore")
found = {}
walk = pkgutil.walk_packages(nnabla.__path__, "nnabla.", onerror=lambda name: None)
for name in sorted(["nnabla", *(m.name for m in walk if not m.name.endswith("__main__"))]):
    try:
        found[name] = names_of(importlib.import_module(name))
    except ImportError:
        found[name] = None
loaded = [k for k, v in vars(nnabla).items() if isinstance(v, types.ModuleType)]
sys.stdout.write("\n" + json.dumps({"modules": found, "loaded": loaded}))
