# SPDX-License-Identifier: Apache-2.0
"""SmoothGrad: which pixels change a class's score, averaged over noisy copies of the sample.

Source: Smilkov et al., SmoothGrad: removing noise by adding noise, arXiv:1706.03825.
"""

import argparse

import numpy as np

from nnl.console.trials.explaining import Explained, sample, write_map


def smooth_grad(network, x, number, count=50, noise=0.15, seed=0):
    """The mean gradient of the score over copies with normal noise of `noise` times the range."""
    rng = np.random.default_rng(seed)
    sigma = noise * float(x.max() - x.min())
    gradient = network.gradient(network.score, network.x, network.one_class(number))
    total = np.zeros(x.shape)
    for _ in range(count):
        total += gradient((x + rng.normal(0, 1, x.shape) * sigma).astype(np.float32))
    return (total / count)[0]


def main():
    parser = argparse.ArgumentParser(description="SmoothGrad: which pixels change a class's score.")
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
    parser.add_argument("-n", "--count", type=int, default=50, help="noisy copies (int) default=50")
    parser.add_argument(
        "-s",
        "--noise",
        type=float,
        default=0.15,
        help="noise as a share of the range (float) default=0.15",
    )
    parser.add_argument(
        "-o", "--output", default="smooth_grad.png", help="picture (image) default=smooth_grad.png"
    )
    args = parser.parse_args()
    network, x = Explained(args.model), sample(args.dataset, args.row)
    number = args.class_index
    if number < 0:
        number = int(network.scores(x)[0].argmax())
    print(f"class {number}")
    found = smooth_grad(network, x, number, args.count, args.noise)
    write_map(args.output, found.mean(0) if found.ndim > 2 else np.atleast_2d(found), x[0])


if __name__ == "__main__":
    main()
