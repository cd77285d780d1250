# SPDX-License-Identifier: Apache-2.0
"""What a family of Hugging Face's models is here: its config, its network, its tensors."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import get_parameters, parameter_scope, without_values

Array = np.ndarray[Any, Any]
LEAVES = {"W": "weight", "b": "bias", "gamma": "weight", "beta": "bias"}
MOST_LISTED = 8
HEAD = "lm_head.weight"
# What is the table of tokens too: files that keep shared tensors once may keep any of the names.
SAME_TABLE = (HEAD, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
KINDS: tuple[tuple[Any, str], ...] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "a text"),
    (list, "a list"),
    (Mapping, "an object"),
)


class Config:
    """What a config.json says, read with checks.

    Args:
        data: The object in the file.
        where: For messages.
    """

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data, self.where = data, where

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number.

        Raises:
            ValueError: It is missing, or none.
        """
        value = self._given(key, default)
        if type(value) is not int or value < least:
            raise ValueError(
                f"{self.where}: {key} is {value!r:.60}, wanted a whole number from {least} on"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number.

        Raises:
            ValueError: It is missing, or none.
        """
        value = self._given(key, default)
        if type(value) not in (int, float) or not np.isfinite(value):
            raise ValueError(f"{self.where}: {key} is {value!r:.60}, wanted a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Whether something is so."""
        value = self._given(key, default)
        if type(value) is not bool:
            raise ValueError(f"{self.where}: {key} is {value!r:.60}, wanted true or false")
        return value

    def one_of(self, key: str, known: Mapping[str, str], default: str | None = None) -> str:
        """What a name stands for here.

        Raises:
            ValueError: It is none of those known.
        """
        value = self._given(key, default)
        if not isinstance(value, str) or value not in known:
            raise ValueError(
                f"{self.where}: {key} is {value!r:.60}, wanted one of {', '.join(known)}"
            )
        return known[value]

    def part(self, key: str) -> Config:
        """An object in the object."""
        value = self.data.get(key)
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.where}: {key} is {value!r:.60}, wanted an object")
        return Config(value, f"{self.where}: {key}")

    def get(self, key: str, default: Any) -> Any:
        """What it is, of the kind of the default, which it is where it is missing or null.

        Raises:
            ValueError: It is of another kind.
        """
        value = self.data.get(key)
        if value is None:
            return default
        kind, wanted = next((k, w) for k, w in KINDS if isinstance(default, k))
        if not isinstance(value, kind) or isinstance(value, bool) != isinstance(default, bool):
            raise ValueError(f"{self.where}: {key} is {value!r:.60}, wanted {wanted}")
        return value

    def _given(self, key: str, default: Any) -> Any:
        value = self.data.get(key)
        value = default if value is None else value
        if value is None:
            raise ValueError(f"{self.where}: {key} is missing")
        return value


@dataclass(frozen=True)
class Family:
    """Models whose config.json has one `model_type`.

    Attributes:
        kind: What they do: "text", "vectors", "answers", "speech", "images" or "pairs".
        read: From what config.json says to the sizes of our network.
        call: The network: a function of these sizes and of its inputs.
        build: Called with these sizes: makes the network once, for its parameters.
        tensors: {a parameter or a layer here: its name there}. "{i}" is the number of a layer,
            which begins with 1 here and with 0 there; "{e}" that of an expert, whose arrays are
            stacked here. A layer's parameters W, b, gamma and beta are "weight" and "bias" there.
            Or a function of the sizes that gives it.
        prefix: What checkpoints of the network without its head leave out of the names.
        across: Layers whose weights lie the other way round there.
        ignored: A pattern of names that are no weights.
        heads: {a head: a pattern of its names}, where a file says which there are.
        reads, writes: Of what answers: with the sizes, from a source to {name: Variable}, and what
            writes with that; see `Answerer`.
    """

    kind: str
    read: Callable[[Config], Any]
    call: Callable[..., Any]
    build: Callable[[Any], Any]
    tensors: Mapping[str, str] | Callable[[Any], Mapping[str, str]]
    prefix: str = ""
    across: str = "(?!)"
    ignored: str = "(?!)"
    heads: Mapping[str, str] = field(default_factory=dict)
    reads: Callable[..., Any] | None = None
    writes: Callable[..., Any] | None = None

    def fitted(self, config: Any, names: Iterable[str]) -> Any:
        """The sizes of the network with the heads that these names belong to."""
        if not self.heads:
            return config
        text = "\n".join(names)
        found = (k for k, pattern in self.heads.items() if re.search(pattern, text, re.M))
        return replace(config, heads=tuple(found))

    def shapes(self, config: Any) -> dict[str, tuple[int, ...]]:
        """{a parameter of the network: its shape}."""
        with parameter_scope("", OrderedDict()), without_values():
            self.build(config)
            return {k: v.shape for k, v in get_parameters(grad_only=False).items()}

    def names(
        self,
        config: Any,
        shapes: Mapping[str, tuple[int, ...]],
        present: Sequence[str] | None = None,
    ) -> dict[str, list[str]]:
        """{a parameter of the network: the names of what it is made of there}.

        Args:
            present: Names in a file, which says whether they have the prefix.
        """
        bare = present is not None and not any(n.startswith(self.prefix) for n in present)
        tensors = self.tensors(config) if callable(self.tensors) else self.tensors
        found = {}
        for path, shape in shapes.items():
            name = self._there(path, tensors)
            if bare:
                name = name.removeprefix(self.prefix)
            several = range(shape[0]) if "{e}" in name else [None]
            found[path] = [name.replace("{e}", str(e)) for e in several]
        return found

    def _there(self, path: str, tensors: Mapping[str, str]) -> str:
        numbers = re.search(r"layer(\d+)/", path)
        if numbers:
            path = f"{path[: numbers.start()]}layer{{i}}/{path[numbers.end() :]}"
        layer, _, leaf = path.rpartition("/")
        name = tensors.get(path) or f"{tensors[layer]}.{LEAVES[leaf]}"
        return name.replace("{i}", str(int(numbers[1]) - 1)) if numbers else name

    def load(self, config: Any, arrays: Mapping[str, Array], where: str) -> dict[str, Array]:
        """{a parameter of the network: its value}, from what is in a file.

        Raises:
            ValueError: Arrays are missing, or have no place in the network; they are listed.
            ShapeError: One has another shape.
        """
        arrays = {_renamed(name): a for name, a in arrays.items()}
        shapes = self.shapes(config)
        names = self.names(config, shapes, list(arrays))
        table = names.get("tokens/W", [""])[0]
        for name in SAME_TABLE if table and table not in arrays else ():
            if name in arrays and (name != HEAD or getattr(config, "tied", 0)):
                arrays[table] = arrays[name]
        used = {name for several in names.values() for name in several}
        missing = sorted(used - set(arrays))
        ignored = f"{self.ignored}|^{HEAD}$" if getattr(config, "tied", 0) else self.ignored
        extra = sorted(n for n in arrays if n not in used and not re.search(ignored, n))
        for what, which in (("are missing", missing), ("have no place in it", extra)):
            if which:
                listed = ", ".join(which[:MOST_LISTED]) + (
                    ", ..." if len(which) > MOST_LISTED else ""
                )
                raise ValueError(f"{where}: {len(which)} tensors {what}: {listed}")
        found = {}
        for path, several in names.items():
            found[path] = self.value(path, shapes[path], [(n, arrays[n]) for n in several], where)
        return found

    def value(
        self, path: str, shape: tuple[int, ...], parts: Sequence[tuple[str, Array]], where: str
    ) -> Array:
        """A parameter of this shape, from the arrays there that it is made of, with their names.

        Raises:
            ShapeError: One has another shape.
        """
        wanted = self._there_shape(path, shape[len(parts) > 1 :])
        for name, array in parts:
            if array.shape != wanted:
                raise ShapeError(f"{where}: {name} has the shape {array.shape}, wanted {wanted}")
        values = [self._turned(path, array) for _, array in parts]
        return (values[0] if len(values) == 1 else np.stack(values)).reshape(shape)

    def save(self, config: Any, values: Mapping[str, Array]) -> dict[str, Array]:
        """{a name there: its value}, of some parameters of a network."""
        found = {}
        names = self.names(config, {path: value.shape for path, value in values.items()})
        for path, several in names.items():
            parts = [values[path]] if len(several) == 1 else list(values[path])
            for name, value in zip(several, parts, strict=True):
                value = value.reshape(value.shape[-1:]) if _is_of_norm(path) else value
                found[name] = self._turned(path, value)
        return found

    def lies_across(self, path: str) -> bool:
        """Whether a parameter lies the other way round there."""
        return path.endswith("/W") and re.search(self.across, path) is not None

    def _turned(self, path: str, value: Array) -> Array:
        return np.ascontiguousarray(value.T) if self.lies_across(path) else value

    def _there_shape(self, path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape there of a parameter that has this one here."""
        if _is_of_norm(path):
            return shape[-1:]
        return shape[::-1] if self.lies_across(path) else shape


def _renamed(name: str) -> str:
    """What the name is in files of today."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def only(c: Config, **values: Any) -> None:
    """
    Raises:
        ValueError: The file asks for something else than these values.
    """
    for key, wanted in values.items():
        value = c.data.get(key)
        if value is not None and value != wanted:
            raise ValueError(f"{c.where}: {key} is {value!r:.60}, only {wanted!r} is supported")


def _is_of_norm(path: str) -> bool:
    """Whether a parameter has further axes of size 1 here."""
    return path.endswith(("/gamma", "/beta"))
