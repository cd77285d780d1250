# SPDX-License-Identifier: Apache-2.0
"""nnl: train, run, convert and look into networks from the command line."""

from __future__ import annotations

import argparse
import difflib
import importlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from nnl.cli.errors import EXPECTED, Problem, problem_of

# Command -> its module in nnl.cli and what it does. Only the module of the command that is run is
# imported, so that `nnl --help` comes at once.
COMMANDS = {
    "train": ("training.train", "train a network"),
    "console": ("services.console", "draw, train and compare networks in the browser"),
    "trials": ("services.trials", "trials of a console: list, compare, revert, export"),
    "search": ("services.trials", "search better structures of a network"),
    "plugin": ("services.trials", "plugins of a console: list and run"),
    "convert": ("networks.convert", "convert a network to another format"),
    "nnb_template": ("networks.template", "types of a network's variables, to edit for convert -s"),
    "profile": ("training.profile", "how long a training step takes, function by function"),
    "compare_with_cpu": (
        "training.compare",
        "one training step in two contexts, and how far they differ",
    ),
    "summary": (
        "networks.view",
        "shapes, parameters and multiply-adds of a network, program or weights",
    ),
    "view": ("networks.view", "the same as summary"),
    "dump": ("networks.inspect", "networks, executors, optimizers and monitors of a file"),
    "function_info": ("networks.inspect", "functions of a file, or all that there are"),
    "models": ("networks.models", "the networks of nnl.models.build"),
    "infer": ("training.run", "run a network on arrays"),
    "forward": ("training.run", "run a network over a CSV data set"),
    "serve": ("services.serve", "a language model behind OpenAI's HTTP interface"),
    "bench": ("training.bench", "compare operators, networks, optimizers and frameworks"),
    "conv_dataset": ("data.datasets", "copy a data set into cache files"),
    "create_image_classification_dataset": ("data.datasets", "a data set of folders of pictures"),
    "create_object_detection_dataset": ("data.datasets", "a data set of pictures with boxes"),
    "create_tar": ("data.datasets", "a data set as one archive"),
    "upload": ("data.datasets", "accepted to say that it needs a service of Sony's"),
    "optimize": ("networks.optimize", "a network for inference with fewer functions"),
    "decode_param": ("networks.parameters", "parameters as text files"),
    "encode_param": ("networks.parameters", "a file of parameters from text files"),
    "plot_series": ("data.plot", "plot *.series.txt files"),
    "plot_timer": ("data.plot", "plot *.timer.txt files"),
    "draw_graph": ("data.plot", "draw networks with Graphviz"),
    "launch": ("training.launch", "run a script in several processes"),
    "plan": ("training.plan", "memory and time of a training step on many devices, on paper"),
    "cpp-flags": ("networks.cpp", "print what a C++ compiler needs to know of the library"),
    "doctor": ("doctor", "what of nnl works here, and how to get the rest"),
    "completion": ("completion", "print a completion script for a shell"),
    "version": ("version", "print the version"),
}
# Command -> arguments that it may have, for its help.
EXAMPLES = {
    "train": "-c net.nntxt -o out --set max_epoch=3",
    "console": "projects",
    "trials": "list -d projects",
    "search": "run -d projects digits --attempts 20",
    "plugin": "list -d projects",
    "convert": "net.nnp net.onnx --verify",
    "nnb_template": "net.nnp types.yaml",
    "profile": "-c net.nntxt -o out",
    "compare_with_cpu": "-c net.nntxt -c2 cpu.nntxt -o out",
    "summary": "net.nnp",
    "view": "net.onnx",
    "dump": "net.nnp -F -V",
    "function_info": "net.nnp -f ONNX",
    "models": "resnet18",
    "infer": "-c net.nnp -o result image.npy",
    "forward": "-c out/results.nnp -d test.csv -o out",
    "serve": "SmolLM2-135M --port 8000",
    "bench": "op test_conv*",
    "conv_dataset": "train.csv train.cache",
    "create_image_classification_dataset": "-i pictures -o data -c 3 -w 64 -g 64 -m trimming "
    "-s true -f1 train.csv -r1 80 -f2 test.csv -r2 20",
    "create_object_detection_dataset": "-i pictures -o data -n 20 -c 3 -w 224 -g 224 -a 5 -d 16 "
    "-m padding -s true -f1 train.csv",
    "create_tar": "train.csv train.tar",
    "upload": "TOKEN train.tar",
    "optimize": "net.nnp small.nnp",
    "decode_param": "-p net.nnp -o texts",
    "encode_param": "-i texts -p weights.h5",
    "plot_series": "-o loss.png -l mine out/loss.series.txt",
    "plot_timer": "-o time.png -u m out/time.timer.txt",
    "draw_graph": "net.nnp -f svg -o pictures",
    "launch": "-n 4 train.py",
    "plan": "config.json --mesh shard=8 --device h100",
    "cpp-flags": "--prefix",
    "doctor": "--json",
    "completion": "bash",
    "version": "--json",
}
EPILOG = (
    "Results go to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a "
    "file is missing, 4 not supported, 5 out of memory, 130 interrupted."
)


class Parser(argparse.ArgumentParser):
    """Says what may have been meant, and speaks JSON where the command does."""

    as_json = False

    def error(self, message: str, words: Iterable[str] = ()) -> NoReturn:
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        options = [w for w in message.split() if w.startswith("-")]
        wrong = found[1] if found else next(iter(options), "")
        known = re.findall(r"[\w.-]+", found[2]) if found else list(words)
        close = difflib.get_close_matches(wrong.partition("=")[0], known, 1)
        if found and close:
            message = message.replace(f" (choose from {found[2]})", "")
        hint = f"{close[0]}, did you mean that?" if close else f"{self.prog} --help"
        print(Problem(message, "usage", hint).text(self.prog, self.as_json), file=sys.stderr)
        sys.exit(2)


class Commands:
    """Where the modules register their commands: those that are wanted, with the table's help."""

    def __init__(self, parsers: Any, wanted: str | None) -> None:
        self.parsers, self.wanted = parsers, wanted

    def add_parser(self, name: str, **options: Any) -> Any:
        """As argparse's; the parser of a command that is not wanted is thrown away."""
        options |= {"help": COMMANDS[name][1], "epilog": f"Example: nnl {name} {EXAMPLES[name]}"}
        if self.wanted in (None, name):
            return self.parsers.add_parser(name, **options)
        return Parser(add_help=False)

    @property
    def choices(self) -> Any:
        return self.parsers.choices


def parser(wanted: str | None = None, convert: str = "nnl convert") -> Parser:
    """The parser of `nnl`.

    Args:
        wanted: The command to know all about; every one if None.
        convert: What to call that command.
    """
    top = Parser(prog="nnl", description=__doc__, epilog=EPILOG)
    top.add_argument("-q", "--quiet", action="store_true", help="no messages but errors")
    top.add_argument(
        "-m", "--mpi", action="store_true", help="train as one process of a job of MPI"
    )
    top.add_argument("--debug", action="store_true", help="show where in the code an error arose")
    parsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    loaded = set()
    for name, (module, what) in COMMANDS.items():
        if wanted not in (None, name):
            parsers.add_parser(name, help=what, add_help=False)
        elif module not in loaded:
            loaded.add(module)
            imported = importlib.import_module(f"nnl.cli.{module}")
            imported.add_commands(Commands(parsers, wanted))
    if "convert" in parsers.choices:
        parsers.choices["convert"].prog = convert
    return top


def main(argv: Sequence[str] | None = None, convert: str = "nnl convert") -> int:
    """Entry point of `nnl`; returns the exit code, see nnl.cli.errors.CODES."""
    argv = list(sys.argv[1:] if argv is None else argv)
    Parser.as_json = "--json" in argv
    wanted = next((a for a in argv if not a.startswith("-")), "")
    top = parser(None if wanted == "completion" else wanted, convert)
    args, rest = top.parse_known_args(argv)
    if rest:
        sub = top._subparsers._group_actions[0].choices[args.command]
        sub.error(f"unrecognized arguments: {' '.join(rest)}", sub._option_string_actions)
    if args.mpi and args.command != "train":
        top.error(f"--mpi is for train, not for {args.command}")
    name = convert if args.command == "convert" else f"nnl {args.command}"
    if args.quiet:
        logging.getLogger("nnl").setLevel(logging.ERROR)
    try:
        code: int = args.run(args)
        if sys.stdout is not None:  # it may have been closed before, as `>&-` does
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader of our output has had enough; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (*EXPECTED, KeyboardInterrupt) as error:
        if args.debug:
            raise
        problem = problem_of(error, _files(args))
        as_json = getattr(args, "json", False) is True  # for some commands it is a file
        print(problem.text(name, as_json), file=sys.stderr)
        return problem.exit_code


def _files(args: argparse.Namespace) -> str:
    """The files that a command was given, for messages."""
    given = next(
        (v for k in ("files", "file", "config", "source") if (v := getattr(args, k, None))), []
    )
    return "".join(f"{name}: " for name in (given if isinstance(given, list) else [given])[:1])


def convert_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `nnl-convert`, which is `nnl convert`."""
    return main(["convert", *(sys.argv[1:] if argv is None else argv)], "nnl-convert")


def launch_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m nnl.launch`, which is `nnl launch`."""
    return main(["launch", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
