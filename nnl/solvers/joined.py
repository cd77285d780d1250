# SPDX-License-Identifier: Apache-2.0
"""The updates of all parameters of a solver as one step."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.core.settings.context import half_type
from nnl.solvers import (  # noqa: F401  (the rules)
    adagrad,
    adam,
    amsgrad,
    lamb,
    lion,
    muon,
    scaled,
    sgd,
)

RULES = [o for name, o in OPS.items() if name.endswith("_update")]


def _written(attrs: Any) -> tuple[int, ...]:
    rule = OPS[attrs.rule]
    own = attrs.own(rule)
    return tuple(k * attrs.inputs + p for k in range(attrs.count) for p in own.op.written(own))


def _written_with_master(attrs: Any) -> tuple[int, ...]:
    rule = OPS[attrs.rule]
    return (*rule.written(attrs.own(rule)), attrs.place)


class MasterUpdate:
    r"""One step of an update rule for a parameter of 16 bits that has a master in float32.

    The rule updates the master m, and $w = \mathrm{round}(m)$. Where w was not m rounded before,
    somebody has written it, and m is w first.

    Args:
        arrays: The inputs of the rule, then the master.
        rule: Name of its op. The attributes of all rules are attributes here; those of this one
            count.
        dtype: The type of w.
    Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, section 3.1.
    """

    rule: str
    dtype: str

    def own(self, rule):
        """The attributes of the rule."""
        return rule.attrs(**{f: getattr(self, f) for f in rule.fields})

    @property
    def place(self):
        """Where the master stands; what a rule may leave out comes before it."""
        return len(OPS[self.rule].inputs)

    def infer(self, *arrays):
        return arrays[0]

    def forward(self, xp, *arrays):
        w, *rest, master = arrays
        now = master.astype(half_type(self.dtype)).astype(master.dtype)
        master[...] = xp.where(now == w, master, w)
        self.own(OPS[self.rule]).forward(xp, master, *rest)
        w[...] = master
        return w

    def cost(self, *arrays):
        cost = self.own(OPS[self.rule]).cost(*arrays[:-1])
        return Cost(cost.flops, cost.bytes + 2 * arrays[-1].nbytes)

    def samples(rng):
        for changed in (False, True):
            master, g, m = rng.normal(size=(3, 2, 3)).astype(np.float32)
            w = (master + changed).astype(np.float16)
            yield Sample(
                w, g, m, np.array(3), np.array(0.1), master, rule="momentum_update",
                dtype="float16", momentum=0.5, wd=0.0, lr0=0.1, grad=(False,) * 6,
            )  # fmt: skip


class MultiUpdate:
    """One step of an update rule for several parameters.

    Args:
        arrays: The inputs of the rule for the first parameter, then for the second, and so on. If
            guarded, then two bool, where one that is True says that nothing is to change, and the
            loss scale.
        rule: Name of its op. The attributes of all rules are attributes here; those of this one
            count.
        count: Number of parameters.
        inputs: How many inputs of the rule there are for each.
        masters: The type of parameters whose steps are each a `master_update`; "" for none.
        gradient_scale, gradient_decay: The gradient is taken as this times g plus this times w.
    Returns:
        The weights; where one has another element type, a copy of them in it.
    """

    rule: str
    count: int
    inputs: int
    masters: str = ""
    guarded: bool = False
    gradient_scale: float = 1.0
    gradient_decay: float = 0.0

    def own(self, rule):
        """The attributes of the rule."""
        own = {f: getattr(self, f) for f in rule.fields}
        if self.masters:
            return master_update.attrs(rule=self.rule, dtype=self.masters, **own)
        return rule.attrs(**own)

    def groups(self, arrays):
        return [arrays[k * self.inputs : (k + 1) * self.inputs] for k in range(self.count)]

    def infer(self, *arrays):
        wanted = self.count * self.inputs + 2 * self.guarded
        if len(arrays) != wanted or self.inputs < 2:
            raise ShapeError(
                f"multi_update: got {len(arrays)} arrays, wanted {wanted}, {self.inputs} for each "
                f"of {self.count} parameters"
            )
        return tuple(group[0] for group in self.groups(arrays))

    def forward(self, xp, *arrays):
        rule = OPS[self.rule]
        own, results = self.own(rule), []
        for w, g, *rest in self.groups(arrays):
            g = self.gradient_scale * g + self.gradient_decay * w if not self.guarded else g
            if self.guarded:
                step = OPS["guarded_step"].attrs(rule=own, decay=self.gradient_decay)
                step.forward(xp, w, g, *rest, *arrays[-2:])
            else:
                own.forward(xp, w, g.astype(w.dtype), *rest)
            results.append(w.copy())
        return tuple(results)

    def cost(self, *arrays):
        costs = [self.own(OPS[self.rule]).cost(*group) for group in self.groups(arrays)]
        return Cost(sum(c.flops for c in costs), sum(c.bytes for c in costs))

    def samples(rng):
        for guards in ((), (np.array([False, False]), np.array(8.0, np.float32))):
            arrays = []
            for shape in ((2, 3), (4,)):
                arrays += [*rng.normal(size=(3, *shape)), np.array(3), np.array(0.1)]
            yield Sample(
                *arrays, *guards, rule="momentum_update", count=2, inputs=5, momentum=0.5,
                wd=0.0, lr0=0.1, guarded=bool(guards), grad=(False,) * (10 + len(guards)),
            )  # fmt: skip


def _with_attributes_of_rules(base: type, name: str) -> type:
    """The class with the attributes of all rules, which its own definition does not repeat."""
    kinds: dict[str, str] = {}
    for rule in RULES:
        for field, kind in zip(rule.fields, rule.kinds, strict=True):
            kinds[field] = f"{kind.removesuffix(' | None')} | None"
    own = {"__annotations__": kinds, "__doc__": base.__doc__, "__module__": __name__}
    return type(name, (base,), own | dict.fromkeys(kinds))


master_update = op("master_update", keep=("arrays",), writes=_written_with_master, view=True)(
    _with_attributes_of_rules(MasterUpdate, "master_update")
)
multi_update = op("multi_update", outputs=("*w",), keep=("arrays",), writes=_written)(
    _with_attributes_of_rules(MultiUpdate, "multi_update")
)
