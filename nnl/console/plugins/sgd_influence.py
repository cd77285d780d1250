# SPDX-License-Identifier: Apache-2.0
"""SGD influence: how the loss would have changed had one sample been left out of the training.

Source: Hara, Nitanda and Maehara, Data cleansing for models trained with SGD, NeurIPS 2019, alg. 2:
the training is repeated step by step, then gone through backwards with products of Hessians and a
vector. It is of first order in the learning rate.
"""

import argparse
import csv

import numpy as np

import nnl as nn
import nnl.functions as F
from nnl.console.trials.explaining import Explained, samples


class Trained:
    """A network that is trained by plain SGD, every step of which is kept."""

    def __init__(self, path, batch_size):
        self.network = Explained(path, batch_size, "Main", exactly=True)
        self.loss = F.mean(next(iter(self.network.network.outputs.values())))
        self.parameters = list(self.network.parameters.values())
        self.gradients = nn.grad([self.loss], self.parameters)
        self.vector = [nn.Variable(p.shape) for p in self.parameters]
        product = [F.sum(g * v) for g, v in zip(self.gradients, self.vector, strict=True)]
        total = product[0] if len(product) == 1 else F.add_n(*product)
        self.products = nn.grad([total], self.parameters)
        self.all = F.sink(*self.gradients)
        self.all_products = F.sink(*self.products)

    def set(self, theta, values):
        for p, value in zip(self.parameters, theta, strict=True):
            p.d = value
        for name, v in self.network.inputs.items():
            v.d = values[name]

    def gradient(self, theta, values):
        """The gradient of the mean loss."""
        self.set(theta, values)
        self.all.forward()
        return [g.d.astype(np.float64) for g in self.gradients]

    def hessian_product(self, theta, values, u):
        """The Hessian of the mean loss times a vector."""
        self.set(theta, values)
        for v, part in zip(self.vector, u, strict=True):
            v.d = part
        self.all_products.forward()
        return [p.d.astype(np.float64) for p in self.products]


def orders(count, batch_size, epochs, seed):
    """The samples of each step."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(epochs):
        order = rng.permutation(count)
        found += [order[i : i + batch_size] for i in range(0, count - batch_size + 1, batch_size)]
    return found


def sgd_influence(path, training, tested, rate=0.1, batch_size=8, epochs=2, seed=0):
    """For each sample of the training, the change of the tested loss were it left out.

    Args:
        training, tested: {input: values of all samples}.
    """
    count = len(next(iter(training.values())))
    batch_size = min(batch_size, count)
    model, single = Trained(path, batch_size), Trained(path, 1)
    number = len(next(iter(tested.values())))
    theta = [p.d.astype(np.float64).copy() for p in model.parameters]
    steps = []
    for chosen in orders(count, batch_size, epochs, seed):
        steps.append((chosen, [t.copy() for t in theta]))
        g = model.gradient(theta, {k: v[chosen] for k, v in training.items()})
        theta = [t - rate * d for t, d in zip(theta, g, strict=True)]
    u = [np.zeros_like(t) for t in theta]
    for i in range(number):
        g = single.gradient(theta, {k: v[i : i + 1] for k, v in tested.items()})
        u = [a + b / number for a, b in zip(u, g, strict=True)]
    change = np.zeros(count)
    for chosen, before in reversed(steps):
        for j in chosen:
            g = single.gradient(before, {k: v[j : j + 1] for k, v in training.items()})
            change[j] += rate / len(chosen) * sum((a * b).sum() for a, b in zip(u, g, strict=True))
        h = model.hessian_product(before, {k: v[chosen] for k, v in training.items()}, u)
        u = [a - rate * b for a, b in zip(u, h, strict=True)]
    return change


def main():
    parser = argparse.ArgumentParser(
        description="SGD influence: what leaving one sample out would change."
    )
    parser.add_argument(
        "-m", "--model", required=True, help="network and first weights (model) default=results.nnp"
    )
    parser.add_argument("-t", "--training", required=True, help="data set of the training (csv)")
    parser.add_argument("-d", "--dataset", required=True, help="data set that the loss is of (csv)")
    parser.add_argument(
        "-l", "--rate", type=float, default=0.1, help="learning rate (float) default=0.1"
    )
    parser.add_argument(
        "-b", "--batch-size", type=int, default=32, help="samples of a step (int) default=32"
    )
    parser.add_argument("-e", "--epochs", type=int, default=1, help="epochs (int) default=1")
    parser.add_argument(
        "-o",
        "--output",
        default="sgd_influence.csv",
        help="table, most harmful first (csv) default=sgd_influence.csv",
    )
    args = parser.parse_args()
    names = list(Explained(args.model, 1, "Main").inputs)
    training = {n: samples(args.training, n) for n in names}
    tested = {n: samples(args.dataset, n) for n in names}
    found = sgd_influence(args.model, training, tested, args.rate, args.batch_size, args.epochs)
    with open(args.output, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "change of the loss without it"])
        writer.writerows([i, f"{found[i]:.6g}"] for i in np.argsort(found))
    print(f"most harmful: row {found.argmin()}, most helpful: row {found.argmax()}")


if __name__ == "__main__":
    main()
