# SPDX-License-Identifier: Apache-2.0
"""Notebooks: files of Python in the percent format, which jupytext reads."""

from __future__ import annotations

from typing import Any


def read(text: str) -> Any:
    """The notebook of a file, without the line of its licence."""
    import jupytext

    first, _, rest = text.partition("\n")
    made = jupytext.reads(rest if first.startswith("# SPDX") else text, fmt="py:percent")
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    made.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    return made
