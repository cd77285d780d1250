# SPDX-License-Identifier: Apache-2.0
"""SHAP: how much each part of a sample adds to a class's score, as a fair share.

Source: Lundberg and Lee, A unified approach to interpreting model predictions, NIPS 2017; shares
are Shapley values, taken as means over orders in which the parts are added.
"""

import argparse
from itertools import permutations

import numpy as np

from nnl.console.trials.explaining import Explained, masked, sample, segments, write_map


def shap(predict, x, parts, orders=100, baseline=0.0, seed=0):
    """The Shapley value of each part: exact where all orders are few, else a mean of some."""
    n = int(parts.max()) + 1
    if n <= 5:
        chosen = [list(p) for p in permutations(range(n))]
    else:
        rng = np.random.default_rng(seed)
        half = [rng.permutation(n).tolist() for _ in range((orders + 1) // 2)]
        chosen = [p for q in half for p in (q, q[::-1])]  # and backwards: less noise
    total = np.zeros(n)
    for order in chosen:
        masks = np.zeros((n + 1, n), bool)
        for i, part in enumerate(order):
            masks[i + 1] = masks[i]
            masks[i + 1, part] = True
        scores = predict(masked(x, masks, parts, baseline))
        total[order] += np.diff(scores)
    return total / len(chosen)


def main():
    parser = argparse.ArgumentParser(
        description="SHAP: how much each part of a sample adds to a class."
    )
    parser.add_argument("-m", "--model", required=True, help="network (model) default=results.nnp")
    parser.add_argument("-d", "--dataset", required=True, help="data set (csv)")
    parser.add_argument("-r", "--row", required=True, type=int, help="sample (row) default=0")
    parser.add_argument(
        "-c",
        "--class-index",
        type=int,
        default=-1,
        help="class, -1 for the one it says (int) default=-1",
    )
    parser.add_argument(
        "-g", "--grid", type=int, default=7, help="squares along each side (int) default=7"
    )
    parser.add_argument(
        "-n", "--orders", type=int, default=100, help="orders that are tried (int) default=100"
    )
    parser.add_argument(
        "-b",
        "--baseline",
        type=float,
        default=0.0,
        help="what left out parts are replaced by (float) default=0",
    )
    parser.add_argument(
        "-o", "--output", default="shap.png", help="picture (image) default=shap.png"
    )
    args = parser.parse_args()
    network, x = Explained(args.model, 50), sample(args.dataset, args.row)
    number = args.class_index
    if number < 0:
        number = int(network.scores(x)[0].argmax())
    print(f"class {number}")
    parts = segments(x.shape[1:], args.grid)
    found = shap(
        lambda s: network.likelihoods(s).reshape(len(s), -1)[:, number],
        x,
        parts,
        args.orders,
        args.baseline,
    )
    write_map(args.output, np.atleast_2d(found[parts]), x[0])


if __name__ == "__main__":
    main()
