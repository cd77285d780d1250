# SPDX-License-Identifier: Apache-2.0
"""nnl plan: what a training step takes on a mesh that is not there."""

from __future__ import annotations

import argparse
import json
from collections import OrderedDict
from math import prod
from pathlib import Path
from typing import Any

import nnl as nn
import nnl.solvers as S
from nnl import functions as F
from nnl.cli.errors import UsageError
from nnl.communicators.parallel.mesh import DIRECTIONS, Mesh
from nnl.communicators.parallel.planning import (
    H100,
    Absent,
    DecoderSizes,
    Quantities,
    bound,
    decoder_quantities,
    quantities,
    step_s,
    this_device,
)
from nnl.converters.formats import read_model
from nnl.core.settings.context import Context

KEYS = {  # of config.json by sizes
    "width": "hidden_size", "hidden": "intermediate_size", "layers": "num_hidden_layers",
    "heads": "num_attention_heads", "keys": "num_key_value_heads", "vocabulary": "vocab_size",
}  # fmt: skip


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "plan",
        description="FILE is a network (.onnx, .nnp, .nntxt ...), which is trained on the mean of "
        "its first output over data and shard; or the config.json of a decoder like Llama, for "
        "any mesh. Nothing is computed.",
    )
    p.add_argument("files", nargs="+", metavar="FILE")
    p.add_argument("--mesh", default="", metavar="data=2,shard=4", help="(one rank)")
    p.add_argument("--level", type=int, choices=(0, 1, 2, 3), help="of C.shard (3 with shard)")
    p.add_argument("--device", choices=("this", "h100"), default="this", help="(this one)")
    p.add_argument("--solver", default="Adam", metavar="NAME", help="(Adam)")
    types = ("float", "double", "half", "bfloat16")
    p.add_argument("--type", choices=types, default="float", help="of elements (float)")
    p.add_argument("-b", "--batch-size", type=int, metavar="N", help="of a rank's micro batch")
    p.add_argument("--length", type=int, default=2048, metavar="N", help="of a sequence (2048)")
    p.add_argument("--micro-batches", type=int, default=1, metavar="N", help="of a step (1)")
    p.add_argument("--chunks", type=int, default=1, metavar="N", help="stages a rank (1)")
    p.add_argument("--json", action="store_true", help="as JSON")
    p.set_defaults(run=plan)


def plan(args: argparse.Namespace) -> int:
    """Print what a step takes."""
    for name in ("batch_size", "length", "micro_batches", "chunks"):
        if (n := getattr(args, name)) is not None and n < 1:
            raise UsageError(f"plan: {name} is {n}, wanted a number >= 1")
    others = ("LossScale", "Solver", "SolverState")
    kinds = [k for k in S.__all__ if k[0].isupper() and k not in others]
    if args.solver not in kinds:
        raise UsageError(f"plan: --solver is {args.solver!r}, wanted one of {', '.join(kinds)}")
    sizes = mesh_sizes(args.mesh)
    mesh = Mesh(**sizes, comm=Absent(prod(sizes.values())))  # type: ignore[arg-type]
    level = (3 if mesh.shard.size > 1 else 0) if args.level is None else args.level
    solver = getattr(S, args.solver)()
    with nn.context_scope(Context([f"cpu:{args.type}"])):
        device = H100 if args.device == "h100" else this_device()
        if args.files[0].endswith(".json"):
            c = decoder_sizes(args.files[0])
            shape = (args.batch_size or 1, args.length)
            found = decoder_quantities(
                c, solver, mesh, level, device, shape, args.micro_batches, args.chunks
            )
        else:
            found = of_file(args, mesh, level, solver, device)
    if args.json:
        print(json.dumps({**found, "step_s": step_s(found)[0], "bound": bound(found)}, indent=1))
    else:
        print(text(found, mesh, device.memory))
    return 0


def of_file(args: Any, mesh: Mesh, level: int, solver: Any, device: Any) -> Quantities:
    """Of a network in a file."""
    if mesh.model.size * mesh.pipe.size > 1:
        raise UsageError(
            f"plan: {mesh}, but the network of {args.files[0]} is not in parts: wanted data and "
            "shard only"
        )
    with nn.parameter_scope("", OrderedDict()):
        network = read_model(args.files)[0].network(args.batch_size)
    with nn.parameter_scope("", network.parameters):
        params = nn.get_parameters()
    if not params:
        raise ValueError(f"plan: {args.files[0]} has no parameters to train")
    solver.set_parameters(params)
    loss = F.mean(next(iter(network.outputs.values())))
    return quantities(loss, solver, mesh, level, device, args.micro_batches)


def mesh_sizes(text: str) -> dict[str, int]:
    """{direction: number of ranks} of "data=2,shard=4".

    Raises:
        UsageError: It is something else.
    """
    found: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, n = part.strip().partition("=")
        if name not in DIRECTIONS or name in found or not n.isdigit() or n == "0":
            raise UsageError(
                f"plan: --mesh is {text!r}, wanted numbers of {', '.join(DIRECTIONS)} as in "
                "data=2,shard=4"
            )
        found[name] = int(n)
    return found


def decoder_sizes(path: str) -> DecoderSizes:
    """Of a config.json.

    Raises:
        ValueError: It lacks a size.
    """
    try:
        said = json.loads(Path(path).read_text("utf-8"))
        said.setdefault("num_key_value_heads", said.get("num_attention_heads"))
        sizes = {name: said.get(key) for name, key in KEYS.items()}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"plan: {path} is no config.json: {error}") from error
    wrong = [KEYS[k] for k, n in sizes.items() if type(n) is not int or n < 1]
    if wrong:
        raise ValueError(f"plan: {path} has no {wrong[0]}, wanted a number >= 1")
    return DecoderSizes(**sizes)


def text(q: Quantities, mesh: Mesh, memory: float) -> str:
    """For people."""
    kinds = ("parameters", "gradients", "states", "step")
    total = sum(q[k] for k in kinds)
    fits = "" if total <= memory else ", DOES NOT FIT"
    turn, meanwhile = step_s(q)
    lines = [f"{mesh}", f"memory of a rank   {total / 1e9:9.3f} GB of {memory / 1e9:.1f}{fits}"]
    lines += [f"  {k:<17}{q[k] / 1e9:9.3f}" for k in kinds]
    lines += ["sent by a rank in a step"] * any(k[:5] == "sent " for k in q)
    lines += [f"  {k[5:]:<17}{q[k] / 1e9:9.3f} GB" for k in q if k[:5] == "sent "]
    lines.append(
        f"time of a step     {turn:9.4f} s, or {meanwhile:.4f} with data and shard meanwhile"
    )
    times = [k for k in q if k in ("arithmetic", "memory", "waiting") or k[:6] == "links "]
    lines += [f"  {k:<17}{q[k]:9.4f}" for k in times]
    return "\n".join([*lines, f"bound by {bound(q)}"])
