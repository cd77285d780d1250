# SPDX-License-Identifier: Apache-2.0
"""LIME: which parts of a sample speak for a class, by a linear model of what happens without them.

Source: Ribeiro et al., "Why should I trust you?", KDD 2016.
"""

import argparse

import numpy as np

from nnl.console.trials.explaining import Explained, masked, sample, segments, write_map


def lime(predict, x, parts, count=500, baseline=0.0, width=0.25, seed=0):
    """Coefficients of the parts in a linear model that is fitted near the sample.

    Args:
        predict: Samples -> scores of the class.
        parts: The part of each pixel.
        width: How near: masks count exp(-d^2 / width^2), d the share of parts that are left out.
    """
    rng = np.random.default_rng(seed)
    n = int(parts.max()) + 1
    masks = rng.random((count, n)) < 0.5
    masks[0] = True
    scores = predict(masked(x, masks, parts, baseline))
    weights = np.exp(-(((1 - masks.mean(1)) / width) ** 2))
    design = np.concatenate([masks, np.ones((count, 1))], 1) * np.sqrt(weights)[:, None]
    found, *_ = np.linalg.lstsq(design, scores * np.sqrt(weights), rcond=None)
    return found[:n]


def main():
    parser = argparse.ArgumentParser(description="LIME: which parts of a sample speak for a class.")
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
        "-n", "--count", type=int, default=500, help="masked copies (int) default=500"
    )
    parser.add_argument(
        "-b",
        "--baseline",
        type=float,
        default=0.0,
        help="what left out parts are replaced by (float) default=0",
    )
    parser.add_argument(
        "-o", "--output", default="lime.png", help="picture (image) default=lime.png"
    )
    args = parser.parse_args()
    network, x = Explained(args.model, 50), sample(args.dataset, args.row)
    number = args.class_index
    if number < 0:
        number = int(network.scores(x)[0].argmax())
    print(f"class {number}")
    parts = segments(x.shape[1:], args.grid)
    found = lime(
        lambda s: network.likelihoods(s).reshape(len(s), -1)[:, number],
        x,
        parts,
        args.count,
        args.baseline,
    )
    write_map(args.output, np.atleast_2d(found[parts]), x[0])


if __name__ == "__main__":
    main()
