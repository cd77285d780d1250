# SPDX-License-Identifier: Apache-2.0
"""tf.app, tf.flags, tf.gfile and tf.logging, on Python's own modules."""

from __future__ import annotations

import argparse
import glob
import logging as _logging
import os
import shutil
import sys
from types import SimpleNamespace


class _Flags:
    """Values of flags: read from the command line when the first one is asked for."""

    def __init__(self):
        self.__dict__["_parser"] = argparse.ArgumentParser(allow_abbrev=False)
        self.__dict__["_values"] = None

    def _parsed(self):
        if self._values is None:
            found, _ = self._parser.parse_known_args()
            self.__dict__["_values"] = vars(found)
        return self._values

    def __getattr__(self, name):
        values = self._parsed()
        if name not in values:
            raise AttributeError(f"flags: there is none called {name!r}")
        return values[name]

    def __setattr__(self, name, value):
        self._parsed()[name] = value

    def flag_values_dict(self):
        """All values by name."""
        return dict(self._parsed())

    def __call__(self, argv=None, known_only=False):
        self._parsed()
        return list(argv or sys.argv)


FLAGS = _Flags()


def _truth(text):
    return text.lower() in ("1", "t", "true", "yes", "y")


def _define(kind):
    def define(name, default, help=None, **_):
        more = {"nargs": "?", "const": True} if kind is _truth else {}
        FLAGS._parser.add_argument(f"--{name}", type=kind, default=default, help=help, **more)
        FLAGS.__dict__["_values"] = None

    return define


def run(main=None, argv=None):
    """Call main with the words of the command line, and end with what it returns."""
    FLAGS._parsed()
    sys.exit((main or sys.modules["__main__"].main)(argv or sys.argv))


flags = SimpleNamespace(
    FLAGS=FLAGS,
    DEFINE_string=_define(str),
    DEFINE_integer=_define(int),
    DEFINE_float=_define(float),
    DEFINE_boolean=_define(_truth),
    DEFINE_bool=_define(_truth),
)
app = SimpleNamespace(run=run, flags=flags)


def _delete(path):
    shutil.rmtree(path)


class GFile:
    """A file, read or written as one of Python."""

    def __new__(cls, name, mode="r"):
        return open(name, mode, encoding=None if "b" in mode else "utf-8")


gfile = SimpleNamespace(
    GFile=GFile, Open=GFile, FastGFile=GFile, Exists=os.path.exists, IsDirectory=os.path.isdir,
    MakeDirs=lambda path: os.makedirs(path, exist_ok=True), MkDir=os.mkdir,
    ListDirectory=os.listdir,
    Glob=glob.glob, DeleteRecursively=_delete, Remove=os.remove, Rename=os.replace,
)  # fmt: skip

_logger = _logging.getLogger("nnl")
logging = SimpleNamespace(
    DEBUG=10, INFO=20, WARN=30, ERROR=40, FATAL=50, set_verbosity=_logger.setLevel,
    debug=_logger.debug, info=_logger.info, warn=_logger.warning, warning=_logger.warning,
    error=_logger.error, fatal=_logger.critical,
)  # fmt: skip
