# SPDX-License-Identifier: Apache-2.0
"""What the loop of examples/imagenet/train.py costs beside the step that it runs.

    python imagenet_overhead.py '{"network": "resnet18", ...}'

In one process, so on the same memory, rounds of steps of the script take turns with rounds of its
bare step on the batch that lies there: forward, backward and update. The script's are those of
training, with drawn pictures: loader, schedule, seeds, progress bar, losses, checkpoints that are
due. The overhead is the median over the rounds of (median of the script's steps / median of the
bare ones of the same round) - 1; its quartiles say how far to trust it. Prints a line of JSON.
"""

import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUND_S = 1.0  # of each side in a round, at least MIN_STEPS
MIN_STEPS = 4


def prepared(row, folder):
    """Functions that run n steps of the script, and n bare ones; each returns when they began."""
    sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "imagenet")]
    import options as command_line
    import train

    import nnl as nn
    import nnl.communicators as C
    from nnl.ext_utils import get_extension_context

    given = [
        *("--network", row["network"], "--recipe", "resnet", "--learning-rate", "1e-4"),
        *("--batch-size", str(row["batch_size"]), "--type-config", row["type_config"]),
        *("--size", str(row["size"]), "--context", row["context"]),
        *("--engine", "synthetic", "--out", folder),
    ]
    options = command_line.parse(given)
    nn.set_default_context(get_extension_context(row["context"], type_config=row["type_config"]))
    comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
    comm.init()
    run = train.Run(options, comm)
    training, begun = run.training, []
    one_pass = train.Training.__call__

    def noted(*args):
        begun.append(time.perf_counter())
        return one_pass(*args)

    train.Training.__call__ = noted

    def script(n):
        begun.clear()
        options.steps = run.progress["step"] + n
        run._epoch(0)
        return list(begun)

    def bare(n):
        begun.clear()
        for _ in range(n):
            begun.append(time.perf_counter())
            training.loss.forward(clear_no_need_grad=True)
            for solver in training.solvers:
                solver.zero_grad()
            training.loss.backward(clear_buffer=True)
            training.update()
        return list(begun)

    return script, bare


def measured(script, bare, rounds):
    """{"script_ms", "bare_ms", "overhead", "quartiles"}."""

    def step_s(side, n):
        return statistics.median(b - a for a, b in pairwise(side(n + 1)))

    step_s(script, 3)
    n = max(MIN_STEPS, round(ROUND_S / step_s(bare, 3)))
    pairs = [(step_s(script, n), step_s(bare, n)) for _ in range(rounds)]
    low, middle, high = statistics.quantiles([s / b - 1 for s, b in pairs], n=4)
    ms = [1e3 * statistics.median(side) for side in zip(*pairs, strict=True)]
    return {"script_ms": ms[0], "bare_ms": ms[1], "overhead": middle, "quartiles": [low, high]}


def main():
    row = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="nnl-imagenet-") as folder:
        found = measured(*prepared(row, folder), row["rounds"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
