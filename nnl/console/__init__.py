# SPDX-License-Identifier: Apache-2.0
"""The console: draw, train, compare and search networks in the browser (`nnl console`).

A network is a document, plain data (`document.py`); what it is made of says the palette, which is
read off nnl's functions (`palette.py`). `building.py` makes nnl's own graph of a document, and
shapes, costs and errors (`analysis.py`) are those of this graph.
"""
