# SPDX-License-Identifier: Apache-2.0
"""Products of matrices and convolutions by implicit GEMM: one kernel for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from nnl.ext.device.kernels.copies import axes_words, plain
from nnl.ext.device.kernels.module import (
    Code,
    Ins,
    Launch,
    Outs,
    blocks_for,
    divisor,
    geometry,
    is_real,
    line,
    typed,
    words,
)
from nnl.ext.device.kernels.patterns import Pattern, Space, pattern_of, stretched
from nnl.ext.device.registry import Kernel, Operand, Registry
from nnl.ext.opencl.tiles import tile_for

ARRAYS = ("const A a", "const B b", "const S bias", "C c", "f32 parts")
LOCAL = ("f32 as[KB * TM]", "f32 bs[KB * TN]")
ONE = Pattern((), ())
BLOCKS_OF_UNIT = 4  # blocks that a compute unit should have at least


class Matrices(NamedTuple):
    """What a product reads and writes, in the words of product.cl.

    Attributes:
        form: How b is read: "PLAIN", or as patches of images.
        sizes: m, n, k, and the number of matrices.
        a: Distances along m, along k / inner and the rest of k; and the size of inner, 0 without.
        b: Distances along k and n.
        z: Where matrix z begins in a, b and c.
        bias: Distances along z, m and n.
        columns: Places of b and columns of c in one image; images: distances of images in b and c.
        window: What `windows` gives.
    """

    form: str
    sizes: tuple[int, int, int, int]
    a: tuple[int, int, int, int]
    b: tuple[int, int]
    z: tuple[Pattern, Pattern, Pattern]
    bias: tuple[int, int, int]
    columns: tuple[int, int]
    images: tuple[int, int]
    c_m: int
    window: bytes


class Product(Kernel):
    """(a, b, bias or None) -> c."""

    def __init__(self, x: Matrices, types: dict[str, Operand], order: Sequence[int]) -> None:
        m, n, k, zs = x.sizes
        tile = tile_for(m, n, k, x.form in ("PATCHES", "SCATTERED"))
        self.order = tuple(order)
        rows, columns = -(-m // tile.m), -(-n // tile.n)
        wanted = geometry().wave * BLOCKS_OF_UNIT
        splits = max(1, min(wanted // (rows * columns * zs), k // (8 * tile.step), 64))
        a_m, a_k, a_rest, inner = x.a
        macros = (
            *tile.macros, ("FORM", x.form), ("A_PARTS", int(inner > 0)),
            ("A_DIRECT", int(tile.block[0] == 1)),
            ("A_ACROSS", int(a_m == 1 and not inner)), ("B_ACROSS", int(x.b[0] == 1 != x.b[1])),
            *((f"Z{s}", max(1, len(p.sizes))) for s, p in zip("ABC", x.z, strict=True)),
            *typed(**types),
        )  # fmt: skip
        rest = (
            words(
                *x.sizes, splits, a_m, a_k, a_rest, divisor(max(1, inner)), *x.b, *x.bias,
                divisor(x.columns[0]), divisor(x.columns[1]), *x.images, x.c_m,
            )
            + x.window
            + b"".join(axes_words(p) for p in x.z)
        )  # fmt: skip
        call = "product(a, b, bias, c, parts, as, bs, p)"
        code = Code("product_tiles", call, ARRAYS, "ProductP", ("product",), macros, LOCAL)
        self.main = Launch(code, (columns, rows, zs * splits), (*tile.block, 1), rest)
        self.join = None
        if splits > 1:
            self.workspace = 4 * m * n * zs * splits
            call = "join_parts(parts, c, p)"
            code = Code("product_join", call, ARRAYS, "ProductP", ("product",), macros)
            self.join = Launch(code, (blocks_for(m * n * zs), 1, 1), line(), rest)

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        given = [ins[i] if i < len(ins) else None for i in self.order]
        addresses = [*given, *[None] * (3 - len(given)), outs[0], workspace]
        self.main.run(addresses, stream)
        if self.join is not None:
            self.join.run(addresses, stream)


NO_WINDOW = words(
    divisor(1), [divisor(1)] * 2, [divisor(1)] * 2, [1] * 3, [1] * 3, [0] * 3, [1] * 3, 0
)


def usable(*operands: Operand | None) -> bool:
    """Whether all are real numbers in the plain order, and none is empty."""
    return is_real(*operands) and plain(*[x for x in operands if x is not None]) and all(
        x is None or x.size for x in operands
    )  # fmt: skip


def matrices(
    sizes: tuple[int, int, int], a: tuple[int, int], b: tuple[int, int], bias: bool = False
) -> Matrices:
    """A single product of matrices with these distances."""
    n = sizes[1]
    return Matrices(
        "PLAIN", (*sizes, 1), (*a, 0, 0), b, (ONE, ONE, ONE), (0, 0, int(bias)), (n, n), (0, 0), n,
        NO_WINDOW,
    )  # fmt: skip


def affine(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """(x, w, b?) -> x w + b."""
    x, w, b = (*ins, None)[:3]
    if x is None or w is None or not usable(x, w, b, outs[0]):
        return None
    m, k, n = math.prod(x.shape[: attrs["base_axis"]]), w.shape[0], math.prod(w.shape[1:])
    types = {"A": x, "B": w, "S": b or w, "C": outs[0]}
    return Product(matrices((m, n, k), (k, 1), (n, 1), b is not None), types, (0, 1, 2)[: len(ins)])


def affine_weight(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """(x, gy) -> x^T gy."""
    x, gy = ins[:2]
    if x is None or gy is None or not usable(x, gy, outs[0]):
        return None
    (m, k), n = x.shape, gy.shape[1]
    types = {"A": x, "B": gy, "S": gy, "C": outs[0]}
    return Product(matrices((k, n, m), (1, k), (n, 1)), types, (0, 1))


def batch_matmul(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """(a, b) -> a b for every index of the leading axes; sizes of 1 there stretch."""
    a, b = ins[:2]
    y = outs[0]
    if a is None or b is None or not usable(a, b, y):
        return None
    m, n = y.shape[-2:]
    k = a.shape[-2] if attrs["transpose_a"] else a.shape[-1]
    space = Space.of(y.shape[:-2])
    if space.size >= 1 << 16:
        return None
    patterns = []
    for x, size in ((a, m * k), (b, k * n), (y, m * n)):
        found = stretched(space, Operand(x.shape[:-2], x.dtype))
        if found is None:
            return None
        patterns.append(Pattern(found.sizes, tuple(s * size for s in found.strides)))
    at_a = (1, m) if attrs["transpose_a"] else (k, 1)
    at_b = (1, k) if attrs["transpose_b"] else (n, 1)
    one = matrices((m, n, k), at_a, at_b)
    z = (patterns[0], patterns[1], patterns[2])
    types = {"A": a, "B": b, "S": b, "C": y}
    return Product(one._replace(sizes=(m, n, k, space.size), z=z), types, (0, 1))


class Convolution(NamedTuple):
    """A convolution of images: axes in front that are missing have size 1.

    Attributes:
        own: Channels of x in a group; maps: those of y in a group.
        n_taps, n_pixels, n_places: Products of taps, of sizes of x and of those of y.
    """

    images: int
    group: int
    own: int
    maps: int
    n_taps: int
    n_pixels: int
    n_places: int
    size: tuple[int, int, int]
    taps: tuple[int, int, int]
    places: tuple[int, int, int]
    stride: tuple[int, int, int]
    pad: tuple[int, int, int]
    dilation: tuple[int, int, int]


def convolved(
    attrs: dict[str, Any], x: Operand | None, w: Operand | None, y: Operand | None,
    bias: Operand | None = None,
) -> Convolution | None:  # fmt: skip
    """The convolution x, w, bias -> y; None for what there is no kernel for."""
    if x is None or w is None or y is None or not usable(x, w, y, bias):
        return None
    base, n = attrs["base_axis"], len(x.shape) - attrs["base_axis"] - 1
    if attrs["channel_last"] or n > 3 or attrs.get("packed") or len(attrs["pad"]) != n:
        return None

    def three(values: Sequence[int], missing: int) -> tuple[int, int, int]:
        a, b, c = (*(missing,) * (3 - n), *values)
        return a, b, c

    size, taps, places = x.shape[base + 1 :], w.shape[2:], y.shape[base + 1 :]
    return Convolution(
        math.prod(x.shape[:base]), attrs["group"], x.shape[base] // attrs["group"],
        w.shape[0] // attrs["group"], math.prod(taps), math.prod(size), math.prod(places),
        three(size, 1), three(taps, 1), three(places, 1),
        three(attrs["stride"], 1), three(attrs["pad"], 0), three(attrs["dilation"], 1),
    )  # fmt: skip


def window(g: Convolution, read: tuple[int, int, int], at: tuple[int, int, int]) -> bytes:
    """The words of a window that reads images of one size for places of another."""
    return words(
        divisor(g.n_taps), divisor(g.taps[1] * g.taps[2]), divisor(g.taps[2]),
        divisor(at[1] * at[2]), divisor(at[2]), read, g.stride, g.pad, g.dilation, math.prod(read),
    )  # fmt: skip


def groups_at(g: Convolution, *sizes: int) -> tuple[Pattern, Pattern, Pattern]:
    """Where each group begins in three arrays."""
    a, b, c = (pattern_of(Space.of((g.group,)), (size,)) for size in sizes)
    return a, b, c


def convolution(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """(x, w, b?) -> y."""
    x, w, b = (*ins, None)[:3]
    g = convolved(attrs, x, w, outs[0], b)
    if g is None or x is None or w is None:
        return None
    k = g.own * g.n_taps
    made = Matrices(
        "PATCHES", (g.maps, g.images * g.n_places, k, g.group), (k, 1, 0, 0), (0, 0),
        groups_at(g, g.maps * k, g.own * g.n_pixels, g.maps * g.n_places), (g.maps, 1, 0),
        (g.n_places, g.n_places), (g.group * g.own * g.n_pixels, g.group * g.maps * g.n_places),
        g.n_places, window(g, g.size, g.places),
    )  # fmt: skip
    return Product(made, {"A": w, "B": x, "S": b or w, "C": outs[0]}, (1, 0, 2)[: len(ins)])


def data(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """convolution_data (gy, w) -> gx, and deconvolution (x, w, b?) -> y, the same plus a bias."""
    gy, w, b = (*ins, None)[:3]
    g = convolved(attrs, outs[0], w, gy, b)
    if g is None or gy is None or w is None:
        return None
    made = Matrices(
        "SCATTERED", (g.own, g.images * g.n_pixels, g.maps * g.n_taps, g.group),
        (g.n_taps, g.own * g.n_taps, 1, g.n_taps), (0, 0),
        groups_at(g, g.maps * g.own * g.n_taps, g.maps * g.n_places, g.own * g.n_pixels),
        (g.own, 1, 0), (g.n_pixels, g.n_pixels),
        (g.group * g.maps * g.n_places, g.group * g.own * g.n_pixels), g.n_pixels,
        window(g, g.places, g.size),
    )  # fmt: skip
    return Product(made, {"A": w, "B": gy, "S": b or w, "C": outs[0]}, (1, 0, 2)[: len(ins)])


def weight(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """convolution_weight (x, gy) -> gw."""
    x, gy = ins[:2]
    g = convolved(attrs, x, outs[0], gy)
    if g is None or x is None or gy is None:
        return None
    n = g.own * g.n_taps
    made = Matrices(
        "PATCHES_ACROSS", (g.maps, n, g.images * g.n_places, g.group),
        (g.n_places, g.group * g.maps * g.n_places, 1, g.n_places), (0, 0),
        groups_at(g, g.maps * g.n_places, g.own * g.n_pixels, g.maps * n), (0, 0, 0),
        (g.n_places, n), (g.group * g.own * g.n_pixels, 0), n, window(g, g.size, g.places),
    )  # fmt: skip
    return Product(made, {"A": gy, "B": x, "S": x, "C": outs[0]}, (1, 0))


def add_to(registry: Registry) -> None:
    """Register all of them."""
    for name, setup in (
        ("affine", affine), ("affine_weight", affine_weight), ("batch_matmul", batch_matmul),
        ("convolution", convolution), ("convolution_data", data), ("deconvolution", data),
        ("convolution_weight", weight),
    ):  # fmt: skip
        registry.register(name)(setup)
