# SPDX-License-Identifier: Apache-2.0
"""Fuse scaled dot product attention, forward and backward: the scores are never in memory."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnl.core.arrays.spec import Spec
from nnl.ext.library import Library, kernel_names
from nnl.graph.passes.fusing.softmax import fuse_softmax
from nnl.graph.passes.rewriting.prune import prune
from nnl.graph.passes.rewriting.rewriter import Rewriter
from nnl.graph.program.program import Program, Step

FORWARD, BACKWARD = "attention", "attention_backward"

HIDDEN = -1e9  # added to a score, this or less makes its weight 0 exactly


@dataclass
class Scores:
    """scale q k^T + masks, and the steps and slots between the product and what reads it."""

    q: int = 0
    k: int = 0
    scale: float = 1.0
    transposed: bool = False  # k is (..., d, S)
    masks: list[int] = field(default_factory=list)
    parts: list[Step] = field(default_factory=list)
    links: list[int] = field(default_factory=list)


@dataclass
class Gradients:
    """The slots of the gradients, 0 for those that nobody asked for."""

    gy: int
    gq: int = 0
    gk: int = 0
    gv: int = 0
    scale: float = 1.0
    parts: list[Step] = field(default_factory=list)
    links: list[int] = field(default_factory=list)


def fuse_attention(program: Program, lib: Library) -> None:
    """batch_matmul(softmax(scale q k^T + mask), v) becomes one step, and its gradient another.

    Only for large ones, and where nothing else reads scores or weights: then neither is ever in
    memory as a whole, and the gradient computes them again from the logarithms of the sums that the
    forward step leaves. Scores and weights may pass through views on the way, as where a mask has
    an axis of heads which the products do not have. Dropout of the weights prevents fusion.
    """
    if {FORWARD, BACKWARD} <= kernel_names(lib):
        _Fuser(program, lib).run()
        prune(program, lib)  # masks that nobody reads any more


class _Fuser(Rewriter):
    def run(self) -> None:
        self.each(softmax=self._fuse)

    def _fuse(self, softmax: Step) -> None:
        p = softmax.outs[0]
        rank = self.spec(p).ndim
        readers = self.readers.get(p, [])
        traits = self.lib.traits
        least = traits.least_attention_bytes if traits.any_size else 0
        if not least and self.spec(p).nbytes < traits.least_attention_bytes:
            return
        product = next((r for r in readers if self._is(r, softmax.second, p, False, False)), None)
        if product is None or softmax.attrs["axis"] != rank - 1 or p in self.program.kept:
            return
        scores = self._scores(softmax.ins[0], softmax)
        if scores is None or not self.private({p, *scores.links}):
            return
        parts = [*scores.parts, softmax, product]
        q, k, v = scores.q, scores.k, product.ins[1]
        lead = {self.spec(i).shape[:-2] for i in (q, k, v)}
        if len(lead) > 1 or rank not in (3, 4):
            return
        back = None
        if len(readers) > 1 and least:
            return
        if len(readers) > 1:
            back = self._gradients(scores, p, v, readers)
            if back is None or not math.isclose(back.scale, scores.scale):
                return
        found = self._mask(scores, rank, softmax.second)
        if found is None:
            return
        mask, before, attrs = found
        if before and least:
            return  # the parts would add masks in another order
        attrs["least"] = least
        reads = {self.program.root(i) for i in (q, k, v, *scores.masks)}
        if not self.quiet(scores.parts[-1], product, reads, set()):
            return
        y = product.outs[0]
        ins = (q, k, v, mask) if mask else (q, k, v)
        outs = [y]
        if back is not None:
            outs.append(self.program.new_slot(Spec.of(self.spec(y).shape[:-1], np.float32)))
        new = Step.of(FORWARD, attrs, ins, outs, softmax.second)
        if not self.has_kernel(new):
            return
        if back is not None and not self._fuse_backward(new, back, reads):
            return
        self.replace(parts, product, new, *before)
        if least:
            part = copy(self.program)
            part.steps = list(new.parts)
            fuse_softmax(part, self.lib)  # as where attention is no step
            new.parts = tuple(part.steps)

    def _fuse_backward(self, forward: Step, back: Gradients, reads: set[int]) -> bool:
        q, k, v, *mask = forward.ins
        first, last = (f(back.parts, key=self.order.__getitem__) for f in (min, max))
        if not self.quiet(first, last, reads | {self.program.root(back.gy)}, set()):
            return False
        outs = [
            g or self.program.new_slot(self.spec(x))
            for g, x in ((back.gq, q), (back.gk, k), (back.gv, v))
        ]
        ins = (back.gy, q, k, v, *forward.outs, *mask)
        new = Step.of(BACKWARD, forward.attrs, ins, outs, first.second)
        if not self.has_kernel(new):
            return False
        self.replace(back.parts, first, new)
        return True

    # ---- what is matched ----

    def _is(self, step: Step, second: bool, a: int, ta: bool, tb: bool) -> bool:
        """Whether a step is the product of a, transposed or not, with something."""
        return (
            step.op == "batch_matmul"
            and self.usable(step, second)
            and step.ins[0] == a
            and (step.attrs["transpose_a"], step.attrs["transpose_b"]) == (ta, tb)
        )

    def _scores(self, slot: int, reader: Step) -> Scores | None:
        """What leads to a slot that `reader` alone reads; parts run from the last to the first."""
        step = self.makers.get(slot)
        if step is None or not self.usable(step, reader.second):
            return None
        if self.readers[slot] != [reader]:
            return None
        if step.op == "batch_matmul":
            if step.attrs["transpose_a"]:
                return None
            q, k = step.ins
            found = Scores(q, k, transposed=not step.attrs["transpose_b"])
        elif step.op in ("mul_scalar", "reshape"):
            before = self._scores(step.ins[0], step)
            if before is None:
                return None
            found = before
            if step.op == "mul_scalar":
                if found.masks:
                    return None  # the mask would be scaled too
                found.scale *= step.attrs["val"]
        elif step.op == "add2":
            a, b = step.ins
            mask, before = b, self._scores(a, step) if self.spec(a) is self.spec(slot) else None
            if before is None and self.spec(b) is self.spec(slot):
                mask, before = a, self._scores(b, step)
            if before is None:
                return None
            found = before
            found.masks.append(mask)
        else:
            return None
        found.parts.insert(0, step)
        found.links.append(slot)
        return found

    def _mask(self, scores: Scores, rank: int, second: bool) -> Any:
        """(mask, steps that make it, attributes), with a mask as the kernel takes it."""
        attrs: dict[str, Any] = {"scale": float(scores.scale), "transpose_k": scores.transposed}
        square = self.spec(scores.links[0]).shape[-2:]  # queries, keys
        masks = scores.masks[:]
        if not self.lib.traits.any_size:  # parts read the mask
            masks = [m for m in masks if not self._is_causal(m, square)]
        if len(masks) < len(scores.masks):
            attrs["causal"] = True
        steps: list[Step] = []
        ranks = {self.spec(m).ndim for m in masks}
        if not ranks <= {3, 4} or (rank == 4 and 3 in ranks):
            return None
        if rank == 3 and 4 in ranks:  # an axis of heads that q does not have
            views = [i for i in scores.links if self.spec(i).ndim == 4]
            heads = {self.spec(i).shape[1] for i in views}
            shape = self.spec(scores.q).shape
            if len(heads) != 1 or any(self.spec(i).shape[2] != shape[1] for i in views):
                return None
            attrs["heads"] = heads.pop()
            for n, m in enumerate(masks):
                if self.spec(m).ndim == 3:
                    if self.spec(m).shape[0] != 1:
                        return None
                    masks[n] = self.program.alias(m, (1, *self.spec(m).shape))
        while len(masks) > 1:
            a, b = masks.pop(), masks.pop()
            shape = np.broadcast_shapes(self.spec(a).shape, self.spec(b).shape)
            total = self.program.new_slot(self.spec(a).with_shape(shape))
            steps.append(Step.of("add2", {"inplace": False}, (a, b), (total,), second))
            masks.append(total)
        return (masks[0] if masks else 0), steps, attrs

    def _is_causal(self, mask: int, shape: tuple[int, ...]) -> bool:
        """Whether a mask hides from each query the keys after it, in all samples and heads."""
        triangle = self._maker(mask)
        if triangle is None or triangle.op != "trilu" or self.spec(mask).shape[-2:] != shape:
            return False
        value = self._maker(triangle.ins[0])
        return (
            (triangle.attrs["k"], triangle.attrs["upper"]) == (1, True)
            and value is not None
            and value.op == "constant"
            and value.attrs["val"] <= HIDDEN
        )

    def _maker(self, slot: int) -> Step | None:
        """The step that makes a slot, or has made it when it was found to be constant."""
        return self.makers.get(slot) or self.program.folded.get(slot)

    def _gradients(self, scores: Scores, p: int, v: int, readers: list[Step]) -> Gradients | None:
        """The steps that compute the gradients, if nothing else reads the weights."""
        slope = next((r for r in readers if r.op == "softmax_backward"), None)
        if slope is None or not self.usable(slope, slope.second) or slope.ins[1] != p:
            return None
        second, (gp, _) = slope.second, slope.ins
        by_p = self.makers.get(gp)
        if by_p is None or self.readers[gp] != [slope] or gp == p:
            return None
        gy = by_p.ins[0]
        if not self._is(by_p, second, gy, False, True) or by_p.ins[1] != v:
            return None
        found = Gradients(gy, parts=[by_p, slope], links=[gp])
        others = [
            r for r in readers if r is not slope and not self._is(r, r.second, p, False, False)
        ]
        if len(others) + 2 != len(readers) or len(others) > 1:
            return None
        for r in others:
            if not self._is(r, second, p, True, False) or r.ins[1] != gy:
                return None
            found.gv = r.outs[0]
            found.parts.append(r)
        return found if self._follow(scores, slope, found) else None

    def _follow(self, scores: Scores, step: Step, found: Gradients) -> bool:
        """From the gradient of softmax down to those of q and k."""
        g, second = step.outs[0], step.second
        while True:
            readers = self.readers.get(g, [])
            found.links.append(g)
            if len(readers) != 1 or readers[0].op not in ("mul_scalar", "reshape"):
                break
            step = readers[0]
            if not self.usable(step, second):
                return False
            if step.op == "mul_scalar":
                found.scale *= step.attrs["val"]
            found.parts.append(step)
            g = step.outs[0]
        q, k = scores.q, scores.k
        for r in readers:
            if self._is(r, second, g, False, scores.transposed) and r.ins[1] == k and not found.gq:
                found.gq = r.outs[0]
            elif found.gk:
                return False
            elif scores.transposed and self._is(r, second, q, True, False) and r.ins[1] == g:
                found.gk = r.outs[0]
            elif not scores.transposed and self._is(r, second, g, True, False) and r.ins[1] == q:
                found.gk = r.outs[0]
            else:
                return False
            found.parts.append(r)
        return bool(readers) and self.private(set(found.links))
