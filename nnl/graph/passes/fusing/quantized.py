# SPDX-License-Identifier: Apache-2.0
"""Let what stands between quantize_linear and dequantize_linear be computed with 8 bits.

A graph says it in floats: quantize_linear gives whole numbers in float32, and around every operator
stand dequantize_linear and quantize_linear. Here those numbers get 8 bits of memory; products
between them become the kernels of `nnl/functions/fused/quantized.py`; what only moves numbers moves
8 bits; and all others read and write 8 bits in the loop in which they compute with floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from nnl.ext.library import Library, kernel_names
from nnl.graph.program.program import Program, Step
from nnl.graph.program.sharing import sharing

QUANTIZE, DEQUANTIZE = "quantize_linear", "dequantize_linear"
PRODUCTS = {
    "convolution": "quantized_convolution",
    "convolution_fused": "quantized_convolution",
    "affine": "quantized_affine",
    "affine_fused": "quantized_affine",
    "batch_matmul": "quantized_batch_matmul",
}
PAIRS = {"add2": False, "mul2": True}
# What only moves numbers, or takes some of them; and which input that is, if there are others.
MOVES = frozenset(
    ["reshape", "transpose", "slice", "max_pooling", "concatenate", "gather", "embed"]
)
MOVED = {"gather": 0, "embed": 1}
ELEMENTS = {1: np.dtype(np.int8), 2: np.dtype(np.uint8)}  # by numpy's number


class Real(NamedTuple):
    """A value as 8 bits: the slot of these, and those of scale and zero point."""

    bits: int
    scale: int
    zero: int


def lower_quantized(program: Program, lib: Library) -> None:
    """Compute with 8 bits what quantize_linear and dequantize_linear stand around.

    Sums of products are exact; what differs from the steps replaced is the rounding of what is
    multiplied by scales: results are at most one step apart.
    """
    steps = program.steps
    known = PRODUCTS["convolution"] in kernel_names(lib) and not any(s.second for s in steps)
    if known and any(s.op == DEQUANTIZE for s in steps):
        _Lowerer(program).run()


class _Lowerer:
    def __init__(self, program: Program) -> None:
        self.program, self.slots = program, program.slots
        self.written, self.views = sharing(program, program.written()), program.views()
        self.readers = program.readers()
        rounding = [s for s in program.steps if s.op in (QUANTIZE, DEQUANTIZE)]
        self.numbers = {program.root(i) for s in rounding for i in s.ins[1:]}  # they stay floats
        self.shown = program.kept | set(program.carries.values())
        self.steps: list[Step] = []
        self.real: dict[int, Real] = {}  # slots that dequantize_linear would make
        self.made: set[int] = set()  # those among them that it makes after all
        self.same: dict[int, int] = {}  # whole numbers -> others that are equal
        self.products: dict[int, Step] = {}  # slot -> the product that has just made it
        self.done: set[Step] = set()  # steps that stand in one before them
        self.places: dict[int, int] = {}  # slot -> number of steps when it was made

    def run(self) -> None:
        rules: dict[str, Callable[[Step], bool]] = {
            QUANTIZE: self._quantize,
            DEQUANTIZE: self._dequantize,
            **dict.fromkeys(MOVES, self._move),
            **dict.fromkeys(PRODUCTS, self._product),
            **dict.fromkeys(PAIRS, self._pair),
            "average_pooling": self._average,
        }
        for step in self.program.steps:
            if step in self.done:
                continue
            rename(step, self.same)
            rule = rules.get(step.op)
            usable = step.native and not step.writes and not step.converts
            if rule is None or not usable or not rule(step):
                self._leave(step)
        self.program.steps = self.steps

    def _emit(self, step: Step) -> None:
        for o in step.outs:
            self.places[o] = len(self.steps)
        self.steps.append(step)

    # ---- values ----

    def _is_bits(self, slot: int) -> bool:
        """Whether a slot has 8 bits that nothing changes."""
        return self.slots[slot].spec.dtype in ELEMENTS.values() and (
            self.program.root(slot) not in self.written
        )

    def _is_whole(self, slot: int) -> bool:
        """Whether a slot holds whole numbers that got 8 bits here."""
        return slot in self.places and self.slots[slot].spec.dtype in ELEMENTS.values()

    def _is_one(self, *slots: int) -> bool:
        return all(self.slots[i].spec.size == 1 for i in slots)

    def _is_zero(self, slot: int) -> bool:
        data = self.slots[slot].data
        return data is not None and not data.any()

    def _equal(self, a: int, b: int) -> bool:
        x, y = self.slots[a].data, self.slots[b].data
        return a == b or (x is not None and y is not None and np.array_equal(x, y))

    def _alike(self, a: Real, b: Real) -> bool:
        """Whether two values have the same scale, zero point and type."""
        return (
            self.slots[a.bits].spec.dtype == self.slots[b.bits].spec.dtype
            and self._equal(a.scale, b.scale)
            and self._equal(a.zero, b.zero)
        )

    def _new(self, like: int, shape: Any = None, dtype: Any = None, root: int | None = None) -> int:
        spec = self.slots[like].spec
        spec = spec if shape is None else spec.with_shape(shape)
        return self.program.new_slot(spec if dtype is None else spec.with_dtype(dtype), root)

    def _call(self, op: str, like: Step, ins: tuple[int, ...], out: int, **attrs: Any) -> Step:
        step = Step.of(op, attrs, ins, (out,), like.second)
        step.source, step.native = like.source, like.native
        return step

    # ---- rules: whether they have taken a step over ----

    def _dequantize(self, step: Step) -> bool:
        bits, scale, zero = step.ins
        out = step.outs[0]
        fits = self._is_bits(bits) and self.slots[out].spec.type_name == "float32"
        if not fits or any(self.program.root(i) in self.written for i in (scale, zero)):
            return False
        self.real[out] = Real(bits, scale, zero)
        if out in self.shown:
            self._as_float(step, out)
        return True

    def _quantize(self, step: Step) -> bool:
        x, scale, zero = step.ins
        out = step.outs[0]
        spec = self.slots[out].spec
        if out in self.shown or spec.type_name != "float32" or self._is_seen(out):
            return False
        if self.program.root(out) in self.numbers:
            return False
        self.slots[out].spec = spec.with_dtype(ELEMENTS[step.attrs["dtype"]])
        was = self.real.get(x)
        if was is not None and self._alike(was, Real(out, scale, zero)):
            self.same[out] = was.bits
        elif not self._join(step):
            self._leave(step)
        return True

    def _is_seen(self, slot: int) -> bool:
        """Whether something sees the memory of a slot that does not take 8 bits."""
        readers = [s for s in self.readers.get(slot, ()) if s.view]
        return slot in self.views and any(s.op not in MOVES for s in readers)

    def _join(self, step: Step) -> bool:
        """Let the product before it quantize its result."""
        x, scale, zero = step.ins
        product = self.products.get(x)
        if product is None or len(self.readers[x]) != 1 or x in self.shown or x in self.views:
            return False
        if not self._is_one(scale, zero) or any(
            self.places.get(i, -1) > self.places[x] for i in (scale, zero)
        ):
            return False
        last = step.copy()
        product.parts = (*product.parts, last)
        product.outs = step.outs
        name = self.slots[step.outs[0]].spec.type_name
        product.attrs = {**product.attrs, "dtype": name}
        product.ins = (*product.ins, scale, 0 if self._is_zero(zero) else zero)
        self.places[step.outs[0]] = self.places[x]
        return True

    def _move(self, step: Step) -> bool:
        at = MOVED.get(step.op)
        moving = step.ins if at is None else step.ins[at : at + 1]
        found = [self.real.get(i) for i in moving]
        out = step.outs[0]
        first = found[0] if found else None
        if len(step.outs) != 1 or out in self.shown:
            return False
        if all(map(self._is_whole, moving)) and not self._is_seen(out):
            kinds = {self.slots[i].spec.dtype for i in moving}
            if len(kinds) > 1:
                return False
            self.slots[out].spec = self.slots[out].spec.with_dtype(kinds.pop())
            self._emit(step)
            return True
        if first is None:
            return step.op == "concatenate" and self._concatenate(step)
        if any(r is None or not self._alike(r, first) for r in found):
            return step.op == "concatenate" and self._concatenate(step)
        scale, zero = first.scale, first.zero
        if not self._is_one(scale, zero):
            if step.op != "transpose":
                return False
            scale, zero = (self._turned(step, i) for i in (scale, zero))
        moved = step.copy()
        rename(moved, {i: r.bits for i, r in zip(moving, found, strict=True) if r is not None})
        dtype = self.slots[first.bits].spec.dtype
        root = self.program.root(first.bits) if step.view else None
        bits = self._new(out, dtype=dtype, root=root)
        moved.outs = (bits,)
        self._emit(moved)
        rank = self.slots[out].spec.ndim
        if self.slots[scale].spec.ndim != rank:
            scale, zero = (self.program.alias(i, (1,) * rank) for i in (scale, zero))
        self.real[out] = Real(bits, scale, zero)
        return True

    def _concatenate(self, step: Step) -> bool:
        """Quantize what is joined instead of the whole, which is what is read of it."""
        out = step.outs[0]
        readers = self.readers.get(out, [])
        if len(readers) != 1 or readers[0].op != QUANTIZE or out in self.views:
            return False
        last = readers[0]
        scale, zero = last.ins[1:]
        if not self._is_one(scale, zero) or last.outs[0] in self.shown:
            return False
        if not (self.slots[scale].given and self.slots[zero].given):
            return False
        dtype = ELEMENTS[last.attrs["dtype"]]
        parts = []
        for i in step.ins:
            parts.append(self._new(i))
            one = last.copy()
            one.ins, one.outs = (i, scale, zero), (parts[-1],)
            self.readers.setdefault(parts[-1], [])
            if not self._quantize(one):
                return False
        joined = step.copy()
        joined.ins = tuple([self.same.get(i, i) for i in parts])
        joined.outs = (self._new(out, dtype=dtype),)
        self._emit(joined)
        self.real[out] = Real(joined.outs[0], scale, zero)
        return True

    def _turned(self, step: Step, slot: int) -> int:
        """A scale or zero point with its axes in the order of a transposed value."""
        spec, data = self.slots[slot].spec, self.slots[slot].data
        if spec.size == 1:
            return slot
        axes = step.attrs["axes"]
        turned = self._new(slot, [spec.shape[a] for a in axes])
        if data is not None:
            self.slots[turned].role, self.slots[turned].data = "constant", data.transpose(axes)
        else:
            self._emit(self._call("transpose", step, (slot,), turned, axes=axes))
        return turned

    def _pair(self, step: Step) -> bool:
        """A sum or product of two values that is quantized, with a relu between."""
        out, relu = step.outs[0], None
        x0, x1 = (self.real.get(i) for i in step.ins)
        last = self._only_reader(out)
        if last is not None and last.op == "relu" and not last.view:
            relu, last = last, self._only_reader(last.outs[0])
        if x0 is None or x1 is None or step.view or last is None or last.op != QUANTIZE:
            return False
        shapes = [self.slots[r.bits].spec.shape for r in (x0, x1)]
        if shapes[0] != self.slots[out].spec.shape:
            x0, x1, shapes = x1, x0, shapes[::-1]
        thin = (*shapes[0][:2], *[1] * (len(shapes[0]) - 2))
        if shapes[0] != self.slots[out].spec.shape or shapes[1] not in (shapes[0], thin):
            return False
        scale, zero = last.ins[1:]
        if not self._is_one(x0.scale, x0.zero, x1.scale, x1.zero, scale, zero) or not last.native:
            return False
        made = last.outs[0]
        if made in self.shown or self._is_seen(made) or not self._is_there(scale, zero):
            return False
        dtype = ELEMENTS[last.attrs["dtype"]]
        self.slots[made].spec = self.slots[made].spec.with_dtype(dtype)
        attrs = {"multiply": PAIRS[step.op], "dtype": dtype.name}
        attrs["activation"] = "identity" if relu is None else "relu"
        ins = (x0.bits, x1.bits, x0.scale, x0.zero, x1.scale, x1.zero, scale, zero)
        new = self._call("quantized_pair", step, ins, made, **attrs)
        parts = [s.copy() for s in (step, relu, last) if s is not None]
        names: dict[int, int] = {}
        for i in dict.fromkeys(step.ins):
            names[i] = self._new(i)
            parts.insert(0, self._call(DEQUANTIZE, step, tuple(self.real[i]), names[i]))
        for part in parts[len(names) : -1]:
            names[part.outs[0]] = self._new(part.outs[0])
        for part in parts:
            if part.op != DEQUANTIZE:
                rename(part, names)
                part.outs = tuple([names.get(o, o) for o in part.outs])
        new.parts = tuple(parts)
        self.done |= {s for s in (relu, last) if s is not None}
        self._emit(new)
        return True

    def _only_reader(self, slot: int) -> Step | None:
        readers = self.readers.get(slot, [])
        alone = len(readers) == 1 and slot not in self.shown and slot not in self.views
        return readers[0] if alone else None

    def _is_there(self, *slots: int) -> bool:
        """Whether values are given, or made by a step before."""
        roots = [self.program.root(i) for i in slots]
        return all(self.slots[r].given or r in self.places for r in roots)

    def _average(self, step: Step) -> bool:
        """The mean of a whole image, which a loop over 8 bits can take."""
        x, a = step.ins[0], step.attrs
        shape = self.slots[x].spec.shape
        whole = shape[2:] == tuple(a["kernel"]) and len(shape) == len(a["kernel"]) + 2
        if x not in self.real or not whole or any(a["pad"]) or a["channel_last"]:
            return False
        axes = tuple(range(2, len(shape)))
        self._leave(self._call("mean", step, (x,), step.outs[0], axes=axes, keep_dims=True))
        return True

    def _product(self, step: Step) -> bool:
        x, w = (self.real.get(i) for i in step.ins[:2])
        out = step.outs[0]
        bias, z, factor = (*step.ins[2:], 0, 0, 0)[:3]
        if x is None or w is None or factor or not self._is_one(x.scale, x.zero):
            return False
        if self.slots[out].spec.type_name != "float32" or any(
            i and self.slots[i].spec.type_name != "float32" for i in (bias, z)
        ):
            return False
        if not self._takes(step, w):
            return False
        bias, z = (i and self._float_input(step, i) for i in (bias, z))
        w = self._signed(step, w)
        name = PRODUCTS[step.op]
        attrs = {k: v for k, v in step.attrs.items() if k not in ("packed", "w_shape")}
        zeros = [0 if self._is_zero(r.zero) else r.zero for r in (x, w)]
        ins = (x.bits, w.bits, bias, z, x.scale, zeros[0], w.scale, zeros[1])
        new = self._call(name, step, ins, out, **attrs)
        new.parts = self._parts(step, x, w, bias, z)
        self._emit(new)
        self.products[out] = new
        return True

    def _takes(self, step: Step, w: Real) -> bool:
        """Whether kernels take weights with these scales and zero points."""
        shape, scales = self.slots[w.bits].spec.shape, self.slots[w.scale].spec.shape
        convolution = step.op.startswith("convolution")
        axis = 0 if convolution else len(shape) - 1 - bool(step.attrs.get("transpose_b"))
        if any(n != 1 and i != axis for i, n in enumerate(scales)):
            return False
        if not convolution and "base_axis" in step.attrs and len(shape) != 2:
            return False
        unsigned = self.slots[w.bits].spec.dtype == np.uint8
        data = self.slots[w.zero].data
        symmetric = data is not None and (data == (128 if unsigned else 0)).all()
        return bool(symmetric or (not convolution and self._is_one(w.zero)))

    def _signed(self, step: Step, w: Real) -> Real:
        """Weights as int8."""
        if self.slots[w.bits].spec.dtype == np.int8:
            return w
        bits, zero = self._new(w.bits, dtype=np.int8), self._new(w.zero)
        self._emit(self._call("add_scalar", step, (w.bits,), bits, val=-128.0, inplace=False))
        data = self.slots[w.zero].data
        if data is not None:
            self.slots[zero].role, self.slots[zero].data = "constant", data - np.float32(128)
        else:
            self._emit(self._call("add_scalar", step, (w.zero,), zero, val=-128.0, inplace=False))
        return Real(bits, w.scale, zero)

    def _parts(self, step: Step, x: Real, w: Real, bias: int, z: int) -> tuple[Step, ...]:
        """The same in floats, for where there is no kernel."""
        floats = []
        parts = []
        for like, r in zip(step.ins, (x, w), strict=False):
            floats.append(self._new(like))
            parts.append(self._call(DEQUANTIZE, step, tuple(r), floats[-1]))
        own = step.copy()
        rename(own, dict(zip(step.ins, (*floats, bias, z), strict=False)))
        return (*parts, own)

    # ---- all other steps ----

    def _leave(self, step: Step) -> None:
        """Add a step that computes with floats."""
        if step.op != DEQUANTIZE or step.ins[0] not in self.real:
            rename(step, {i: self._float_input(step, i) for i in step.ins if i})
        self._emit(step)

    def _float_input(self, step: Step, slot: int) -> int:
        """A slot with the real numbers of one, of its own for every reader."""
        if slot in self.real:
            return self._as_float(step, slot)
        if not self._is_whole(slot) or step.op == DEQUANTIZE:
            return slot
        whole = self._new(slot, dtype=np.float32)
        self._emit(self._call("cast", step, (slot,), whole, dtype="float32"))
        return whole

    def _as_float(self, step: Step, slot: int) -> int:
        if slot in self.made:
            return slot
        alone = slot in self.shown or slot in self.views
        out = slot if alone else self._new(slot)
        if alone:
            self.made.add(slot)
        self._emit(self._call(DEQUANTIZE, step, tuple(self.real[slot]), out))
        return out


def rename(step: Step, names: Mapping[int, int]) -> None:
    """Let a step, and those it stands for, read other slots."""
    step.ins = tuple([names.get(i, i) for i in step.ins])
    for part in step.parts:
        rename(part, names)
