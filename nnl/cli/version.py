# SPDX-License-Identifier: Apache-2.0
"""nnl version: of nnl and what it runs on."""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser("version")
    p.add_argument("--json", action="store_true", help="with Python, numpy and contexts, as JSON")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print it."""
    import numpy as np

    import nnl

    if not args.json:
        print(nnl.__version__)
        return 0
    facts = {
        "nnl": nnl.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "contexts": nnl.available_contexts,
    }
    print(json.dumps(facts, indent=1))
    return 0
