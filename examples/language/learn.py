# SPDX-License-Identifier: Apache-2.0
"""The loop that train.py and tune.py share: a step, a schedule, a progress bar, checkpoints."""

import json
import sys

import numpy as np
from tqdm import tqdm

import nnl as nn
import nnl.solvers as S
from nnl.core.parameters.safetensors import read_header, save
from nnl.data.texts import open_texts
from nnl.solvers import SolverState
from nnl.utils.learning_rate_scheduler import CosineScheduler, LinearWarmupScheduler


def write(path, parameters, solver, progress):
    """Everything that a run needs to go on, in one file that is there whole or not at all."""
    arrays = {f"parameter/{k}": v.d for k, v in parameters.items()}
    for key, state in solver.get_states().items():
        arrays[f"state/{key}/t"] = np.array(state.t)
        arrays |= {f"state/{key}/{n}": v.d for n, v in state.pstate.items()}
    save(path, arrays, {"progress": json.dumps(progress)})


def read(path, parameters, solver):
    """Make everything as it was when the file was written; its progress."""
    data = np.fromfile(path, np.uint8)
    entries, metadata = read_header(data, str(path))
    a = {k: data[e.begin : e.end].view(e.dtype).reshape(e.shape) for k, e in entries.items()}
    for key, v in parameters.items():
        v.d = a[f"parameter/{key}"]
    states = {}
    for key, state in solver.get_states().items():
        at = f"state/{key}/"
        held = {n: nn.Variable.from_numpy_array(a[at + n].copy()) for n in state.pstate}
        states[key] = SolverState(held, int(a[f"{at}t"]))
    solver.set_states(states)
    return json.loads(metadata["progress"])


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
            progress = read(checkpoint, parameters, solver)
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
                write(checkpoint, parameters, solver, {"rows": rows.state(), "losses": losses})
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
