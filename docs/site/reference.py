# SPDX-License-Identifier: Apache-2.0
"""The reference: sections about functions and classes, from docstrings and the schema."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nnl
import nnl.functions as F
from nnl.core.ops.arguments import REQUIRED
from nnl.core.ops.op import Op
from nnl.solvers import Solver

from . import docstrings, facts, public, samples

DOCS = Path(__file__).parent.parent
# What the examples of a page begin with, doctests of docstrings too.
PREAMBLE = """import numpy as np
import nnl as nn
import nnl.communicators as C, nnl.functions as F, nnl.initializer as I
import nnl.parametric_functions as PF, nnl.solvers as S
from nnl import models

np.set_printoptions(precision=4, suppress=True)
rng = np.random.default_rng(0)

def array(values, dtype=np.float32):
    return nn.Variable.from_numpy_array(np.array(values, dtype))
"""
AT_ONCE = """
nn.set_auto_forward(True)                 # every line computes at once
"""
# How examples call modules; other names stand alone.
SHORT = {
    "nnl": "nn",
    "nnl.functions": "F",
    "nnl.parametric_functions": "PF",
    "nnl.solvers": "S",
    "nnl.initializer": "I",
    "nnl.communicators": "C",
    "nnl.models": "models",
}
SOLVER = """w = nn.Variable.from_numpy_array(np.array([5.0, -3.0]), need_grad=True)
solver = S.{name}({first}=0.1)
solver.set_parameters({{"w": w}})
for _ in range(20):
    loss = F.sum(w**2)
    solver.zero_grad()
    loss.backward()
    solver.update()
w.d
"""


def example(module: str, name: str, thing: Any) -> str:
    """The example of a public name: its docstring's, or one that is made; "" if there is none."""
    if written := docstrings.read(thing).example:
        return written
    if module == "nnl.functions" and isinstance(thing, Op):
        return samples.example(thing) + "\n"
    if module == "nnl.solvers" and issubclass(thing, Solver):
        shown = name if hasattr(thing, "rule") else "Sgd"  # the base has no rule
        return SOLVER.format(name=shown, first=thing.rate)
    return ""


def imports(module: str, code: str) -> str:
    """The line that code needs to have the names of a module without a short name."""
    if module in SHORT:
        return ""
    used = [n for n in public.names(module) if re.search(rf"(?<![\w.]){n}\b", code)]
    missing = [n for n in used if not re.search(rf"import .*\b{n}\b", code)]
    return f"from {module} import {', '.join(missing)}\n" if missing else ""


def preamble(module: str) -> str:
    """What examples of a module begin with."""
    return PREAMBLE + (AT_ONCE if SHORT.get(module) in ("F", "PF", "S") else "")


def beginning(module: str = "nnl") -> str:
    """The same as the first block of a page."""
    return f"```python\n{preamble(module)}```"


def shown() -> dict[int, Path]:
    """The page of each object that the reference has, by its id."""
    found: dict[int, Path] = {}
    for page in sorted((DOCS / "reference").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for kind, words in re.findall(r"^<!-- (functions|module|names) (.+) -->$", text, re.M):
            module, *some = ["nnl.functions"] if kind == "functions" else words.split()
            if kind == "names":
                things = [getattr(importlib.import_module(module), name) for name in some]
            else:
                things = list(public.names(module).values())
            found.update((id(thing), page) for thing in things)
    return found


def signature(thing: Any) -> str:
    """Arguments with their types and defaults."""
    if isinstance(thing, Op):
        return f"({', '.join(op_arguments(thing))})"
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "()"
    keep = [
        p.replace(annotation=shown_as(p.annotation))
        for p in found.parameters.values()
        if p.name != "self"
    ]
    text = str(found.replace(parameters=keep, return_annotation=inspect.Signature.empty))
    return re.sub(r"<[\w.]*?(\w+) object at 0x\w+>", r"\1()", text)  # defaults without a repr


@dataclass
class Words:
    """An annotation that is written as it stands in the source, without quotes."""

    text: str

    def __repr__(self) -> str:
        return self.text


def shown_as(annotation: Any) -> Any:
    """What a signature shows of an annotation: nothing of one that says nothing."""
    if annotation in ("Any", "Input", Any):
        return inspect.Parameter.empty
    return Words(annotation) if isinstance(annotation, str) else annotation


def op_arguments(op: Op) -> Iterator[str]:
    """Inputs and attributes of an op as its signature shows them."""
    names = op.inputs[: len(op.inputs) - op.takes_rng]
    for i, name in enumerate(names):
        variadic = op.variadic and i == len(op.inputs) - 1
        yield f"*{name}" if variadic else f"{name}=None" if i in op.optional else name
    for name, kind, default in zip(op.fields, op.kinds, op.defaults, strict=True):
        yield f"{name}: {kind}" + ("" if default is REQUIRED else f" = {default!r}")


def anchor(module: str, name: str) -> str:
    """The target of links to a public name.

    Sphinx does not tell `decoder` from `Decoder`, and knows `models.Stack` already as the end of
    `nnl.models.Stack`.
    """
    if module == "nnl.models":
        return f"{'class' if name[0].isupper() else 'network'}-{name}"
    return f"{SHORT.get(module, module)}.{name}"


def section(module: str, name: str, thing: Any) -> str:
    """All about one public name."""
    short = SHORT.get(module)
    kind = "class" if inspect.isclass(thing) else "function"
    parts = [
        *([f"({anchor(module, name)})="] if short else []),
        f"## {name}",
        f":::::{{py:{kind}}} {module}.{name}{signature(thing)}",
        linked(docstrings.whole(docstrings.read(thing)), module, name, thing),
    ]
    if inspect.isclass(thing):
        parts += methods(thing)
    if module == "nnl.functions":
        parts += about(name)
    if module == "nnl.parametric_functions" and name in F.__all__:
        parts.append(
            f"**Computes with** [F.{name}](#F.{name}), which has types, kernels and names in files."
        )
    if short in ("F", "PF", "S", "I"):
        parts += differences(name)
    parts.append(":::::")
    if code := example(module, name, thing):
        code = imports(module, code) + code
        parts.append(f"```python\n{code}```")
    return "\n\n".join(parts) + "\n"


def linked(text: str, module: str, name: str, thing: Any) -> str:
    """Markdown in which names of other functions lead to them, unless they name an argument."""
    arguments = {name, *re.findall(r"\w+", re.sub(r"=[^,]*", "", signature(thing)))}

    def link(match: re.Match[str]) -> str:
        path, word = match.groups()
        home = path.rstrip(".") or module
        if home not in SHORT or (not path and word in arguments) or word not in public.names(home):
            return match[0]
        return f"[`{word}`](#{anchor(home, word)})"

    # not the names of arguments that begin the entries of a list
    return re.sub(r"(?<!^- )`((?:nnl\.(?:\w+\.)?)?)(\w+)`", link, text, flags=re.M)


def methods(cls: type) -> Iterator[str]:
    """Public methods and properties that a class itself documents."""
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        thing = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if isinstance(thing, property):
            doc = docstrings.read(thing)
            yield f"::::{{py:property}} {name}\n\n{docstrings.whole(doc)}\n::::"
        elif inspect.isfunction(thing) and thing.__doc__:
            doc = docstrings.read(thing)
            yield f"::::{{py:method}} {name}{signature(thing)}\n\n{docstrings.whole(doc)}\n::::"


def about(name: str) -> Iterator[str]:
    """Types, names in files, kernels and differences of a function."""
    known = facts.facts(name)
    op = facts.op_of(name)
    if op:
        told = {heading for heading, _ in docstrings.read(op).sections}
        if "Args" not in told and (shapes := facts.shapes(op)):
            yield f"**Shapes**: {shapes}."
        yield f"**Types**: {facts.dtypes(op)}."
    else:
        yield "**Types**: those of the functions that it is made of."
    fast = [b for b in ("native", "CUDA", "OpenCL") if known[b] == "yes"]
    yield "**Kernels**: " + (f"{', '.join(fast)}; " if fast else "") + "the definition in numpy."
    formats = [c for c in ("C++", "C", "NNB", "TFLite, TF") if known[c] in ("yes", "some")]
    yield (
        f"**Gradient**: {known['gradient']}. **.nnp**: {known['NNP']}. **ONNX**: {known['ONNX']}. "
        f"**Other forms**: {', '.join(formats) or 'none'}."
    )


def differences(name: str) -> Iterator[str]:
    """What the pages of differences from NNabla say of a name."""
    told = [text for names, text in facts.differences() if name in names]
    if told:
        yield "**Differs from NNabla**\n\n" + "\n".join(f"- {text}" for text in told)


def functions(*words: str) -> str:
    """The functions of a category."""
    wanted = " ".join(words)
    names = [n for n in sorted(F.__all__) if facts.category_of(n) == wanted]
    sections = [section("nnl.functions", name, getattr(F, name)) for name in names]
    return "\n".join(sections)


def module(name: str, *parts_of: str) -> str:
    """The public names of a module, or those that some of its parts define; each object once."""
    parts = []
    told = {} if name == "nnl" else {id(nnl.Context): "nnl.Context"}
    for key, thing in sorted(public.names(name).items(), key=lambda item: item[0].lower()):
        if parts_of and thing.__module__.rpartition(".")[2] not in parts_of:
            continue
        if id(thing) in told:
            parts.append(
                f"({anchor(name, key)})=\n## {key}\n\nAnother name of `{told[id(thing)]}`.\n"
            )
            continue
        told[id(thing)] = key
        parts.append(section(name, key, thing))
    return "\n".join(parts)


def names(module: str, *wanted: str) -> str:
    """Some public names of a module."""
    found = importlib.import_module(module)
    return "\n".join(section(module, name, getattr(found, name)) for name in wanted)


def table() -> str:
    """The table of all functions."""
    names = sorted(F.__all__)
    rows = {name: facts.facts(name) for name in names}
    columns = list(rows[names[0]])
    lines = ["| function | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        lines.append(f"| [{name}](#F.{name}) | " + " | ".join(row[c] for c in columns) + " |")
    return ":::{container} functions-table\n\n" + "\n".join(lines) + "\n\n:::\n"
