# SPDX-License-Identifier: Apache-2.0
"""Gradients as functions of their own: those that users register, and NNabla's names for built-ins.

nnl.grad asks the registry before it takes a function's own rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any

from nnl.core.differentiation.grad import grad
from nnl.core.graph.function import Function
from nnl.core.graph.node import Node, Value
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import Op
from nnl.core.settings.context import using
from nnl.core.settings.registry import OPS, RULES

Rule = Callable[..., Any]


class _Registry(MutableMapping[str, Rule]):
    """Rules by type name: those that were registered, else those of built-in functions."""

    def __getitem__(self, name: str) -> Rule:
        if name in RULES:
            rule: Rule = RULES[name].args[0]
            return rule
        op = next((op for op in OPS.values() if op.nnp == name), None)
        if op is None:
            raise KeyError(name)
        return _rule_of(op)

    def __setitem__(self, name: str, rule: Rule) -> None:
        RULES[name] = partial(_by_rule, rule)

    def __delitem__(self, name: str) -> None:
        del RULES[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*RULES, *(op.nnp for op in OPS.values() if op.nnp)}))

    def __len__(self) -> int:
        return len(list(iter(self)))


registry = _Registry()


def register(func_name: str, func: Rule) -> None:
    """Give functions of a type another gradient in nnl.grad, one that can be differentiated again.

    Args:
        func_name: Type name: of a PythonFunction its `name`, of a built-in one as in .nnp files.
        func: func(grad_inputs, inputs, input_shapes, outputs, output_shapes, **arguments) ->
            gradients of the inputs, written in functions. grad_inputs are the gradients of the
            outputs. Of inputs and outputs, those that the function's gradient needs; None for
            others.
    """
    if not callable(func):
        raise TypeError(
            f"register: func of {func_name!r} is {type(func).__name__}, wanted a callable"
        )
    registry[func_name] = func


def show_registry() -> None:
    """Print the type names that nnl.grad knows, with their rules."""
    for name, rule in registry.items():
        print(name, rule)


def _by_rule(rule: Rule, node: Node, gys: Sequence[Variable], kept: dict[str, Any]) -> Any:
    """Gradients of a node's inputs by a registered rule.

    Args:
        kept: What the function's own gradient needs, by name.
    """
    op = node.op
    inputs: list[Any] = [None] * len(node.inputs)
    for name, i in op.kept_inputs:
        several = op.variadic and i == len(op.inputs) - 1
        inputs[i : None if several else i + 1] = kept[name] if several else [kept[name]]
    outputs: list[Any] = [None] * len(node.out_specs)
    for name, i in op.kept_outputs:
        outputs[i : None if op.variadic_out else i + 1] = (
            kept[name] if op.variadic_out else [kept[name]]
        )
    n, m = len(inputs) - op.takes_rng, len(Function(node).outputs)
    there = [i for i in range(n) if node.inputs[i] is not None]
    shapes = [s.current_spec.shape for s in node.inputs[:n] if s is not None]
    gxs = rule(
        gys[:m], [inputs[i] for i in there], shapes,
        outputs[:m], [s.shape for s in node.out_specs[:m]], **Function(node).args,
    )  # fmt: skip
    gxs = gxs if isinstance(gxs, (tuple, list)) else [gxs]
    result: list[Any] = [None] * len(node.inputs)
    for i, g in zip(there, gxs, strict=False):
        result[i] = g
    return result


def _rule_of(op: Op) -> Rule:
    """The gradient of a built-in function, with the arguments that registered rules have."""

    def rule(
        grad_inputs: Sequence[Variable],
        inputs: Sequence[Variable | None],
        input_shapes: Any = None,
        outputs: Any = None,
        output_shapes: Any = None,
        **arguments: Any,
    ) -> Any:
        if op.takes_rng:
            raise NotImplementedError(
                f"{op.name}_backward: a new call draws other numbers than {op.name} has drawn: use "
                "nnl.grad"
            )
        with using(make_nodes=True, no_grad=False):
            xs = [None if x is None else _as_input(x) for x in inputs]
            ys = op(*xs, **{k: v for k, v in arguments.items() if k in op.fields})
        ys = ys if isinstance(ys, tuple) else (ys,)
        pairs = [(y, g) for y, g in zip(ys, grad_inputs, strict=False) if y.need_grad]
        found = iter(grad([y for y, _ in pairs], [x for x in xs if x is not None],
                          [g for _, g in pairs]))  # fmt: skip
        result = tuple([None if x is None else next(found) for x in xs])
        return result[0] if len(result) == 1 else result

    rule.__name__ = rule.__qualname__ = f"{op.name}_backward"
    return rule


def _as_input(x: Variable) -> Variable:
    """The same value, of which a gradient is wanted; another one at each place where x is given."""
    e = x.edge
    wanted = Variable.of_edge(Value.of(e.node, e.index, e.spec, True, e.data), x.data)
    y: Variable = OPS["identity"](wanted)
    return y


def __getattr__(name: str) -> Any:
    op = OPS.get(name.removesuffix("_backward"))
    if op is None or not op.nnp or not name.endswith("_backward"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return registry[op.nnp]
