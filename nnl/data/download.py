# SPDX-License-Identifier: Apache-2.0
"""Fetch a file once and keep it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlparse
from urllib.request import urlopen

from nnl.core.parameters.atomic import replacing


def get_data_home() -> str:
    """Folder of downloaded files: $NNL_DATA_HOME, or nnl_data in the home folder."""
    return os.environ.get("NNL_DATA_HOME") or str(Path.home() / "nnl_data")


def download(
    url: str,
    output_file: str | os.PathLike[str] | None = None,
    open_file: bool = True,
    allow_overwrite: bool = False,
) -> IO[bytes] | None:
    """Download a file unless it is there already.

    Args:
        url: http, https or file address.
        output_file: Where it goes; by default the last part of the address in get_data_home().
        open_file: Return the file, open for reading in binary mode.
        allow_overwrite: Download it again if it is there.
    Returns:
        The open file, or None.
    Raises:
        ValueError: The address names no file. URLError: it cannot be reached; what was there stays.
    """
    name = os.path.basename(unquote(urlparse(url).path))
    if output_file is None and not name:
        raise ValueError(f"download: url {url!r} names no file; give output_file")
    target = Path(get_data_home()) / name if output_file is None else Path(output_file)
    if allow_overwrite or not target.exists():
        from tqdm import tqdm

        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            urlopen(url) as source,
            replacing(target) as temporary,
            open(temporary, "wb") as sink,
        ):
            size = source.headers.get("Content-Length")
            with tqdm.wrapattr(
                source, "read", total=int(size) if size else None, desc=name, file=sys.stderr,
                disable=None,
            ) as reader:  # fmt: skip
                shutil.copyfileobj(reader, sink)
    return open(target, "rb") if open_file else None
