# SPDX-License-Identifier: Apache-2.0
"""Networks of models that leave sizes open, built at several sizes for what writes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from nnl.converters.networks.model import Model, Network
from nnl.converters.networks.open_sizes import OpenSizes
from nnl.core.graph.node import capture
from nnl.graph.open_sizes.recording import OpenGraphs, record_open
from nnl.graph.program.sizes import Dim

logger = logging.getLogger("nnl")
T = TypeVar("T")


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
        if equal := _equal_sizes(model, opened):
            said = " ".join(f'--open "{n}={",".join(sizes)}"' for n, sizes in equal.items())
            logger.warning(
                "%s: it takes equal sizes on axes that the file calls differently, as %s says",
                model.where,
                said,
            )
            model.close(equal)
            return record_networks(model, use, prepare, greatest)
        text = str(e).removeprefix(f"{model.where}: ")
        raise ValueError(
            f"{model.where}: with the open sizes {', '.join(opened.dims)}: {text}; "
            "--open says of what they are multiples, --shape closes them"
        ) from None
    for name, dim in dims.items():
        if name not in opened.ranges and dim.multiple > 1:
            logger.warning("%s: %s is taken as %s", model.where, name, dim.wanted)
    return found


def _equal_sizes(model: Model, opened: OpenSizes) -> dict[str, list[str]]:
    """Names for the sizes of inputs with which a model can be built that cannot be with its own:
    those on the same axes of several inputs are one. Empty where that does not help."""
    names: dict[str, str] = {}
    first: dict[tuple[int, int], str] = {}
    for sizes in opened.axes.values():
        for axis, n in enumerate(sizes):
            if isinstance(n, str):
                names.setdefault(n, first.setdefault((len(sizes), axis), n))
    dims = opened.dims
    if all(n == same for n, same in names.items()):
        return {}
    with suppress(ValueError, TypeError, IndexError, ArithmeticError):
        model.sized({n: dims[same].example for n, same in names.items()})
        return {
            name: [names.get(str(n), str(n)) for n in sizes]
            for name, sizes in opened.axes.items()
            if any(names.get(str(n), n) != n for n in sizes)
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
