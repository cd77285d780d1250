# SPDX-License-Identifier: Apache-2.0
"""Files at addresses of object stores and servers, fetched once and kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from nnl.core.parameters.atomic import replacing
from nnl.data.download import get_data_home


def local_files(function: str, path: str) -> list[str]:
    """Paths on this machine of what an address names, fetched into get_data_home() if missing.

    Args:
        function: Who asks, for errors.
        path: An address of any kind that fsspec knows, s3://, gcs:// or http:// as well; * is
            anything. A path without :// is given back.
    Raises:
        ImportError: fsspec, or its package for this kind of address, is missing.
        FileNotFoundError: There is no such file. OSError: It cannot be fetched.
    """
    kind, rest = path.partition("://")[::2]
    if not rest:
        return [path]
    try:
        import fsspec

        store, pattern = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as e:
        raise ImportError(f"{function}: {path} takes fsspec: pip install 'nnl[urls]': {e}") from e
    names = sorted(store.glob(pattern)) if "*" in pattern else [pattern]
    if not names:
        raise FileNotFoundError(f"{function}: there is no file {path}")
    return [_fetched(function, store, kind, name) for name in names]


def _fetched(function: str, store: object, kind: str, name: str) -> str:
    key = hashlib.sha256(f"{kind}://{name}".encode()).hexdigest()[:16]
    target = Path(get_data_home()) / "fetched" / f"{key}-{os.path.basename(name)}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(target) as temporary:  # whole or not there, whoever else fetches it
                store.get_file(name, str(temporary))  # type: ignore[attr-defined]
        except FileNotFoundError as e:
            raise FileNotFoundError(f"{function}: there is no file {kind}://{name}") from e
    return str(target)
