# SPDX-License-Identifier: Apache-2.0
"""Forward, backward and update in any order, with what users do between them: as in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn

pytest.importorskip("torch")

from tests.graph.segments import (  # noqa: E402
    OF,
    TRAINING,
    VALIDATION,
    Nnl,
    Torch,
    X,
    leaf,
)

BACKENDS = ["numpy:float", "cpu:float"]
MODES = ["keep", "clear", "dynamic"]
TILED, PLAIN = "net/c1/conv/W", "net/fc/affine/W"


def step(m: Any, name: str = "a", zero: bool = True) -> float:
    loss = m.forward(name)
    if zero:
        m.zero(OF[name])
    m.backward(name)
    return float(loss)


def forward_twice(m: Any, path: Path) -> Iterator[Any]:
    for _ in range(3):
        yield m.forward("a")
        yield step(m)
        yield m.weight("net/bn/bn/mean")
        m.update("net")
        yield m.forward("a")


def accumulate(m: Any, path: Path) -> Iterator[Any]:
    for _ in range(3):
        yield step(m)
        yield step(m, "b", zero=False)
        yield step(m, zero=False)
        m.update("net")


def validate_in_between(m: Any, path: Path) -> Iterator[Any]:
    for name in ("a", "alone", "plain", "again", "b"):
        yield m.forward(name)
        yield [m.forward(v) for v in VALIDATION]
        m.zero("net")
        m.backward(name)
        yield m.forward("running")
        m.update("net")
        yield m.forward("running")


def gan(m: Any, path: Path) -> Iterator[Any]:
    for _ in range(4):
        yield step(m, "generate")
        m.update("gen")
        yield step(m, "tell")
        yield m.gradient("dis/c/conv/W")
        m.update("dis")


def gan_of_one_forward(m: Any, path: Path) -> Iterator[Any]:
    """Both gradients before both updates."""
    for _ in range(4):
        m.zero("gen")
        m.zero("dis")
        yield m.forward("generate")
        yield m.forward("tell")
        m.backward("generate")
        m.zero("dis")
        m.backward("tell")
        m.update("dis")
        m.update("gen")


def edit_gradients(m: Any, path: Path) -> Iterator[Any]:
    for k in range(4):
        yield step(m)
        m.edit(TILED, 0.5)
        m.edit(PLAIN, -1.0)
        m.clip("net", 0.02)
        if k % 2:
            yield m.gradient(TILED)
        m.scale("net", 3.0)
        m.update("net")
        yield m.gradient(TILED)


def edit_in_a_hook(m: Any, path: Path) -> Iterator[Any]:
    for _ in range(3):
        yield m.forward("a")
        m.zero("net")
        m.backward("a", hook)
        yield m.gradient(TILED)
        m.update("net")


class Doubles:
    """To backward() a communicator's callback; it doubles each gradient as soon as it is there."""

    def begin(self, order: Any) -> None:
        self.coming = [nd for nd, _ in order]
        self.told: list[Any] = []

    def home(self, nd: nn.NdArray, spec: Any) -> None:
        return None

    def ready(self, nd: nn.NdArray) -> None:
        nd.data[...] *= 2.0
        self.told.append(nd)

    def finish(self) -> None:
        assert all(any(nd is t for t in self.told) for nd in self.coming)

    def record(self) -> None:
        raise AssertionError("nothing is recorded here")


def hook(m: Any) -> Any:
    if isinstance(m, Nnl):
        return [Doubles()]
    m.scale("net", 2.0)
    return None


def update_every_third(m: Any, path: Path) -> Iterator[Any]:
    for k in range(9):
        yield step(m, "ab"[k % 2], zero=k % 3 == 0)
        if k % 3 == 2:
            m.update("net")


def recompute(m: Any, path: Path) -> Iterator[Any]:
    for _ in range(4):
        yield step(m, "again")
        m.update("net")
        yield m.weight("net/bn/bn/var")
        yield step(m, "a", zero=False)
        m.update("net")


def two_programs_over_one_weight(m: Any, path: Path) -> Iterator[Any]:
    for name in ("a", "plain", "b", "running", "plain", "a", "batch", "a"):
        if name in VALIDATION:
            yield m.forward(name)
        else:
            yield step(m, name)
            m.update("net")


def write_weights(m: Any, path: Path) -> Iterator[Any]:
    for k in range(6):
        for name in (TILED, PLAIN):
            if k == 1:
                m.assign(name, m.weight(name) * 0.5)
            if k == 2:
                m.multiply(name, 2.0)
            if k == 3:
                m.hold(name)
            if k > 2:
                m.write_held(name, 0.5)
            if k == 4:
                yield m.forward("running")
                m.write_held(name, 3.0)
                m.drop(name)
                yield m.forward("running")
        yield step(m)
        m.update("net")
        yield m.forward("running")


def load_weights(m: Any, path: Path) -> Iterator[Any]:
    for k in range(4):
        yield step(m)
        m.update("net")
        if k == 0:
            m.save(path)
        if k == 2:
            m.load(path)
            yield m.forward("running")


SCENARIOS = [
    forward_twice, accumulate, validate_in_between, gan, gan_of_one_forward, edit_gradients,
    edit_in_a_hook, update_every_third, recompute, two_programs_over_one_weight, write_weights,
    load_weights,
]  # fmt: skip


def values(m: Any, run: Callable[[Any, Path], Iterator[Any]], path: Path) -> list[np.ndarray]:
    """What a scenario sees, and all weights after it."""
    found = [np.array(x) for x in run(m, path)]
    return [*found, *[m.weight(k) for k in sorted(m.params)]]


def check(m: Nnl, run: Any, path: Path, rtol: float = 2e-4, atol: float = 2e-5) -> None:
    for got, want in zip(
        values(m, run, path), values(Torch(list(m.params)), run, path), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol * max(1, np.abs(want).max()))


@pytest.mark.parametrize("run", SCENARIOS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_networks_train_as_in_torch(run: Any, mode: str, backend: str, tmp_path: Path) -> None:
    check(Nnl(nn.Context([backend]), mode), run, tmp_path)


@pytest.mark.parametrize("run", SCENARIOS, ids=lambda f: f.__name__)
def test_copies_of_weights_in_bfloat16_follow_them(run: Any, tmp_path: Path) -> None:
    """Values are rounded to 8 bits; steps of the size LR are taken with gradients as large as 1."""
    check(Nnl(nn.Context(["cpu:bfloat16"]), "clear"), run, tmp_path, 0.05, 0.05)


def any_order(seed: int, flags: bool) -> Callable[[Any, Path], Iterator[Any]]:
    """A random script. With flags a backward needs a forward of its own, over the same weights."""

    def run(m: Any, path: Path) -> Iterator[Any]:
        rng = np.random.default_rng(seed)
        ready: set[str] = set()  # networks whose forward has run
        filled: set[str] = set()  # parts of which all gradients have been written
        yield m.forward("generate")  # which "tell" reads
        for _ in range(40):
            what = rng.choice(
                ["forward", "backward", "validate", "update", "zero", "write", "look", "edit",
                 "clip", "hold", "file"],
                p=[0.2, 0.2, 0.08, 0.16, 0.08, 0.06, 0.06, 0.05, 0.03, 0.05, 0.03],
            )  # fmt: skip
            name = str(rng.choice([*TRAINING, "generate", "tell"]))
            weight = str(
                rng.choice([k for k in sorted(m.params) if not k.endswith(("mean", "var"))])
            )
            factor, part = float(rng.choice([0.5, 1.25])), OF[name]
            before = ready.copy()
            if what == "forward":
                yield m.forward(name)
                ready.add(name)
                if name == "generate":
                    ready.discard("tell")
            elif what == "backward" and ready:
                name = sorted(ready)[int(rng.integers(len(ready)))]
                m.backward(name)
                filled.add(OF[name])
                if name == "generate":
                    filled.add("dis")
                if flags:
                    ready.discard(name)
            elif what == "validate":
                yield m.forward(str(rng.choice(VALIDATION)))
            elif what == "update":
                m.update(part)
            elif what == "zero":
                m.zero(part)
                filled.discard(part)
            elif what == "write":
                m.multiply(weight, factor)
            elif what == "look":
                yield [m.weight(weight).sum(), m.gradient(weight).sum()]
            elif what == "edit":
                m.edit(weight, factor)
            elif what == "clip":
                m.clip(part, 0.1)
            elif what == "hold":
                m.hold(weight) if rng.random() < 0.5 else m.drop(weight)
                m.write_held(weight, factor)
            elif what == "file":
                m.save(path) if rng.random() < 0.5 else m.load(path)
            if flags and what in ("update", "write", "hold", "file"):
                ready -= before

    return run


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_order_is_as_in_torch(seed: int, mode: str, backend: str, tmp_path: Path) -> None:
    run = any_order(seed, mode == "clear")
    check(Nnl(nn.Context([backend]), mode), run, tmp_path, 2e-3, 2e-4)


@pytest.mark.parametrize("seed", range(8))
def test_on_numpy_a_static_graph_gives_the_bits_of_a_dynamic_one(seed: int, tmp_path: Path) -> None:
    run = any_order(seed, False)
    a, b = (
        values(Nnl(nn.Context(["numpy:float"]), mode), run, tmp_path)
        for mode in ("keep", "dynamic")
    )
    for got, want in zip(a, b, strict=True):
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_of_one_file_train_and_predict_with_the_same_weights(
    backend: str, tmp_path: Path
) -> None:
    m = Nnl(nn.Context([backend]), "keep")
    t = Torch(list(m.params))

    @nn.compile
    def training() -> nn.Variable:
        loss = m.net("a", leaf(X["a"]))
        m.solvers["net"].zero_grad()
        loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True)
        m.solvers["net"].update()
        return loss

    with m.inside():
        np.testing.assert_allclose(training().d, step(t), rtol=1e-4)
        t.update("net")
        x = leaf(X["v"])
        programs = {"train": training, "predict": ({"y": m.net("running", x)}, {"x": x})}
        nn.save_program(tmp_path / "a.nnlp", programs=programs)
        found = nn.load_program(tmp_path / "a.nnlp")
        for k in range(6):
            (loss,) = found.run("train").values()
            (y,) = found.run("predict", x=X["v"]).values()
            np.testing.assert_allclose(loss, step(t), rtol=1e-3)
            t.update("net")
            np.testing.assert_allclose(y, t.forward("running"), rtol=1e-3)
            for name in (TILED, PLAIN):
                w = next(v for key, v in found.arrays.items() if key.endswith(name))
                if k % 2:
                    w.data *= 0.5
                    t.multiply(name, 0.5)
                np.testing.assert_allclose(w.data, t.weight(name), rtol=1e-3, atol=1e-5)
