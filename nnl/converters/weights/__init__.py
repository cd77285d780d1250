# SPDX-License-Identifier: Apache-2.0
"""Weights of other programs into the parameter registry: .safetensors, PyTorch's .pt and .npz."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from nnl.converters.nnp.members import whole
from nnl.converters.nnp.parameter_files import set_value
from nnl.converters.weights.npz import read_npz
from nnl.converters.weights.pytorch import read_pytorch
from nnl.converters.weights.safetensors import read_safetensors
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import all_or_nothing, get_parameter, set_parameter

Path = str | os.PathLike[str]
Array = np.ndarray[Any, Any]
Sources = str | tuple[str, ...]
Target = str | tuple[str, Callable[[Any], Any]]
Targets = Target | list[Target] | None
Names = Mapping[Any, Targets] | Callable[[str], Targets]

_READERS: dict[str, Callable[[Any, str], dict[str, Array]]] = {
    ".safetensors": lambda file, where: read_safetensors(whole(file, where).read(), where),
    ".pt": read_pytorch,
    ".pth": read_pytorch,
    ".npz": read_npz,
}
EXTENSIONS = tuple(_READERS)


def read_weights(path: Path) -> dict[str, Array]:
    """The arrays of a file by name: .safetensors, .pt, .pth (a state_dict) or .npz.

    Nothing in the file is executed, and sizes are checked before memory is taken. bfloat16 becomes
    float32.

    Raises:
        ValueError: The extension is another, or the file is damaged.
    """
    extension = os.path.splitext(str(path))[1].lower()
    if extension not in _READERS:
        raise ValueError(
            f"read_weights: {path} has the extension {extension!r}, wanted one of "
            f"{', '.join(_READERS)}"
        )
    with open(path, "rb", buffering=0) as file:
        found = _READERS[extension](file, f"read_weights: {path}")
    return {k: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for k, a in found.items()}


def load_weights(
    path: Path, names: Names | None = None, need_grad: bool = True, only_known: bool = False
) -> list[str]:
    """Read weights into the parameters of the current scope; those that do not exist are created.

    Args:
        path: As `read_weights` takes it.
        names: What each array is called here: a dictionary or a function of its name in the file.
            It gives a parameter's name; a pair of one and a function of the array; a list of such,
            where an array goes into several parameters; or None to leave it out. A tuple of names
            as the key of a dictionary takes several arrays into one parameter, and the function
            gets the tuple of them, as `np.concatenate` and `np.stack` do. In a dictionary every
            name of the file must be there. Without it the names are the file's, with "/" for ".".
        need_grad: Flag of parameters that are created.
        only_known: Refuse arrays for which there is no parameter yet.
    Returns:
        The names of the parameters that were set.
    Raises:
        ValueError: The file is damaged, an array has no name, two have the same, or a function
            fails.
        ShapeError: A parameter exists with another shape. Nothing is changed then.

    Example:
        >>> np.savez("ex.npz", **{"fc.weight": np.ones((2, 3)), "fc.bias": np.ones(2)})
        >>> load_weights("ex.npz", {"fc.weight": ("fc/affine/W", np.transpose), "fc.bias": None})
        ['fc/affine/W']
        >>> np.savez("parts.npz", q=np.ones((2, 3)), k=np.ones((2, 3)), both=np.ones((4, 3)))
        >>> halves = [("one/W", lambda a: a[:2]), ("two/W", lambda a: a[2:])]
        >>> load_weights("parts.npz", {("q", "k"): ("qk/W", np.concatenate), "both": halves})
        ['qk/W', 'one/W', 'two/W']
    """
    values: dict[str, Array] = {}
    arrays = read_weights(path)
    for sources, targets in _targets(arrays, names, f"load_weights: {path}"):
        where = f"load_weights: {path}: {_quoted(sources)}"
        for target in targets if isinstance(targets, list) else [targets]:
            name, change = target if isinstance(target, tuple) else (target, None)
            value = _value(arrays, sources, name, change, where)
            if name in values:
                raise ValueError(f"{where}: another array is called {name!r} as well")
            known = get_parameter(name)
            if known is None and only_known:
                raise ValueError(f"{where}: there is no parameter {name!r}")
            if known is not None and known.shape != value.shape:
                shape = f"has the shape {value.shape}"
                if change is not None:
                    shape = f"{_shapes(arrays, sources)} becomes {value.shape}"
                raise ShapeError(f"{where} {shape}, the parameter {name!r} {known.shape}")
            values[name] = value
    _set(_apart(values), need_grad, f"load_weights: {path}")
    return list(values)


def _targets(
    arrays: Mapping[str, Array], names: Names | None, where: str
) -> Iterator[tuple[Sources, Target | list[Target]]]:
    """What in the file goes where; what is left out is not given."""
    if names is None:
        names = {name: name.replace(".", "/") for name in arrays}
    elif callable(names):
        names = {name: names(name) for name in arrays}
    wanted = {key: key if isinstance(key, tuple) else (key,) for key in names}
    named = {name for sources in wanted.values() for name in sources}
    for name in arrays:
        if name not in named:
            raise ValueError(
                f"{where}: {name!r}: names has no entry for it: give None to leave it out"
            )
    for key, sources in wanted.items():
        missing = [name for name in sources if name not in arrays]
        if missing and len(missing) < len(sources):
            raise ValueError(f"{where}: {_quoted(key)}: there is no array {missing[0]!r}")
        target = names[key]
        if target is not None and not missing:
            yield key, target


def _quoted(sources: Sources) -> str:
    return ", ".join(map(repr, sources)) if isinstance(sources, tuple) else repr(sources)


def _shapes(arrays: Mapping[str, Array], sources: Sources) -> str:
    given = sources if isinstance(sources, tuple) else (sources,)
    return "of " + ", ".join(str(arrays[name].shape) for name in given)


def _value(
    arrays: Mapping[str, Array],
    sources: Sources,
    name: str,
    change: Callable[[Any], Any] | None,
    where: str,
) -> Array:
    several = isinstance(sources, tuple)
    if change is None and several:
        raise ValueError(
            f"{where}: {len(sources)} arrays go into {name!r}: give a pair of it and a function "
            "of the arrays, such as np.concatenate"
        )
    given = tuple(arrays[n] for n in sources) if several else arrays[sources]
    try:
        return np.asarray(given if change is None else change(given))
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"{where} {_shapes(arrays, sources)}: the function for {name!r} fails: {error}"
        ) from error


def _apart(values: Mapping[str, Array]) -> dict[str, Array]:
    """The values, none of which shares memory with another: parameters take their memory over."""
    found, end = dict(values), 0
    for name in sorted(values, key=lambda n: values[n].ctypes.data):
        value = values[name]
        if value.flags.c_contiguous and value.nbytes:  # others are copied anyway
            if value.ctypes.data < end:
                found[name] = value.copy()
            end = max(end, value.ctypes.data + value.nbytes)
    return found


def _set(values: Mapping[str, Array], need_grad: bool, where: str) -> None:
    paths = {tuple(part for part in name.split("/") if part) for name in values}
    for path in paths:
        if not path or any(path[:i] in paths for i in range(1, len(path))):
            raise ValueError(f"{where}: {'/'.join(path)!r} is no name, or another one's scope")

    def registered() -> list[Variable]:
        found = []
        for name, value in values.items():
            known = get_parameter(name)
            if known is None:
                known = Variable(value.shape, need_grad=need_grad)
                set_parameter(name, known)
            found.append(known)
        return found

    try:
        variables = all_or_nothing(registered, (), {})
    except ValueError as error:  # a name is the scope of parameters that exist, or below one
        raise ValueError(f"{where}: {error}") from error
    for variable, value in zip(variables, values.values(), strict=True):
        set_value(variable, value)
