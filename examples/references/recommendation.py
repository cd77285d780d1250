# SPDX-License-Identifier: Apache-2.0
"""Recommendation: which films a viewer takes next, from those taken before.

Viewers and films have tastes that nobody sees; what is famous is also taken. Vectors of both learn
to place a film that was taken above one that was not (Bayesian personalised ranking). The last film
of each viewer is held out. Beside: the most famous ones for everybody. Source: Rendle et al.,
arXiv:1205.2618. Expected (share of viewers with their film among ten of 300, and NDCG):

    {"hits": 0.642, "hits of the famous": 0.234, "NDCG": 0.4388, "seconds": 4}
"""

import numpy as np
from common import answers, fit, main

import nnl.functions as F
import nnl.parametric_functions as PF

VIEWERS, FILMS, TASTES, TAKEN = 500, 300, 6, 20


def histories(rng):
    """Films (VIEWERS, TAKEN) in the order in which they were taken."""
    viewers, films = rng.normal(size=(VIEWERS, TASTES)), rng.normal(size=(FILMS, TASTES))
    fame = 1.5 * np.log(1 / (1 + rng.permutation(FILMS) / 20))
    scores = 1.2 * viewers @ films.T + fame + rng.gumbel(size=(VIEWERS, FILMS))
    return np.argsort(-scores, axis=1)[:, :TAKEN][:, rng.permutation(TAKEN)]


def score(viewer, film):
    """(B,) and (B,) -> (B,)."""
    with_taste = F.sum(
        PF.embed(viewer, VIEWERS, 16, name="viewers") * PF.embed(film, FILMS, 16, name="films"),
        axis=1,
    )
    return 0.1 * with_taste + F.reshape(PF.embed(film, FILMS, 1, name="fame"), film.shape)


def loss_of(viewer, taken, other):
    return -F.mean(F.log_sigmoid(score(viewer, taken) - score(viewer, other)))


def ranks(scores, known, film):
    """The place of a film among those that are not known, 0 is the first."""
    scores = scores.copy()
    np.put_along_axis(scores, known, -np.inf, axis=1)
    return (scores > np.take_along_axis(scores, film[:, None], 1)).sum(1)


def run(steps=2500):
    taken = histories(np.random.default_rng(0))
    known, film = taken[:, :-1], taken[:, -1]
    seen = np.zeros((VIEWERS, FILMS), bool)
    np.put_along_axis(seen, known, True, axis=1)

    def batch(rng):
        viewer = rng.integers(VIEWERS, size=512)
        other = rng.integers(FILMS, size=512)
        other = np.where(seen[viewer, other], rng.integers(FILMS, size=512), other)
        return [viewer, known[viewer, rng.integers(TAKEN - 1, size=512)], other]

    fit(loss_of, batch, steps, rate=1e-2)
    pairs = np.indices((VIEWERS, FILMS)).reshape(2, -1)
    ours = ranks(answers(score, *pairs).reshape(VIEWERS, FILMS), known, film)
    famous = ranks(np.tile(seen.sum(0).astype(float), (VIEWERS, 1)), known, film)

    hits = {"hits": (ours < 10).mean(), "hits of the famous": (famous < 10).mean()}
    return hits | {"NDCG": np.where(ours < 10, 1 / np.log2(ours + 2), 0).mean()}


if __name__ == "__main__":
    main(run)
