# SPDX-License-Identifier: Apache-2.0
"""The command line of train.py, and what the networks are trained with."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import Any

from nnl.models import NETWORKS

# What a recipe sets; every option that is given on the command line is stronger. Learning rates are
# for batches of 256. Sources: ResNet, Goyal et al., arXiv:1706.02677, with cosine and smoothing of
# He et al., arXiv:1812.01187; LARS, You et al., arXiv:1708.03888; MobileNetV3, arXiv:1905.02244;
# EfficientNet, arXiv:1905.11946.
RECIPES: dict[str, dict[str, Any]] = {
    "resnet": {"zero_gamma": True},
    "resnet_lars": {
        "solver": "lars",
        "learning_rate": 0.5,
        "weight_decay": 5e-5,
        "zero_gamma": True,
    },
    "resnet_long": {
        "epochs": 300,
        "solver": "adamw",
        "learning_rate": 5e-4,
        "weight_decay": 0.05,
        "mixup": 0.2,
        "cutmix": 1.0,
        "ema": 0.9999,
        "clip_norm": 1.0,
        "zero_gamma": True,
    },
    "mobilenet": {
        "epochs": 300,
        "solver": "rmsprop",
        "learning_rate": 0.016,
        "weight_decay": 1e-5,
        "ema": 0.9999,
        "dropout": 0.2,
    },
    "small": {  # some hundred pictures, in a minute or two
        "epochs": 24,
        "solver": "adamw",
        "learning_rate": 0.016,
        "weight_decay": 0.05,
        "warmup": 2.0,
    },
    "efficientnet": {
        "epochs": 350,
        "solver": "rmsprop",
        "learning_rate": 0.016,
        "schedule": "exponential",
        "weight_decay": 1e-5,
        "ema": 0.9999,
    },
}
BASE_BATCH = 256  # what learning rates are given for
SOLVERS = ("sgd", "lars", "rmsprop", "adamw")
MODES = ("static", "dynamic", "coexecute", "compile")


def recipe_of(network: str) -> str:
    """The recipe of a network that none is chosen for."""
    for recipe in ("mobilenet", "efficientnet"):
        if network.startswith(recipe):
            return recipe
    return "resnet"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="train.py", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = p.add_argument
    add("--data", type=Path, metavar="FOLDER", help="has train and val, each a source of pictures")
    add("--engine", default="auto", help="what reads pictures: auto, nnl, dali or synthetic")
    add("--out", type=Path, default=Path("out/imagenet"), help="folder of this run's files")
    add("--network", choices=NETWORKS, default="resnet50", metavar="NAME", help="see nnl models")
    add("--recipe", choices=RECIPES, help="that of the network if left out")
    add("--weights", type=Path, metavar="FILE", help="begin with those of torchvision or timm")

    g = p.add_argument_group("training")
    add = g.add_argument
    add("--epochs", type=int, default=90)
    add("--batch-size", type=int, default=64, help="of every process, in one pass")
    add("--accumulate", type=int, default=1, metavar="N", help="passes for each update")
    add("--size", type=int, help="height and width of training pictures (the network's)")
    add("--resize", type=float, default=256 / 224, help="shorter side in validation, over size")
    add("--solver", choices=SOLVERS, default="sgd")
    add("--learning-rate", type=float, default=0.1, metavar="RATE", help="for batches of 256")
    add("--schedule", choices=("cosine", "exponential"), default="cosine")
    add("--warmup", type=float, default=5.0, metavar="EPOCHS", help="that the rate rises for")
    add("--momentum", type=float, default=0.9)
    add("--weight-decay", type=float, default=1e-4, metavar="RATE")
    add("--decay-all", action="store_true", help="also biases, and scales of normalisations")
    add("--clip-norm", type=float, default=0.0, metavar="NORM", help="of all gradients; 0: any")
    flag = argparse.BooleanOptionalAction
    add("--zero-gamma", action=flag, default=False, help="blocks of ResNets begin as shortcuts")
    add("--smoothing", type=float, default=0.1, help="of labels")
    add("--mixup", type=float, default=0.0, metavar="ALPHA", help="0: none")
    add("--cutmix", type=float, default=0.0, metavar="ALPHA", help="0: none")
    add("--jitter", type=float, default=0.0, metavar="SHARE", help="of colours, up to 1; 0: none")
    add("--dropout", type=float, default=None, help="that of the network if left out")
    add("--ema", type=float, default=0.0, metavar="DECAY", help="of averages, each step; 0: none")
    add("--ema-every", type=int, default=32, metavar="STEPS", help="that averages are moved after")
    add("--seed", type=int, default=0)

    g = p.add_argument_group("how it computes")
    add = g.add_argument
    add("--context", default="cpu", help="cpu, cudnn, numpy ...")
    add("--type-config", choices=("float", "half", "bfloat16"), default="float")
    add("--mode", choices=MODES, default="static")
    add("--sync-bn", action="store_true", help="normalise with the batches of all processes")
    add("--workers", type=int, help="processes that read pictures (one for each core)")
    add("--prefetch", type=int, default=2, metavar="BATCHES", help="that are made ahead")
    add("--exact", action="store_true", help="decode pictures as torchvision does")

    g = p.add_argument_group("what else it does")
    add = g.add_argument
    add("--resume", action="store_true", help="go on where the checkpoint of --out is")
    add("--checkpoint-minutes", type=float, default=15.0, metavar="N")
    add("--evaluate", action="store_true", help="only validate: --weights, or --out's checkpoint")
    add("--throughput", type=int, default=0, metavar="STEPS", help="only measure so many steps")
    add("--profile", action="store_true", help="only show what one step costs")
    add("--steps", type=int, metavar="N", help="stop with a checkpoint after N updates in all")
    add("--samples", type=int, help="pictures of the synthetic engine (those of ImageNet)")
    add("--no-export", action="store_true", help="write no .nnp, .onnx and .nnlp at the end")
    add("--verify", action="store_true", help="compare the scores of those files with the network")
    add("--log-every", type=int, default=20, metavar="STEPS", help="from one loss to the next")
    return p


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options as the command line, the recipe and the network say.

    Ends the program with a message if one is out of its range.
    """
    p = parser()
    first = p.parse_args(arguments)
    recipe = first.recipe or recipe_of(first.network)
    p.set_defaults(**RECIPES[recipe])
    options = p.parse_args(arguments)
    options.recipe = recipe
    options.size = NETWORKS[options.network].size if options.size is None else options.size
    for name, low in (
        *((n, 1) for n in ("epochs", "batch_size", "accumulate", "ema_every", "log_every")),
        *((n, 0) for n in ("warmup", "weight_decay", "clip_norm", "mixup", "cutmix", "throughput")),
        *(("size", 32), ("resize", 1), ("prefetch", 1), ("seed", 0), ("checkpoint_minutes", 0)),
    ):
        if not getattr(options, name) >= low:
            flag, value = name.replace("_", "-"), getattr(options, name)
            p.error(f"--{flag} is {value}, wanted at least {low}")
    for name in ("smoothing", "ema", "momentum", "jitter"):
        if not 0 <= getattr(options, name) < 1:
            p.error(f"--{name} is {getattr(options, name)}, wanted a number in [0, 1)")
    if not options.learning_rate > 0:
        p.error(f"--learning-rate is {options.learning_rate}, wanted more than 0")
    if options.data is None and options.engine != "synthetic":
        p.error("--data is missing: a folder with train and val; or --engine synthetic")
    takes = inspect.signature(NETWORKS[options.network].make).parameters
    if options.dropout is not None and "dropout" not in takes:
        p.error(f"--dropout is {options.dropout}, and {options.network} has none")
    return options
