# SPDX-License-Identifier: Apache-2.0
"""Let attention read queries, keys and values where the product that makes them has left them."""

from __future__ import annotations

from nnl.ext.library import Library, kernel_names
from nnl.graph.passes.fusing.attention import BACKWARD
from nnl.graph.passes.rewriting.rewriter import Rewriter
from nnl.graph.program.program import Program, Step

PACKED, PACKED_BACKWARD = "attention_packed", "attention_packed_backward"

UNPACK = (2, 0, 3, 1, 4)  # (B, T, 3, H, D) -> (3, B, H, T, D)
PACK = (1, 3, 0, 2, 4)  # and back
BY_HEAD = (0, 2, 1, 3)  # (B, T, H, D) -> (B, H, T, D), and back


def pack_attention(program: Program, lib: Library) -> None:
    """Attention between transposes of x (B, T, 3, H, D) becomes one step on x, with y (B, T, H, D).

    So its gradient by x is one array too. That saves eight passes over arrays of the size of x.
    Only where a library has kernels that take such strides.
    """
    if {PACKED, PACKED_BACKWARD} <= kernel_names(lib):
        _Packer(program, lib).run()


class _Packer(Rewriter):
    def run(self) -> None:
        self.each(attention=self._pack)

    def _pack(self, attention: Step) -> None:
        q, k, v, *others = attention.ins
        if any(others[1:]):  # lengths, offsets, segments
            return
        mask = [i for i in others[:1] if i]
        y = attention.outs[0]
        split = self.makers.get(q)
        if split is None or split.op != "split" or split.outs != (q, k, v):
            return
        if split.attrs["axis"] != 0 or not self.usable(split, attention.second):
            return
        unpack = self.makers.get(split.ins[0])
        if not self._is_transpose(unpack, UNPACK, attention.second):
            return
        assert unpack is not None
        back = next((r for r in self.readers.get(y, []) if r.op == BACKWARD), None)
        users = [attention] if back is None else [attention, back]
        after = [r for r in self.readers.get(y, []) if r is not back]
        if len(after) != 1 or not self._is_transpose(after[0], BY_HEAD, attention.second):
            return
        if not all(self._only_read_by(i, users) for i in (q, k, v)):
            return
        if not self._only_read_by(unpack.outs[0], [split]):
            return
        if not self._only_read_by(y, [*after, *users[1:]]):
            return
        x, to = unpack.ins[0], after[0].outs[0]
        if not self.quiet(unpack, attention, {self.program.root(x)}, set()):
            return
        outs = (to, *attention.outs[1:])
        new = Step.of(PACKED, attention.attrs, (x, *mask), outs, attention.second)
        parts = [unpack, split, attention, after[0]]
        if not self.has_kernel(new):
            return
        if back is not None and not self._pack_backward(back, x, to, mask):
            return
        self.replace(parts, attention, new)

    def _pack_backward(self, back: Step, x: int, y: int, mask: list[int]) -> bool:
        gy, second = back.ins[0], back.second
        turn = self.makers.get(gy)
        stack = self._reader(back.outs[0])
        if not self._is_transpose(turn, BY_HEAD, second) or stack is None or turn is None:
            return False
        if stack.op != "stack" or stack.attrs["axis"] != 0 or stack.ins != back.outs:
            return False
        pack = self._reader(stack.outs[0])
        if not self.usable(stack, second) or not self._is_transpose(pack, PACK, second):
            return False
        assert pack is not None
        links = [(gy, back), (stack.outs[0], pack), *((i, stack) for i in back.outs)]
        if not all(self._only_read_by(i, [reader]) for i, reader in links):
            return False
        reads = {self.program.root(i) for i in (turn.ins[0], x, y)}
        if not self.quiet(turn, back, reads, set()):
            return False
        lse = back.ins[5]
        ins = (turn.ins[0], x, y, lse, *mask)
        new = Step.of(PACKED_BACKWARD, back.attrs, ins, pack.outs, second)
        if not self.has_kernel(new):
            return False
        self.replace([turn, back, stack, pack], back, new)
        return True

    def _reader(self, slot: int) -> Step | None:
        return next(iter(self.readers.get(slot, [])), None)

    def _is_transpose(self, step: Step | None, axes: tuple[int, ...], second: bool) -> bool:
        if step is None or step.op != "transpose" or not self.usable(step, second):
            return False
        return tuple(step.attrs["axes"]) == axes

    def _only_read_by(self, slot: int, users: list[Step]) -> bool:
        """Whether these steps are all that sees a slot."""
        if slot in self.program.kept or slot in self.views:
            return False
        return set(self.readers.get(slot, [])) == set(users)
