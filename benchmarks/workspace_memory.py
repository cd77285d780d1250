# SPDX-License-Identifier: Apache-2.0
"""What related models need in one workspace, beside models with everything of their own.

    python benchmarks/workspace_memory.py [--image 224] [--batch 4 8 16 25] [--json FILE]

ResNet-50 alone, with a network to validate with, and DCGAN's generator and discriminator with the
three programs that train and use them. Bytes are counted: parameters, gradients and states of
solvers once a store; of each program what it computes, memory that its steps share counted once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from machine import processor, versions

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models import dcgan_discriminator, dcgan_generator, resnet
from nnl.workspace import Function, Operator, Tensor, Workspace

GB = 1e9


def program(space: Workspace, type: str, compute: Callable[..., Any], *inputs: Any) -> Function:
    """A function that has run once, of an operator whose parameters are the workspace's."""

    def inside(*values: Any) -> Any:
        with nn.parameter_scope("", space.scope):
            return compute(*values)

    tensors = [Tensor(space, f"{type}_x{i}", x.shape) for i, x in enumerate(inputs)]
    made = Operator(space, type, inside, tensors, shapes=[()], dtypes=[np.float32])
    f = Function(tensors, list(made.outputs))
    f(*inputs)
    return f


def trained(loss: Any, solver: Any, parameters: Any) -> Any:
    """The loss, after its gradients and an update."""
    solver.set_parameters(parameters, reset=False, retain_state=True)
    loss.forward()
    solver.zero_grad()
    loss.backward()
    solver.update()
    return loss


def temporaries(f: Function) -> int:
    """Bytes of what the programs of a function compute."""
    return sum(c.plan.nbytes for c in f.plans.values() if c.plan is not None)


def stored(space: Workspace, copies: int) -> int:
    """Bytes of parameters, with so many arrays of their size beside those that are learned."""
    with nn.parameter_scope("", space.scope):
        every, learned = nn.get_parameters(grad_only=False), nn.get_parameters()
    size = sum(v.data.size * 4 for v in every.values())
    return size + copies * sum(v.data.size * 4 for v in learned.values())


def network(batch: int, image: int) -> dict[str, float]:
    """ResNet-50: training alone, and with validation of a batch of the same size."""
    space, solver = Workspace({}), S.Momentum(0.01)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, 3, image, image))
    t = rng.integers(0, 1000, (batch, 1))

    def loss(x: Any, t: Any, test: bool) -> Any:
        return F.mean(F.softmax_cross_entropy(resnet(x, depth=50, test=test), t))

    def train(x: Any, t: Any) -> Any:
        return trained(loss(x, t, False), solver, nn.get_parameters())

    with space:
        learn = program(space, "train", train, x, t)
        check = program(space, "validate", lambda x, t: loss(x, t, True), x, t)
    alone = temporaries(learn) + stored(space, 2)  # gradients, and the momentum of each
    both = alone + temporaries(check)
    return {"alone": alone, "workspace": both, "separate": both + stored(space, 0)}


def adversaries(batch: int) -> dict[str, float]:
    """DCGAN: a step of the discriminator, one of the generator, and samples."""
    space, solvers = Workspace({}), [S.Adam(2e-4), S.Adam(2e-4)]
    rng = np.random.default_rng(0)
    noise, real = rng.normal(size=(batch, 100)), rng.normal(size=(batch, 3, 64, 64))

    def generated(z: Any) -> Any:
        with nn.parameter_scope("generator"):
            return dcgan_generator(z)

    def judged(x: Any) -> Any:
        with nn.parameter_scope("discriminator"):
            return dcgan_discriminator(x)

    def cost(y: Any, label: float) -> Any:
        return F.mean(F.sigmoid_cross_entropy(y, F.constant(label, shape=y.shape)))

    def own(name: str) -> Any:
        with nn.parameter_scope(name):
            return nn.get_parameters()

    def discriminate(x: Any, z: Any) -> Any:
        loss = cost(judged(x), 1) + cost(judged(F.unlink(generated(z))), 0)
        return trained(loss, solvers[0], own("discriminator"))

    def generate(z: Any) -> Any:
        return trained(cost(judged(generated(z)), 1), solvers[1], own("generator"))

    with space:
        programs = [
            program(space, "discriminate", discriminate, real, noise),
            program(space, "generate", generate, noise),
            program(space, "sample", lambda z: F.mean(generated(z)), noise),
        ]
    sizes = {name: 0 for name in ("generator", "discriminator")}
    with nn.parameter_scope("", space.scope):
        for name in sizes:
            with nn.parameter_scope(name):
                found = nn.get_parameters(grad_only=False).values()
                sizes[name] = sum(v.data.size * 4 for v in found)
    workspace = sum(map(temporaries, programs)) + stored(space, 3)  # gradients, two states of Adam
    # by themselves: a generator in each of the three programs, a discriminator in two
    separate = workspace + 2 * sizes["generator"] + sizes["discriminator"]
    return {"workspace": workspace, "separate": separate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--batch", type=int, nargs="+", default=[4, 8, 16, 25])
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = {}
    for batch in options.batch:
        rows[f"ResNet-50, batch {batch}"] = network(batch, options.image)
        rows[f"DCGAN, batch {batch}"] = adversaries(batch)
    print("| | alone | one workspace | separate models |\n|---|---:|---:|---:|")
    for name, row in rows.items():
        cells = [
            f"{row[k] / GB:.2f}" if k in row else "" for k in ("alone", "workspace", "separate")
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    if options.json:
        found = {"processor": processor(), "versions": versions(), "bytes": rows}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
