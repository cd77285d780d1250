# SPDX-License-Identifier: Apache-2.0
"""What the examples in C++ read, written into a folder.

    python examples/cpp/make_files.py FOLDER

lenet.nnlp       LeNet after two epochs of training, as programs that share its parameters:
                 "classify" (one image), "test" (all test images), "step" (one step of training)
digit.png        a seven
*.npy            images and labels to train and to test with
texts.nnlp       a small BERT that nobody has trained, at any number of texts and tokens
texts.npy        200 texts of 8 to 64 tokens, 0 after the last one
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "digits"))
from data import load_digits_28x28  # noqa: E402
from train import lenet  # noqa: E402

import nnl as nn  # noqa: E402
import nnl.functions as F  # noqa: E402
import nnl.solvers as S  # noqa: E402
from nnl import models  # noqa: E402

BATCH = 64


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits_28x28()
    for name, array in zip(digits._fields, digits, strict=True):
        np.save(folder / f"{name}.npy", array)

    nn.seed(0)
    solver = S.Adam(2e-3)

    @nn.compile
    def step(x, t):
        loss = F.mean(F.softmax_cross_entropy(lenet(x), t))
        solver.set_parameters(nn.get_parameters(), reset=False, retain_state=True)
        solver.zero_grad()
        loss.backward()
        solver.update()
        return {"loss": loss}

    rng = np.random.default_rng(0)
    for _ in range(2):
        rows = rng.permutation(len(digits.x_train))
        for i in range(0, len(rows) - BATCH + 1, BATCH):
            arrays = (digits.x_train, digits.y_train)
            x, t = (nn.Variable.from_numpy_array(a[rows[i : i + BATCH]]) for a in arrays)
            step(x=x, t=t)

    one, all_ = (nn.Variable((n, *digits.x_test.shape[1:])) for n in (1, len(digits.x_test)))
    y = lenet(all_)
    nn.save_program(
        folder / "lenet.nnlp",
        programs={
            "classify": ({"y": F.softmax(lenet(one))}, {"x": one}),
            "test": ({"y": y}, {"x": all_}),
            "step": step,
        },
    )
    all_.d = digits.x_test
    y.forward()
    seven = y.d[:, 7].argmax()  # the one that looks most like it
    pixels = (digits.x_test[seven, 0] * 255).round().astype(np.uint8)
    Image.fromarray(pixels).save(folder / "digit.png")
    make_texts(folder, rng)


def make_texts(folder: Path, rng: np.random.Generator) -> None:
    def bert(ids, keep):
        sizes = {"vocabulary": 50, "width": 32, "layers": 2, "heads": 2, "longest": 64}
        return models.bert(ids, keep=keep, **sizes, test=True)[0]

    nn.clear_parameters()
    inputs = {name: nn.Variable((2, 16)) for name in ("ids", "keep")}
    nn.save_program(
        folder / "texts.nnlp",
        bert,
        inputs,
        open={name: ("batch", "tokens") for name in inputs},
        ranges={"tokens": (1, 64)},
    )
    texts = rng.integers(1, 50, (200, 64)).astype(np.float32)
    texts[np.arange(64) >= rng.integers(8, 65, (200, 1))] = 0
    np.save(folder / "texts.npy", texts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
