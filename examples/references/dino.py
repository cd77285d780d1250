# SPDX-License-Identifier: Apache-2.0
"""Self-supervision with DINO: a network agrees with the average of its own past on other views.

The teacher is a moving average of the student. What it says is made sharp, and such that all
answers are as frequent in a batch (Sinkhorn), so that neither one answer nor all at once win.
Measured as in simclr.py, which is also where the views are from. Source: Caron et al.,
arXiv:2104.14294; Oquab et al., arXiv:2304.07193. Expected:

    {"accuracy": 0.7772, "from pixels": 0.7326, "before": 0.6184, "seconds": 244}
"""

from common import answers, convolutions, digits, fit, given, main, moved
from simclr import probed, views

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.parametric_functions import get_parameter_or_create
from nnl.parametric_functions.initializer import NormalInitializer

BATCH, ANSWERS, KEPT = 96, 64, 0.99
SHARP, SOFT = 0.05, 0.1  # by which the teacher's and the student's scores are divided


def features(x, name="student"):
    with nn.parameter_scope(name):
        return convolutions(x, 24, 96)


def said(x, name):
    h = features(x, name)
    with nn.parameter_scope(name):
        h = F.relu(PF.batch_normalization(PF.affine(h, 64, name="wide"), name="wide"))
        h = PF.batch_normalization(PF.affine(h, 32, name="narrow"), name="narrow")
        h = h / F.norm(h, p=2, axis=1, keepdims=True)
        w = get_parameter_or_create("answers", (32, ANSWERS), NormalInitializer(1.0))
        return F.affine(h, w / F.norm(w, p=2, axis=0, keepdims=True))


def loss_of(x, a, b):
    """What the student says of two views against what the teacher says of the whole digit."""
    wanted = F.unlink(said(x, "teacher"))
    wanted = F.exp(wanted * (1 / SHARP))
    for axis in (0, 1) * 3:  # each answer as often as any other, and one in all for each view
        wanted = wanted / F.sum(wanted, axis=axis, keepdims=True)
    found = [F.log_softmax(said(view, "student") * (1 / SOFT)) for view in (a, b)]
    return -F.mean(F.sum(wanted * (found[0] + found[1]), axis=1))


def parameters(name):
    with nn.parameter_scope(name):
        return nn.get_parameters()


def run(steps=1200):
    x, t, held_out, truth = digits()

    def read(name):
        found = [answers(lambda v: features(v, name), images) for images in (x, held_out)]
        return probed(found[0], t, found[1], truth)

    loss_of(*[given(x[:BATCH])] * 3)  # makes the parameters
    student, teacher = parameters("student"), parameters("teacher")
    for name, w in student.items():
        teacher[name].d = w.d
    before = read("student")

    def batch(rng):
        for name, w in student.items():
            teacher[name].d = KEPT * teacher[name].d + (1 - KEPT) * w.d
        some = x[rng.integers(len(x), size=BATCH)]
        return [moved(some, rng, 1, 0.0), views(some, rng), views(some, rng)]

    fit(loss_of, batch, steps, scope="student")
    plain = probed(x, t, held_out, truth)
    return {"accuracy": read("teacher"), "from pixels": plain, "before": before}


if __name__ == "__main__":
    main(run)
