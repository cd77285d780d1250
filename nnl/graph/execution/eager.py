# SPDX-License-Identifier: Apache-2.0
"""backward() of a graph that was computed already: one rule after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nnl.core.arrays.array import NdArray
from nnl.core.graph.autodiff import Gradients, accumulate, backprop
from nnl.core.graph.node import Node, Value, capture
from nnl.core.settings.context import using


def backward_now(
    output: Value,
    gy: NdArray,
    clear_buffer: bool,
    pre: Callable[[Node], None] | None = None,
    post: Callable[[Node], None] | None = None,
    ready: Callable[[NdArray], None] | None = None,
    shows: bool = True,
) -> None:
    """Run backward through nodes whose forward has run; computes with NdArrays.

    Args:
        pre, post: Called around each node.
        shows: Whether gradients are then written as they come, so that users' hooks can look at
            them, and change them.
        ready: Called with the gradient of a leaf as soon as it is complete. May change it.
    """
    # Ids of arrays that several edges hold, which a leaf must copy. An id that outlives its array
    # and is taken again costs a copy, never a wrong value.
    shared: set[int] = {id(gy)}
    root = (output.node, output.index)
    stays: set[Node] = set()  # nodes with outputs that stay readable, found from their users
    found = Gradients()
    watched = shows and (pre is not None or post is not None)
    given: dict[int, Value] = {}  # the leaves among whose gradients something has been added
    uses = Uses(output) if ready is not None else None
    # ids of gradients of intermediates that are the memory of one on its way; an unlinked copy adds
    # to that of its original
    shown: set[int] = set()

    def deliver(leaves: Iterable[int]) -> None:
        for i in [i for i in leaves if i in found.leaves]:
            value, g = found.leaves.pop(i)
            grad = value.grad
            if id(grad) in shown:
                grad.become(NdArray.unwritten(grad.spec).copy_from(grad))
                shown.discard(id(grad))
            accumulate(grad, g, own=id(g) not in shared)
            given[i] = value

    def before(node: Node) -> None:
        for i, g in enumerate(found.edges[node]):
            show(node, i, g)
        if pre is not None:
            pre(node)

    def show(node: Node, i: int, g: NdArray | None) -> None:
        """Let a gradient of an intermediate be what has come so far."""
        grads = node.grads = node.grads or {}
        if g is None:
            if i in grads:
                grads[i].zero()
        elif (node, i) != root:
            mine = grads.setdefault(i, g)  # the object a user may hold stays the same
            if mine is not g:
                mine.become(g)
                shown.add(id(mine))

    def show_inputs(node: Node) -> None:
        for v in node.inputs:
            if v is None or not v.need_grad:
                continue
            if v.node is None:
                deliver([id(v)])
                continue
            pending = found.edges.get(v.node)
            g = None if pending is None else pending[v.index]
            if g is not None and id(g) in shared:  # a hook that changes it means this one
                g = pending[v.index] = NdArray.unwritten(g.spec).copy_from(g)  # type: ignore[index]
            if g is not None:
                show(v.node, v.index, g)

    def done(node: Node, gys: list[Any], gxs: Sequence[Any]) -> None:
        for g in gys:
            shared.add(id(g))
        if len(gxs) == 2:
            if gxs[0] is gxs[1]:
                shared.add(id(gxs[0]))
        elif len(gxs) > 2:
            ids = [id(g) for g in gxs]
            shared.update([i for i in ids if ids.count(i) > 1])
        if watched:
            show_inputs(node)
            if post is not None:
                post(node)
        clear = clear_buffer and node.outs is None  # plans free what static nodes hold
        if clear:
            node.saved = None
            every = node.attrs.shows_inputs
            for v in node.inputs:
                if v is not None and (v.persistent or every) and v.node is not None:
                    stays.add(v.node)
        if clear and node not in stays:
            if node is not root[0]:
                node.grads = None
        else:
            for i, g in enumerate(gys):
                if g is not None:
                    show(node, i, g)
        if post is not None and not watched:
            post(node)
        if uses is not None and ready is not None:
            for leaves in uses.ended_by(node):
                deliver(leaves)
                for grad in {
                    id(given[i].grad): given[i].grad for i in leaves if i in given
                }.values():
                    ready(grad)

    def run() -> None:
        with using(make_nodes=False, auto_forward=True, no_grad=False):
            backprop([output], [gy], done=done, before=before if watched else pre, found=found)

    if watched:
        with showing(output, gy):
            run()
    else:
        run()
    deliver(list(found.leaves))


@contextmanager
def showing(output: Value, gy: NdArray) -> Iterator[None]:
    """Let the output have the start gradient for the time of a run."""
    assert output.node is not None
    grads = output.node.grads = output.node.grads or {}
    mine = grads.get(output.index)
    grads[output.index] = gy
    try:
        yield
    finally:
        grads = output.node.grads or {}
        if mine is not None:
            grads[output.index] = mine
        else:
            grads.pop(output.index, None)


class Uses:
    """How many nodes below an output have still to contribute to the gradient of a leaf.

    Several edges may stand for one leaf: a parameter that is fetched again has a handle, and an
    edge, of its own.
    """

    def __init__(self, output: Value) -> None:
        self.left: Counter[int] = Counter()  # {id of a gradient: uses}
        self.edges: dict[int, set[int]] = {}  # {id of a gradient: ids of edges}
        for node in capture([output]):
            for v in self._leaves(node):
                self.left[id(v.grad)] += 1
                self.edges.setdefault(id(v.grad), set()).add(id(v))

    @staticmethod
    def _leaves(node: Node) -> list[Value]:
        return [v for v in node.inputs if v is not None and v.node is None and v.need_grad]

    def ended_by(self, node: Node) -> list[list[int]]:
        """Ids of the edges of each leaf to whose gradient this node was the last to contribute."""
        ended = []
        for v in self._leaves(node):
            self.left[id(v.grad)] -= 1
            if not self.left[id(v.grad)]:
                ended.append(sorted(self.edges[id(v.grad)]))
        return ended
