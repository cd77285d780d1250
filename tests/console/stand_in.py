# SPDX-License-Identifier: Apache-2.0
"""Stands for `nnl train` where tests decide how a training goes: it writes the same events.

The configuration says how, in "stand_in": step_s, seconds of an iteration, and fails_at.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("command")
parser.add_argument("-c")
parser.add_argument("-o", type=Path)
parser.add_argument("-r", action="store_true")
parser.add_argument("--events", type=Path)
parser.add_argument("--json", action="store_true")
parser.add_argument("--seed", type=int)
parser.add_argument("--patience", type=int)
parser.add_argument("--every-row", action="store_true")
args = parser.parse_args()

document = json.loads(Path(args.c).with_name("document.json").read_text())
config = document["config"]
wanted = config.get("stand_in", {})
stopped = []
signal.signal(signal.SIGTERM, lambda *given: stopped.append(1))
signal.signal(signal.SIGUSR1, lambda *given: config.update(max_epoch=epoch))
done = epoch = 0
if args.r and args.events.exists():
    lines = [json.loads(line) for line in args.events.read_text().splitlines()]
    done = max((e["epoch"] for e in lines if e["event"] == "epoch_end"), default=0)

with open(args.events, "a" if args.r else "w") as file:

    def tell(event, **facts):
        file.write(json.dumps({"event": event, "t": time.time(), **facts}) + "\n")
        file.flush()

    tell("run_begin", max_epoch=config["max_epoch"], iterations_per_epoch=5, seed=args.seed)
    for epoch in range(done + 1, config["max_epoch"] + 1):
        if epoch > config["max_epoch"]:
            break
        for i in range(1, 6):
            iteration = (epoch - 1) * 5 + i
            tell("step_after", epoch=epoch, iteration=iteration, loss=1 / iteration, lr=0.1)
            time.sleep(wanted.get("step_s", 0))
            if stopped:
                tell("run_end", status="suspended", epoch=epoch, iteration=iteration)
                sys.exit(130)
            if wanted.get("fails_at") == iteration:
                error = {
                    "error": "the loss is nan",
                    "code": wanted.get("code", "nan"),
                    "hint": "less",
                    "where": "loss",
                }
                tell("run_end", status="failed", reason="nan", error=error)
                sys.exit(1)
        error = 1 / (1 + epoch)
        shutil.copy(args.c, args.o / "results.nnp")
        tell(
            "epoch_end",
            epoch=epoch,
            iteration=epoch * 5,
            metrics={"train_loss": 1 / epoch, "valid_error": error},
            best=True,
            best_epoch=epoch,
            best_value=error,
            eta_s=0.1,
        )
    tell("run_end", status="finished", epoch=config["max_epoch"])
