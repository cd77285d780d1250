# SPDX-License-Identifier: Apache-2.0
"""Caffe's protobuf messages, built at run time from `messages.txt`, and their text form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from nnl.converters.nnp.messages import Field, build
from nnl.core.arguments.suggest import did_you_mean

_VALUE = re.compile(r"""(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[^\s{}<>\[\],;"']+)\s*""")
_NAME = re.compile(r"\w+\s*:?\s*")
_BRACKET = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[{}<>\[\]]""")
_V1_TYPES = {
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "LRN": "LRN",
    "MVN": "MVN",
    "RELU": "ReLU",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "TANH": "TanH",
}


@cache
def messages() -> dict[str, Any]:
    """The message classes by name, built once."""
    enums: dict[str, dict[str, int]] = {}
    fields: list[Field] = []
    text = resources.files(__package__).joinpath("messages.txt").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, _, rows = line.partition(": ")
        split = [row.split() for row in rows.split("; ")]
        if name.startswith("enum "):
            enums[name.removeprefix("enum ")] = {r[0]: int(r[1]) for r in split}
            continue
        for field, number, type, *rest in split:
            label, default = (*rest, "", "")[:2]
            fields.append(Field(name, field, int(number), type, label, "", default))
    return build(fields, "proto2", enums)


def enum_name(message: Any, field: str) -> str:
    """The name of the value of an enum."""
    d = message.DESCRIPTOR.fields_by_name[field]
    return str(d.enum_type.values_by_number[getattr(message, field)].name)


def parse_text(name: str, text: str, where: str) -> Any:
    """A message from its text form.

    Raises:
        ValueError: It is no such message; fields that Caffe does not have are listed at once, with
            their lines.
    """
    from google.protobuf import text_format

    problems: list[str] = []
    while True:
        message = messages()[name]()
        try:
            text_format.Parse(text, message)
            break
        except text_format.ParseError as error:
            found = re.search(r'Message type "(\w+)" has no field named "(\w+)"', str(error))
            if found is None or error.GetLine() is None:
                raise ValueError(f"{where}: no {name}: {error}") from None
            of, field = found.groups()
            known = messages()[of].DESCRIPTOR.fields_by_name
            problems.append(
                f"line {error.GetLine()}: {of} has no field {field!r}{did_you_mean(field, known)}"
            )
            text = _without(text, error.GetLine(), error.GetColumn())
        except (RecursionError, UnicodeDecodeError) as error:
            raise ValueError(f"{where}: no {name}: {error}") from None
    if problems:
        raise ValueError(f"{where}: fields that Caffe does not have:\n  " + "\n  ".join(problems))
    return message


def _without(text: str, line: int, column: int) -> str:
    """Text without the field that begins there: spaces, so that lines stay."""
    starts = [0, *(m.end() for m in re.finditer("\n", text))]
    start = starts[line - 1] + column - 1
    name = _NAME.match(text, start)
    end = start + 1 if name is None else name.end()
    if text[end : end + 1] in ("{", "<", "["):
        depth = 0
        for m in _BRACKET.finditer(text, end):
            depth += {"{": 1, "<": 1, "[": 1, "}": -1, ">": -1, "]": -1}.get(m[0], 0)
            if not depth:
                end = m.end()
                break
        else:
            end = len(text)
    else:
        value = _VALUE.match(text, end)
        end = len(text) if value is None else value.end()
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def lines_of(text: str, types: Iterable[str]) -> dict[str, list[int]]:
    """The lines where layers of these types are."""
    found: dict[str, list[int]] = {t: [] for t in types}
    for i, line in enumerate(text.splitlines(), 1):
        m = re.search(r"\btype\s*:\s*[\"']?(\w+)", line)
        if m is not None and m[1] in found:
            found[m[1]].append(i)
    return found


def upgraded(net: Any) -> Any:
    """A network with layers of the second version, and inputs that are layers."""
    if net.layers:
        if net.layer:
            raise ValueError(
                f"{net.name or 'the network'} has both `layer` and `layers`, wanted one of them"
            )
        for old in net.layers:
            _upgrade(old, net.layer.add())
        del net.layers[:]
    if net.input:
        layer = messages()["LayerParameter"](name="input", type="Input", top=net.input)
        if len(net.input_dim) not in (0, 4 * len(net.input)) or (
            not net.input_dim and len(net.input_shape) not in (1, len(net.input))
        ):
            raise ValueError(
                f"{net.name or 'the network'} has {len(net.input)} inputs, {len(net.input_shape)} "
                f"input_shape and {len(net.input_dim)} input_dim, wanted one shape or 4 sizes each"
            )
        layer.input_param.shape.extend(net.input_shape)
        for i in range(0, len(net.input_dim), 4):
            layer.input_param.shape.add(dim=net.input_dim[i : i + 4])
        layers = [layer, *net.layer]
        for field in ("layer", "input", "input_shape", "input_dim"):
            net.ClearField(field)
        net.layer.extend(layers)
    return net


def _upgrade(old: Any, new: Any) -> None:
    own = ("type", "param", "blob_share_mode", "blobs_lr", "weight_decay")
    for field, value in old.ListFields():
        if field.name in own:
            continue
        target = getattr(new, field.name)
        if isinstance(value, str):
            setattr(new, field.name, value)
        elif hasattr(target, "extend"):
            target.extend(value)
        else:
            target.CopyFrom(value)
    v1 = enum_name(old, "type")
    new.type = _V1_TYPES.get(v1) or "".join(part.capitalize() for part in v1.split("_"))
    for i in range(max(len(old.blobs_lr), len(old.weight_decay), len(old.param))):
        p = new.param.add()
        if i < len(old.param) and old.param[i]:
            p.name = old.param[i]
        if i < len(old.blobs_lr):
            p.lr_mult = old.blobs_lr[i]
        if i < len(old.weight_decay):
            p.decay_mult = old.weight_decay[i]


def included(layer: Any, state: Any) -> bool:
    """Whether the rules of a layer let it into a network in this state."""
    if layer.include and layer.exclude:
        raise ValueError(f"layer {layer.name!r} has both include and exclude, wanted one of them")
    if layer.include:
        return any(_meets(rule, state) for rule in layer.include)
    return not any(_meets(rule, state) for rule in layer.exclude)


def _meets(rule: Any, state: Any) -> bool:
    stages = set(state.stage)
    return (
        (not rule.HasField("phase") or rule.phase == state.phase)
        and (not rule.HasField("min_level") or state.level >= rule.min_level)
        and (not rule.HasField("max_level") or state.level <= rule.max_level)
        and stages.issuperset(rule.stage)
        and not stages.intersection(rule.not_stage)
    )


def text_of(message: Any) -> str:
    """The text form of a message."""
    from google.protobuf import text_format

    return text_format.MessageToString(message)
