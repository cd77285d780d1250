# SPDX-License-Identifier: Apache-2.0
"""Grad-CAM: where in a picture a convolutional network looks for a class.

Source: Selvaraju et al., Grad-CAM, ICCV 2017, eq. 1 and 2.
"""

import argparse

import numpy as np

from nnl.console.trials.explaining import Explained, sample, write_map


def grad_cam(network, x, number, maps=None):
    """Maps of features, weighted with the mean gradients of the class's score, below 0 cut off.

    A softmax does not see what all scores have in common, so their mean is taken off: else all of
    the map may be below 0 though the class is certain.
    """
    a = network.last_maps(maps)
    start = network.one_class(number)
    if network.y.parent.name == "Softmax":
        start -= start.mean(axis=-1, keepdims=True)
    g = network.gradient(network.score, a, start)(x)
    network.score.forward()
    weights = g.mean(axis=(2, 3), keepdims=True)
    return np.maximum((weights * a.d).sum(axis=1), 0)[0]


def main():
    parser = argparse.ArgumentParser(description="Grad-CAM: where the network looks for a class.")
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
        "-v",
        "--maps",
        default="",
        help="variable with the maps, empty for the last convolution (variable)",
    )
    parser.add_argument(
        "-o", "--output", default="grad_cam.png", help="picture (image) default=grad_cam.png"
    )
    args = parser.parse_args()
    network, x = Explained(args.model), sample(args.dataset, args.row)
    number = args.class_index
    if number < 0:
        number = int(network.scores(x)[0].argmax())
    print(f"class {number}")
    write_map(args.output, grad_cam(network, x, number, args.maps or None), x[0])


if __name__ == "__main__":
    main()
