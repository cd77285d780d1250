# SPDX-License-Identifier: Apache-2.0
"""Train a network on ImageNet, or on any pictures that lie in folders of classes.

    python examples/imagenet/train.py --data /data/imagenet --network resnet50
    nnl launch -n 8 examples/imagenet/train.py --data /data/imagenet --type-config half
    python examples/imagenet/train.py --engine synthetic --throughput 20

docs/imagenet.md says what the options do. Into the folder --out go a checkpoint, curves, numbers,
and at the end the network as .nnp, .onnx and .nnlp. SIGTERM ends a run with a checkpoint;
--resume goes on from it, bit by bit as if nothing had happened.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from contextlib import nullcontext
from typing import Any

import checkpoint
import numpy as np
import report
from export import export
from options import BASE_BATCH, parse
from step import Evaluation, Training, network_parameters, right
from tqdm import tqdm

import nnl as nn
import nnl.communicators as C
from nnl.data.images import open_images
from nnl.ext_utils import get_extension_context
from nnl.utils.learning_rate_scheduler import (
    CosineScheduler,
    ExponentialScheduler,
    LinearWarmupScheduler,
)

WARM_UP = 5  # steps before the clock starts: plans are made in them


class Stop:
    """Whether some process was asked to end: a job's time is up, a machine is needed.

    Args:
        every: How many times it is asked from one exchange with the other processes to the next.
    """

    def __init__(self, comm: Any, every: int) -> None:
        self.comm, self.every, self.asked, self.number = comm, every, 0, 0
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, _: Any) -> None:
        self.number = number

    def __bool__(self) -> bool:
        """All processes come to the same answer, so that all end at the same step."""
        self.asked += 1
        if self.comm.size > 1:
            if self.asked % self.every:
                return False
            asked = nn.NdArray.from_numpy_array(np.array([self.number], np.float32))
            self.comm.all_reduce(asked, division=False)
            self.number = int(asked.data[0]) and signal.SIGTERM
        return self.number != 0


def ranks_here(comm: Any) -> int:
    """The most processes that one machine has of this job."""
    if comm.size == 1:
        return 1
    mine = nn.NdArray.from_numpy_array(np.array([comm.local_rank], np.float32))
    all_of_them = [nn.NdArray((1,)) for _ in range(comm.size)]
    comm.all_gather(mine, all_of_them)
    return 1 + int(max(a.data[0] for a in all_of_them))


def opened(options: Any, comm: Any, training: bool, classes: list[str] | None = None) -> Any:
    """This process's share of the pictures to train on, or to validate with."""
    path = None
    if options.engine != "synthetic":
        path = str(options.data / ("train" if training else "val"))
    workers = options.workers
    if workers is None:
        workers = max((os.cpu_count() or 1) // ranks_here(comm), 1)
    return open_images(
        path,
        options.batch_size,
        options.size,
        training,
        resize=round(options.resize * options.size),
        engine=options.engine,
        exact=options.exact,
        jitter=options.jitter,
        workers=workers,
        prefetch=options.prefetch,
        rank=comm.rank,
        ranks=comm.size,
        seed=options.seed,
        classes=classes,
        samples=options.samples,
    )


def schedule_of(options: Any, peak_rate: float, steps_per_epoch: int) -> Any:
    """The learning rate of every update."""
    if options.schedule == "cosine":
        rates: Any = CosineScheduler(peak_rate, options.epochs * steps_per_epoch)
    else:
        rates = ExponentialScheduler(peak_rate, 0.97, max(int(2.4 * steps_per_epoch), 1))
    return LinearWarmupScheduler(rates, int(options.warmup * steps_per_epoch))


def peak_rate_of(options: Any, comm: Any) -> float:
    """The learning rate grows with the batch of an update: Goyal et al., arXiv:1706.02677."""
    batch = options.batch_size * options.accumulate * comm.size
    return options.learning_rate * batch / BASE_BATCH


def evaluate(comm: Any, pictures: Any, network: Evaluation, average: Any = None) -> dict[str, Any]:
    """Top-1 and top-5 in percent over the pictures of all processes."""
    counts = np.zeros(3)
    with nullcontext() if average is None else average.instead():
        if comm.size > 1:  # every process has its own running statistics, unless --sync-bn
            fixed = [v.data for v in network_parameters().values() if not v.need_grad]
            comm.bcast(fixed, src=0)
        for x, label in pictures.epoch(0):
            counts += right(network(x), label)
    total = nn.NdArray.from_numpy_array(counts)
    if comm.size > 1:
        comm.all_reduce(total, division=False)
    first, fifth, n = total.data
    return {"top1": 100 * first / max(n, 1), "top5": 100 * fifth / max(n, 1), "pictures": int(n)}


class Run:
    """The training of a network from some position to the end.

    Attributes:
        progress: What a checkpoint keeps: epoch and batch that come next, updates so far, numbers
            of every epoch, losses as (step, loss, learning rate), seconds.
    """

    def __init__(self, options: Any, comm: Any) -> None:
        self.options, self.comm = options, comm
        self.pictures = opened(options, comm, training=True)
        self.validation = opened(options, comm, False, self.pictures.classes)
        self.classes = len(self.pictures.classes)
        nn.seed(options.seed)
        peak = peak_rate_of(options, comm)
        self.training = Training(options, comm, self.classes, peak)
        self.steps_per_epoch = self.pictures.batches // options.accumulate
        if not self.steps_per_epoch:
            raise ValueError(
                f"an epoch has {self.pictures.batches} batches, fewer than --accumulate "
                f"{options.accumulate}"
            )
        self.schedule = schedule_of(options, peak, self.steps_per_epoch)
        self.progress: dict[str, Any] = {
            **{"epoch": 0, "step": 0, "seconds": 0.0},
            **{"epochs": [], "losses": []},
        }
        # an exchange waits for a device, which has more steps to do then
        self.stop = Stop(comm, 1 if options.context in ("cpu", "numpy") else options.log_every)
        self.saved_at = time.monotonic()
        path = options.out / checkpoint.NAME
        if options.resume:
            self.progress = checkpoint.restore(path, options, self.training)
        elif path.exists():
            raise ValueError(f"{path} is there: --resume to go on, or another --out")

    def save(self, must: bool = True) -> None:
        """Write a checkpoint; if that fails and need not be now, warn and go on."""
        self.saved_at = time.monotonic()
        if self.comm.rank:
            return
        try:
            checkpoint.write(self.options.out, self.options, self.training, self.progress)
        except OSError as error:
            if must:
                raise
            print(f"train.py: no checkpoint, the last one stays: {error}", file=sys.stderr)

    def train(self) -> bool:
        """Train to the end; False if it was asked to stop before."""
        network = Evaluation(self.options, self.options.batch_size, self.classes)
        while self.progress["epoch"] < self.options.epochs:
            done = self._epoch(self.progress["epoch"])
            if done is None:
                self.save()
                return False
            self.save(must=False)  # validation takes a while, and may not come to its end
            average = self.training.average
            done |= evaluate(self.comm, self.validation, network, average)
            self.progress["epochs"].append(done)
            self.progress["epoch"] += 1
            if self.comm.rank == 0:
                print(
                    "epoch {epoch}: loss {loss:.4f}, top-1 {top1:.2f} %, top-5 {top5:.2f} %, "
                    "{images_per_s:.1f} images/s, {waiting:.1f} % waiting".format(**done),
                    flush=True,
                )
                self._report()
            self.save(must=self.progress["epoch"] == self.options.epochs)
        return True

    def _report(self) -> None:
        try:
            report.write(self.options.out, self.options, self.progress, self.comm.size)
        except OSError as error:  # the checkpoint has all of it
            print(f"train.py: no {report.RESULT}: {error}", file=sys.stderr)

    def _epoch(self, number: int) -> dict[str, Any] | None:
        """The rest of an epoch and its numbers; None if it is to stop in its middle."""
        options, progress = self.options, self.progress
        passes = options.accumulate
        begin = progress["step"] - number * self.steps_per_epoch
        batches = self.pictures.epoch(number, begin * passes)
        steps = range(begin, self.steps_per_epoch)
        bar = tqdm(
            **{"initial": begin, "total": self.steps_per_epoch, "unit": "step"},
            **{"disable": self.comm.rank > 0 or None, "desc": f"epoch {number + 1}"},
        )
        start, waited, losses = time.perf_counter(), self.pictures.waiting, []
        with bar:
            for step in steps:
                rate = self.schedule.get_learning_rate(progress["step"])
                loss = self._update(number, step * passes, batches, rate)
                progress["step"] += 1
                if progress["step"] % options.log_every == 0 or step + 1 == self.steps_per_epoch:
                    losses.append(float(loss.d) * passes)
                    progress["losses"].append([progress["step"], losses[-1], rate])
                    bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
                    if not np.isfinite(losses[-1]) and options.type_config != "half":
                        raise ValueError(
                            f"the loss is {losses[-1]} at step {progress['step']}: a lower "
                            "--learning-rate, --clip-norm or a longer --warmup may help"
                        )
                bar.update()
                if self.stop or progress["step"] == options.steps:
                    progress["seconds"] += time.perf_counter() - start
                    return None
                if time.monotonic() - self.saved_at >= 60 * options.checkpoint_minutes:
                    self.save(must=False)
        seconds = time.perf_counter() - start
        progress["seconds"] += seconds
        images = len(steps) * passes * options.batch_size * self.comm.size
        return {
            "epoch": number + 1,
            "loss": float(np.mean(losses)) if losses else progress["losses"][-1][1],
            "images_per_s": images / seconds,
            "waiting": 100 * (self.pictures.waiting - waited) / seconds,
            "skipped": len(self.pictures.skipped),
        }

    def _update(self, epoch: int, batch: int, batches: Any, rate: float) -> Any:
        """The passes of one update; the loss of the last one."""
        for solver in self.training.solvers:
            solver.set_learning_rate(rate)
        for i in range(self.options.accumulate):
            x, label = next(batches)
            place = (self.options.seed, epoch, batch + i, self.comm.rank)
            loss = self.training(x, label, place, i)
        average = self.training.average
        if average is not None and (self.progress["step"] + 1) % self.options.ema_every == 0:
            average.update()
        return loss

    def close(self) -> None:
        """End what reads pictures."""
        self.pictures.close()
        self.validation.close()


def finish(run: Run) -> None:
    """Write the trained network, and compare the files with it where that is wanted."""
    options, average = run.options, run.training.average
    with nullcontext() if average is None else average.instead():
        nn.save_parameters(str(options.out / f"{options.network}.h5"))
        if options.no_export:
            return
        pictures = next(run.validation.epoch(0))[0] if options.verify else None
        # files are for any machine: they compute in float32, whatever the training has
        context = get_extension_context(options.context, device_id=run.comm.ctx.device_id)
        with nn.context_scope(context):
            for line in export(options, run.classes, options.out, pictures):
                print(line)


def only_evaluate(options: Any, comm: Any) -> None:
    """Validate with weights of torchvision or timm, or with those of a checkpoint."""
    with opened(options, comm, training=False) as pictures:
        classes = len(pictures.classes)
        network = Evaluation(options, options.batch_size, classes)
        if options.weights is not None:
            nn.models.load_torch_weights(options.weights)
        else:
            checkpoint.restore_network(options.out / checkpoint.NAME)
        found = evaluate(comm, pictures, network)
        if comm.rank == 0:
            print("{pictures} pictures: top-1 {top1:.2f} %, top-5 {top5:.2f} %".format(**found))


def throughput(options: Any, comm: Any) -> None:
    """Measure steps of training, reading included; numbers go to stdout as JSON."""
    with opened(options, comm, training=True) as pictures:
        training = Training(options, comm, len(pictures.classes), peak_rate_of(options, comm))
        passes, done, epoch = options.accumulate, 0, 0
        total = (WARM_UP + options.throughput) * passes
        batches = pictures.epoch(epoch)
        while done < total:
            if done == WARM_UP * passes:
                start, waited = time.perf_counter(), pictures.waiting
            batch = next(batches, None)
            if batch is None:
                epoch += 1
                batches = pictures.epoch(epoch)
                continue
            loss = training(*batch, (options.seed, epoch, done, comm.rank), done % passes)
            done += 1
        float(loss.d)  # a device has finished then
        seconds = time.perf_counter() - start
        waiting = (pictures.waiting - waited) / seconds
    if comm.rank == 0:
        images = options.throughput * passes * options.batch_size * comm.size
        found = {
            "network": options.network,
            "type_config": options.type_config,
            "batch_size": options.batch_size,
            "processes": comm.size,
            "images_per_s": images / seconds,
            "step_ms": 1e3 * seconds / options.throughput,
            "waiting": waiting,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        print(json.dumps(found))


def only_profile(options: Any, comm: Any) -> None:
    """Show what the operations of one step cost."""
    with opened(options, comm, training=True) as pictures:
        training = Training(options, comm, len(pictures.classes), peak_rate_of(options, comm))
        batches = pictures.epoch(0)
        for i in range(3):
            training(*next(batches), (options.seed, 0, i, comm.rank), 0)
        with nn.profile() as costs:
            number = options.accumulate - 1  # the pass that updates
            training(*next(batches), (options.seed, 0, 3, comm.rank), number)
        if comm.rank == 0:
            print(costs)


def work(options: Any, comm: Any) -> int:
    """Do what the options say; the exit code."""
    if options.evaluate:
        only_evaluate(options, comm)
        return 0
    if options.profile or options.throughput:
        (only_profile if options.profile else throughput)(options, comm)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    run = Run(options, comm)
    try:
        ended = run.train()
        if comm.rank == 0:
            report.curves(options.out / "curves.png", options, run.progress)
            if ended:
                finish(run)
        if not ended and comm.rank == 0:
            print(f"train.py: stopped at step {run.progress['step']}, --resume goes on")
        return 128 + run.stop.number if run.stop.number else 0
    finally:
        run.close()


def main(arguments: list[str] | None = None) -> int:
    options, comm = parse(arguments), None
    try:
        context = get_extension_context(options.context, type_config=options.type_config)
        comm = C.MultiProcessDataParallelCommunicator(context)
        comm.init()
        with nn.context_scope(comm.ctx):  # the GPU of this process, where there are several
            return work(options, comm)
    except (OSError, ValueError, NotImplementedError, ModuleNotFoundError) as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        if comm is not None and comm.size > 1:
            comm.abort()
        return 1


if __name__ == "__main__":
    sys.exit(main())
