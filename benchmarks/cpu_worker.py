# SPDX-License-Identifier: Apache-2.0
"""One engine, one row: builds the step, then runs as many steps as it is asked for.

    python cpu_worker.py ENGINE ROW [--quick]

Requests and answers are lines of JSON on stdin and stdout. It first answers, unasked, with the
seconds of the first step and of a warm one; an error before that ends the process. Requests:
{"steps": n} gives the seconds of each and those of processors in the mean, {"profile": n} a text,
{"memory": true} the peak in MiB.
"""

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path

from cpu_rows import ROWS, STEPS, quick

HERE = Path(__file__).resolve().parent
MODULES = {"nnl": "jobs_nnl", "nnabla": "jobs_nnl", "torch": "jobs_torch", "ort": "jobs_onnx"}
WARM_STEPS = 3


def timed(step):
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def peak_mib():
    """Most memory that this process ever had resident."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    # KiB on Linux; includes the parent's, which the line above does not
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def answers(engine, row):
    """Yield the answer to what is sent; the first one unasked."""
    module = importlib.import_module(MODULES[engine.partition("-")[0]])
    before = peak_mib()
    start = time.perf_counter()
    step = module.build(engine, row)
    built = time.perf_counter() - start
    first = timed(step)
    # one warm step is enough where a step takes long
    times = [timed(step) for _ in range(WARM_STEPS if first < 1.0 else 1)]
    request = yield {"build_s": built, "first_s": first, "warm_s": min(times)}
    while True:
        if "steps" in request:
            if times[-1] < 0.1:
                step()  # brings back caches and wakes threads; not counted
            busy = time.process_time()
            times = [timed(step) for _ in range(request["steps"])]
            busy = (time.process_time() - busy) / len(times)
            request = yield {"times": times, "busy": busy}
        elif "memory" in request:
            request = yield {"peak_mib": peak_mib(), "imported_mib": before}
        else:
            request = yield {"text": module.profile(step, request["profile"])}


def main():
    engine, name = sys.argv[1:3]
    row = (ROWS | STEPS)[name]
    if "--quick" in sys.argv:
        row = quick(row)
    # an engine that prints something must not disturb the answers
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    conversation = answers(engine, row)
    answer = next(conversation)
    while True:
        print(json.dumps(answer), file=channel, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        answer = conversation.send(json.loads(line))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))  # nnl, where it is not installed
    main()
