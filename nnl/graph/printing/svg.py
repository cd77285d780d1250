# SPDX-License-Identifier: Apache-2.0
"""A graph as an SVG picture, for machines without Graphviz."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from nnl.core.graph.function import Function
from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameters
from nnl.graph.printing.drawing import color_of
from nnl.graph.printing.layout import placed

COLUMN, ROW, WIDTH, HEIGHT = 190, 60, 170, 34
LETTERS = 26  # of a name that fit into a box
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" \
font-family="sans-serif" font-size="11" text-anchor="middle">
<path d="{2}" fill="none" stroke="#777"/>
"""


def svg(vleaf: Variable, params: Mapping[str, Variable] | None = None) -> str:
    """The functions below a Variable in rows, and the arrays that they begin with.

    Args:
        params: Names of parameters; those of nnl.get_parameters() if left out.
    """
    params = get_parameters(grad_only=False) if params is None else params
    names = {v.edge.key: name for name, v in params.items()}
    boxes: dict[tuple[int, int], tuple[str, str, str]] = {}  # text, fill, colour of the text
    above: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for node in capture([vleaf.edge]):
        key = (id(node), 0)
        f = Function(node)
        given = []
        for v in f.inputs:
            source = v.edge
            if source.node is None and source.key not in boxes:
                name = names.get(source.key)
                boxes[source.key] = name or v.name or "", "pink" if name else "lightgray", "black"
                above[source.key] = []
            given.append(source.key if source.node is None else (id(source.node), 0))
        boxes[key], above[key] = (f.name, color_of(f.name), "white"), given
    return _drawn(boxes, above)


def _drawn(
    boxes: Mapping[tuple[int, int], tuple[str, str, str]],
    above: Mapping[tuple[int, int], list[tuple[int, int]]],
) -> str:
    places = placed(list(boxes), above)
    middle = {k: ((c + 0.5) * COLUMN, (r + 0.5) * ROW) for k, (c, r) in places.items()}
    lines, parts = [], []
    for key, (text, fill, ink) in boxes.items():
        x, y = middle[key]
        for source in above[key]:
            from_x, from_y = middle[source]
            lines.append(f"M{from_x:g} {from_y + HEIGHT / 2:g}L{x:g} {y - HEIGHT / 2:g}")
        short = text if len(text) <= LETTERS else f"...{text[3 - LETTERS :]}"
        round_ = 3 if ink == "white" else HEIGHT / 2
        parts.append(
            f'<g><title>{escape(text)}</title><rect x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" '
            f'width="{WIDTH}" height="{HEIGHT}" rx="{round_:g}" fill="{fill}"/>'
            f'<text x="{x:g}" y="{y + 4:g}" fill="{ink}">{escape(short)}</text></g>'
        )
    width = COLUMN * (1 + max((c for c, _ in places.values()), default=0))
    height = ROW * (1 + max((r for _, r in places.values()), default=0))
    return _HEAD.format(width, height, "".join(lines)) + "\n".join(parts) + "\n</svg>\n"
