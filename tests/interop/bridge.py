# SPDX-License-Identifier: Apache-2.0
"""Ask NNabla itself: one process under Python 3.10, `worker.py`, that answers for a whole run.

nnl is not imported here, so an answer cannot come from what is being tested.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WORKER = Path(__file__).with_name("worker.py")


class NnablaError(Exception):
    """NNabla raised: `kind` is the name of its exception class, `text` what it said."""

    def __init__(self, kind: str, text: str, trace: str) -> None:
        super().__init__(f"{kind}: {text}\n{trace}")
        self.kind, self.text = kind, text


class WorkerDied(RuntimeError):
    """The process ended or stopped answering; the text is the end of its stderr."""


@dataclass(frozen=True)
class Initializer:
    """An initialiser of nnabla.initializer, as an argument of a parametric function."""

    name: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Parameter:
    """A registered parameter: `first` is its initial value, `value` the one after the forward."""

    first: Array
    value: Array
    need_grad: bool
    grad: Array | None


@dataclass(frozen=True)
class Call:
    """What a function or parametric function did.

    `inputs` are the input arrays after the run: batch normalisation writes two of them. `grads`
    has None where no gradient was asked for. `parameters` is in the order of get_parameters.
    """

    outputs: list[Array]
    inputs: list[Array | None]
    grads: list[Array | None]
    parameters: dict[str, Parameter]


@dataclass(frozen=True)
class Step:
    """A solver after one update, every dict by parameter name; `states` by state name within.

    `grads` are the gradients after the calls before the update (weight decay adds to them) and
    `returned` is what those calls gave back.
    """

    weights: dict[str, Array]
    grads: dict[str, Array]
    states: dict[str, dict[str, Array]]
    t: dict[str, int]
    returned: list[Any]
    learning_rate: float


class Nnabla:
    """A running worker. Every request starts from the state of a fresh process.

    Args:
        python: The Python 3.10 that has nnabla.
        timeout_s: How long one answer may take before the worker counts as dead.
    """

    def __init__(self, python: str | Path, timeout_s: float = 300.0) -> None:
        self.python, self.timeout_s = str(python), timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="nnabla-")
        self._pending = b""
        self.version = ""

    def function(
        self,
        name: str,
        inputs: Sequence[Array | None],
        need_grad: Sequence[bool] | bool = True,
        grads: Sequence[Array | None] | None = None,
        seed: int | None = None,
        base: bool = False,
        **kwargs: Any,
    ) -> Call:
        """nnabla.functions.<name>(*inputs, **kwargs), forward and, given `grads`, backward.

        Args:
            inputs: Arrays, kept in their dtype, or None for an input left out.
            need_grad: Of every input, or one for all.
            grads: A gradient or None (zeros) per output; without it there is no backward.
            seed: For nnabla.seed; None is the parameter generator's state at import, 313.
            base: Take nnabla.function_bases instead, whose arguments are those of .nnp files.
        Raises:
            NnablaError: NNabla raised.
            WorkerDied: NNabla crashed.
        """
        kind = "base_function" if base else "function"
        return self._call(kind, name, inputs, need_grad, grads, seed, {}, kwargs)

    def parametric(
        self,
        name: str,
        inputs: Sequence[Array | None],
        need_grad: Sequence[bool] | bool = True,
        grads: Sequence[Array | None] | None = None,
        seed: int | None = None,
        parameters: Mapping[str, Array] | None = None,
        **kwargs: Any,
    ) -> Call:
        """nnabla.parametric_functions.<name>, as `function`; `parameters` are registered before.

        A keyword named like one of the arguments above goes through a dict:
        `**{"name": "conv1"}` is spelt `scope="conv1"`.
        """
        if "scope" in kwargs:
            kwargs["name"] = kwargs.pop("scope")
        given = dict(parameters or {})
        return self._call("parametric", name, inputs, need_grad, grads, seed, given, kwargs)

    def solver(
        self,
        name: str,
        weights: Mapping[str, Array],
        grads: Sequence[Mapping[str, Array | None]],
        weight_decay: Sequence[float | None] | None = None,
        calls: Sequence[Sequence[Sequence[Any]]] | None = None,
        args: Sequence[Any] = (),
        **kwargs: Any,
    ) -> list[Step]:
        """nnabla.solvers.<name>(*args, **kwargs) over len(grads) updates.

        Args:
            grads: Per step a gradient per parameter; None or absent leaves it lazily zero.
            weight_decay: Per step the rate of a weight_decay call before update, or None.
            calls: Per step further calls before update and after weight decay:
                [["scale_grad", 0.5], ["set_learning_rate", 0.1]].
        """
        n = len(grads)
        decay = [None] * n if weight_decay is None else weight_decay
        more: Sequence[Sequence[Sequence[Any]]] = [[]] * n if calls is None else calls
        steps = []
        for g, rate, extra in zip(grads, decay, more, strict=True):
            first: list[Sequence[Any]] = [] if rate is None else [["weight_decay", rate]]
            steps.append({"grads": dict(g), "calls": first + list(extra)})
        result, arrays = self._ask(
            kind="solver", name=name, args=list(args), kwargs=kwargs, weights=weights, steps=steps
        )
        return [_step(i, step, list(weights), arrays) for i, step in enumerate(result["steps"])]

    def exec(
        self, text: str, inputs: Mapping[str, Array] | None = None, seed: int | None = None
    ) -> dict[str, Array]:
        """Run a script with nn, F, PF, S, I, np and `inputs`; returns the dict `outputs` it fills.

        The same text can be run with nnl under the same names: that is the comparison.
        """
        _, arrays = self._ask(
            kind="exec", name="<script>", text=text, inputs=dict(inputs or {}), seed=seed
        )
        return {key.removeprefix("out/"): a for key, a in arrays.items()}

    def close(self) -> None:
        """End the worker and remove its files."""
        self._stop()
        self._folder.cleanup()

    def _call(
        self,
        kind: str,
        name: str,
        inputs: Sequence[Array | None],
        need_grad: Sequence[bool] | bool,
        grads: Sequence[Array | None] | None,
        seed: int | None,
        parameters: dict[str, Array],
        kwargs: dict[str, Any],
    ) -> Call:
        need = [need_grad] * len(inputs) if isinstance(need_grad, bool) else list(need_grad)
        result, a = self._ask(
            kind=kind,
            name=name,
            inputs=[
                None if x is None else {"value": np.asarray(x), "need_grad": n}
                for x, n in zip(inputs, need, strict=True)
            ],
            grads=None if grads is None else list(grads),
            seed=seed,
            parameters=parameters,
            kwargs=kwargs,
        )
        return Call(
            outputs=[a[f"y{i}"] for i in range(result["outputs"])],
            inputs=[a.get(f"x{i}") for i in range(result["inputs"])],
            grads=[a.get(f"gx{i}") for i in range(result["inputs"])],
            parameters={
                p["name"]: Parameter(
                    first=a[f"p0/{p['name']}"],
                    value=a[f"p/{p['name']}"],
                    need_grad=p["need_grad"],
                    grad=a.get(f"gp/{p['name']}"),
                )
                for p in result["parameters"]
            },
        )

    def _ask(self, **request: Any) -> tuple[dict[str, Any], dict[str, Array]]:
        """Send one request, wait for its answer and the answer's arrays."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        folder = Path(self._folder.name)
        arrays: dict[str, Array] = {}
        encoded = {key: _encode(value, arrays) for key, value in request.items()}
        encoded["arrays"] = str(folder / "request.npz")
        encoded["answer"] = str(folder / "answer.npz")
        np.savez(encoded["arrays"], **arrays)  # type: ignore[arg-type]
        answer = self._exchange(json.dumps(encoded))
        if "error" in answer:
            raise NnablaError(answer["error"], answer["text"], answer["trace"])
        with np.load(encoded["answer"], allow_pickle=False) as stored:
            values = {key: stored[f"a{i}"] for i, key in enumerate(answer["arrays"])}
        return answer["result"], values

    def _start(self) -> None:
        self._stop()
        self._pending = b""
        # one thread: a worker runs beside each test process
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            environment.pop(name, None)
        with open(self._stderr, "wb") as errors:
            self._process = subprocess.Popen(
                [self.python, "-u", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=self._folder.name,
            )
        self.version = self._exchange(None)["nnabla"]

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()

    @property
    def _stderr(self) -> Path:
        return Path(self._folder.name) / "stderr.txt"

    def _exchange(self, line: str | None) -> dict[str, Any]:
        """Write a line if there is one, read a line."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise WorkerDied("the NNabla worker is not running")
        if line is not None:
            try:
                process.stdin.write(line.encode() + b"\n")
                process.stdin.flush()
            except BrokenPipeError as error:
                raise WorkerDied(self._last_words("ended before the request")) from error
        deadline = time.monotonic() + self.timeout_s
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise WorkerDied(self._last_words(f"gave no answer in {self.timeout_s:g} s"))
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise WorkerDied(self._last_words("ended during the request"))
            self._pending += chunk
        answer, _, self._pending = self._pending.partition(b"\n")
        parsed: dict[str, Any] = json.loads(answer)
        return parsed

    def _last_words(self, what: str) -> str:
        self._stop()
        text = self._stderr.read_text(errors="replace")[-2000:]
        return f"the NNabla worker ({self.python}) {what}; the end of its stderr:\n{text}"


def _encode(value: Any, arrays: dict[str, Array]) -> Any:
    """A JSON value; arrays move into `arrays`, what JSON cannot say becomes a one-key object."""
    if isinstance(value, np.ndarray):
        key = f"a{len(arrays)}"
        arrays[key] = value
        return {"$array": key}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return {"$tuple": [_encode(v, arrays) for v in value]}
    if isinstance(value, list):
        return [_encode(v, arrays) for v in value]
    if isinstance(value, Initializer):
        parts = [value.name, list(value.args), dict(value.kwargs)]
        return {"$initializer": _encode(parts, arrays)}
    if isinstance(value, Mapping):
        return {key: _encode(v, arrays) for key, v in value.items()}
    return value


def _step(i: int, step: dict[str, Any], names: list[str], arrays: dict[str, Array]) -> Step:
    return Step(
        weights={name: arrays[f"{i}/w/{name}"] for name in names},
        grads={name: arrays[f"{i}/g/{name}"] for name in names},
        states={
            name: {key: arrays[f"{i}/s/{key}/{name}"] for key in step["state_names"][name]}
            for name in names
        },
        t=step["t"],
        returned=step["returned"],
        learning_rate=step["learning_rate"],
    )
