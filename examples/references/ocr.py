# SPDX-License-Identifier: Apache-2.0
"""OCR: lines of text in any of several fonts, read without anyone saying where a letter is (CTC).

Convolutions make columns, a recurrent network reads them both ways, and each says a letter or
nothing. What is trained becomes ONNX, and ONNX Runtime reads the held out lines, whose fonts are
others. Beside: a linear reader of columns, trained alike. Source: Shi et al., arXiv:1507.05717.
Expected (share of characters that are wrong; largest difference of scores from ONNX Runtime's):

    {"difference": 0.0, "errors": 0.1551, "errors of the linear one": 1.0, "seconds": 289}
"""

import tempfile
from pathlib import Path

import numpy as np
from common import answers, fit, main, some

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import character_error_rate
from nnl.models.convolution import conv_bn

LETTERS = "0123456789ACEFHKLMNPRTUXY"  # class 0 is none
HEIGHT, WIDTH, MOST = 20, 112, 7
FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSans-Bold", "DejaVuSerif-Italic", "STIXGeneral")
HELD_OUT = ("DejaVuSansMono", "STIXGeneralBol")


def line(rng, fonts):
    """A picture (1, HEIGHT, WIDTH) in [0, 1], and its text."""
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    text = "".join(rng.choice(list(LETTERS), rng.integers(3, MOST + 1)))
    path = Path(get_data_path(), "fonts", "ttf", f"{rng.choice(fonts)}.ttf")
    font = ImageFont.truetype(str(path), int(rng.integers(14, 18)))
    picture = Image.new("L", (WIDTH, HEIGHT))
    at = float(rng.integers(1, 8)), float(rng.integers(-2, 2))
    ImageDraw.Draw(picture).text(at, text, 255, font)
    x = np.array(picture, np.float32)[None] / 255 * rng.uniform(0.4, 1)
    return (x + rng.normal(0, 0.1, x.shape)).astype(np.float32), text


def lines(count, fonts, seed):
    """Pictures, texts as classes (count, MOST), their lengths, and the texts."""
    rng = np.random.default_rng(seed)
    x, texts = zip(*(line(rng, fonts) for _ in range(count)), strict=True)
    t = [[1 + LETTERS.index(c) for c in text] + [0] * (MOST - len(text)) for text in texts]
    return np.stack(x), np.array(t), np.array([len(text) for text in texts]), list(texts)


def network(x, test=True):
    """Scores of each column: (B, 1, HEIGHT, WIDTH) -> (B, WIDTH / 4, 1 + letters)."""
    h = F.max_pooling(conv_bn(x, 16, 3, "first", test), (2, 2))
    h = F.max_pooling(conv_bn(h, 32, 3, "second", test), (2, 2))
    b, c, height, width = h.shape
    h = F.reshape(F.transpose(h, (3, 0, 1, 2)), (width, b, c * height))
    h = F.relu(PF.affine(h, 64, base_axis=2, name="columns"))
    start = nn.Variable.from_numpy_array(np.zeros((1, 2, b, 48), np.float32))
    h, _ = PF.gru(h, start, bidirectional=True, name="both")
    return F.transpose(PF.affine(h, 1 + len(LETTERS), base_axis=2, name="scores"), (1, 0, 2))


def linear(x, test=True):
    """The same, from the pixels in 12 columns around each."""
    y = PF.convolution(x, 1 + len(LETTERS), (HEIGHT, 12), pad=(0, 4), stride=(1, 4), name="linear")
    return F.transpose(F.reshape(y, (y.shape[0], y.shape[1], -1)), (0, 2, 1))


def read(scores):
    """Texts: repeated classes are one, and class 0 is none."""
    for row in scores.argmax(2):
        kept = row[(row > 0) & (np.diff(row, prepend=0) != 0)]
        yield "".join(LETTERS[c - 1] for c in kept)


def by_onnx(x):
    """What ONNX Runtime gives for pictures, of a file made of the network."""
    import onnxruntime

    import nnl.converters.onnx as onnx

    v = nn.Variable(x.shape)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "ocr.onnx"))
        onnx.save(path, {"scores": network(v)}, {"image": v})
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return session.run(None, {"image": x})[0]


def run(steps=1200):
    x, t, lengths, _ = lines(2000, FONTS, 0)
    held_out, *_, texts = lines(150, HELD_OUT, 1)
    found = {}
    for name, reader in (("errors", network), ("errors of the linear one", linear)):

        def loss_of(x, t, n, reader=reader):
            return F.mean(F.ctc_loss(reader(x, test=False), t, label_length=n))

        fit(loss_of, some(32, x, t, lengths), steps, rate=3e-3)
        scores = answers(reader, held_out)
        if reader is network:
            ours, scores = scores, by_onnx(held_out)
            found["difference"] = np.abs(scores - ours).max()
        found[name] = character_error_rate(texts, list(read(scores)))
    return found


if __name__ == "__main__":
    main(run)
