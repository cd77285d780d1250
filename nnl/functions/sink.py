# SPDX-License-Identifier: Apache-2.0
"""sink: one scalar root for several outputs, so that one forward or backward serves them all."""

from __future__ import annotations

from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import add_scalar, mul_scalar
from nnl.functions.concatenation import check_given
from nnl.functions.reduction import stretched

CATEGORY = "Special"

__all__ = ["sink"]


@op("sink", nnp="Sink")
class sink_op:
    """A scalar 0 that depends on every input; each input gets a gradient of ones."""

    one_input_grad: bool = True
    shows_inputs = True

    def infer(self, *x):
        check_given("sink", x)
        return x[0].with_shape(())

    def forward(self, xp, *x):
        return xp.zeros((), x[0].dtype)

    def portable(self, *x):
        return OPS["constant"](val=0.0, shape=())

    def vjp(self, gy, *, x_spec):
        # the start gradient is ignored, as in NNabla
        one = add_scalar(mul_scalar(gy, 0.0), 1.0)
        return tuple(stretched(one, s.shape) for s in x_spec)

    def cost(self, *x):
        return Cost(flops=0, bytes=0)

    def samples(rng):
        # order 0: the gradient is ones by definition, the value is 0
        yield Sample(rng.normal(size=(2, 3)), rng.normal(size=(4,)), order=0)
        yield Sample(rng.normal(size=()), order=0)


@op("sink_with_gradients", type_name="Sink")
class sink_with_gradients:
    """A sink whose second half of inputs are the gradients that the first half gets."""

    shows_inputs = True

    def infer(self, *x):
        return x[0].with_shape(())

    def forward(self, xp, *x):
        return xp.zeros((), x[0].dtype)

    def vjp(self, gy, *, x, need):
        n = len(x) // 2
        return tuple(x[n + i] if need[i] else None for i in range(n)) + (None,) * n

    def cost(self, *x):
        return Cost(flops=0, bytes=0)

    def samples(rng):
        x, y, gx, gy = (rng.normal(size=s) for s in ((2, 3), (4,), (2, 3), (4,)))
        yield Sample(x, y, gx, gy, grad=(True, True, False, False), order=0)


def sink(*x, one_input_grad=True, n_outputs=-1, outputs=None):
    """$y = 0$, a scalar that depends on every input: `forward` and `backward` of it run them all.

    Args:
        x: Any number of Variables.
        one_input_grad: backward starts from ones at every input. If False, it starts from the
            gradients stored in the inputs (`x.g`), which the caller has set.
    Raises:
        TypeError: No input is given.
    Example:
        >>> F.sink(array([1, 2]), array([3])).d
        array(0., dtype=float32)
    """
    check_given("sink", x)
    if one_input_grad or not all(isinstance(v, Variable) for v in x):
        return sink_op(*x, one_input_grad=one_input_grad, outputs=outputs)
    # A leaf keeps the gradient it has: handing it to itself would double it.
    computed = [v for v in x if v.edge.node is not None]
    if not computed:
        return sink_op(*(v.unlinked(need_grad=False) for v in x), outputs=outputs)
    given = [Variable.of_edge(Value.leaf(v.grad), v.grad) for v in computed]
    return sink_with_gradients(*computed, *given, outputs=outputs)
