# SPDX-License-Identifier: Apache-2.0
"""Prints where pip put oneDNN's headers and library: two folders, with a semicolon between.

Asks for the files of the two packages instead of guessing from sys.prefix: pip builds in an
environment of its own, whose packages lie in a temporary folder while sys.prefix names another.
Prints nothing where one of them is missing.
"""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path


def folder_of(package: str, name: str) -> Path | None:
    """The folder on disk that holds this file of this package; None if there is none."""
    try:
        found = [f for f in files(package) or [] if f.as_posix().endswith("/" + name)]
    except PackageNotFoundError:
        return None
    paths = [Path(str(f.locate())).resolve() for f in found]
    up = len(Path(name).parts) - 1
    return next((p.parents[up] for p in paths if p.is_file()), None)


if __name__ == "__main__":
    include = folder_of("onednn-devel-cpu-gomp", "oneapi/dnnl/dnnl.hpp")
    library = folder_of("onednn-cpu-gomp", "libdnnl.so")
    if include and library:
        print(f"{include.as_posix()};{library.as_posix()}")
