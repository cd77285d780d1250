# SPDX-License-Identifier: Apache-2.0
"""Files of the GGUF format, as llama.cpp keeps models: metadata, and tensors in blocks of few bits.

    "GGUF", version, number of tensors, number of metadata entries
    metadata  name, type, value
    tensors   name, sizes (the fastest one first), type, offset
    data      aligned to general.alignment (32) bytes; offsets count from here

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the blocks are those of ggml's
ggml-common.h.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import bfloat16

from nnl.converters.weights.groups import Groups, packed
from nnl.functions.quantized_matmul import values_of

Array = np.ndarray[Any, Any]

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
MOST_AXES, MOST_DEPTH = 4, 4


class Blocks(NamedTuple):
    """Decoded blocks: codes (n, values), and scale and offset (n, groups) in float32."""

    codes: Array
    scale: Array
    offset: Array | None  # None: codes are symmetric around the middle of their bits
    bits: int


class Format(NamedTuple):
    """A type of tensors: values and bytes of a block, and what decodes (n, bytes) of uint8."""

    name: str
    values: int
    bytes: int
    decode: Callable[[Array], Blocks] | None  # None: an array of numpy's type of this name


def _half(b: Array, at: int) -> Array:
    return b[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(b: Array, run: int) -> Array:
    """Of each `run` bytes the low halves first, then the high ones."""
    b = b.reshape(len(b), -1, 1, run)
    return np.concatenate((b & 15, b >> 4), axis=2).reshape(len(b), -1)


def _fifth_bits(b: Array) -> Array:
    return np.unpackbits(b, axis=1, bitorder="little") << 4


def _q4(b: Array, first: bool) -> Blocks:
    at = 2 if first else 4
    return Blocks(_nibbles(b[:, at:], 16), _half(b, 0), None if first else _half(b, 2), 4)


def _q5(b: Array, first: bool) -> Blocks:
    at = 2 if first else 4
    codes = _nibbles(b[:, at + 4 :], 16) | _fifth_bits(b[:, at : at + 4])
    if first:  # around 16: moved to the middle of 8 bits
        return Blocks(codes + np.uint8(112), _half(b, 0), None, 8)
    return Blocks(codes, _half(b, 0), _half(b, 2), 8)


def _q8_0(b: Array) -> Blocks:
    return Blocks(b[:, 2:] ^ np.uint8(128), _half(b, 0), None, 8)


def _k_scales(b: Array) -> tuple[Array, Array]:
    """Scale and offset of the 8 groups of a block: 12 bytes hold 16 numbers of 6 bits."""
    s = b[:, 4:16]
    low, high = s[:, :4] & 63, (s[:, 8:] & 15) | (s[:, :4] >> 6 << 4)
    least, more = s[:, 4:8] & 63, (s[:, 8:] >> 4) | (s[:, 4:8] >> 6 << 4)
    scale = np.concatenate((low, high), 1).astype(np.float32) * _half(b, 0)
    return scale, np.concatenate((least, more), 1).astype(np.float32) * -_half(b, 2)


def _q4_k(b: Array) -> Blocks:
    return Blocks(_nibbles(b[:, 16:], 32), *_k_scales(b), 4)


def _q5_k(b: Array) -> Blocks:
    bits = b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _nibbles(b[:, 48:], 32) | (bits << 4).reshape(len(b), -1)
    return Blocks(codes, *_k_scales(b), 8)


def _q6_k(b: Array) -> Blocks:
    low = b[:, :128].reshape(-1, 2, 2, 32)
    low = np.concatenate((low & 15, low >> 4), axis=2)  # (n, half, 4 runs, 32)
    high = b[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scale = b[:, 192:208].view(np.int8).astype(np.float32) * _half(b, 208)
    codes = (low | (high << 4)).reshape(len(b), 256)
    return Blocks(codes + np.uint8(96), scale, None, 8)  # around 32: to the middle of 8 bits


FORMATS = {
    0: Format("float32", 1, 4, None),
    1: Format("float16", 1, 2, None),
    2: Format("Q4_0", 32, 18, lambda b: _q4(b, True)),
    3: Format("Q4_1", 32, 20, lambda b: _q4(b, False)),
    6: Format("Q5_0", 32, 22, lambda b: _q5(b, True)),
    7: Format("Q5_1", 32, 24, lambda b: _q5(b, False)),
    8: Format("Q8_0", 32, 34, _q8_0),
    12: Format("Q4_K", 256, 144, _q4_k),
    13: Format("Q5_K", 256, 176, _q5_k),
    14: Format("Q6_K", 256, 210, _q6_k),
    24: Format("int8", 1, 1, None),
    25: Format("int16", 1, 2, None),
    26: Format("int32", 1, 4, None),
    27: Format("int64", 1, 8, None),
    28: Format("float64", 1, 8, None),
    30: Format("bfloat16", 1, 2, None),
}


class Tensor(NamedTuple):
    """A tensor of a mapped file. Nothing is decoded before it is asked for."""

    format: Format
    shape: tuple[int, ...]
    data: Array  # its bytes

    def array(self) -> Array:
        """Its values: as they are stored, or float32 from blocks."""
        if self.format.decode is None:
            name = self.format.name
            return self.data.view(bfloat16 if name == "bfloat16" else name).reshape(self.shape)
        blocks = self.format.decode(self.data.reshape(-1, self.format.bytes))
        values = values_of(np, blocks.codes, blocks.bits, blocks.scale, blocks.offset)
        return np.asarray(values).reshape(self.shape)

    def groups(self) -> Groups | None:
        """A matrix in blocks with its codes as they are; None for another tensor.

        Scales are float16, as in the file, but for those that float16 would round to subnormal
        numbers. Codes of 5 and 6 bits become 8.
        """
        if self.format.decode is None or len(self.shape) != 2:
            return None
        blocks = self.format.decode(self.data.reshape(-1, self.format.bytes))
        rows, columns = self.shape
        size = blocks.codes.shape[1] // blocks.scale.shape[1]
        codes = packed(blocks.codes.reshape(rows, columns), blocks.bits)
        numbers = [blocks.scale] if blocks.offset is None else [blocks.scale, blocks.offset]
        sizes = np.abs(np.concatenate(numbers, axis=1))
        limits = np.finfo(np.float16)
        exact = (sizes <= limits.max) & ((sizes >= limits.tiny) | (sizes == 0))
        half = np.float16 if exact.all() else np.float32
        scale, *offset = (v.reshape(rows, columns // size).astype(half) for v in numbers)
        return Groups(codes, scale, offset[0] if offset else None, blocks.bits, size)


class Reader:
    """Reads numbers and strings one after the other, and never beyond the end."""

    def __init__(self, data: Array, where: str) -> None:
        self.data, self.where, self.at = data, where, 0

    def fail(self, what: str) -> ValueError:
        return ValueError(f"{self.where}: {what}")

    def take(self, size: int, what: str) -> bytes:
        if size > self.data.size - self.at:
            raise self.fail(
                f"{what} takes {size} bytes at byte {self.at}, the file has {self.data.size}"
            )
        self.at += size
        return self.data[self.at - size : self.at].tobytes()

    def number(self, code: str, what: str) -> Any:
        size = struct.calcsize("<" + code)
        return struct.unpack("<" + code, self.take(size, what))[0]

    def string(self, what: str) -> str:
        raw = self.take(self.number("Q", what), what)
        try:
            return raw.decode()
        except UnicodeDecodeError as e:
            raise self.fail(f"{what} is no UTF-8: {e}") from None

    def count(self, what: str, least: int) -> int:
        """A number of items of at least so many bytes each."""
        n = self.number("Q", what)
        if n * least > self.data.size - self.at:
            raise self.fail(f"{what} is {n}, more than the file of {self.data.size} bytes holds")
        return int(n)

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind], what)
        if kind == STRING:
            return self.string(what)
        if kind != ARRAY or depth == MOST_DEPTH:
            raise self.fail(f"{what} has the type {kind}, which GGUF does not have (here)")
        of = self.number("I", what)
        if of in SCALARS:
            size = struct.calcsize(SCALARS[of])
            n = self.count(f"the length of {what}", size)
            return list(struct.unpack(f"<{n}{SCALARS[of]}", self.take(n * size, what)))
        return [self.value(of, what, depth + 1) for _ in range(self.count(what, 8))]


def read_gguf(
    path: str | os.PathLike[str], where: str = "read_gguf"
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and the tensors of a file, which is mapped.

    Raises:
        ValueError: The file is no GGUF of version 2 or 3, damaged, or a tensor has a type that is
            not read; the text names it.
    """
    with open(path, "rb") as f:
        if os.fstat(f.fileno()).st_size < 24:
            raise ValueError(f"{where}: {path} is no GGUF file")
        memory = np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    r = Reader(memory, f"{where}: {path}")
    if r.take(4, "the name of the format") != b"GGUF":
        raise r.fail("it does not begin with 'GGUF'")
    version = r.number("I", "the version")
    if version not in (2, 3):
        raise r.fail(f"version {version}, wanted 2 or 3 (and little endian)")
    tensors, entries = r.count("the number of tensors", 24), r.count("the number of entries", 13)
    metadata = {}
    for _ in range(entries):
        name = r.string("the name of an entry")
        metadata[name] = r.value(r.number("I", name), f"entry {name!r:.80}")
    found = [_described(r) for _ in range(tensors)]
    align = metadata.get("general.alignment", 32)
    if not isinstance(align, int) or align < 8 or align > 2**20 or align & (align - 1):
        raise r.fail(f"general.alignment is {align!r:.40}, wanted a power of 2 from 8 on")
    start, by_name = -(-r.at // align) * align, {}
    for name, form, shape, size, offset in found:
        begin = start + offset
        if offset % align or begin + size > memory.size:
            raise r.fail(
                f"tensor {name!r:.80} lies at {offset} with {size} bytes, wanted a multiple of "
                f"{align} inside of the {memory.size - start} bytes of data"
            )
        if name in by_name:
            raise r.fail(f"two tensors are called {name!r:.80}")
        by_name[name] = Tensor(form, shape, memory[begin : begin + size])
    return metadata, by_name


def _described(r: Reader) -> tuple[str, Format, tuple[int, ...], int, int]:
    """Name, format, shape, bytes and offset of the next tensor."""
    name = r.string("the name of a tensor")
    what = f"tensor {name!r:.80}"
    axes = r.number("I", what)
    if axes > MOST_AXES:
        raise r.fail(f"{what} has {axes} axes, wanted at most {MOST_AXES}")
    shape = tuple(reversed([r.number("Q", what) for _ in range(axes)]))
    kind, offset = r.number("I", what), r.number("Q", what)
    form = FORMATS.get(kind)
    if form is None:
        known = ", ".join(f.name for f in FORMATS.values())
        raise r.fail(f"{what} has the type {kind}, which is not read; read are {known}")
    size = 1
    for n in shape:
        size *= n
    if 0 in shape:
        raise r.fail(f"{what} has the shape {shape}, wanted sizes from 1 on")
    if (shape[-1] if shape else 1) % form.values:
        raise r.fail(f"{what} has the shape {shape}, wanted rows of whole blocks of {form.values}")
    return name, form, shape, size // form.values * form.bytes, offset
