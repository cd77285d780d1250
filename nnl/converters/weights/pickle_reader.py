# SPDX-License-Identifier: Apache-2.0
"""The pickles that torch.save writes, read as data: nothing of them is ever called or imported.

A pickle is a program for a stack machine. This one knows containers, numbers and strings, and the
few calls with which PyTorch describes a tensor; any other call ends it. Objects of classes become
inert records of their attributes, whatever the class.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# what may be called in the file -> what it means to us
ALLOWED = {
    ("collections", "OrderedDict"): "dict",
    ("torch._utils", "_rebuild_tensor"): "tensor",
    ("torch._utils", "_rebuild_tensor_v2"): "tensor",
    ("torch._utils", "_rebuild_parameter"): "parameter",
    ("torch._utils", "_rebuild_parameter_with_state"): "parameter",
    ("torch.nn.parameter", "Parameter"): "parameter",
    ("torch.autograd.variable", "Variable"): "parameter",
    ("torch", "device"): "inert",
    ("torch.nn.backends.thnn", "_get_thnn_function_backend"): "inert",  # in modules before 1.3
    ("numpy.core.multiarray", "scalar"): "inert",
    ("numpy._core.multiarray", "scalar"): "inert",
    ("numpy", "dtype"): "inert",
    ("_codecs", "encode"): "inert",
    ("__builtin__", "set"): "set",
    ("builtins", "set"): "set",
    ("builtins", "frozenset"): "set",
    ("torch", "Size"): "size",
}
_STORAGES = ("torch", "torch.storage")
MAX_ITEMS = 10_000_000  # operations of one pickle
MAX_LINE = 1024  # bytes of a name
_SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class Name:
    """A class or function that the file names; `kind` is what it means, "" if nothing."""

    module: str
    name: str
    kind: str


@dataclass(frozen=True)
class Storage:
    """A run of numbers: name of the storage class, where its bytes are, count, and where a view of
    it begins."""

    kind: str
    key: str
    size: int
    first: int = 0


@dataclass(frozen=True)
class Tensor:
    """A window on a storage, sizes and strides in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(eq=False)
class Record:
    """What an object of a class holds; the class is a name and no more."""

    of: Name
    state: dict[Any, Any]


class _Mark:
    pass


class _Damaged(Exception):
    """What the pickle says makes no sense."""


def brief(value: Any) -> str:
    """A value in a message. Containers are not looked into: a few bytes of pickle describe one that
    holds itself, or whose text would fill the memory.
    """
    if isinstance(value, Name):
        return f"{value.module}.{value.name}"[:_SHOWN]
    if isinstance(value, Record):
        return f"an object of {brief(value.of)}"
    if isinstance(value, (str, bytes, int, float, type(None))):
        text = repr(value[:_SHOWN] if isinstance(value, (str, bytes)) else value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"a {type(value).__name__.lower().strip('_')}"


def read_pickle(data: bytes, where: str) -> Any:
    """The object: dicts, lists, tuples, numbers, strings, Tensors and Records. Sets become lists.

    Raises:
        ValueError: The pickle is damaged, or would do anything but describe tensors.
    """
    return read_pickles(memoryview(data), 1, where)[0][0]


def read_pickles(
    data: memoryview, count: int, where: str
) -> tuple[list[Any], dict[str, Storage], int]:
    """The objects of pickles in a row, all storages in them by key, and where the last one ends.

    Raises:
        As `read_pickle`.
    """
    objects: list[Any] = []
    storages: dict[str, Storage] = {}
    at = 0
    for _ in range(count):
        machine = _Machine(data, where, at, storages)
        try:
            objects.append(machine.run())
        except _Damaged as error:
            raise ValueError(f"{where}: damaged: {error}") from None
        except (IndexError, struct.error, UnicodeDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{where}: damaged: the instruction before byte {machine.at} does not fit what is "
                "there"
            ) from error
        at = machine.at
    return objects, storages, at


class _Machine:
    def __init__(self, data: memoryview, where: str, at: int, storages: dict[str, Storage]) -> None:
        self.data, self.at, self.where, self.storages = data, at, where, storages
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(MAX_ITEMS):
            code = self.take(1)
            if code == b".":
                return self.stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise ValueError(
                    f"{self.where}: the instruction {code!r} at byte {self.at - 1} is refused: "
                    "only tensors in dicts are read"
                )
            step(self)
        raise ValueError(f"{self.where}: more than {MAX_ITEMS} instructions")

    def take(self, n: int) -> bytes:
        part = bytes(self.data[self.at : self.at + max(n, 0)])
        if len(part) != n or n < 0:
            raise ValueError(f"{self.where}: the pickle ends too early")
        self.at += n
        return part

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        text = self.take(bytes(self.data[self.at : self.at + MAX_LINE]).find(b"\n"))
        self.at += 1
        return text.decode("ascii")

    def digits(self) -> None:
        """A number as text; 00 and 01 are booleans."""
        text = self.line()
        if not text.removeprefix("-").isdigit() or len(text) > 20:
            raise ValueError(f"{self.where}: {brief(text)} is no integer")
        self.stack.append(text == "01" if text in ("00", "01") else int(text))

    def text(self, form: str) -> None:
        self.stack.append(self.take(self.number(form)).decode("utf-8"))

    def integer(self, n: int) -> None:
        self.stack.append(int.from_bytes(self.take(n), "little", signed=True))

    def to_mark(self) -> list[Any]:
        for i in range(len(self.stack) - 1, -1, -1):
            if type(self.stack[i]) is _Mark:
                items = self.stack[i + 1 :]
                del self.stack[i:]
                return items
        raise ValueError(f"{self.where}: damaged: a mark is missing")

    def tuple_of(self, n: int) -> None:
        items = tuple(self.stack[len(self.stack) - n :]) if n else ()
        if len(items) != n:
            raise _Damaged("the stack is too short")
        del self.stack[len(self.stack) - n :]
        self.stack.append(items)

    def name(self, module: str, name: str) -> None:
        kind = ALLOWED.get((module, name), "")
        if module in _STORAGES and name.endswith("Storage"):
            kind = "storage"
        if not kind and module == "torch._utils" and name.startswith("_rebuild"):
            raise ValueError(
                f"{self.where}: a tensor is made by {name[:80]}, wanted plain ones: convert those "
                "that are quantised, sparse or have a type of 8 bits before saving them"
            )
        self.stack.append(Name(module, name, kind))

    def stack_name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError(f"{self.where}: {brief(module)}, {brief(name)} is no name")
        self.name(module, name)

    def persistent(self) -> None:
        """("storage", class, key, device, count), before PyTorch 1.6 with None or a view: (key,
        first element, count); there also ("module", class, file, source)."""
        given = self.stack.pop()
        items = given if isinstance(given, tuple) else ()
        if len(items) == 4 and items[0] == "module" and isinstance(items[1], Name):
            self.stack.append(items[1])
            return
        if not (len(items) in (5, 6) and items[0] == "storage"):
            raise ValueError(f"{self.where}: {_items(given)} is no storage")
        _, kind, key, _, size, *view = items
        if not (isinstance(kind, Name) and kind.kind == "storage" and isinstance(key, str)):
            raise ValueError(f"{self.where}: {_items(given)} is no storage")
        storage = Storage(kind.name, key, _whole(size))
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError(f"{self.where}: the storage {key[:80]!r} is described in two ways")
        if view and view[0] is not None:
            _, first, _ = view[0]
            storage = Storage(kind.name, key, storage.size, _whole(first))
        self.stack.append(storage)

    def reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Name) or not isinstance(args, tuple):
            raise ValueError(f"{self.where}: a call of {brief(function)} is refused")
        if function.kind == "dict" and (not args or len(args) == 1 and type(args[0]) is list):
            self.stack.append({})
            for pair in args[0] if args else ():  # as Python 2 writes it
                if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                    raise ValueError(f"{self.where}: {brief(pair)} is no entry of a dict")
                self.set_items(list(pair))
        elif function.kind == "set" and len(args) == 1 and type(args[0]) is list:
            self.stack.append(args[0])
        elif function.kind == "inert":
            self.stack.append(Record(function, {}))
        elif function.kind == "size" and len(args) == 1:
            self.stack.append(tuple(_whole(n) for n in args[0]))
        elif function.kind == "parameter" and args and isinstance(args[0], Tensor):
            self.stack.append(args[0])
        elif function.kind == "tensor" and len(args) >= 4 and isinstance(args[0], Storage):
            shape = tuple(_whole(n) for n in args[2])
            strides = tuple(_whole(n) for n in args[3])
            if len(shape) != len(strides):
                raise ValueError(
                    f"{self.where}: a tensor has {len(shape)} sizes, {len(strides)} strides"
                )
            first = args[0].first + _whole(args[1])
            self.stack.append(Tensor(args[0], first, shape, strides))
        elif not function.kind:
            raise ValueError(
                f"{self.where}: it calls {brief(function)}, which is no part of a tensor: "
                "save model.state_dict() instead"
            )
        else:
            raise ValueError(f"{self.where}: a call of {function.name}{_items(args)} is refused")

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise ValueError(f"{self.where}: items are set of {brief(target)}")
        for key in items[::2]:
            if not isinstance(key, (str, int)):  # the hash of a tuple may take forever
                raise ValueError(f"{self.where}: {brief(key)} is the key of a dict, wanted a name")
        target.update(zip(items[::2], items[1::2], strict=True))

    def append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError(f"{self.where}: items are added to {brief(self.stack[-1])}")
        self.stack[-1].extend(items)

    def new(self) -> None:
        args, of = self.stack.pop(), self.stack.pop()
        if not isinstance(of, Name) or of.kind or args != ():
            raise ValueError(f"{self.where}: an object of {brief(of)}{_items(args)} is refused")
        self.stack.append(Record(of, {}))

    def build(self) -> None:
        """Attributes: those of a state_dict or of a tensor are not needed."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Record):
            target.state = state if type(state) is dict else {}
        elif type(target) is not dict and not isinstance(target, Tensor):
            raise ValueError(f"{self.where}: attributes are set of {brief(target)}")


def _items(value: Any) -> str:
    if not isinstance(value, tuple):
        return brief(value)
    shown = [brief(v) for v in value[:5]] + ["..."] * (len(value) > 5)
    return f"({', '.join(shown)}{',' * (len(value) == 1)})"


def _whole(n: Any) -> int:
    if type(n) is not int or not 0 <= n < 2**62:
        raise _Damaged(f"{brief(n)} is no size")
    return n


def _pushing(make: Callable[[], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(make())


def _put(form: str) -> Callable[[_Machine], None]:
    return lambda m: m.memo.__setitem__(m.number(form), m.stack[-1])


def _get(form: str) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.memo[m.number(form)])


def _number(form: str) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.number(form))


_STEPS: dict[bytes, Callable[[_Machine], Any]] = {
    b"\x80": lambda m: m.take(1),  # protocol
    b"\x95": lambda m: m.take(8),  # frame
    b"}": _pushing(dict),
    b"]": _pushing(list),
    b"\x8f": _pushing(list),  # a set
    b")": _pushing(tuple),
    b"(": _pushing(_Mark),
    b"N": _pushing(lambda: None),
    b"\x88": _pushing(lambda: True),
    b"\x89": _pushing(lambda: False),
    b"K": _number("<B"),
    b"M": _number("<H"),
    b"J": _number("<i"),
    b"I": lambda m: m.digits(),
    b"G": _number(">d"),
    b"\x8a": lambda m: m.integer(m.number("<B")),
    b"X": lambda m: m.text("<I"),
    b"T": lambda m: m.text("<i"),  # of Python 2
    b"U": lambda m: m.text("<B"),
    b"B": lambda m: m.stack.append(m.take(m.number("<I"))),
    b"C": lambda m: m.stack.append(m.take(m.number("<B"))),
    b"\x8c": lambda m: m.text("<B"),
    b"q": _put("<B"),
    b"r": _put("<I"),
    b"\x94": lambda m: m.memo.__setitem__(len(m.memo), m.stack[-1]),
    b"h": _get("<B"),
    b"j": _get("<I"),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"t": lambda m: m.stack.append(tuple(m.to_mark())),
    b"c": lambda m: m.name(m.line(), m.line()),
    b"\x93": lambda m: m.stack_name(),
    b"Q": lambda m: m.persistent(),
    b"R": lambda m: m.reduce(),
    b"\x81": lambda m: m.new(),
    b"s": lambda m: m.set_items([m.stack.pop(-2), m.stack.pop()]),
    b"u": lambda m: m.set_items(m.to_mark()),
    b"a": lambda m: m.append([m.stack.pop()]),
    b"e": lambda m: m.append(m.to_mark()),
    b"\x90": lambda m: m.append(m.to_mark()),
    b"b": lambda m: m.build(),
}
