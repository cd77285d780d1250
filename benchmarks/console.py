# SPDX-License-Identifier: Apache-2.0
"""What training costs above a script: `nnl train`, and a console that is looked at meanwhile.

    python benchmarks/console.py [--rounds 5] [--epochs 12] [--json FILE]

All three train the same file: the script with its networks and data sets, the command with --json,
the console as a trial whose events a browser follows. A number is the time of an epoch, the first
one left out: the median of the epochs of all rounds, which alternate between the three. Beside it
stands the time of processors that the training process has taken, which other programs of the
machine change less, and that of the server.
"""

import argparse
import http.cookiejar
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from nnl.console.documents.document import Document, Net
from nnl.console.documents.training import write_training
from nnl.console.palette.palette import layers
from nnl.console.server.state import Console

ROWS, BATCH = 6400, 64
WAYS = ("script", "command", "console")

# Prints a line at the end of every epoch.
SCRIPT = """
import sys
import numpy as np
import nnl as nn
import nnl.functions as F
from nnl.utils.data_iterator import data_iterator_csv_dataset
from nnl.utils.load import load

path, epochs = sys.argv[1], int(sys.argv[2])
nn.seed(313)
info = load(path, exclude_parameter=True)
optimizer, (monitor,) = info.optimizers["Optimizer"], info.monitors.values()
inputs = {a: v.variable_instance for v, a in optimizer.dataset_assign.items()}
tested = {a: v.variable_instance for v, a in monitor.dataset_assign.items()}
loss = F.mean(optimizer.loss_variables[0].variable_instance)
error = F.mean(monitor.monitor_variables[0].variable_instance)
loss.persistent = error.persistent = True
train, valid = info.datasets["Training"], info.datasets["Validation"]
rng = np.random.RandomState(0)
batch = train.batch_size
with data_iterator_csv_dataset(train.uri, batch, shuffle=True, rng=rng) as samples, \\
        data_iterator_csv_dataset(valid.uri, batch) as tests:
    for epoch in range(epochs):
        total = 0.0
        for _ in range(samples.size // batch):
            for name, value in zip(samples.variables, samples.next()):
                inputs[name].d = value
            loss.forward(clear_no_need_grad=True)
            optimizer.solver.zero_grad()
            loss.backward(clear_buffer=True)
            optimizer.solver.update()
            total += float(loss.d)
        wrong = 0.0
        for _ in range(tests.size // batch):
            for name, value in zip(tests.variables, tests.next()):
                tested[name].d = value
            error.forward(clear_no_need_grad=True)
            wrong += float(error.d)
        nn.save_parameters("best.h5")
        print("epoch", epoch, total, wrong, flush=True)
"""


def document(data):
    """LeNet on 28 x 28 pixels."""
    found = Document({"main": Net("main")})
    net, before = found.main, None
    for kind, name, properties in (
        ("Input", "x", {"shape": [1, 28, 28]}),
        ("PF.convolution", "conv1", {"outmaps": 16, "kernel": [5, 5]}),
        ("F.max_pooling", "pool1", {"kernel": [2, 2]}),
        ("F.relu", "relu1", {}),
        ("PF.convolution", "conv2", {"outmaps": 16, "kernel": [5, 5]}),
        ("F.max_pooling", "pool2", {"kernel": [2, 2]}),
        ("F.relu", "relu2", {}),
        ("PF.affine", "fc1", {"n_outmaps": [50]}),
        ("F.relu", "relu3", {}),
        ("PF.affine", "fc2", {"n_outmaps": [10]}),
        ("F.softmax_cross_entropy", "loss", {}),
    ):
        node = net.add(kind, name, properties)
        if before is not None:
            net.connect(before, node, layers()[kind].inputs[0].name)
        before = node
    net.connect(net.add("Input", "y", {"shape": [1]}), before, layers()[before.type].inputs[1].name)
    found.config.update(batch_size=BATCH, optimizer={**found.config["optimizer"], "type": "Adam"})
    found.config["dataset"].update(train=data, valid=data)
    return found


def processor_s(pid):
    """Seconds of processors that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Epochs:
    """Time and time of processors at the end of every epoch."""

    def __init__(self, *pids):
        self.pids, self.ends = pids, []

    def end(self):
        self.ends.append((time.time(), *map(processor_s, self.pids)))

    def each(self):
        """What every epoch but the first and the last has taken; of processors, the mean.

        After the last one weights are saved, before somebody looks perhaps.
        """
        ends = self.ends[:-1]
        taken = [(b - a) / (len(ends) - 1) for a, b in zip(ends[0][1:], ends[-1][1:], strict=True)]
        return [(b[0] - a[0], *taken) for a, b in zip(ends, ends[1:], strict=False)]


def followed(command, folder, stream, word):
    """Run a command; its epochs end when the word stands in a line."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, text=True, **pipes) as process:
        epochs = Epochs(process.pid)
        for line in getattr(process, stream):
            if word in line:
                epochs.end()
    assert process.returncode == 0
    return epochs.each()


def script(folder, path, epochs):
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, folder / "script.py", path, str(epochs)]
    return followed(command, folder, "stdout", "epoch")


def command(folder, path, epochs):
    words = ["train", "-c", path, "-o", folder / "out", "--set", f"max_epoch={epochs}", "--json"]
    return followed([sys.executable, "-m", "nnl.cli.main", *words], folder, "stderr", "cost=")


class Server:
    """A console, and a browser that follows its trials."""

    def __init__(self, folder):
        command = [sys.executable, "-m", "nnl.cli.main", "console", folder, "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        address = self.process.stdout.readline().strip()
        self.base = address.partition("?")[0] + "api/v1"
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.browser = urllib.request.build_opener(cookies)
        with suppress(urllib.error.HTTPError):  # the page itself need not be built
            self.browser.open(address, timeout=60).close()

    def ask(self, path, given=None):
        body = None if given is None else json.dumps(given).encode()
        headers = {"X-NNL": "1", "Content-Type": "application/json"}
        request = urllib.request.Request(self.base + path, body, headers)
        with self.browser.open(request, timeout=600) as answer:
            return json.load(answer)

    def follow(self, path):
        with self.browser.open(self.base + path) as stream:
            yield from stream

    def train(self, project, folder, epochs):
        key = self.ask("/trials", {"project": project, "config": {"max_epoch": epochs}})["id"]
        lists = threading.Thread(target=lambda: list(self.follow("/events")), daemon=True)
        lists.start()
        found = None
        for line in self.follow(f"/trials/{key}/events"):
            if found is None and b'"run_begin"' in line:
                with closing(sqlite3.connect(folder / ".nnl" / "console.db")) as db:
                    (pid,) = db.execute("SELECT pid FROM trial WHERE id = ?", (key,)).fetchone()
                found = Epochs(pid, self.process.pid)
            elif line.startswith(b"event: epoch_end"):
                found.end()
        return found.each()


def median(rows, i):
    return statistics.median(row[i] for row in rows) if rows else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        console = Console(folder / "console")
        rng = np.random.default_rng(0)
        rows = {"x": rng.random((ROWS, 1, 28, 28)), "y": rng.integers(0, 10, ROWS)}
        data = console.datasets.write("random", rows)["id"]
        found = document(data)
        project = console.store.add_project("benchmark", found)["id"]
        samples = console.trials.data(data)
        path = folder / "network.nnp"
        write_training(found, path, samples, samples)
        console.close()
        server = Server(console.folder)
        run = {
            "script": lambda: script(folder, path, args.epochs),
            "command": lambda: command(folder, path, args.epochs),
            "console": lambda: server.train(project, console.folder, args.epochs),
        }
        times = {way: [] for way in WAYS}
        try:
            for i in range(args.rounds):
                for way in WAYS[i % 3 :] + WAYS[: i % 3]:
                    times[way] += run[way]()
                print(
                    *(f"{w} {median(t, 0):.4f} s, {median(t, 1):.4f} s" for w, t in times.items())
                )
        finally:
            server.process.terminate()
    epoch, taken = ({way: median(t, i) for way, t in times.items()} for i in (0, 1))
    result = {
        "epoch_s": epoch,
        "processor_s": {**taken, "server": median(times["console"], 2)},
        "command_to_script": [s["command"] / s["script"] for s in (epoch, taken)],
        "console_to_command": [s["console"] / s["command"] for s in (epoch, taken)],
        "cpus": os.cpu_count(),
    }
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
