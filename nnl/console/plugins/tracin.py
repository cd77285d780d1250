# SPDX-License-Identifier: Apache-2.0
"""TracIn: which samples of the training have lowered, or raised, the loss of another sample.

Source: Pruthi et al., Estimating training data influence by tracing gradient descent, NeurIPS 2020,
TracInCP.
"""

import argparse
import csv

import numpy as np

import nnl as nn
from nnl.console.trials.explaining import Explained, samples


class Losses:
    """Gradients of the loss of single samples, at the weights of a file."""

    def __init__(self, path):
        self.network = Explained(path, 1, "Main", exactly=True)
        self.loss = next(iter(self.network.network.outputs.values()))
        self.parameters = self.network.parameters
        self.gradients = nn.grad([self.loss], list(self.parameters.values()))
        self.all = nn.functions.sink(*self.gradients)

    def gradient(self, values):
        """The gradient of one sample's loss, all parameters in one vector."""
        for name, v in self.network.inputs.items():
            v.d = values[name]
        self.all.forward()
        return np.concatenate([g.d.reshape(-1) for g in self.gradients]).astype(np.float64)


def tracin(paths, training, tested, rate=1.0):
    """For each sample of the training the sum over checkpoints of rate * <gradient, gradient>.

    Args:
        paths: Files with the weights of checkpoints.
        training: {input: values of all samples}.
        tested: {input: values of one sample}, with the batch axis.
    """
    count = len(next(iter(training.values())))
    total = np.zeros(count)
    for path in paths:
        losses = Losses(path)
        g = losses.gradient(tested)
        for i in range(count):
            total[i] += rate * (g @ losses.gradient({k: v[i : i + 1] for k, v in training.items()}))
    return total


def main():
    parser = argparse.ArgumentParser(
        description="TracIn: which samples of the training matter for a sample."
    )
    parser.add_argument(
        "-m", "--model", required=True, help="trained network (model) default=results.nnp"
    )
    parser.add_argument("-t", "--training", required=True, help="data set of the training (csv)")
    parser.add_argument("-d", "--dataset", required=True, help="data set of the sample (csv)")
    parser.add_argument("-r", "--row", required=True, type=int, help="sample (row) default=0")
    parser.add_argument(
        "-l", "--rate", type=float, default=1.0, help="learning rate (float) default=1"
    )
    parser.add_argument(
        "-o",
        "--output",
        default="tracin.csv",
        help="table, most helpful first (csv) default=tracin.csv",
    )
    args = parser.parse_args()
    names = list(Losses(args.model).network.inputs)
    training = {n: samples(args.training, n) for n in names}
    tested = {n: samples(args.dataset, n)[args.row : args.row + 1] for n in names}
    found = tracin([args.model], training, tested, args.rate)
    with open(args.output, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "influence"])
        writer.writerows([i, f"{found[i]:.6g}"] for i in np.argsort(-found))
    print(f"most helpful: row {found.argmax()}, most harmful: row {found.argmin()}")


if __name__ == "__main__":
    main()
