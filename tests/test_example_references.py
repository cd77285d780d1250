# SPDX-License-Identifier: Apache-2.0
"""References reach what they say, and the index has every example."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import nnl as nn

pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# what holds of the numbers that a reference gives
REACHED = {
    "gcn": lambda n: n["accuracy"] > 0.85 and n["accuracy"] > n["larger side"],
    "tabular": lambda n: n["ROC AUC"] > 0.98 and n["calibration error"] < 0.06,
    "faces": lambda n: n["accuracy"] > 0.85,
    "pruning": lambda n: n["weights left"] < 0.11 and n["cut and trained"] > 0.93 > n["cut"],
    "quantization": lambda n: n["trained"] > 0.93 and n["trained"] > n["rounded afterwards"],
    "distillation": lambda n: n["alone"] < n["distilled"],
    "masked_autoencoder": lambda n: n["error"] < 0.85 * n["error of means"],
    "fixmatch": lambda n: n["accuracy"] > n["labels alone"],
    "integrated_gradients": lambda n: n["probability"] < 0.3 < n["probability in a random order"],
}
QUICK = ("gcn", "tabular")


@pytest.fixture(autouse=True)
def own_modules(monkeypatch):
    """`common` is also the name of a module of other folders."""
    kept = {n: sys.modules.pop(n) for n in ("common", *REACHED) if n in sys.modules}
    monkeypatch.syspath_prepend(str(EXAMPLES / "references"))
    yield
    for n in ("common", *REACHED):
        sys.modules.pop(n, None)
    sys.modules.update(kept)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.long]) for n in REACHED]
)
def test_a_reference_reaches_what_it_is_for(name):
    nn.seed(0)
    found = importlib.import_module(name).run()
    assert REACHED[name](found), found


def test_every_reference_is_tested_and_says_what_it_reached():
    names = {p.stem for p in (EXAMPLES / "references").glob("*.py")} - {"common"}
    assert names == set(REACHED)
    for path in [*EXAMPLES.glob("references/*.py"), *EXAMPLES.glob("generative/*.py")]:
        text = path.read_text("utf-8")
        assert "EXPECTED" not in text and len(text.splitlines()) <= 250, path
        if '__name__ == "__main__"' in text:
            assert re.search(r"^    \{\"[^}]+\d\}$", text, re.M), path


def test_the_index_is_made_of_the_scripts_and_has_each_once(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    index = importlib.import_module("index")
    listed = [name for names in index.TASKS.values() for name in names.split()]
    assert len(listed) == len(set(listed)) and set(listed) == index.scripts()
    made = (EXAMPLES / "README.md").read_text("utf-8")
    assert made == index.page(), "run python examples/index.py"
