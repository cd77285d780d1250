# SPDX-License-Identifier: Apache-2.0
"""A graph as a picture, drawn by Graphviz."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from nnl.core.graph.function import Function
from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameters

__all__ = ["SimpleGraph"]

COLORS = ("red", "green", "blue", "brown", "purple", "orange", "darkcyan", "magenta", "navy")


def color_of(name: str) -> str:
    """The colour of a type of function."""
    return COLORS[sum(map(ord, name)) % len(COLORS)]


class SimpleGraph:
    """Draws the functions and variables below a Variable.

    Args:
        format: Of the picture, by its file extension: "png", "svg", "pdf", ...
        verbose: Say shapes and arguments too.
        fname_color_map: {type of function: colour}; one of a few colours by type if left out.
        vname_color_map: {name of a parameter: colour}; pink if left out.
    Raises:
        ImportError: On drawing, the package graphviz is missing.
    """

    def __init__(
        self,
        format: str = "png",
        verbose: bool = False,
        fname_color_map: Mapping[str, str] | None = None,
        vname_color_map: Mapping[str, str] | None = None,
    ) -> None:
        self.format, self.verbose = format, verbose
        self.fname_color_map = dict(fname_color_map or {})
        self.vname_color_map = dict(vname_color_map or {})

    def create_graphviz_digraph(
        self,
        vleaf: Variable,
        params: Mapping[str, Variable] | None = None,
        format: str | None = None,
    ) -> Any:
        """The picture as a graphviz.Digraph.

        Args:
            params: Names of parameters; those of nnl.get_parameters() if left out.
            format: Instead of the one given at first.
        """
        try:
            from graphviz import Digraph
        except ImportError as e:
            raise ImportError(
                "SimpleGraph draws with the package graphviz: pip install graphviz"
            ) from e
        params = get_parameters(grad_only=False) if params is None else params
        names = {v: name for name, v in params.items()}
        dot = Digraph(format=format or self.format)
        dot.attr("node", style="filled")
        seen: set[tuple[int, int]] = set()

        def place(v: Variable) -> str:
            key = v.edge.key
            node = f"v{key[0]}_{key[1]}"
            if key not in seen:
                seen.add(key)
                dot.node(node, self._label(v, names.get(v)), **self._look(v, names.get(v)))
            return node

        for node in capture([vleaf.edge]):
            f = Function(node)
            name = f"f{node.seq}"
            color = self.fname_color_map.get(f.name, color_of(f.name))
            text = f"{f.name}\n{f.info.args}" if self.verbose else f.name
            dot.node(name, text, color=color, fillcolor=color, fontcolor="white", shape="box")
            for v in f.inputs:
                dot.edge(place(v), name)
            for v in f.outputs:
                dot.edge(name, place(v))
        place(vleaf)
        return dot

    def _label(self, v: Variable, parameter: str | None) -> str:
        name = parameter or v.name
        if not self.verbose:
            return name
        text = f"{v.shape}, need_grad={v.need_grad}"
        return f"{name}\n{text}" if name else text

    def _look(self, v: Variable, parameter: str | None) -> dict[str, str]:
        fill = "pink" if parameter else "lightgray"
        fill = self.vname_color_map.get(parameter or v.name, fill)
        return {"fillcolor": fill, "shape": "box" if self.verbose else "ellipse"}

    def save(
        self, vleaf: Variable, fpath: str, cleanup: bool = False, format: str | None = None
    ) -> None:
        """Draw into a file.

        Args:
            fpath: Its path; the extension of the format is added.
            cleanup: Do not leave the description in the language of Graphviz beside it.
        """
        self.create_graphviz_digraph(vleaf, format=format).render(fpath, cleanup=cleanup)

    def view(
        self,
        vleaf: Variable,
        fpath: str | None = None,
        cleanup: bool = True,
        format: str | None = None,
        params: Mapping[str, Variable] | None = None,
    ) -> Any:
        """Draw into a file, a temporary one if fpath is left out, and open it in a viewer."""
        path = fpath or os.path.join(tempfile.mkdtemp(), "graph")
        return self.create_graphviz_digraph(vleaf, params, format).view(path, cleanup=cleanup)
