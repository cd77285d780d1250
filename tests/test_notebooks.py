# SPDX-License-Identifier: Apache-2.0
"""The notebooks run, and begin with a cell that installs nnl and nothing else."""

import re
from pathlib import Path

import pytest

import nnl as nn

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
QUICK = ("pix2pix",)  # the others are run by make test-all
INSTALL = '# %% tags=["skip-execution"]\n# %pip install "nnl[examples]"\n'


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_notebook_is_listed_and_installs_nnl_first(page):
    cells = re.split(r"^(?=# %%)", page.read_text(encoding="utf-8"), flags=re.M)
    assert cells[1].startswith("# %% [markdown]\n# # "), "a title comes first"
    first = next(c for c in cells[1:] if not c.startswith("# %% [markdown]"))
    assert first.strip() == INSTALL.strip()
    listed = (FOLDER / "index.md").read_text(encoding="utf-8").partition("{toctree}")[2]
    assert page.stem in listed.split()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, id=p.stem, marks=[] if p.stem in QUICK else [pytest.mark.long])
        for p in NOTEBOOKS
    ],
)
def test_the_notebook_runs(page):
    """With two steps of training."""
    for package in ("matplotlib", "sklearn", "skimage"):
        pytest.importorskip(package)
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    text, count = re.subn(
        r"^(STEPS.* = )\d+", r"\g<1>2", page.read_text(encoding="utf-8"), flags=re.M
    )
    assert count == 1
    shown = []
    try:
        exec(compile(text, page.name, "exec"), {"__name__": "__main__"})
        shown = plt.get_fignums()
    finally:
        plt.close("all")
        nn.clear_parameters()
    assert shown


def test_what_jupytext_reads_has_no_licence_and_a_kernel():
    pytest.importorskip("jupytext")
    from docs.site.notebooks import read

    made = read((FOLDER / "ddpm.py").read_text(encoding="utf-8"))
    assert made.cells[0].source.startswith("# DDPM") and made.metadata.kernelspec.name == "python3"
    code = [c for c in made.cells if c.cell_type == "code"]
    assert code[0].source == '%pip install "nnl[examples]"'
    assert code[0].metadata.tags == ["skip-execution"]
