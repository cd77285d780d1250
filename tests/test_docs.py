# SPDX-License-Identifier: Apache-2.0
"""The code on the pages runs, tables are whole, and the reference misses no public name."""

import doctest
import inspect
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nnl as nn
from docs.site import commands, facts, headers, pages, reference
from docs.site.markers import MARKERS
from nnl.core.op import OPS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name(page):
    return page.relative_to(ROOT).as_posix()


def filled(page):
    return pages.filled(page.read_text(encoding="utf-8"), MARKERS)


CODE = re.compile("^(```(python|sh run)|<!-- (functions|module))", re.M)
# start processes, import other frameworks, or make large networks
LONG = (
    "docs/more/gallery.md",
    "docs/reference/commands.md",
    "docs/reference/models.md",
    "docs/guides/deployment.md",
    "docs/from/pytorch.md",
    "docs/from/keras.md",
    "docs/from/jax.md",
)
WITH_CODE = [
    pytest.param(page, id=name(page), marks=[pytest.mark.long] if name(page) in LONG else [])
    for page in PAGES
    if CODE.search(page.read_text(encoding="utf-8"))
]


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty folder, and afterwards nnl as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    ops, context = set(OPS), nn.get_current_context()
    nn.clear_parameters()
    yield
    nn.clear_parameters()
    nn.set_auto_forward(False)
    nn.set_default_context(context)
    for op in set(OPS) - ops:
        del OPS[op]


@pytest.mark.parametrize("page", WITH_CODE)
def test_code_on_the_page_runs(page, fresh):
    variables = {"__name__": "__main__"}
    for kind, _, code in pages.blocks(filled(page)):
        if kind == "sh run":
            done = subprocess.run(["bash", "-e", "-c", code], capture_output=True, text=True)
            assert done.returncode == 0, f"{code}{done.stderr}"
        else:
            exec(compile(code, name(page), "exec"), variables)


def test_every_public_name_has_an_example():
    assert [n for m, n, thing in reference.examples() if not reference.example(m, n, thing)] == []


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(m, marks=[pytest.mark.long] if m == "nnl.models" else [])
        for m in reference.MODULES
    ],
)
def test_examples_in_docstrings_give_what_they_say(module, fresh):
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=options, verbose=False)
    text = io.StringIO()
    for of, key, thing in reference.examples():
        if of == module:
            variables = {"__name__": "__main__"}
            exec(reference.preamble(module), variables)
            nn.clear_parameters()
            doc = inspect.getdoc(thing) or ""
            test = doctest.DocTestParser().get_doctest(doc, variables, key, None, None)
            runner.run(test, out=text.write)
    assert runner.failures == 0, text.getvalue()


def test_every_function_is_on_the_page_of_a_category():
    pages_of = (ROOT / "docs" / "reference" / "functions").glob("*.md")
    said = "".join(page.read_text(encoding="utf-8") for page in pages_of)
    missing = {facts.category_of(n) for n in nn.functions.__all__}
    assert {c for c in missing if f"<!-- functions {c} -->" not in said} == set()


def test_every_part_of_the_parametric_functions_is_on_a_page():
    folder = ROOT / "docs" / "reference" / "parametric_functions"
    said = " ".join(page.read_text(encoding="utf-8") for page in folder.glob("*.md"))
    found = reference.public("nnl.parametric_functions").values()
    assert {f.__module__.rpartition(".")[2] for f in found} <= set(said.split())


def test_every_header_is_on_a_page():
    folder = ROOT / "docs" / "reference" / "cpp_headers"
    text = "".join(page.read_text(encoding="utf-8") for page in folder.glob("*.md"))
    shown = {n for line in re.findall("^<!-- headers (.*) -->$", text, re.M) for n in line.split()}
    assert {path.stem for path in headers.FOLDER.glob("*.h")} == shown


def test_every_command_has_an_example():
    assert commands.without_example() == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_table_begins_with_its_heading(page):
    """A blank line within a table would end it, and show the rest as text."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for k, line in enumerate(lines):
        if line.startswith("|") and not lines[k - 1].startswith("|"):
            assert lines[k + 1].startswith("|---"), f"{page.name}:{k + 1}: {line}"
