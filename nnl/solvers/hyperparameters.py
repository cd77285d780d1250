# SPDX-License-Identifier: Apache-2.0
"""The ranges of the solvers' hyperparameters, one table for all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any

from nnl.core.arguments.annotations import flag, shown
from nnl.core.arguments.suggest import did_you_mean
from nnl.core.ops.op import Op

# Name -> (lowest, highest, whether the highest itself is allowed).
_RANGES: dict[str, tuple[float, float, bool]] = {
    **dict.fromkeys(("lr", "alpha", "eta", "eps", "wd"), (0.0, math.inf, False)),
    **dict.fromkeys(("coefficient", "final_lr", "gamma_l", "gamma_u"), (0.0, math.inf, False)),
    **dict.fromkeys(("momentum", "decay"), (0.0, 1.0, True)),
    **dict.fromkeys(("beta1", "beta2"), (0.0, 1.0, False)),
    "gamma": (5e-324, math.inf, False),  # positive
}
_FLAGS = ("amsgrad", "bias_correction", "fixed_decay", "rectify", "weight_decouple")


def check_names(cls: type, given: Iterable[str]) -> None:
    """Raise a TypeError with a suggestion for an argument that the class does not take."""
    parameters = signature(cls.__init__).parameters.values()  # type: ignore[misc]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    names = [p.name for p in parameters][1:]
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names)
            raise TypeError(f"{cls.__name__}() has no argument {name!r}{hint}")


def checked(where: str, name: str, value: Any, rule: Op | None = None) -> Any:
    """The value of a hyperparameter: a float in its range, a bool, or what the rule declares.

    Raises:
        ValueError: It is outside its range; TypeError: it is none of that kind, or neither solvers
            nor the rule have one of this name. Both start with `where`.
    """
    if name in _FLAGS:
        return flag(where, name, value)
    if name not in _RANGES:
        kinds = {} if rule is None else dict(zip(rule.fields, rule.kinds, strict=True))
        if name not in kinds:
            of_rule = "" if rule is None else f", nor an attribute of {rule.name}"
            hint = did_you_mean(name, [*_RANGES, *_FLAGS, *kinds])
            raise TypeError(f"{where}: {name} is no hyperparameter of solvers{of_rule}{hint}")
        as_declared = {"bool": flag, "float": number}.get(kinds[name])
        return value if as_declared is None else as_declared(where, name, value)
    low, high, inclusive = _RANGES[name]
    x = number(where, name, value)
    if not (low <= x < high or inclusive and x == high):
        wanted = f"in [{low:g}, {high:g}{']' if inclusive else ')'}"
        if high == math.inf:
            wanted = "a finite number > 0" if low else "a finite number >= 0"
        raise ValueError(f"{where}: {name} is {value!r}, wanted {wanted}")
    return x


def number(where: str, name: str, value: Any) -> float:
    """The value as a float, or a TypeError that names the argument."""
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        hint = ": set_parameters takes the parameters" if isinstance(value, Mapping) else ""
        raise TypeError(f"{where}: {name} is {shown(value)}, wanted a number{hint}") from None


def not_negative(where: str, name: str, value: Any) -> float:
    """The value as a finite float >= 0, or an error that names the argument."""
    x = number(where, name, value)
    if not 0.0 <= x < math.inf:
        raise ValueError(f"{where}: {name} is {value!r}, wanted a finite number >= 0")
    return x
