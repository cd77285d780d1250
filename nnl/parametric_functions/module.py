# SPDX-License-Identifier: Apache-2.0
"""Module and Sequential: layers as objects, each with parameters of its own."""

from __future__ import annotations

import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import FunctionType
from typing import Any

from nnl.core.arguments.suggest import MODULE, knows_elsewhere
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import (
    FILES,
    Scope,
    get_parameters,
    parameter_scope,
    set_parameter,
)
from nnl.core.settings.context import STATE

__all__ = ["Module", "ParamMemo", "Sequential", "insert_parent_name"]

# "save" and "load": functions of the package above that reads and writes files, which puts them
# here.

Parameters = dict[str, Variable]


class ParamMemo:
    """The parameters seen so far, so that one that is reached twice is listed once."""

    def __init__(self) -> None:
        self._seen: dict[int, Variable] = {}

    def filter_and_update(self, params: Mapping[str, Variable]) -> Parameters:
        """Those not seen before, which are seen from now on."""
        new = OrderedDict((k, p) for k, p in params.items() if id(p) not in self._seen)
        self._seen.update((id(p), p) for p in new.values())
        return new


def insert_parent_name(name: str, params: Mapping[str, Variable]) -> Parameters:
    """The parameters of submodule `name` with the names they have in its parent."""
    return OrderedDict((f"@{name}/{key}", p) for key, p in params.items())


def in_own_scope(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, run in the parameter scope of its object."""

    @wraps(method)
    def scoped(self: Module, *args: Any, **kw: Any) -> Any:
        with parameter_scope("", self.parameter_scope):
            return method(self, *args, **kw)

    return scoped


@knows_elsewhere(MODULE)
class Module:
    """Base class of layers and networks that own their parameters.

    A subclass defines `call`. Its methods, `__init__` included, run in a parameter scope that
    belongs to the object, whatever scope is current where they are called: two objects never share
    parameters by name, and the registry of `nnl.get_parameters` does not see them. A Module that
    is assigned to an attribute becomes a submodule, whose parameters are listed under
    "@attribute/". Those of Modules in a list, tuple or dictionary that is an attribute are listed
    under "@attribute.position/" or "@attribute.key/", also where one holds another.

    Example:
        >>> class Classifier(nn.Module):
        ...     def __init__(self, classes):
        ...         self.classes = classes
        ...
        ...     def call(self, x):
        ...         return PF.affine(x, self.classes)
        >>> classify = Classifier(3)
        >>> classify(nn.Variable((2, 5))).shape, list(classify.get_parameters())
        ((2, 3), ['affine/W', 'affine/b'])
    """

    _scope: Scope
    _training: bool
    _parent: Callable[[], Module | None]
    _attribute: str

    def __new__(cls, *args: Any, **kw: Any) -> Any:
        # here, as subclasses need not call __init__
        self = super().__new__(cls)
        object.__setattr__(self, "_scope", OrderedDict())
        object.__setattr__(self, "_training", True)
        object.__setattr__(self, "_parent", lambda: None)
        object.__setattr__(self, "_attribute", "")
        return self

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        for name, value in list(vars(cls).items()):
            special = name.startswith("__") and name.endswith("__") and name != "__init__"
            if isinstance(value, FunctionType) and not special:
                setattr(cls, name, in_own_scope(value))

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if isinstance(value, Module):
            value._belongs_to(self, name)

    def _belongs_to(self, parent: Module, name: str) -> None:
        object.__setattr__(self, "_parent", weakref.ref(parent))
        object.__setattr__(self, "_attribute", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of `call`."""
        return STATE.interpreter.called(self, args, kwargs)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses define it."""
        hint = ", which has forward: rename that" if hasattr(self, "forward") else ""
        raise NotImplementedError(f"{type(self).__name__}.call: define it in the class{hint}")

    def __len__(self) -> int:
        """Number of submodules."""
        return len(self.submodules)

    def __bool__(self) -> bool:
        return True  # without submodules, too

    def __repr__(self) -> str:
        return type(self).__name__

    # ---- the tree of modules ----

    @property
    def submodules(self) -> OrderedDict[str, Module]:
        """The Modules that are attributes, by name of the attribute."""
        return OrderedDict((k, v) for k, v in vars(self).items() if isinstance(v, Module))

    def _parts(self) -> OrderedDict[str, Module]:
        """The submodules and, after them, the Modules in lists, tuples and dictionaries."""
        parts = self.submodules
        known = {id(self), *map(id, parts.values()), *map(id, self._above())}
        for name, value in vars(self).items():
            for path, part in _modules_in(name, value):
                if id(part) not in known:
                    known.add(id(part))
                    parts[path] = part
                    if part.parent is None:
                        part._belongs_to(self, path)
        return parts

    def _above(self) -> Iterator[Module]:
        above = self.parent
        while above is not None:
            yield above
            above = above.parent

    @property
    def parent(self) -> Module | None:
        """The Module that has this as a part, by the last assignment; None at the top."""
        return self._parent()

    @property
    def name(self) -> str:
        """The attribute of the parent; at the top, the class's name in snake case."""
        if self.parent is not None:
            return self._attribute
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def is_root(self) -> bool:
        """Whether there is no parent."""
        return self.parent is None

    def get_path_name(self) -> str:
        """The names from the top to this module: "@net/@body"."""
        own = f"@{self.name}"
        return own if self.parent is None else f"{self.parent.get_path_name()}/{own}"

    def get_scope_name(self) -> str:
        """The names from the first submodule to the first of its submodules and so on."""
        for name, child in self.submodules.items():
            below = child.get_scope_name()
            return f"@{name}/{below}" if below else f"@{name}"
        return ""

    @property
    def training(self) -> bool:
        """A flag for `call` to read; True at first. Setting it sets it in all submodules."""
        return self._training

    @training.setter
    def training(self, value: bool) -> None:
        object.__setattr__(self, "_training", value)
        for child in self._parts().values():
            child.training = value

    # ---- parameters ----

    @property
    def parameter_scope(self) -> Scope:
        """The module's own parameters: for `nnl.parameter_scope("", module.parameter_scope)`."""
        return self._scope

    def get_parameters(
        self, recursive: bool = True, grad_only: bool = False, memo: ParamMemo | None = None
    ) -> Parameters:
        """Parameters by name, those of submodules first; none before the first call.

        Args:
            recursive: Include the submodules.
            grad_only: Leave out those with need_grad=False.
            memo: Parameters to leave out; those returned are added.
        """
        memo = ParamMemo() if memo is None else memo
        out: Parameters = OrderedDict()
        if recursive:
            for name, child in self._parts().items():
                found = child.get_parameters(recursive, grad_only, memo)
                out.update(insert_parent_name(name, found))
        with parameter_scope("", self._scope):
            out.update(memo.filter_and_update(get_parameters(grad_only=grad_only)))
        return out

    def _owner(self, key: str) -> tuple[Module | None, str]:
        """(module, name in it) of a parameter; the module is None if there is none."""
        where = f"{type(self).__name__}.set_parameter"
        if not isinstance(key, str) or not key:
            raise TypeError(f"{where}: key is {key!r}, wanted a name")
        if not key.startswith("@"):
            return self, key
        name, slash, rest = key[1:].partition("/")
        if not slash or not rest:
            raise ValueError(f"{where}: key is {key!r}, wanted '@{name}/' and a parameter's name")
        child = self._parts().get(name)
        return (None, name) if child is None else child._owner(rest)

    def set_parameter(self, key: str, param: Variable, raise_if_missing: bool = False) -> None:
        """Put a Variable in the place of a parameter, or add it.

        Args:
            key: As in get_parameters: "@submodule/..." or a name in the module's own scope.
            raise_if_missing: Raise if there is no such submodule; else nothing is done then.
        Raises:
            ValueError: A submodule is missing, or key names no parameter.
            TypeError: param is not a Variable.
        """
        self.set_parameters({key: param}, raise_if_missing)

    def set_parameters(
        self, params: Mapping[str, Variable], raise_if_missing: bool = False
    ) -> None:
        """`set_parameter` for several; wrong ones change nothing."""
        found = []
        for key, param in params.items():
            if not isinstance(param, Variable):
                raise TypeError(
                    f"{type(self).__name__}.set_parameter: {key!r} is {type(param).__name__}, "
                    "wanted nnl.Variable"
                )
            owner, name = self._owner(key)
            if owner is not None:
                found.append((owner, name, param))
            elif raise_if_missing:
                raise ValueError(
                    f"{type(self).__name__}.set_parameter: {key!r}: there is no submodule "
                    f"{name!r}; raise_if_missing=False ignores such parameters"
                )
        for owner, name, param in found:
            with parameter_scope("", owner._scope):
                set_parameter(name, param)

    def update_parameter(self) -> None:
        """Move what was put into the own scope under "@submodule/" to the submodule."""
        with parameter_scope("", self._scope):
            stray = {k: p for k, p in get_parameters(grad_only=False).items() if k[0] == "@"}
            self.set_parameters(stray)
            for name in self._parts():
                self._scope.pop(f"@{name}", None)

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to zero."""
        for param in self.get_parameters().values():
            param.grad.zero()

    # ---- files ----

    def save_parameters(self, path: Any, extension: str = ".h5") -> None:
        """Write all parameters to a file; see `nnl.save_parameters`.

        Args:
            extension: The format if path is a file object; a path has its own.
        """
        save = self._file_function("save_parameters")
        save(path, self.get_parameters(), extension if hasattr(path, "write") else None)

    def load_parameters(
        self, path: Any, extension: str = ".h5", raise_if_missing: bool = True
    ) -> None:
        """Read parameters from a file, also those that calls have not made yet.

        Args:
            extension: The format if path is a file object; a path has its own.
            raise_if_missing: Raise if the file has parameters of a submodule that there is not.
        Raises:
            ValueError: A submodule is missing; nothing is changed then. See also
                `nnl.load_parameters`.
        """
        load = self._file_function("load_parameters")
        with parameter_scope("", OrderedDict()):
            load(path, extension=extension)
            params = get_parameters(grad_only=False)
        self.set_parameters(params, raise_if_missing)

    def _file_function(self, name: str) -> Callable[..., Any]:
        if name not in FILES:
            raise NotImplementedError(
                f"{type(self).__name__}.{name}: use nnl.Module, which knows files"
            )
        return FILES[name]


def _modules_in(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Module]]:
    """("name.position", module) of those in a list, tuple or dictionary, or one inside it."""
    if not isinstance(value, (list, tuple, dict)) or depth == 8:  # one may hold itself
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, Module):
            yield f"{name}.{key}", item
        elif isinstance(item, (list, tuple, dict)):
            yield from _modules_in(f"{name}.{key}", item, depth + 1)


class Sequential(Module):
    """Modules, each applied to what the one before gave.

    Args:
        args: Modules, or pairs (name, module). Without a name, a module is called by its own and
            its position: "conv_0".
    Raises:
        TypeError: An argument is neither.
        ValueError: Two modules have the same name.

    Example:
        >>> class Layer(nn.Module):
        ...     def call(self, x):
        ...         return F.relu(PF.affine(x, 4))
        >>> net = nn.Sequential(Layer(), ("head", Layer()))
        >>> y = net(nn.Variable((2, 3)))
        >>> list(net.get_parameters())[::2]
        ['@layer_0/affine/W', '@head/affine/W']
    """

    def __init__(self, *args: Module | tuple[str, Module]) -> None:
        modules: dict[str, Module] = {}
        for i, given in enumerate(args):
            pair = isinstance(given, (tuple, list)) and len(given) == 2
            name, module = given if pair else ("", given)  # type: ignore[misc]
            if not isinstance(module, Module) or not isinstance(name, str):
                raise TypeError(
                    f"Sequential: argument {i} is {given!r}, wanted nnl.Module or a pair of a name "
                    "and one"
                )
            name = name or f"{module.name}_{i}"
            if name in modules:
                raise ValueError(f"Sequential: argument {i} has the name {name!r} of another one")
            modules[name] = module
        for name, module in modules.items():
            setattr(self, name, module)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the modules in turn.

        Args:
            args: Those of the first module. A tuple that a module returns becomes the arguments of
                the next.
            kwargs: Given to every module.
        """
        if not self.submodules:
            raise ValueError("Sequential: there is no module to call")
        y: Any = args
        for module in self.submodules.values():
            y = module(*y, **kwargs) if isinstance(y, tuple) else module(y, **kwargs)
        return y
