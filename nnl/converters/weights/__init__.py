# SPDX-License-Identifier: Apache-2.0
"""Weights of other programs into the parameter registry: .safetensors, PyTorch's .pt and .npz."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnl.converters.nnp.members import whole
from nnl.converters.nnp.parameter_files import set_value
from nnl.converters.weights.npz import read_npz
from nnl.converters.weights.pytorch import read_pytorch
from nnl.converters.weights.safetensors import read_safetensors
from nnl.core.parameter import all_or_nothing, get_parameter, set_parameter
from nnl.core.spec import ShapeError
from nnl.core.variable import Variable

Path = str | os.PathLike[str]
Array = np.ndarray[Any, Any]
Target = str | None | tuple[str, Callable[[Array], Array]]
Names = Mapping[str, Target] | Callable[[str], Target]

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
        return _READERS[extension](file, f"read_weights: {path}")


def load_weights(
    path: Path, names: Names | None = None, need_grad: bool = True, only_known: bool = False
) -> list[str]:
    """Read weights into the parameters of the current scope; those that do not exist are created.

    Args:
        path: As `read_weights` takes it.
        names: What each array is called here: a dictionary or a function of its name in the file,
            that gives a parameter name, a pair of a name and a function of the array, or None to
            leave it out. In a dictionary every name of the file must be there. Without it the
            names are the file's, with "/" for ".".
        need_grad: Flag of parameters that are created.
        only_known: Refuse arrays for which there is no parameter yet.
    Returns:
        The names of the parameters that were set.
    Raises:
        ValueError: The file is damaged, an array has no name or two have the same.
        ShapeError: A parameter exists with another shape. Nothing is changed then.

    Example:
        >>> np.savez("ex.npz", **{"fc.weight": np.ones((2, 3)), "fc.bias": np.ones(2)})
        >>> load_weights("ex.npz", {"fc.weight": ("fc/affine/W", np.transpose), "fc.bias": None})
        ['fc/affine/W']
    """
    values: dict[str, Array] = {}
    for name, value in read_weights(path).items():
        where = f"load_weights: {path}: {name!r}"
        target = _target(name, names, where)
        if target is None:
            continue
        target, change = target if isinstance(target, tuple) else (target, None)
        value = value if change is None else np.asarray(change(value))
        if target in values:
            raise ValueError(f"{where}: another array is called {target!r} as well")
        known = get_parameter(target)
        if known is None and only_known:
            raise ValueError(f"{where}: there is no parameter {target!r}")
        if known is not None and known.shape != value.shape:
            raise ShapeError(
                f"{where} has the shape {value.shape}, the parameter {target!r} {known.shape}"
            )
        values[target] = value
    _set(values, need_grad, f"load_weights: {path}")
    return list(values)


def _target(name: str, names: Names | None, where: str) -> Target:
    if names is None:
        return name.replace(".", "/")
    if callable(names):
        return names(name)
    if name not in names:
        raise ValueError(f"{where}: names has no entry for it: give None to leave it out")
    return names[name]


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
