# SPDX-License-Identifier: Apache-2.0
"""Self-supervision with SimCLR: two changed views of a digit are each other's nearest.

No label is used until the end, where logistic regression from 40 labels reads what the network
gives. Beside: that from pixels, and from the network before it learnt. Source: Chen et al.,
arXiv:2002.05709. Expected (accuracy on digits that were held out):

    {"accuracy": 0.8189, "from pixels": 0.7326, "before": 0.6295, "seconds": 38}
"""

import numpy as np
from common import answers, convolutions, digits, fit, main, moved

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import accuracy

HEAT, LABELS, BATCH = 0.2, 40, 128


def unit(h):
    return h / F.norm(h, p=2, axis=1, keepdims=True)


def features(x):
    with nn.parameter_scope("net"):
        return convolutions(x, 24, 96)


def projected(x):
    h = features(x)
    with nn.parameter_scope("net"):
        return unit(PF.affine(F.relu(PF.affine(h, 64, name="wide")), 32, name="out"))


def loss_of(a, b):
    """Each view against the other views of the batch; its partner is the right one."""
    z = projected(F.concatenate(a, b, axis=0))
    n = z.shape[0]
    itself = nn.Variable.from_numpy_array(1e4 * np.eye(n, dtype=np.float32))
    scores = F.affine(z, F.transpose(z, (1, 0))) / HEAT - itself
    partner = np.roll(np.arange(n), n // 2)[:, None]
    return F.mean(F.softmax_cross_entropy(scores, nn.Variable.from_numpy_array(partner)))


def views(x, rng):
    """Shifted digits with noise, some of whose rows or columns are covered."""
    x = moved(x, rng, 1, 0.15) * rng.uniform(0.6, 1.4, (len(x), 1, 1, 1))
    at = rng.integers(0, 7, (len(x), 2, 1))
    hide = (np.arange(8) >= at) & (np.arange(8) < at + 2) & (rng.random((len(x), 2, 1)) < 0.4)
    return np.where(hide[:, None, 0, :, None] | hide[:, None, 1, None, :], 0, x).astype(np.float32)


def probed(x, t, held_out, truth):
    """Accuracy of logistic regression from few labels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    flat = [v.reshape(len(v), -1) for v in (x, held_out)]
    scale = StandardScaler().fit(flat[0])
    known = make_pipeline(scale, LogisticRegression(max_iter=1000))
    known.fit(flat[0][:LABELS], t[:LABELS])
    return accuracy(truth, known.predict(flat[1]))


def run(steps=1500):
    x, t, held_out, truth = digits()

    def read():
        return probed(answers(features, x), t, answers(features, held_out), truth)

    before = read()

    def batch(rng):
        some = x[rng.integers(len(x), size=BATCH)]
        return [views(some, rng), views(some, rng)]

    fit(loss_of, batch, steps, scope="net")
    return {"accuracy": read(), "from pixels": probed(x, t, held_out, truth), "before": before}


if __name__ == "__main__":
    main(run)
