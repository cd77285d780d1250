# SPDX-License-Identifier: Apache-2.0
"""What repairs a node whose function refuses it: changes of properties that the function accepts.

Nothing here knows when a call is right. Values are proposed, and the function itself is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nnl.console.palette.palette import Layer

Shape = tuple[int, ...]
Change = dict[str, Any]
_PER_AXIS = ("kernel", "pad", "stride", "dilation", "output_padding")
_AXES = ("axis", "axes", "dim", "base_axis", "channel_axis", "batch_axis")


def repair(
    accepted: Callable[[Mapping[str, Any]], bool],
    layer: Layer,
    shapes: list[Shape],
    properties: Mapping[str, Any],
    named: list[str],
) -> Change | None:
    """The first proposed change of properties that the function accepts.

    Args:
        accepted: Whether it takes these properties.
        shapes: Of its inputs.
        named: Properties that its message speaks of; changes of these come first.
    """
    proposals = [c for c in _proposals(layer, shapes, properties) if c]
    proposals.sort(key=lambda c: not any(n in c for n in named))
    tried: list[Change] = []
    for change in proposals:
        change = {k: v for k, v in change.items() if properties.get(k) != v}
        if change and change not in tried:
            tried.append(change)
            if accepted({**properties, **change}):
                return change
    return None


def _proposals(layer: Layer, shapes: list[Shape], given: Mapping[str, Any]) -> Iterator[Change]:
    known = layer.by_name
    x = shapes[0] if shapes else ()
    per_axis = [n for n in _PER_AXIS if n in known]
    if "kernel" in per_axis:
        yield from _windows(layer, per_axis, x, given)
    for name in per_axis[1:]:
        if given.get(name) is not None:
            yield {name: None}
    if "group" in known:
        yield {"group": 1}
    for name in _AXES:
        value = given.get(name)
        if name in known and value is not None and x:
            yield {name: _within(value, len(x))}
    if "shape" in known and x:
        yield from _reshapes(x, given.get("shape"))
    for p in layer.properties:
        value = given.get(p.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 1:
            yield {p.name: 1}
        elif isinstance(value, list) and value and min(value) < 1 and p.name != "pad":
            yield {p.name: [max(v, 1) for v in value]}
        if p.name in given and not p.required:
            default = list(p.default) if isinstance(p.default, tuple) else p.default
            yield {p.name: default}


def _windows(
    layer: Layer, per_axis: list[str], x: Shape, given: Mapping[str, Any]
) -> Iterator[Change]:
    """Kernels that fit into the image, with one entry for each axis of it."""
    base = given.get("base_axis", 1) if "base_axis" in given else 1
    axes = len(x) - (base if isinstance(base, int) else 1) - 1
    if axes < 1:
        return
    last = bool(given.get("channel_last"))
    size = x[-axes - 1 : -1] if last else x[-axes:]
    kernel = _of_length(given.get("kernel"), axes, 3)
    pad = _of_length(given.get("pad"), axes, 0)
    others: Change = {}
    for name in per_axis[1:]:
        value = given.get(name)
        if value is not None and len(value if isinstance(value, list) else [value]) != axes:
            others[name] = _of_length(value, axes, 1)
    fits = [max(1, min(k, n + 2 * p)) for k, n, p in zip(kernel, size, pad, strict=True)]
    if fits != kernel:  # one as large as the image leaves nothing for the layers below
        usual = _of_length(layer.initial()["kernel"], axes, 3)
        yield {"kernel": [min(k, n) for k, n in zip(usual, fits, strict=True)], **others}
    yield {"kernel": fits, **others}
    alone = [max(1, min(k, n)) for k, n in zip(kernel, size, strict=True)]
    yield {"kernel": alone, **others, **({"pad": None} if "pad" in per_axis else {})}
    yield {n: None for n in per_axis[1:] if given.get(n) is not None}
    yield {"kernel": alone} | {n: None for n in per_axis[1:] if given.get(n) is not None}
    less = [min(p, k - 1) for p, k in zip(pad, kernel, strict=True)]
    if "pad" in per_axis and given.get("pad") is not None:
        yield {"pad": less, **others}


def _of_length(value: Any, n: int, default: int) -> list[int]:
    given = value if isinstance(value, list) else [] if value is None else [value]
    last = given[-1] if given else default
    return [int(v) for v in [*given, *[last] * n][:n]]


def _within(value: Any, n: int) -> Any:
    if isinstance(value, list):
        return list(dict.fromkeys(_within(v, n) for v in value))
    return max(-n, min(value, n - 1))


def _reshapes(x: Shape, shape: Any) -> Iterator[Change]:
    wanted = list(shape) if isinstance(shape, list) else []
    for i in range(len(wanted) - 1, -1, -1):
        if -1 not in wanted[:i] + wanted[i + 1 :]:
            yield {"shape": [*wanted[:i], -1, *wanted[i + 1 :]]}
    yield {"shape": [x[0], -1]}
