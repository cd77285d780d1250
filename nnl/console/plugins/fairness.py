# SPDX-License-Identifier: Apache-2.0
"""Fairness: whether a classifier treats two groups of samples alike.

Source: Hardt, Price and Srebro, Equality of opportunity in supervised learning, NIPS 2016.
"""

import argparse
import json

import numpy as np

from nnl.console.trials.explaining import samples


def fairness(predicted, labels, group):
    """Measures of a yes-or-no answer between the group (1) and the others (0).

    Returns:
        demographic_parity: difference of the shares of yes; disparate_impact: their ratio;
        equal_opportunity: difference of the shares of yes among those whose label is yes;
        equalised_odds: mean of that and of the same among those whose label is no.
    """
    predicted, labels, group = (
        np.asarray(v).astype(bool).reshape(-1) for v in (predicted, labels, group)
    )

    def share(chosen):
        return float(predicted[chosen].mean()) if chosen.any() else float("nan")

    one, other = share(group), share(~group)
    true = share(group & labels) - share(~group & labels)
    false = share(group & ~labels) - share(~group & ~labels)
    return {
        "demographic_parity": one - other,
        "disparate_impact": one / other if other else float("inf"),
        "equal_opportunity": true,
        "equalised_odds": (abs(true) + abs(false)) / 2,
    }


def main():
    parser = argparse.ArgumentParser(
        description="Fairness: whether two groups of samples are treated alike."
    )
    parser.add_argument("-m", "--model", required=True, help="network (model) default=results.nnp")
    parser.add_argument("-d", "--dataset", required=True, help="data set (csv)")
    parser.add_argument(
        "-x", "--inputs", default="x", help="column that the network reads (text) default=x"
    )
    parser.add_argument("-y", "--label", default="y", help="column of the label (text) default=y")
    parser.add_argument(
        "-g", "--group", required=True, help="column that is 1 for the group, else 0 (text)"
    )
    parser.add_argument(
        "-c", "--class-index", type=int, default=1, help="class that counts as yes (int) default=1"
    )
    parser.add_argument(
        "-o", "--output", default="fairness.json", help="measures (text) default=fairness.json"
    )
    args = parser.parse_args()
    from nnl.console.trials.explaining import Explained

    network = Explained(args.model, 50)
    said = network.likelihoods(samples(args.dataset, args.inputs))
    said = said.reshape(len(said), -1)
    yes = said[:, 0] > 0.5 if said.shape[1] == 1 else said.argmax(1) == args.class_index
    labels = samples(args.dataset, args.label).reshape(-1)
    labels = labels == (1 if said.shape[1] == 1 else args.class_index)
    found = fairness(yes, labels, samples(args.dataset, args.group).reshape(-1))
    with open(args.output, "w") as file:
        json.dump(found, file, indent=1)
    print("\n".join(f"{name}: {value:.4f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
