# SPDX-License-Identifier: Apache-2.0
"""The parameter registry: Variables by name, in nested scopes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import numbers, shown
from nnl.core.arguments.origin import PASSED
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.resources import check_sizes
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import STATE

__all__ = [
    "clear_parameters",
    "get_current_parameter_scope",
    "get_parameter",
    "get_parameter_or_create",
    "get_parameters",
    "parameter_scope",
    "pop_parameter",
    "set_parameter",
]

Scope = OrderedDict[str, Any]  # name -> Variable or Scope

# What reads and writes files, from the package above that knows formats: load_parameters,
# save_parameters, save_network, and solver_states() -> {extension: (save, load)}.
FILES: dict[str, Callable[..., Any]] = {}
root_scope: Scope = OrderedDict()
_creating = RLock()  # so that threads which ask for the same parameter get the same one


class _ScopeState(threading.local):
    """Where in the registry a thread is; every thread begins at the root.

    Attributes:
        path: Names of the scope from the root, for messages.
        made: What was registered since a parametric function began; None outside of any.
        drawn: Whether new parameters get initial values; without, they take no memory yet.
        shared: Arrays by the id of the numpy array that they are made of; None makes new ones.
    """

    scope: Scope = root_scope
    path: tuple[str, ...] = ()
    made: list[tuple[Scope, str]] | None = None
    drawn: bool = True
    shared: dict[int, tuple[Any, NdArray]] | None = None


SCOPE = _ScopeState()


def get_current_parameter_scope() -> Scope:
    """The scope that names are relative to.

    Example:
        >>> with nn.parameter_scope("ex_here"):
        ...     w = PF.get_parameter_or_create("w", (2,))
        ...     list(nn.get_current_parameter_scope())
        ['w']
    """
    return SCOPE.scope


@lru_cache(4096)
def _parts(name: str) -> tuple[str, ...]:
    return tuple([part for part in name.split("/") if part])


def _split(name: str, what: str) -> tuple[str, ...]:
    if not isinstance(name, str):
        raise TypeError(f"{what}: name is {name!r}, wanted a str")
    return _parts(name)


def _inside(scope: Scope, path: Sequence[str]) -> Scope:
    for part in path:
        child = scope.get(part)
        if child is None:  # or another thread makes it now
            child = scope.setdefault(part, OrderedDict())
        if isinstance(child, Variable):
            raise ValueError(f"parameter_scope: {part!r} in {'/'.join(path)!r} is a parameter")
        scope = child
    return scope


@contextmanager
def parameter_scope(name: str, scope: Scope | None = None) -> Iterator[Scope]:
    """Names inside the with block are relative to `name`; "/" opens several scopes at once.

    Args:
        scope: Where to open `name`, instead of the current scope.
    Raises:
        ValueError: `name` belongs to a parameter.
    Example:
        >>> with nn.parameter_scope("ex_outer"):
        ...     y = PF.affine(array([[1, 2]]), 3, name="fc")
        >>> nn.get_parameters()["ex_outer/fc/affine/W"].shape
        (2, 3)
    """
    outer = enter_scope(name, scope)
    try:
        yield SCOPE.scope
    finally:
        leave_scope(outer)


@contextmanager
def without_values() -> Iterator[None]:
    """Parameters that are made in the with block get no initial values: where only shapes count."""
    outer, SCOPE.drawn = SCOPE.drawn, False
    try:
        yield
    finally:
        SCOPE.drawn = outer


@contextmanager
def shared_values(known: dict[int, tuple[Any, NdArray]]) -> Iterator[None]:
    """What is made of one numpy array in with blocks over one `known` is one array, not copies.

    For graphs of one file at several sizes, which nobody trains.
    """
    outer, SCOPE.shared = SCOPE.shared, known
    try:
        yield
    finally:
        SCOPE.shared = outer


def array_of(value: Any) -> NdArray:
    """An array that holds what a numpy array does; see shared_values."""
    if SCOPE.shared is None:
        return NdArray.from_numpy_array(value)
    known, nd = SCOPE.shared.get(id(value), (None, None))
    if nd is None or known is not value:
        nd = NdArray.from_numpy_array(value)
        SCOPE.shared[id(value)] = value, nd  # the value too, so that its id stays its own
    return nd


def enter_scope(name: str, scope: Scope | None = None) -> Any:
    """Begin what parameter_scope does; gives what leave_scope needs to end it."""
    state = SCOPE.__dict__  # this thread's
    outer = SCOPE.scope, SCOPE.path, STATE.layer
    parts = _split(name, "parameter_scope")
    state["scope"] = _inside(outer[0] if scope is None else scope, parts)
    state["path"] = STATE.layer = (*outer[1], *parts) if scope is None else parts
    return outer


def leave_scope(outer: Any) -> None:
    state = SCOPE.__dict__
    state["scope"], state["path"], STATE.layer = outer


def in_scope(
    function: Callable[..., Any],
    scope: str,
    own: int,
    name: str | None,
    args: tuple[Any, ...],
    kw: dict[str, Any],
) -> Any:
    """Call a parametric function in the scope `name/scope`, or `scope` without a name.

    Args:
        own: How many scopes at the end are the function's own: messages name it anyway.
    """
    outer = enter_scope(scope if not name else f"{name}/{scope}")
    try:
        STATE.layer = SCOPE.path[:-own]
        return all_or_nothing(function, args, kw)
    finally:
        leave_scope(outer)


def all_or_nothing(function: Callable[..., Any], args: Any, kw: dict[str, Any]) -> Any:
    """Call the function; remove the parameters that it has registered if it raises."""
    made: list[tuple[Scope, str]] = []
    outer, SCOPE.made = SCOPE.made, made
    finished = False
    try:
        result = function(*args, **kw)
        finished = True
        return result
    finally:
        SCOPE.made = outer
        if not finished:
            take_back(made)
        elif outer is not None:
            outer += made


def take_back(made: Sequence[tuple[Scope, str]]) -> None:
    """Remove parameters that were registered."""
    for scope, leaf in made:
        scope.pop(leaf, None)


def handle(name: str, shape: Any, need_grad: bool, as_need_grad: bool | None) -> Variable | None:
    """A handle on a parameter that exists as it is asked for, see get_parameter_or_create.

    None where it does not.
    """
    param = get_parameter(name)
    if param is None or param.need_grad is not need_grad:
        return None
    if shape is not None and used_shape(param) != tuple(shape):
        return None
    flag = need_grad if as_need_grad is None else as_need_grad
    return param.handle(need_grad=flag and not STATE.no_grad)


def used_shape(param: Variable) -> tuple[int, ...]:
    """The shape in which functions use a parameter, which may be stored in pieces."""
    shape: tuple[int, ...] = getattr(param, "used_shape", param.shape)
    return shape


class ParameterLookup:
    """What parametric functions do all the time; attributes, so that a library can do it."""

    def __init__(self) -> None:
        self.in_scope: Callable[..., Any] = in_scope
        self.handle: Callable[..., Variable | None] = handle

    def asked_of(self, library: Any) -> None:
        """Let a library do them."""
        self.in_scope, self.handle = library.in_scope, library.handle


LOOKUP = ParameterLookup()
PASSED.update([in_scope.__code__, all_or_nothing.__code__])


def get_parameter(key: str) -> Variable | None:
    """The parameter of this name, relative to the current scope; None if there is none.

    Example:
        >>> w = PF.get_parameter_or_create("ex_found", (2,))
        >>> PF.get_parameter("ex_found") is w, PF.get_parameter("ex_nothing")
        (False, None)
    """
    return parameter_in(SCOPE.scope, key)


def parameter_in(scope: Scope, key: str) -> Variable | None:
    """The parameter of this name, relative to a scope; None if there is none."""
    found: Any = scope
    if type(key) is str and type(usual := found.get(key)) is Variable:
        return usual  # by far the most are asked for by one name
    for part in _split(key, "get_parameter"):
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, Variable) else None


def set_parameter(key: str, param: Variable) -> None:
    """Register a Variable under this name, relative to the current scope.

    Example:
        >>> PF.set_parameter("ex_set", array([1, 2]))
        >>> PF.get_parameter("ex_set").d
        array([1., 2.], dtype=float32)
    """
    if not isinstance(param, Variable):
        raise TypeError(f"set_parameter: param is {type(param).__name__}, wanted nnl.Variable")
    *path, leaf = _split(key, "set_parameter") or ("",)
    if not leaf:
        raise ValueError(f"set_parameter: key is {key!r}, wanted a name")
    scope = _inside(SCOPE.scope, path)
    if isinstance(scope.get(leaf), dict) and scope[leaf]:
        raise ValueError(f"set_parameter: {key!r} is a scope that holds parameters")
    made = SCOPE.made
    if made is not None and leaf not in scope:
        made.append((scope, leaf))
    scope[leaf] = param
    STATE.interpreter.outlives(param.data)
    if not param.name:
        param.name = leaf


def pop_parameter(key: str) -> Variable | None:
    """Remove the parameter of this name and return it; None if there is none.

    Example:
        >>> w = PF.get_parameter_or_create("ex_popped", (2,))
        >>> PF.pop_parameter("ex_popped") is w, PF.get_parameter("ex_popped")
        (False, None)
    """
    param = get_parameter(key)
    if param is not None:
        *path, leaf = _split(key, "pop_parameter")
        del _inside(SCOPE.scope, path)[leaf]
    return param


def get_parameter_or_create(
    name: str,
    shape: Any = None,
    initializer: Any = None,
    need_grad: bool = True,
    as_need_grad: bool | None = None,
) -> Variable:
    """A handle on the parameter of this name, made if it does not exist.

    Args:
        name: Relative to the current scope.
        shape: Its sizes; may be left out when it exists or the initializer is an array.
        initializer: f(shape) -> array, or an array, or None for zeros. Whole numbers become floats
            where a gradient is needed.
        need_grad: Flag of the registered parameter.
        as_need_grad: Flag of the returned handle; need_grad if left out.
    Returns:
        An unlinked handle that shares data and gradient with the registered parameter.
    Raises:
        ShapeError: The parameter exists with another shape.
    Example:
        >>> w = PF.get_parameter_or_create("ex_made", (2,), I.ConstantInitializer(3))
        >>> w.d
        array([3., 3.], dtype=float32)
    """
    try:
        found = LOOKUP.handle(name, shape, need_grad, as_need_grad)
    except TypeError:  # what is below says why
        found = None
    if found is not None:
        return found
    _check_shape(name, shape)
    param = get_parameter(name)
    if param is None:
        with _creating:
            param = get_parameter(name)
            if param is None:
                param = _create(name, shape, initializer, need_grad)
                set_parameter(name, param)
    else:
        if shape is not None and used_shape(param) != tuple(shape):
            raise ShapeError(
                f"{_CREATE} {_full(name)!r} exists with the shape "
                f"{used_shape(param)}, wanted {tuple(shape)}: {_RENAME}, or "
                "forget all parameters by clear_parameters() "
                "(documentation: guides/sharp_bits#a-name-is-a-weight)"
            )
        if param.need_grad != need_grad:
            param.need_grad = need_grad
    flag = need_grad if as_need_grad is None else as_need_grad
    return param.handle(need_grad=flag and not STATE.no_grad)


_CREATE, _RENAME = "get_parameter_or_create: parameter", "give each call a name of its own"


def name_layer(error: ShapeError, layer: str) -> None:
    """Let the error for a parameter of another shape name the layer that was called instead."""
    text = str(error)
    if text.startswith(_CREATE):
        text = f"{layer}: parameter{text.removeprefix(_CREATE)}"
        error.args = (text.replace(_RENAME, f'{_RENAME}, as name="second"'),)


def _full(name: str) -> str:
    return "/".join((*SCOPE.path, name))


def _check_shape(name: str, shape: Any) -> None:
    if shape is not None and not np.iterable(shape):
        number = isinstance(shape, (int, np.integer))
        raise TypeError(
            f"get_parameter_or_create: shape of {_full(name)!r} is {shown(shape)}, wanted "
            f"{f'({shape},)' if number else 'a sequence of ints'}"
        )


def _initial(name: str, value: Any) -> Any:
    where = f"get_parameter_or_create: the initial value of {_full(name)!r}"
    return numbers(where, value, "numbers")


def _create(
    name: str, shape: Any, initializer: Callable[[Any], Any] | Any, need_grad: bool
) -> Variable:
    if initializer is not None and not callable(initializer):
        value = _initial(name, initializer)
        if shape is not None and value.shape != tuple(shape):
            raise ShapeError(
                f"get_parameter_or_create: the initial value of {_full(name)!r} has the shape "
                f"{value.shape}, wanted {tuple(shape)}"
            )
        shape = value.shape
    elif shape is None:
        raise ValueError(
            f"get_parameter_or_create: parameter {_full(name)!r} does not exist, give its shape"
        )
    else:
        if any(isinstance(n, int) and n < 0 for n in shape):
            raise ShapeError(
                f"get_parameter_or_create: parameter {_full(name)!r} cannot have the shape "
                f"{tuple(shape)}"
            )
        check_sizes(f"get_parameter_or_create of {_full(name)!r}", [Spec.of(shape)])
    param = Variable(shape, need_grad=need_grad)
    if initializer is not None and SCOPE.drawn:
        if callable(initializer):
            value = _initial(name, initializer(param.shape))
        if value.ndim and value.shape != param.shape:
            try:
                value = np.broadcast_to(value, param.shape)
            except ValueError:
                raise ShapeError(
                    f"get_parameter_or_create: the initial value of {_full(name)!r} has the shape "
                    f"{value.shape}, wanted {param.shape}"
                ) from None
        if need_grad and value.dtype.kind in "biu":
            value = value.astype(np.float32)  # an update would cut fractions off
        if SCOPE.shared is not None and value.shape == param.shape:
            param.data = array_of(value)
        else:
            param.d = value
    return param


def get_parameters(
    params: dict[str, Variable] | None = None, path: str = "", grad_only: bool = True
) -> dict[str, Variable]:
    """Parameters of the current scope by relative name.

    Args:
        params: A dictionary to add to.
        path: Prefix of the names.
        grad_only: Leave out those with need_grad=False.
    Example:
        >>> with nn.parameter_scope("ex_all"):
        ...     y = PF.affine(array([[1, 2]]), 3, name="fc")
        ...     sorted(nn.get_parameters())
        ['fc/affine/W', 'fc/affine/b']
    """
    out: dict[str, Variable] = OrderedDict() if params is None else params
    _collect(SCOPE.scope, path, grad_only, out)
    return out


def _collect(scope: Scope, path: str, grad_only: bool, out: dict[str, Variable]) -> None:
    for key, entry in list(scope.items()):  # another thread may add to it
        name = f"{path}/{key}" if path else key
        if isinstance(entry, Variable):
            if entry.need_grad or not grad_only:
                out[name] = entry
        else:
            _collect(entry, name, grad_only, out)


def clear_parameters() -> None:
    """Remove every parameter of the current scope.

    Example:
        >>> nn.clear_parameters()
        >>> len(nn.get_parameters())
        0
    """
    SCOPE.scope.clear()


def __getattr__(name: str) -> Any:
    if name == "current_no_grad":  # scripts ask here whether no_grad() is in force
        return STATE.no_grad
    if name in FILES:
        return FILES[name]
    if name == "current_scope":
        return SCOPE.scope
    if name == "no_grad":
        from nnl.core.interpreters.switches import no_grad

        return no_grad
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
