# SPDX-License-Identifier: Apache-2.0
"""The loop that train.py and tune.py share: a step, a schedule, a progress bar, checkpoints."""

import sys

import numpy as np
from tqdm import tqdm

import nnl as nn
import nnl.solvers as S
from nnl.data.texts import open_texts
from nnl.training import load_run, save_run
from nnl.utils.learning_rate_scheduler import CosineScheduler, LinearWarmupScheduler


def learn(model, path, parameters, options):
    """Train `parameters` on the samples of a file; the mean loss of the last steps.

    Args:
        options: out, length, batch_size, steps, learning_rate, weight_decay, save_every and seed.
    """
    rate = options.learning_rate
    # nnl's decay is a share of a weight per step; papers give it times the learning rate
    solver = S.AdamW(rate, beta2=0.95, wd=options.weight_decay * rate)
    solver.set_parameters(parameters)
    cosine = CosineScheduler(rate, options.steps)
    schedule = LinearWarmupScheduler(cosine, options.steps // 20)

    @nn.compile
    def step(tokens, labels, positions):
        loss = model.loss(tokens, labels, positions, train=True)
        solver.zero_grad()
        loss.backward()
        S.clip_grad_norm(solver.get_parameters(), 1.0)
        solver.update()
        return loss

    checkpoint = options.out / "checkpoint.safetensors"
    size = options.length, options.batch_size
    with open_texts(path, model.lesson, *size, seed=options.seed) as rows:
        losses = []
        if checkpoint.is_file():
            progress = load_run(checkpoint, parameters, {"adam": solver})
            rows.go_on(progress["rows"])
            losses = progress["losses"]
            print(f"going on after step {len(losses)}", file=sys.stderr)
        bar = tqdm(total=options.steps, initial=len(losses), unit="step", disable=None)
        while len(losses) < options.steps:
            solver.set_learning_rate(schedule.get_learning_rate(len(losses)))
            loss = step(*map(nn.Variable.from_numpy_array, rows.next()))
            losses.append(float(loss.d))
            bar.update()
            if len(losses) % 10 == 0:
                bar.set_postfix(epoch=rows.epoch, loss=f"{np.mean(losses[-50:]):.3f}")
            if len(losses) % options.save_every == 0:
                progress = {"rows": rows.state(), "losses": losses}
                save_run(checkpoint, parameters, {"adam": solver}, progress)
        bar.close()
    return float(np.mean(losses[-50:]))


def add_options(parser, **defaults):
    """What both scripts can be told."""
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    for name, value in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(value), default=value, help="(default: %(default)s)")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
