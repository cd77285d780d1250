# SPDX-License-Identifier: Apache-2.0
"""Networks of models that leave sizes open, built at several sizes for what writes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any, TypeVar

from nnl.converters.networks.model import Model, Network
from nnl.converters.networks.open_sizes import OpenSizes
from nnl.core.graph.node import capture
from nnl.graph.open_sizes.recording import OpenGraphs, record_open
from nnl.graph.program.sizes import FAR, Dim, witnesses

logger = logging.getLogger("nnl")
T = TypeVar("T")
TRIED = (16, 32, 48, 96, 224, 320, 512, 1024, 4096, 16000, 48000)  # sizes of which one may do


def record_networks(
    model: Model,
    use: Callable[[OpenGraphs, list[Network]], T],
    prepare: Callable[[Network], None] | None = None,
    greatest: bool = False,
) -> T:
    """Build the network of a model at the witnesses of its open sizes; see record_open.

    Args:
        use: What makes something of the graphs, which belong to these networks.
        prepare: What is done to each network before.
        greatest: Whether the last network is that of the greatest sizes.
    Returns:
        What `use` returns.
    Raises:
        ValueError: The model leaves no size open, or `use` does not take what is built; the text
            names the file.
        NotImplementedError: What `use` writes lacks functions.
    """
    opened = model.open_sizes()
    if not opened.open:
        raise ValueError(f"{model.where}: the batch size is fixed, so -1 cannot leave it open")
    networks: list[Network] = []
    lacking: list[NotImplementedError] = []

    def build(sizes: Mapping[str, int]) -> tuple[Any, Any]:
        network = model.sized(sizes)
        if prepare is not None:
            prepare(network)
        networks.append(network)
        return network.outputs, network.inputs

    def used(graphs: OpenGraphs) -> tuple[T, dict[str, Dim]]:
        try:
            return use(graphs, networks[-len(graphs.graphs) :]), graphs.dims
        except NotImplementedError as error:  # perhaps of small sizes alone
            lacking.append(error)
            raise ValueError(str(error)) from error

    try:
        found, dims = record_open(
            build, opened.dims, opened.axes, opened.ranges, used, greatest=greatest
        )
    except ValueError as e:
        if lacking and e.__cause__ is lacking[0]:
            raise lacking[0] from None
        if taken := _taken(model, opened):
            said = " ".join([f'--open "{n}={",".join(sizes)}"' for n, sizes in taken.items()])
            logger.warning(
                "%s: it does not take all sizes that the file leaves open, but those of %s",
                model.where,
                said,
            )
            model.close(taken)
            return record_networks(model, use, prepare, greatest)
        text = str(e).removeprefix(f"{model.where}: ")
        raise ValueError(
            f"{model.where}: with the open sizes {', '.join(opened.dims)}: {text}; "
            f"--open says of what they are multiples, --shape closes them, as in {_example(opened)}"
        ) from None
    for name, dim in dims.items():
        if name not in opened.ranges and dim.multiple > 1:
            logger.warning("%s: %s is taken as %s", model.where, name, dim.wanted)
    return found


def _example(opened: OpenSizes) -> str:
    """What closes all sizes, at those of an example."""
    shapes = opened.shapes({n: d.example for n, d in opened.dims.items()})
    said = [
        f'--shape "{k}={",".join(map(str, n))}"' for k, n in shapes.items() if n != opened.axes[k]
    ]
    return " ".join(said)


def _taken(model: Model, opened: OpenSizes) -> dict[str, list[str]]:
    """What --open would say for a model that cannot be built at sizes of its own: two names that
    are one size, all on the same axes that are, or a range. Empty where that does not help."""
    dims = opened.dims
    own = {n: n for n in dims}
    ranges: dict[str, str] = {}

    def built(names: Mapping[str, str], sizes: Mapping[str, int]) -> bool:
        with suppress(ValueError, TypeError, IndexError, ArithmeticError):
            model.sized({n: sizes[one] for n, one in names.items()})
            return True
        return False

    base = next((sizes for sizes in witnesses(dims) if not built(own, sizes)), None)
    if base is None:
        return {}

    def edge(names: Mapping[str, str], name: str, good: int, bad: int) -> int:
        while abs(good - bad) > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if built(names, {**base, name: middle}) else (good, middle)
        return good

    def ranged(names: Mapping[str, str], name: str) -> str:
        """The range around a size that is taken, with an end behind FAR only where it has none.
        Empty if there is no such size, or one alone, which is likely that of another name."""
        size = next((n for n in TRIED if built(names, {**base, name: n})), None)
        if size is None:
            return ""
        least, most = edge(names, name, size, 0), size
        while most <= FAR and built(names, {**base, name: 2 * most}):
            most *= 2
        end = edge(names, name, most, 2 * most) if most <= FAR else ""
        return "" if least == end else f"{name}:{least}..{end}"

    first: dict[tuple[int, int], str] = {}
    axes = dict(own)
    for shape in opened.axes.values():
        for axis, n in enumerate(shape):
            if isinstance(n, str):
                axes[n] = first.setdefault((len(shape), axis), axes[n])
    pairs = [{**own, b: a} for a, b in combinations(dims, 2)] if len(dims) < 5 else []
    for names in (axes, own, *pairs):
        found = names != own and built(names, base)
        for name in [n for n in names if n == names[n] and n not in opened.ranges]:
            if not found and (said := ranged(names, name)):
                found, ranges[name] = True, said
        if found:
            words = {str(n): ranges.get(one, one) for n, one in names.items()}
            return {
                name: [words.get(str(n), str(n)) for n in sizes]
                for name, sizes in opened.axes.items()
                if any(words.get(str(n), n) != n for n in sizes)
            }
    return {}


def more_than_batch(model: Model, closes: str) -> list[str]:
    """The sizes that a model leaves open besides those of first axes.

    Args:
        closes: The format that cannot leave them open, "" for one that can.
    Raises:
        ValueError: There are some, and they would be closed.
    """
    axes = model.open_sizes().axes.values()
    more = dict.fromkeys(n for sizes in axes for n in sizes[1:] if isinstance(n, str))
    if more and closes:
        raise ValueError(
            f"{model.where} leaves the sizes {', '.join(more)} open, and {closes} closes all but "
            "the batch size, as -b N and 8 bits do for all formats: --shape says which they are"
        )
    return list(more)


def moving_nodes(networks: Sequence[Network]) -> list[set[int]]:
    """Ids of the nodes of each network that depend on its sizes: their attributes differ between
    the networks, or those of what they read."""
    graphs = [capture([v.edge for v in n.outputs.values()]) for n in networks]
    found: list[set[int]] = [set() for _ in networks]
    if len({len(g) for g in graphs}) > 1:
        return found  # what compares the operators says where
    for nodes in zip(*graphs, strict=True):
        read = [v.node for v in nodes[0].inputs if v is not None]
        if any(n.attrs != nodes[0].attrs for n in nodes) or any(id(n) in found[0] for n in read):
            for own, node in zip(found, nodes, strict=True):
                own.add(id(node))
    return found
