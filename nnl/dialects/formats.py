# SPDX-License-Identifier: Apache-2.0
"""The file formats that dialects read, for what converts networks."""

from __future__ import annotations

from collections.abc import Sequence

from nnl.converters.formats import FORMATS, Format, WriteOptions
from nnl.converters.networks.lowering import Target
from nnl.converters.networks.model import Model


def _claims(paths: Sequence[str]) -> bool:
    from nnl.dialects.caffe.convert import is_caffe

    return is_caffe(paths)


def _read(paths: Sequence[str]) -> Model:
    from nnl.dialects.caffe.convert import CaffeModel

    return CaffeModel(paths)


def _write(model: Model, path: str, options: WriteOptions) -> None:
    from nnl.converters.caffe.writer import write

    size = options.batch_size
    if options.version is not None:
        raise ValueError("the format CAFFE has no versions to choose from: leave -d out")
    if size is not None and size < 1:
        raise ValueError(f"the batch size is {size}, wanted at least 1: CAFFE has a fixed one")
    write(path, model.network(size, inference=True))


def _target() -> Target:
    from nnl.converters.caffe.writer import TARGET

    return TARGET


FORMATS["CAFFE"] = Format(
    "CAFFE", "Caffe", (".caffemodel",), _read, _write, target=_target, claims=_claims
)
