# SPDX-License-Identifier: Apache-2.0
"""NnpNetworkPass: changes to a network of a file before it becomes a graph."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from nnl.converters.nnp.function_messages import argument_field
from nnl.converters.nnp.messages import copy_of
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_current_parameter_scope

logger = logging.getLogger("nnl")
Callback = Callable[..., Any]
_NORMALISATIONS = ("BatchNormalization", "FusedBatchNormalization", "SyncBatchNormalization")


class PassVariable:
    """A variable of the network, before it is one of a graph.

    Attributes:
        name: Its name.
        proto: Its Variable message; a callback may change the shape.
        variable: A Variable to use instead of a new one, or of what a function computes.
        need_grad: Flag of the new Variable, None to leave it.
        parent: The function that computes it, or None.
        referrers: The functions that read it.
        stopped: Whether the network ends here.
    """

    def __init__(self, proto: Any) -> None:
        self.name, self.proto = proto.name, proto
        self.variable: Variable | None = None
        self.need_grad: bool | None = None
        self.parent: PassFunction | None = None
        self.referrers: list[PassFunction] = []
        self.stopped = False

    @property
    def num_referrers(self) -> int:
        """How many functions read it."""
        return len(self.referrers)

    def rewire_on(self, other: PassVariable) -> None:
        """Let every function that reads this variable read `other` instead."""
        for f in list(self.referrers):
            f.inputs = [other if v is self else v for v in f.inputs]
            other.referrers.append(f)
        self.referrers.clear()

    def stop(self) -> None:
        """End the network here: what only later variables need is left out."""
        self.stopped = True


class PassFunction:
    """A function of the network, before it is one of a graph.

    Attributes:
        name, type: As in the file.
        proto: Its Function message; a callback may change the arguments.
        inputs, outputs: PassVariables.
        disabled: Whether it is left out.
    """

    def __init__(self, proto: Any, variables: Mapping[str, PassVariable]) -> None:
        self.name, self.type, self.proto = proto.name, proto.type, proto
        self.inputs = [variables[n] for n in proto.input]
        self.outputs = [variables[n] for n in proto.output]
        self.disabled = False

    def disable(self) -> None:
        """Leave the function out; its outputs become inputs of the network if they are read."""
        self.disabled = True


class NnpNetworkPass:
    """Callbacks and ready-made changes for `NnpLoader.get_network(name, callback=...)`.

    Names are those of the file, such as "@net/Dropout"; types are "Dropout". A name that the
    network does not have is an error.

    Args:
        verbose: Log every change.

    Example:
        >>> change = NnpNetworkPass()
        >>> @change.on_generate_function_by_type("Dropout")
        ... def half(f):
        ...     f.proto.dropout_param.p = 0.5
    """

    def __init__(self, verbose: int | bool = 0) -> None:
        self.verbose = bool(verbose)
        self._variables: list[tuple[str, Callback]] = []
        self._functions: list[tuple[str, bool, Callback]] = []
        self._passes: list[tuple[str, bool, Callback]] = []
        self._last: list[str] = []
        self._global_pooling: list[tuple[str, bool, bool]] = []  # name, by type, change it
        self.fixed = False

    # ---- callbacks ----

    def on_generate_variable(self, name: str) -> Callable[[Callback], Callback]:
        """Decorator: call f(PassVariable) for the variable of this name."""
        return _adding(self._variables, (name,))

    def on_generate_function_by_name(self, name: str) -> Callable[[Callback], Callback]:
        """Decorator: call f(PassFunction) for the function of this name."""
        return _adding(self._functions, (name, False))

    def on_generate_function_by_type(self, name: str) -> Callable[[Callback], Callback]:
        """Decorator: call f(PassFunction) for every function of this type."""
        return _adding(self._functions, (name, True))

    def on_function_pass_by_name(self, name: str) -> Callable[[Callback], Callback]:
        """Decorator: call f(PassFunction, variables by name, parameter scope) when the functions
        are gone through in the order of execution."""
        return _adding(self._passes, (name, False))

    def on_function_pass_by_type(self, name: str) -> Callable[[Callback], Callback]:
        """Decorator: as on_function_pass_by_name, for every function of this type."""
        return _adding(self._passes, (name, True))

    # ---- ready-made changes ----

    def set_variable(self, name: str, input_var: Variable) -> None:
        """Use a Variable as the network's input of this name; its shape is taken over."""
        if not isinstance(input_var, Variable):
            raise TypeError(
                f"set_variable: input_var is {type(input_var).__name__}, wanted nnl.Variable"
            )

        def change(v: PassVariable) -> None:
            v.proto.shape.SetInParent()
            v.proto.shape.dim[:] = input_var.shape
            v.variable = input_var
            self._log("the input %s is %s", name, input_var)

        self._variables.append((name, change))

    def use_up_to(self, *names: str) -> None:
        """End the network at these variables."""
        self._last.extend(names)

    def drop_function(self, *names: str) -> None:
        """Leave out the functions of these names; what they computed becomes an input."""
        for name in names:
            self._passes.append((name, False, lambda f, variables, scope: f.disable()))

    def remove_and_rewire(self, name: str, i: int = 0, o: int = 0) -> None:
        """Leave out a function and let those that read its output `o` read its input `i`."""

        def change(f: PassFunction, variables: Any, scope: Any) -> None:
            if i >= len(f.inputs) or o >= len(f.outputs):
                raise ValueError(
                    f"remove_and_rewire: the function {name!r} has {len(f.inputs)} inputs and "
                    f"{len(f.outputs)} outputs, asked for input {i} and output {o}"
                )
            f.outputs[o].rewire_on(f.inputs[i])
            f.disable()
            self._log("%s is removed", name)

        self._passes.append((name, False, change))

    def set_batch_normalization_batch_stat_all(self, batch_stat: bool) -> None:
        """Let every batch normalisation use the statistics of the batch, or the running ones."""

        def change(f: PassFunction) -> None:
            getattr(f.proto, argument_field()[f.type]).batch_stat = bool(batch_stat)

        for kind in _NORMALISATIONS:
            self._functions.append((kind, True, change))

    def fix_parameters(self) -> None:
        """Give the parameters no gradient in this network; the registered ones keep their flag."""
        self.fixed = True

    def force_average_pooling_global(self, name: str, by_type: bool = False) -> None:
        """Let an average pooling cover the whole of its input, whatever size that has."""
        self._global_pooling.append((name, by_type, True))

    def check_average_pooling_global(self, name: str, by_type: bool = False) -> None:
        """Raise a ValueError when the network is built unless a pooling covers its whole input."""
        self._global_pooling.append((name, by_type, False))

    # ---- used by NnpLoader ----

    def apply(self, message: Any, where: str) -> tuple[Any, dict[str, Variable]]:
        """The changed Network message, and the Variables to use for inputs.

        Raises:
            ValueError: The network has no function or variable of a name that was asked for.
        """
        changed = copy_of(message)
        variables = OrderedDict((v.name, PassVariable(v)) for v in changed.variable)
        for f in changed.function:
            for name in (*f.input, *f.output):
                if name not in variables:
                    raise ValueError(f"{where}: function {f.name!r}: there is no variable {name!r}")
        functions = [PassFunction(f, variables) for f in changed.function]
        for f in functions:
            for v in f.inputs:
                v.referrers.append(f)
            for v in f.outputs:
                v.parent = f
        self._check_names(variables, functions, where)
        for name, call in self._variables:
            _check_result(call(variables[name]), PassVariable, f"{where}: variable {name!r}")
        for f in functions:
            for name, by_type, call in self._functions:
                if (f.type if by_type else f.name) == name:
                    _check_result(call(f), PassFunction, f"{where}: function {f.name!r}")
        for f in functions:
            for name, by_type, call in self._passes:
                if (f.type if by_type else f.name) == name:
                    call(f, variables, get_current_parameter_scope())
        last = [variables[n] for n in self._last] + [v for v in variables.values() if v.stopped]
        kept = [f for f in functions if not f.disabled]
        if _cut(variables, kept) and not last:
            last = [v for v in variables.values() if v.parent in kept and not v.referrers]
            last += [v for v in variables.values() if v.variable is not None and not v.referrers]
        if last:
            needed = _needed(last, kept)
            kept = [f for f in kept if f in needed]
        given = self._given(variables, kept, where)
        return _rebuilt(message, variables, kept, last), given

    def adjusted(self, message: Any, inputs: Sequence[Variable], where: str) -> Any:
        """The Function message for inputs whose shapes are known."""
        if message.type != "AveragePooling":
            return message
        for name, by_type, change in self._global_pooling:
            if (message.type if by_type else message.name) != name:
                continue
            arguments = message.average_pooling_param
            n = len(arguments.kernel.dim)
            shape = inputs[0].shape
            whole = shape[-1 - n : -1] if arguments.channel_last else shape[-n:]
            if tuple(arguments.kernel.dim) == whole:
                continue
            if not change:
                raise ValueError(
                    f"{where}: the kernel {tuple(arguments.kernel.dim)} does not cover the whole "
                    f"input {whole}"
                )
            new = copy_of(message)
            arguments = new.average_pooling_param
            arguments.kernel.dim[:] = arguments.stride.dim[:] = whole
            arguments.pad.dim[:] = [0] * n
            self._log("%s has the kernel %s", message.name, whole)
            message = new
        return message

    def _given(
        self, variables: Mapping[str, PassVariable], kept: Sequence[PassFunction], where: str
    ) -> dict[str, Variable]:
        computed = {v.name for f in kept for v in f.outputs}
        given = {}
        for v in variables.values():
            if v.variable is None and v.need_grad is not None:
                if v.name in computed:
                    raise ValueError(
                        f"{where}: variable {v.name!r} is computed by a function: need_grad can be "
                        "set for inputs"
                    )
                v.variable = Variable(tuple(v.proto.shape.dim), need_grad=v.need_grad)
            if v.variable is not None:
                given[v.name] = v.variable
        return given

    def _check_names(
        self, variables: Mapping[str, PassVariable], functions: Sequence[PassFunction], where: str
    ) -> None:
        names = {f.name for f in functions}
        asked = [
            n
            for n, by_type, *_ in (*self._functions, *self._passes, *self._global_pooling)
            if not by_type
        ]
        for name in asked:
            if name not in names:
                raise ValueError(f"{where}: there is no function {name!r}, only {sorted(names)}")
        for name in [n for n, _ in self._variables] + self._last:
            if name not in variables:
                raise ValueError(
                    f"{where}: there is no variable {name!r}, only {sorted(variables)}"
                )

    def _log(self, text: str, *args: Any) -> None:
        if self.verbose:
            logger.info("NnpNetworkPass: " + text, *args)


def _adding(entries: list[Any], key: tuple[Any, ...]) -> Callable[[Callback], Callback]:
    def decorate(f: Callback) -> Callback:
        entries.append((*key, f))
        return f

    return decorate


def _check_result(result: Any, wanted: type, where: str) -> None:
    if result is not None and not isinstance(result, wanted):
        raise TypeError(
            f"{where}: the callback returned {type(result).__name__}, wanted what it was given, "
            "or None"
        )


def _cut(variables: dict[str, PassVariable], kept: Sequence[PassFunction]) -> bool:
    """Let functions no longer compute what is given; whether there was such a variable."""
    found = False
    for v in [v for v in variables.values() if v.variable is not None and v.parent in kept]:
        f, found = v.parent, True
        unread = copy(v)
        unread.proto = copy_of(v.proto)
        unread.name = unread.proto.name = f"{v.name} (replaced)"
        unread.variable, unread.referrers = None, [f]  # not empty: the network does not end here
        variables[unread.name] = unread
        f.outputs = [unread if o is v else o for o in f.outputs]
        v.parent = None
    return found


def _needed(last: Sequence[PassVariable], kept: Sequence[PassFunction]) -> set[PassFunction]:
    source = {id(v): f for f in kept for v in f.outputs}
    needed: set[PassFunction] = set()
    stack = list(last)
    while stack:
        f = source.get(id(stack.pop()))
        if f is not None and f not in needed:
            needed.add(f)
            stack.extend(f.inputs)
    return needed


def _rebuilt(
    message: Any,
    variables: Mapping[str, PassVariable],
    kept: Sequence[PassFunction],
    last: Sequence[PassVariable],
) -> Any:
    new = type(message)()
    new.name, new.batch_size = message.name, message.batch_size
    used = {v.name for f in kept for v in (*f.inputs, *f.outputs)} | {v.name for v in last}
    for name, v in variables.items():
        if name in used:
            new.variable.add().CopyFrom(v.proto)
    for f in kept:
        entry = new.function.add()
        entry.CopyFrom(f.proto)
        entry.input[:] = [v.name for v in f.inputs]
        entry.output[:] = [v.name for v in f.outputs]
    return new
