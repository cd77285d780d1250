# SPDX-License-Identifier: Apache-2.0
"""The code on the pages runs, tables are whole, and the reference misses no public name."""

import doctest
import importlib
import inspect
import io
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import nnl as nn
from docs.site import (
    commands,
    digest,
    docstrings,
    facts,
    finished,
    headers,
    pages,
    public,
    reference,
)
from docs.site.markers import MARKERS
from nnl.core.ops.op import OPS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name(page):
    return page.relative_to(ROOT).as_posix()


def filled(page):
    return pages.filled(page.read_text(encoding="utf-8"), MARKERS)


CODE = re.compile("^(```(python|sh run)|<!-- begin)", re.M)
# start processes, import other frameworks, or make large networks
LONG = (
    "docs/more/gallery.md",
    "docs/console.md",
    "docs/reference/commands.md",
    "docs/reference/models.md",
    "docs/reference/errors.md",
    "docs/reference/frameworks.md",
    "docs/distributed.md",
    "docs/guides/mesh.md",
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
    yield
    nn.set_auto_forward(False)
    nn.set_default_context(context)
    for op in set(OPS) - ops:
        del OPS[op]


def run_blocks(page):
    variables = {"__name__": "__main__"}
    for kind, _, code in pages.blocks(filled(page)):
        if kind == "sh run":
            done = subprocess.run(["bash", "-e", "-c", code], capture_output=True, text=True)
            assert done.returncode == 0, f"{code}{done.stderr}"
        else:
            exec(compile(code, name(page), "exec"), variables)


@pytest.mark.parametrize("page", WITH_CODE)
def test_code_on_the_page_runs(page, fresh):
    run_blocks(page)


def test_the_page_on_a_csv_file_leaves_out_what_is_not_whole(fresh, capsys):
    page = (ROOT / "docs" / "start" / "own_data.md").read_text(encoding="utf-8")
    found = {}
    exec(next(code for _, _, code in pages.blocks(page) if "csv.DictReader" in code), found)
    read = found["read_table"]
    Path("birds.csv").write_text(
        "height, weight, color, kind\n"
        "58, 2.1, brown, thrush\n, 1.4, red, robin\nn/a, 1.4, red, robin\nnan, 1.4, red, robin\n"
        "46, 1.4\n46, 1.4, , robin\n46, 1.4, red,\n44.5, 1.3, red, robin, more\n\n"
    )
    data, wanted, columns = read("birds.csv", ["height", "weight"], ["color"], "kind")
    assert columns == ["height", "weight", "color=brown", "color=red"]
    np.testing.assert_allclose(data, [[58, 2.1, 1, 0], [44.5, 1.3, 0, 1]])
    assert wanted == ["thrush", "robin"]
    assert "2 rows; 6 left out\n  line 3: height is ''\n" in capsys.readouterr().out
    data, wanted, columns = read("birds.csv", ["height"], [], "weight", target_is_number=True)
    assert wanted == [2.1, 1.4, 1.4, 1.4, 1.3] and columns == ["height"]
    with pytest.raises(AssertionError, match="no row is left"):
        read("birds.csv", ["height", "color"], [], "kind")
    Path("birds.csv").write_text("height;weight;kind\n58;2.1;thrush\n")
    with pytest.raises(KeyError, match="height"):
        read("birds.csv", ["height", "weight"], [], "kind")


def uses(page, name):
    """Whether a block of Python of a page itself has the name."""
    blocks = pages.blocks(page.read_text(encoding="utf-8"))
    return any(re.search(rf"\b{name}\b", code) for kind, _, code in blocks if kind == "python")


def test_every_public_name_is_in_the_reference_with_an_example():
    shown = reference.shown()
    things = list(public.things())
    assert [f"{module}.{name}" for module, name, thing in things if id(thing) not in shown] == []
    assert [
        f"{module}.{name}"
        for module, name, thing in things
        if not (reference.example(module, name, thing) or uses(shown[id(thing)], name))
    ] == []


# Bases and a decorator: they compute nothing themselves.
WITHOUT_FORMULA = {
    "BaseInitializer",
    "BaseLearningRateScheduler",
    "Solver",
    "SolverState",
    "parametric_function_api",
}
MATHEMATICAL = (
    "nnl.functions",
    "nnl.parametric_functions",
    "nnl.solvers",
    "nnl.initializer",
    "nnl.utils.learning_rate_scheduler",
)


def says_what_it_gives(thing):
    """Whether a docstring has a formula of its own line, or an equation within a line."""
    found = re.findall(r"(\$\$.+?\$\$|\$[^$]+\$)", thing.__doc__ or "", re.S)
    return any(f.startswith("$$") or re.search(r"=|\\(sim|propto|leftarrow)", f) for f in found)


def test_every_function_layer_and_solver_has_its_formula():
    without = {
        name
        for module, name, thing in public.things()
        if module in MATHEMATICAL and not says_what_it_gives(thing)
    }
    assert without == WITHOUT_FORMULA


def test_a_formula_within_a_line_is_an_equation():
    def told(doc):
        return says_what_it_gives(SimpleNamespace(__doc__=doc))

    assert told("A. $y = x$") and told("A. $$x$$") and not told("A shift by $1 / x$.")


def test_every_public_method_says_what_it_does():
    """Or overrides one that does."""
    without = [
        f"{module}.{name}.{key}"
        for module, name, cls in public.things()
        if inspect.isclass(cls)
        for key, value in vars(cls).items()
        if not key.startswith("_")
        if isinstance(value, property) or inspect.isfunction(getattr(value, "__func__", value))
        if not any(getattr(vars(c).get(key), "__doc__", None) for c in cls.__mro__)
    ]
    assert without == []


def test_blocks_run_or_say_what_they_are():
    """Code that does not run, for want of a GPU or as a part of something, is marked as `py`."""
    known = {"python", "sh run", "cpp", "c", "text", "text prints", "cmake", "py", "{toctree}"}
    for page in PAGES:
        opened = re.findall(
            r"^```([^`\n]*)\n.*?^```$", page.read_text(encoding="utf-8"), re.M | re.S
        )
        kinds = {re.sub(r"^python .*", "python", words) for words in opened}
        assert kinds <= known | {"{glossary}"}, (page.name, kinds - known)
    not_run = [name(p) for p in PAGES if "```py\n" in p.read_text(encoding="utf-8")]
    assert not_run == ["docs/cuda.md", "docs/how_it_works.md"]


def test_blocks_whose_package_is_missing_are_shown_on_their_side_and_not_run():
    text = "```python left needs-nothere\na\n```\n\n```python hidden needs-nothere\nb\n```\n"
    assert pages.blocks(text) == []
    made = pages.notebook(text)
    assert "cell tag_left\n```py\na\n```" in made and "\nb\n" not in made


def test_commands_are_shown_as_they_are_typed_and_print_whole_lines(capsys, monkeypatch):
    made = pages.notebook("```sh run\necho a; false\n```\n")
    assert "```sh\necho a; false\n```" in made and "%%bash\necho a; false\n" in made
    magics = {}
    shell = SimpleNamespace(register_magic_function=lambda f, kind, name: magics.update({name: f}))
    cell = re.search(r"import subprocess.*?(?=^```)", made, re.M | re.S)
    exec(cell[0], {"get_ipython": lambda: shell})
    magics["bash"]("", "printf '%200s\n\nb\n' a; echo c >&2")
    said = capsys.readouterr()
    assert said.out == " " * 199 + "a\n\nb\n" and said.err == "c\n"
    with pytest.raises(RuntimeError, match="exit code 1"):
        magics["bash"]("", "echo a; false; echo b")
    assert capsys.readouterr().out == "a\n"


def test_the_walk_finds_modules_of_every_kind():
    assert {"nnl", "nnl.data.images", "nnl.utils.save", "nnl.utils.rnn"} <= set(public.modules())
    assert not {"nnl.core.ops.op", "nnl.functions.affine"} & set(public.modules())


def test_what_pages_import_from_nnl_is_in_the_reference():
    shown = reference.shown()
    # these are about what is not public
    inner = (ROOT / "docs" / "inside", ROOT / "docs" / "how_it_works.md")
    imported = {
        (module, name)
        for page in PAGES
        if page.parent not in inner and page not in inner
        for _, _, code in pages.blocks(page.read_text(encoding="utf-8"))
        for module, names in re.findall(r"^from (nnl[.\w]*) import (\([^)]*\)|[^\n#]*)", code, re.M)
        for name in re.findall(r"\b([a-zA-Z]\w*)", re.sub(r" as \w+", "", names))
    }
    found = {(m, n): getattr(importlib.import_module(m), n, None) for m, n in imported}
    assert [f"{m}.{n}" for (m, n), v in found.items() if callable(v) and id(v) not in shown] == []


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(m, marks=[pytest.mark.long] if m == "nnl.models" else [])
        for m in (*reference.SHORT, "others")
    ],
)
def test_examples_in_docstrings_give_what_they_say(module, fresh):
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=options, verbose=False)
    text = io.StringIO()
    for of, key, thing in public.things():
        if module == (of if of in reference.SHORT else "others"):
            variables = {"__name__": "__main__"}
            exec(reference.preamble(of), variables)
            if of not in reference.SHORT:
                variables.update(public.names(of))
            nn.clear_parameters()
            doc = inspect.getdoc(thing) or ""
            test = doctest.DocTestParser().get_doctest(doc, variables, key, None, None)
            runner.run(test, out=text.write)
    assert runner.failures == 0, text.getvalue()


def test_docstrings_become_markdown_with_their_order_links_and_code():
    def of(doc):
        return docstrings.whole(docstrings.read(SimpleNamespace(__doc__=doc)))

    said = of("A.\n\nArgs:\n    x: B *c*.\n\nThe rest is as usual.\n\n    y = f(*x)\n")
    assert said == "A.\n\n**Args**\n\n- `x`: B \\*c\\*.\n\nThe rest is as usual.\n\n    y = f(*x)"
    assert "- `A`: b.\n- `CError`: d." in of("E.\n\nRaises:\n    A: b. CError: d.\n")
    section = reference.section("nnl.functions", "sum_pooling", nn.functions.sum_pooling)
    assert "[`max_pooling`](#F.max_pooling)" in section and "[`sum_pooling`]" not in section
    section = reference.section("nnl.functions", "convolution", nn.functions.convolution)
    assert "- `pad`: " in section and "#F.pad" not in section  # an argument, not the function
    assert facts.facts("convolution")["CUDA"] == "yes"  # a graph of cuDNN
    assert facts.facts("convolution")["OpenCL"] == "yes"
    assert facts.facts("sort")["OpenCL"] == "on the host"


def test_every_function_is_on_the_page_of_a_category():
    pages_of = (ROOT / "docs" / "reference" / "functions").glob("*.md")
    said = "".join(page.read_text(encoding="utf-8") for page in pages_of)
    missing = {facts.category_of(n) for n in nn.functions.__all__}
    assert {c for c in missing if f"<!-- functions {c} -->" not in said} == set()


def test_every_part_of_the_parametric_functions_is_on_a_page():
    folder = ROOT / "docs" / "reference" / "parametric_functions"
    said = " ".join(page.read_text(encoding="utf-8") for page in folder.glob("*.md"))
    found = public.names("nnl.parametric_functions").values()
    assert {f.__module__.rpartition(".")[2] for f in found} <= set(said.split())


def test_every_header_is_on_a_page():
    folder = ROOT / "docs" / "reference" / "cpp_headers"
    text = "".join(page.read_text(encoding="utf-8") for page in folder.glob("*.md"))
    shown = {n for line in re.findall("^<!-- headers (.*) -->$", text, re.M) for n in line.split()}
    assert {path.stem for path in headers.FOLDER.glob("*.h")} == shown


def walked():
    """All modules of nnl that can be imported here."""
    for info in pkgutil.walk_packages(nn.__path__, "nnl."):
        try:
            yield importlib.import_module(info.name)
        except ImportError:  # of a package that is not installed
            continue


def test_the_map_of_the_source_has_every_folder_and_names_files_that_exist():
    text = (ROOT / "docs" / "inside" / "source.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1:-1] for row in re.findall(r"^\| `.*\|$", text, re.M)]
    named = {name for row in rows for name in re.findall("`([^`]+)`", row[0])}
    packages = {f"nnl/{p.parent.name}" for p in (ROOT / "nnl").glob("*/__init__.py")}
    named |= {"/".join(name.split("/")[:2]) for name in named}
    assert packages - named == set()
    first = [(row[0].strip(" `"), name) for row in rows for name in re.findall("`([^`]+)`", row[2])]
    files = [ROOT / folder / name for folder, name in first if (ROOT / folder).is_dir()]
    assert len(files) > 15 and [path for path in files if not path.exists()] == []


def test_every_class_of_errors_is_in_the_catalogue():
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"\w+", " ".join(re.findall("^##.*$", text, re.M))))
    own = {
        name
        for module in walked()
        for name, thing in vars(module).items()
        if inspect.isclass(thing)
        and issubclass(thing, Exception)
        and thing.__module__.startswith("nnl.")
        and not thing.__name__.startswith("_")
        and name == thing.__name__
    }
    assert {"ShapeError", "CannotLower", "CommunicatorError"} <= own
    assert own - headings - {"TooLarge", "OneForAll"} == set()  # those are told with their base
    assert "`TooLarge`" in text and "`OneForAll`" in text


def test_pages_that_messages_name_exist():
    found = [
        (path, page, anchor)
        for path in (ROOT / "nnl").rglob("*.py")
        for page, anchor in re.findall(
            r"documentation: ([\w/]+)#([\w-]+)",
            re.sub(r'"\n\s*f?"', "", path.read_text(encoding="utf-8")),  # one text on two lines
        )
    ]
    assert len(found) > 15
    for path, page, anchor in found:
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.M)
        anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
        assert anchor in anchors, (path, page, anchor)


def test_the_glossary_defines_each_term_once_in_order():
    text = (ROOT / "docs" / "more" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^([\w.].*)$", text.partition("{glossary}")[2], re.M)
    assert len(terms) > 50 and terms == sorted(set(terms), key=str.lower)


def test_every_command_has_an_example():
    assert commands.without_example() == []


def test_changed_code_outdates_what_pages_have_computed_but_comments_do_not():
    before = b'"""A."""\n\ndef f(x):\n    """B."""\n    return x + 1\n'
    told = b'"""More."""\n\n# why\ndef f(x):\n    """C,\n\n    longer.\n    """\n    return x + 1\n'
    changed = before.replace(b"x + 1", b"x + 2")
    assert digest.code(before) == digest.code(told) != digest.code(changed)


def test_a_site_with_dead_links_or_long_pages_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.html").write_text('<p id="x"></p><a href="b.html#y"></a><a href="#x"></a>')
    (tmp_path / "b.html").write_text('<p id="y"></p><a href="a.html#z"></a><img src="c.png">')
    dead = [f"b.html links to {link}, which does not exist" for link in ("a.html#z", "c.png")]
    assert finished.faults(tmp_path) == dead
    monkeypatch.setattr(finished, "LARGEST", 50)
    assert "a.html has 54 bytes, wanted at most 50: split the page" in finished.faults(tmp_path)


def test_the_reference_says_the_same_each_time():
    """An address of an object would read a page anew in every build."""
    said = "".join(filled(page) for page in (ROOT / "docs" / "reference").rglob("*.md"))
    assert re.findall("0x[0-9a-f]{8,}", said) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_table_begins_with_its_heading(page):
    """A blank line within a table would end it, and show the rest as text."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for k, line in enumerate(lines):
        if line.startswith("|") and not lines[k - 1].startswith("|"):
            assert lines[k + 1].startswith("|---"), f"{page.name}:{k + 1}: {line}"
