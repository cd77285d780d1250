# SPDX-License-Identifier: Apache-2.0
"""Write cupy_names.json: what the installed CuPy has, and the arguments of its functions.

    python tests/cuda/list_cupy_names.py > tests/cuda/cupy_names.json

Needs CuPy and no GPU. The strict array module (strict_xp.py) has exactly these names.
"""

import inspect
import json
import sys
import warnings


def names(thing, special=False):
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in dir(thing):
            if name.startswith("_") and not (special and name.startswith("__")):
                continue
            if hasattr(thing, name):
                found.append(name)
    return found


def arguments(module):
    """{function: names of its arguments}, without those that take any keyword or hide theirs."""
    found = {}
    for name in names(module):
        try:
            parameters = inspect.signature(getattr(module, name)).parameters.values()
        except (TypeError, ValueError):
            continue
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            found[name] = [p.name for p in parameters]
    return found


def main():
    import cupy

    modules = {
        "": cupy,
        "linalg": cupy.linalg,
        "fft": cupy.fft,
        "lib.stride_tricks": cupy.lib.stride_tricks,
    }
    table = {
        "cupy": cupy.__version__,
        "modules": {k: names(m) for k, m in modules.items()},
        "arguments": {k: arguments(m) for k, m in modules.items()},
        "ufuncs": [n for n in names(cupy) if isinstance(getattr(cupy, n), cupy.ufunc)],
        "ufunc": names(cupy.ufunc),
        "ndarray": names(cupy.ndarray, special=True),
    }
    json.dump(table, sys.stdout, indent=None, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
