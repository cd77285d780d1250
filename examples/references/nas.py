# SPDX-License-Identifier: Apache-2.0
"""Architecture search, single path and one shot: one network holds 256, and says which is good.

Each of four layers takes one of four ways. While the whole network learns, every batch takes a
random one in each layer; then all 256 architectures are scored on other digits with the weights
that they share, and the best one learns alone. Beside: seven random architectures alone. Source:
Guo et al., arXiv:1904.00420. Expected (accuracy on held out digits; Spearman's rank correlation of
the shared scores and those alone over these eight):

    {"found": 0.5515, "random": 0.5082, "rank correlation": 0.3713, "seconds": 258}
"""

from itertools import product

import numpy as np
from common import answers, cross_entropy, digits, fit, main, moved

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import accuracy

WAYS, LAYERS, WIDTH = 4, 4, 12


def way(h, i, name):
    """Nothing, a mean of neighbours, a 1 x 1 or a 3 x 3 convolution."""
    if i == 0:
        return h
    if i == 1:
        return F.average_pooling(h, (3, 3), stride=(1, 1), pad=(1, 1))
    n = 2 * i - 3
    return F.relu(PF.convolution(h, WIDTH, (n, n), pad=(n // 2, n // 2), name=f"{name}/{i}"))


def network(x, ways, name="shared"):
    """Scores of digits. ways: which one each layer takes, or shares of them (LAYERS, WAYS)."""
    with nn.parameter_scope(name):
        h = F.relu(PF.convolution(x, WIDTH, (3, 3), pad=(1, 1), stride=(2, 2), name="first"))
        for layer in range(LAYERS):
            if isinstance(ways, tuple):
                h = way(h, ways[layer], str(layer))
            else:
                h = sum(
                    F.reshape(ways[layer, i], (1, 1, 1, 1)) * way(h, i, str(layer))
                    for i in range(WAYS)
                )
        return PF.affine(h, 10, name="scores")


def run(steps=800):
    from scipy.stats import spearmanr

    x, t, held_out, truth = digits()
    apart, rng = np.arange(len(x)) % 4 == 0, np.random.default_rng(0)

    def batch(rng):
        rows = rng.choice(np.flatnonzero(~apart), 48)
        return [moved(x[rows], rng, 1, 0.15), t[rows]]

    def with_ways(rng):
        return [*batch(rng), np.eye(WAYS, dtype=np.float32)[rng.integers(WAYS, size=LAYERS)]]

    fit(lambda v, c, w: cross_entropy(network(v, w), c), with_ways, steps, scope="shared")
    noisy = moved(x[apart], rng, 1, 0.15)
    ask = nn.compile(lambda w: network(nn.Variable.from_numpy_array(noisy), w))
    shared = {
        ways: accuracy(t[apart], answers(ask, np.eye(WAYS, dtype=np.float32)[list(ways)]))
        for ways in product(range(WAYS), repeat=LAYERS)
    }
    best = max(shared, key=shared.get)
    others = [tuple(map(int, w)) for w in rng.integers(WAYS, size=(7, LAYERS))]
    test = moved(held_out, rng, 1, 0.15)

    def learnt(ways):
        name = "".join(map(str, ways))
        fit(
            lambda v, c: cross_entropy(network(v, ways, name), c), batch, steps // 3 + 1, scope=name
        )
        return accuracy(truth, answers(lambda v: network(v, ways, name), test))

    found = [learnt(w) for w in (best, *others)]
    rank = spearmanr([shared[w] for w in (best, *others)], found).statistic
    return {"found": found[0], "random": np.mean(found[1:]), "rank correlation": rank}


if __name__ == "__main__":
    main(run)
