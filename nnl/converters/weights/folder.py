# SPDX-License-Identifier: Apache-2.0
"""Weights of a folder as Hugging Face's libraries write it: in one file, or in several by an index.

model.safetensors, or model.safetensors.index.json and the files that it names
pytorch_model.bin, or pytorch_model.bin.index.json and the files that it names
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.weights.pytorch import read_pytorch
from nnl.converters.weights.safetensors import read_safetensors
from nnl.converters.weights.tensors import Array
from nnl.core.parameters.atomic import replacing
from nnl.core.parameters.safetensors import save

NAMES = ("model.safetensors", "pytorch_model.bin")
INDEX = ".index.json"


def read_folder(folder: str | os.PathLike[str], where: str) -> dict[str, Array]:
    """All arrays by name, of the types that they have in the file.

    Those of safetensors are the memory of the file, mapped: a page is read when it is first used,
    and copied when it is first written; the file never changes.

    Raises:
        ValueError: There is no such file, one is missing or damaged, or the index does not fit.
    """
    root = Path(folder)
    for name in NAMES:
        if (root / name).exists():
            return read_file(root / name, where)
        if (root / (name + INDEX)).exists():
            return _shards(root, root / (name + INDEX), where)
    raise ValueError(
        f"{where}: {root} has no weights: there is neither {NAMES[0]} nor {NAMES[1]}, nor an index "
        f"of one (*{INDEX})"
    )


def read_json(path: Path, where: str) -> dict[str, Any]:
    """A file of JSON that holds an object.

    Raises:
        ValueError: It holds something else, or is missing.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{where}: there is no {path}") from None
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{where}: {path} is no JSON: {e}") from e
    if not isinstance(data, dict):
        raise ValueError(f"{where}: {path} holds {type(data).__name__}, wanted an object")
    return data


def write_folder(
    folder: str | os.PathLike[str], arrays: Mapping[str, Array], most_bytes: int
) -> None:
    """Write arrays to one safetensors file, or to several with an index where they are larger."""
    root = Path(folder)
    groups: list[dict[str, Array]] = [{}]
    size = 0
    for name, a in arrays.items():
        if groups[-1] and size + a.nbytes > most_bytes:
            groups.append({})
            size = 0
        groups[-1][name] = a
        size += a.nbytes
    if len(groups) == 1:
        save(root / NAMES[0], groups[0], {"format": "pt"})
        return
    names: dict[str, str] = {}
    for i, group in enumerate(groups, 1):
        file = f"model-{i:05}-of-{len(groups):05}.safetensors"
        save(root / file, group, {"format": "pt"})
        names |= dict.fromkeys(group, file)
    total = sum(a.nbytes for a in arrays.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": names}, indent=1)
    with replacing(root / (NAMES[0] + INDEX)) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


def read_file(path: Path, where: str) -> dict[str, Array]:
    """All arrays of one file; see `read_folder`."""
    at = f"{where}: {path}"
    with open(path, "rb", buffering=0) as f:
        if path.suffix == ".bin":
            return read_pytorch(f, at)  # type: ignore[arg-type]
        if os.fstat(f.fileno()).st_size == 0:
            raise ValueError(f"{at}: the file is empty")
        memory = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
    return read_safetensors(np.frombuffer(memory, np.uint8), at)


def _shards(root: Path, index: Path, where: str) -> dict[str, Array]:
    names = read_json(index, where).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(f, str) for f in names.values()):
        raise ValueError(f"{where}: {index} has no weight_map of names and files")
    found: dict[str, Array] = {}
    for file in dict.fromkeys(names.values()):
        if os.path.basename(file) != file or not (root / file).is_file():
            raise ValueError(f"{where}: {index} names the file {file!r:.80}, which is not there")
        for name, a in read_file(root / file, where).items():
            if names.get(name) != file:
                raise ValueError(f"{where}: {index} says nothing of {name!r}, which {file} has")
            found[name] = a
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{where}: {index} names {missing[0]!r}, which {names[missing[0]]} lacks")
    return found
