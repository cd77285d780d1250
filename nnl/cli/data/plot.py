# SPDX-License-Identifier: Apache-2.0
"""nnl plot_series, plot_timer and draw_graph: files as pictures."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import Any

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def add_commands(commands: Any) -> None:
    """Register the commands."""
    p = commands.add_parser(
        "plot_series", description="Plots *.series.txt files of nnl.monitor.MonitorSeries."
    )
    _add_shared(p)
    p.set_defaults(run=plot_series)

    p = commands.add_parser(
        "plot_timer", description="Plots *.timer.txt files of nnl.monitor.MonitorTimeElapsed."
    )
    _add_shared(p)
    p.add_argument("-e", "--elapsed", action="store_true", help="time since the beginning")
    p.add_argument(
        "-u", "--time-unit", default="s", choices=sorted(UNITS), help="(default: %(default)s)"
    )
    p.set_defaults(run=plot_timer)

    p = commands.add_parser(
        "draw_graph", description="Draws the networks of FILE, one file for each."
    )
    p.add_argument("input", metavar="FILE", help=".nnp or .nntxt")
    p.add_argument(
        "-o", "--output-dir", default="draw_out", metavar="FOLDER", help="(default: %(default)s)"
    )
    p.add_argument("-n", "--network", action="append", metavar="NAME", help="only this one")
    p.add_argument(
        "-f",
        "--format",
        default="png",
        metavar="FORMAT",
        help="png, svg, pdf ...; gv for Graphviz's own language; svg and gv need no Graphviz "
        "(default: %(default)s)",
    )
    p.set_defaults(run=draw_graph)


def _add_shared(p: argparse.ArgumentParser) -> None:
    p.add_argument("inputs", nargs="+", metavar="FILE")
    p.add_argument("-l", "--label", action="append", default=[], help="of a file, in their order")
    p.add_argument("-o", "--outfile", default="", metavar="FILE", help="(default: a window)")
    for letter, axis in (("-x", "xlabel"), ("-y", "ylabel"), ("-t", "title")):
        p.add_argument(letter, f"--{axis}", default="", metavar="TEXT")
    for letter, end in (("-T", "ylim-max"), ("-B", "ylim-min"), ("-R", "xlim-max"),
                        ("-L", "xlim-min")):  # fmt: skip
        p.add_argument(letter, f"--{end}", type=float, metavar="X")


def plot_series(args: argparse.Namespace) -> int:
    """Plot series of numbers."""
    from nnl.training import monitor

    return _plot(args, monitor.plot_series)


def plot_timer(args: argparse.Namespace) -> int:
    """Plot times."""
    from nnl.training import monitor

    what = "Total elapsed time [{}]" if args.elapsed else "Elapsed time [{}/iter]"
    args.ylabel = args.ylabel or what.format(UNITS[args.time_unit])
    plot = partial(monitor.plot_time_elapsed, elapsed=args.elapsed, unit=args.time_unit)
    return _plot(args, plot)


def _plot(args: argparse.Namespace, plot: Any) -> int:
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("plots need matplotlib; try: pip install 'nnl[plot]'") from error
    for path in args.inputs:
        if not os.path.isfile(path):
            raise FileNotFoundError(f"there is no file {path}")
    if args.outfile or not sys.stdout.isatty():
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure()
    labels = [*args.label, *args.inputs[len(args.label) :]]
    for path, label in zip(args.inputs, labels, strict=False):
        try:
            plot(path, plot_kwargs={"label": label})
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path} is no file of a monitor: {error}") from error
    plt.legend(loc="best")
    plt.title(args.title)
    plt.xlabel(args.xlabel)
    plt.ylabel(args.ylabel)
    plt.xlim(left=args.xlim_min, right=args.xlim_max)
    plt.ylim(bottom=args.ylim_min, top=args.ylim_max)
    if args.outfile:
        plt.savefig(args.outfile)
        print(args.outfile)
    elif sys.stdout.isatty():
        plt.show()
    else:
        raise ValueError("there is no terminal to show a window from; try: -o plot.png")
    plt.close(figure)
    return 0


def draw_graph(args: argparse.Namespace) -> int:
    """Draw networks."""
    import nnl.functions as F
    from nnl.converters.nnp.graph import NnpLoader
    from nnl.core.parameters.atomic import replacing
    from nnl.core.parameters.parameter import parameter_scope

    if not os.path.isfile(args.input):
        raise FileNotFoundError(f"there is no file {args.input}")
    loader = NnpLoader(args.input)
    os.makedirs(args.output_dir, exist_ok=True)
    for name in args.network or loader.get_network_names():
        with parameter_scope("", {}):
            outputs = list(loader.get_network(name).outputs.values())
            if not outputs:
                continue
            y = outputs[0] if len(outputs) == 1 else F.sink(*outputs)
            content = _picture(y, args.format)
        path = os.path.join(args.output_dir, f"{name.replace(' ', '_')}.{args.format}")
        with replacing(path) as file:
            file.write_bytes(content)
        print(path)
    return 0


def _picture(y: Any, kind: str) -> bytes:
    from nnl.graph.printing.drawing import SimpleGraph
    from nnl.graph.printing.svg import svg

    found: bytes
    try:
        import graphviz
    except ModuleNotFoundError:
        missing = "package graphviz"
    else:
        drawing = SimpleGraph().create_graphviz_digraph(y, format="png")
        try:
            found = drawing.source.encode() if kind == "gv" else drawing.pipe(format=kind)
            return found
        except graphviz.ExecutableNotFound:
            missing = "program dot of Graphviz"
    if kind == "svg":
        return svg(y).encode()
    raise ModuleNotFoundError(
        f"draw_graph needs the {missing} for {kind}; try: -f svg, which is drawn without"
    )
