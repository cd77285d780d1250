# SPDX-License-Identifier: Apache-2.0
"""Where the command `nnl` begins: its help comes without the framework, which takes 0.2 s.

It stands outside of nnl, because whatever is in there is imported after nnl itself.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType


def main() -> int:
    """Entry point of `nnl`."""
    spec = find_spec("nnl")
    if sys.argv[1:] in ([], ["-h"], ["--help"]) and spec is not None:
        package = ModuleType("nnl")  # in the place of nnl, whose __init__ is not run
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules["nnl"] = package
    try:
        from nnl.cli.main import main as run

        return run()
    except KeyboardInterrupt:  # while the framework was being imported
        if "--debug" in sys.argv:
            raise
        print("nnl: error: interrupted", file=sys.stderr)
        return 130
