# SPDX-License-Identifier: Apache-2.0
"""Operations that Python runs between programs: their results are fed to what needs them."""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.workspace as ws
from nnl.dialects.tensorflow.graph import Leaf, Tensor, get_default_graph
from nnl.dialects.tensorflow.operation import array_of, as_dtype
from nnl.dialects.tensorflow.shapes import sizes_of
from nnl.dialects.tensorflow.table import tensor


class HostOperation(Leaf):
    """An operation that Python runs, once in each run of a session that needs it.

    Args:
        type: Its name, made unique, unless it is given another.
        call: f(session, *values of inputs) -> the list of its results.
        inputs: Tensors.
        dtypes, shapes: Of its results; a number if there are none.
    """

    def __init__(self, type, call, inputs=(), dtypes=(np.int32,), shapes=None, name=None):
        graph = self.graph = get_default_graph()
        self.type, self.call, self.inputs = type, call, tuple(inputs)
        self.after = graph.after
        self.name = graph.unique(name or type)
        self.outputs = ()
        for i, dtype in enumerate(dtypes):
            key = f"{self.name}:{i}" if i else self.name
            sizes = sizes_of(shapes[i]) if shapes else ()
            made = Tensor(graph.workspace, key, sizes, as_dtype(dtype))
            made.host = self
            self.outputs += (made,)

    def run_in(self, session, fed):
        """Note its results in what is fed to the rest of a run."""
        # What is computed for it is not computed again.
        values = session.values_of((*self.inputs, *self.after), fed)
        fed.update(values)
        made = self.call(session, *[values[x] for x in self.inputs]) or [0]
        for t, v in zip(self.outputs, made, strict=True):
            fed[t] = np.asarray(v, t.dtype)

    def run(self, feed_dict=None, session=None):
        """Run it in a session."""
        self.outputs[0].eval(feed_dict, session)


def hosts(tensors, feeds):
    """What Python must run for some tensors, where others are given."""
    stop = set(feeds)
    found = [t for t in tensors if t not in stop]
    leaves = ws.needed(found, feeds)[1]
    return list(dict.fromkeys([t.host for t in leaves if t.__dict__.get("host")]))


def host(type, f: Callable[..., Any], inputs, dtype, shape=None, name=None):
    """The result of a function of values that Python computes."""
    call = HostOperation(type, lambda _, *v: [f(*v)], map(tensor, inputs), [dtype], [shape], name)
    return call.outputs[0]


def py_func(func, inp, Tout, stateful=True, name=None):
    """What a function of arrays gives. No gradient goes through it."""
    many = isinstance(Tout, (list, tuple))

    def call(session, *values):
        made = func(*values)
        return list(made) if isinstance(made, (list, tuple)) else [] if made is None else [made]

    dtypes = Tout if many else [Tout]
    op = HostOperation("PyFunc", call, map(tensor, inp), dtypes or [np.int32],
                       [None] * len(dtypes) if dtypes else None, name or "PyFunc")  # fmt: skip
    if not dtypes:
        return op
    return list(op.outputs) if many else op.outputs[0]


# ---- texts and files ----


def _text(x):
    x = x.item() if isinstance(x, np.ndarray) else x
    return x.decode() if isinstance(x, bytes) else x


def read_file(filename, name=None):
    """The bytes of a file."""

    def read(path):
        with open(_text(path), "rb") as file:
            return file.read()

    return host("ReadFile", read, [filename], object, (), name)


def decode_raw(bytes, out_type, little_endian=True, name=None):
    """Bytes as numbers."""
    dtype = as_dtype(out_type)
    kind = dtype.newbyteorder("<" if little_endian else ">")

    def decode(value):
        rows = [np.frombuffer(v, kind).astype(dtype) for v in value.reshape(-1)]
        return np.reshape(rows, (*value.shape, -1))

    return host("DecodeRaw", decode, [bytes], dtype, None, name)


def string_to_number(string_tensor, out_type=np.float32, name=None):
    """Texts as numbers."""
    x, dtype = tensor(string_tensor), as_dtype(out_type)

    def convert(value):
        return np.reshape([dtype.type(_text(v)) for v in value.reshape(-1)], value.shape)

    return host("StringToNumber", convert, [x], dtype, x.sizes, name)


def decode_csv(records, record_defaults, field_delim=",", use_quote_delim=True, name=None,
               na_value="", select_cols=None):  # fmt: skip
    """The columns of lines: numbers or texts, as their defaults are."""
    defaults = [array_of(d) for d in record_defaults]
    dtypes = [d.dtype for d in defaults]
    records = tensor(records)
    quoting = csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE

    def parse(session, value):
        lines = [_text(v) for v in value.reshape(-1)]
        columns = [[] for _ in defaults]
        for line in csv.reader(lines, delimiter=field_delim, quoting=quoting):
            cells = line if select_cols is None else [line[i] for i in select_cols]
            if len(cells) != len(defaults):
                raise ValueError(f"Expect {len(defaults)} fields but have {len(cells)} in record")
            for cell, column, default, dtype in zip(cells, columns, defaults, dtypes, strict=True):
                if cell == na_value:
                    if not default.size:
                        raise ValueError("a field is required but missing in a record")
                    column.append(default.reshape(-1)[0])
                else:
                    column.append(cell.encode() if dtype.kind == "O" else dtype.type(cell))
        return [
            np.reshape(np.array(c, d), value.shape) for c, d in zip(columns, dtypes, strict=True)
        ]

    op = HostOperation("DecodeCSV", parse, [records], dtypes, [records.sizes] * len(dtypes), name)
    return list(op.outputs)


def decode_image(contents, channels=None, dtype=np.uint8, name=None, **_):
    """The pixels of a PNG or JPEG file: (height, width, channels)."""

    def decode(data):
        from nnl.data.images.pixels import _opened

        with _opened(data.item() if isinstance(data, np.ndarray) else data) as picture:
            mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels)
            if mode is None:
                mode = picture.mode if picture.mode in ("L", "RGB", "RGBA") else "RGB"
            pixels = np.asarray(picture.convert(mode), np.uint8)
        return pixels.reshape(*pixels.shape[:2], -1)

    return host("DecodeImage", decode, [contents], np.uint8, (None, None, channels or None), name)
