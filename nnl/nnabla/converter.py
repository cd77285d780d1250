# SPDX-License-Identifier: Apache-2.0
"""`nnl convert` and `nnl dump` as functions that take the arguments of the command line."""

from __future__ import annotations

from argparse import Namespace
from collections import namedtuple
from collections.abc import Sequence

from nnl.cli.main import parser
from nnl.converters.formats import FORMATS

_SupportedInfo = namedtuple("_SupportedInfo", "import_name export_name")
_READ = [f for f in FORMATS.values() if f.read is not None]
_WRITTEN = [f for f in FORMATS.values() if f.write is not None]
formats = _SupportedInfo([f.name for f in _READ], [f.name for f in _WRITTEN])
extensions = _SupportedInfo(
    [e for f in _READ for e in f.extensions], [e for f in _WRITTEN for e in f.extensions]
)
_OWN = ("command", "files", "run")


def _run(words: list[str], args: Namespace) -> bool:
    """Run a command with the options that are set in args."""
    options = parser().parse_args(words)
    for name, value in vars(args).items():
        if hasattr(options, name) and name not in _OWN and value is not None:
            setattr(options, name, value)
    return bool(options.run(options) == 0)


def convert_files(args: Namespace, ifiles: Sequence[str], output: str) -> bool:
    """Convert a model; whether it succeeded.

    Args:
        args: Options of `nnl convert` as attributes; those that are missing have their defaults.
    """
    return _run(["convert", *ifiles, output], args)


def dump_files(args: Namespace, ifiles: Sequence[str]) -> bool:
    """Print what is in a file; whether it succeeded. `args` as in convert_files."""
    return _run(["dump", *ifiles], args)


def nnb_template(args: Namespace, ifiles: Sequence[str], output: str) -> bool:
    """Raises NotImplementedError: nnl writes NNB in float32, without a file of types."""
    raise NotImplementedError("nnb_template: nnl writes NNB in float32, without a file of types")
