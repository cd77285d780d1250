# SPDX-License-Identifier: Apache-2.0
"""References reach what they say, and the index has every example."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
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
    "unet": lambda n: n["mean IoU"] > 0.6 > 2 * n["mean IoU of colours"],
    "deeplab": lambda n: n["mean IoU"] > 0.5 > 1.5 * n["mean IoU of colours"],
    "promptable": lambda n: n["IoU"] > n["IoU of a disc"] + 0.1,
    "depth": lambda n: n["error"] < 0.8 * n["error of the mean"],
    "dino": lambda n: n["accuracy"] > n["before"] + 0.08,
    "wav2vec": lambda n: n["accuracy"] > n["before"] + 0.05 > n["from bands"],
    "nas": lambda n: n["found"] > n["random"],
    "centernet": lambda n: n["AP50"] > 0.7 > 2 * n["AP50 of pieces"],
    "detr": lambda n: n["AP50"] > 0.1 > 5 * n["AP50 of pieces"],
    "conv_tasnet": lambda n: n["SI-SNR"] > 3 > 2 + n["mixture"],
    "pose": lambda n: n["PCK"] > 0.6 > 2 * n["PCK of the mean"],
    "ocr": lambda n: n["errors"] < 0.3 < n["errors of the linear one"] and n["difference"] < 1e-3,
    "keyword_spotting": lambda n: n["accuracy"] > 0.95 > n["accuracy of the mean spectrum"] + 0.3,
    "recommendation": lambda n: n["hits"] > 0.5 > n["hits of the famous"] + 0.2,
    "time_series": lambda n: n["error"] < 0.1 < 0.3 * n["linear"] and n["between"] > 0.65,
    "dqn": lambda n: n["return"] > 5 * n["return by chance"],
    "ppo": lambda n: n["return"] > 400,
    "sac": lambda n: n["return"] > -300 > n["return by chance"] + 500,
    "simclr": lambda n: n["accuracy"] > n["from pixels"] + 0.03 > n["before"],
    "maml": lambda n: n["after one step"] < 0.3 * n["alike, after one step"],
    "integrated_gradients": lambda n: n["probability"] < 0.3 < n["probability in a random order"],
}
QUICK = ("gcn", "tabular", "recommendation")
SHARED = ("common", "reinforcement", "scenes", "speech")
FEW = {
    "maml": 2, "simclr": 2, "dino": 2, "nas": 2, "promptable": 2, "time_series": 2,
    "dqn": 300, "ppo": 1, "sac": 505,
}  # fmt: skip  # steps


@pytest.fixture(autouse=True)
def own_modules(monkeypatch):
    """`common` is also the name of a module of other folders."""
    kept = {n: sys.modules.pop(n) for n in (*SHARED, *REACHED) if n in sys.modules}
    monkeypatch.syspath_prepend(str(EXAMPLES / "references"))
    yield
    for n in (*SHARED, *REACHED):
        sys.modules.pop(n, None)
    sys.modules.update(kept)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.long]) for n in REACHED]
)
def test_a_reference_reaches_what_it_is_for(name):
    if name in ("dqn", "ppo", "sac"):
        pytest.importorskip("gymnasium")
    nn.seed(0)
    found = importlib.import_module(name).run()
    assert REACHED[name](found), found


@pytest.mark.parametrize("name", FEW)
def test_a_reference_runs(name):
    if name in ("dqn", "ppo", "sac"):
        pytest.importorskip("gymnasium")
    assert np.isfinite(list(importlib.import_module(name).run(FEW[name]).values())).all()


def test_boxes_hold_what_is_seen_of_objects():
    scenes = importlib.import_module("scenes").scenes(5, size=32)
    for s in scenes:
        assert s.image.shape == (3, 32, 32) and (s.masks.sum(0) <= 1).all()
        for mask, box in zip(s.masks, s.boxes, strict=True):
            y, x = np.nonzero(mask)
            assert box.tolist() == [x.min(), y.min(), x.max() + 1, y.max() + 1]


def test_advantages_are_sums_of_discounted_surprises():
    ppo = importlib.import_module("ppo")
    r, v, ends = np.array([[1.0], [2], [3]]), np.array([[4.0], [5], [6], [7]]), np.zeros((3, 1))
    ends[1] = 1
    surprise = [1 + ppo.DISCOUNT * 5 - 4, 2 - 5, 3 + ppo.DISCOUNT * 7 - 6]
    wanted = [surprise[0] + ppo.DISCOUNT * ppo.TRACE * surprise[1], *surprise[1:]]
    np.testing.assert_allclose(ppo.advantages(r, v, ends)[:, 0], wanted)


def test_every_reference_is_tested_and_says_what_it_reached():
    names = {p.stem for p in (EXAMPLES / "references").glob("*.py")} - set(SHARED)
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
