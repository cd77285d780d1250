# SPDX-License-Identifier: Apache-2.0
"""What a page says when Sphinx reads it: markers are filled in, blocks of Python become cells.

Pages are plain Markdown that is readable as it stands. Three things in them mean more:

    ```python            a block that runs, in one program with the others of the page; its last
                         value is shown
    ```sh run            commands that run, in the folder of that program
    <!-- parametric -->  a comment of its own on a line: replaced by what `markers` says of the name

Words after `python`: `left` and `right` for blocks side by side, `needs-torch` for one that only
runs where that package is, `raises` for one that ends in an error, `hidden` for one that is not
shown. Code that is not meant to run is a block of another name, `py`, `text` or none. Blocks of
`cpp` and `c` are compiled and run by tests/test_docs_cpp.py; a block `text prints` after one is
what it prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec

FENCE = re.compile(r"^```(python|sh run)\b([^\n]*)\n(.*?)^```$", re.M | re.S)
MARKER = re.compile(r"^<!-- ([\w-]+)((?: [\w./_-]+)*) -->$", re.M)
TAGS = {"raises": "raises-exception", "hidden": "remove-cell"}
NOTEBOOK = """---
file_format: mystnb
kernelspec:
  name: python3
  display_name: Python 3
language_info:
  name: python
  pygments_lexer: ipython3
---
"""

# IPython's own magic prints pieces of 100 bytes, which MyST-NB takes for lines.
SHELL = """```{code-cell} ipython3
:tags: [remove-cell]

import subprocess, sys

def run_commands(line, commands):
    done = subprocess.run(["bash", "-e", "-c", commands], capture_output=True, text=True)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}")

get_ipython().register_magic_function(run_commands, "cell", "bash")
```

"""

Markers = Mapping[str, Callable[..., str]]


def filled(text: str, markers: Markers) -> str:
    """The text of a page with what its markers stand for."""
    return MARKER.sub(
        lambda m: markers[m[1]](*m[2].split()) if m[1] in markers else m[0],
        text,
    )


def runs_here(words: str) -> bool:
    """Whether the packages that a block needs are installed."""
    needed = [w.removeprefix("needs-") for w in words.split() if w.startswith("needs-")]
    return all(find_spec(name) for name in needed)


def blocks(text: str) -> list[tuple[str, str, str]]:
    """(kind, words, code) of the blocks of a filled page that run here."""
    return [m for m in FENCE.findall(text) if runs_here(m[1])]


def notebook(text: str) -> str:
    """A filled page as MyST-NB takes it; a page without blocks stays as it is."""
    if not FENCE.search(text):
        return text

    def cell(match: re.Match[str]) -> str:
        kind, words, code = match.groups()
        if not runs_here(words):
            sides = [f"tag_{word}" for word in words.split() if word in ("left", "right")]
            shown = f":::{{container}} cell {' '.join(sides)}\n```py\n{code}```\n:::"
            return "" if "hidden" in words.split() else shown
        if kind == "sh run":
            run = f"```{{code-cell}} ipython3\n:tags: [remove-input]\n\n%%bash\n{code}```"
            return f"```sh\n{code}```\n\n{run}"
        tags = ", ".join(TAGS.get(word, word) for word in words.split())
        return f"```{{code-cell}} ipython3\n:tags: [{tags}]\n\n{code}```"

    cells = FENCE.sub(cell, text)
    return NOTEBOOK + (SHELL if "%%bash" in cells else "") + cells
