# SPDX-License-Identifier: Apache-2.0
"""backward() tells callbacks about each gradient as soon as no step of the plan needs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.ext.native import library
from tests.native.random_graphs import random_graph

MODES = {
    "static": ({}, {}),
    "cleared": ({"clear_no_need_grad": True}, {"clear_buffer": True}),
    "dynamic": (None, {}),
    "dynamic, cleared": (None, {"clear_buffer": True}),
}


class Recorder:
    """A callback that takes each gradient, and then spoils it: nobody may read it any more."""

    def __init__(self, with_homes: bool) -> None:
        self.with_homes = with_homes
        self.homes: dict[int, Any] = {}
        self.announced: list[Any] = []
        self.taken: dict[int, np.ndarray] = {}
        self.done = False

    def begin(self, order: Any) -> None:
        self.announced = [nd for nd, _ in order]
        self.taken = {}
        if self.with_homes and not self.homes:
            self.homes = {id(nd): np.zeros(s.shape, s.dtype) for nd, s in order[::2]}

    def home(self, nd: Any, spec: Any) -> Any:
        home = self.homes.get(id(nd))
        return home if home is not None and home.dtype == spec.dtype else None

    def ready(self, nd: Any) -> None:
        assert id(nd) not in self.taken
        self.taken[id(nd)] = nd.data.copy()
        if np.issubdtype(nd.data.dtype, np.floating):
            nd.data[...] = np.nan

    def finish(self) -> None:
        self.done = True

    def record(self) -> None:
        raise AssertionError("nothing is compiled here")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", [0, *(pytest.param(i, marks=pytest.mark.long) for i in (20, 40))])
def test_a_gradient_that_was_reported_is_complete_and_not_read_again(first: int, mode: str) -> None:
    forward, backward = MODES[mode]
    for seed in range(first, first + 20):
        graph = random_graph(seed)
        want = gradients(graph, forward, backward, None)
        for homes in (False, True):
            got = gradients(graph, forward, backward, Recorder(homes))
            for a, b in zip(want, got, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, homes {homes}")


def gradients(graph: Any, forward: Any, backward: Any, recorder: Recorder | None) -> list[Any]:
    nn.seed(1)  # some graphs have random functions
    leaves = graph.variables()
    out = []
    loss = None if forward is None else graph.loss(graph.build(leaves))
    for _ in range(2):  # the second time the plan is bound to the homes
        if forward is None:
            with nn.auto_forward():
                loss = graph.loss(graph.build(leaves))
        else:
            loss.forward(**forward)
        if not loss.need_grad:
            return []
        loss.backward(**backward, communicator_callbacks=recorder)
        if recorder is not None:
            assert recorder.done
            if forward is not None:
                assert set(map(id, recorder.announced)) == set(recorder.taken)
            for v in leaves:
                if id(v.grad) in recorder.taken:
                    v.g[...] = recorder.taken[id(v.grad)]
        out += [v.g.copy() for v in leaves if v.need_grad]
        for k, v in enumerate(leaves):
            if k % 2 and v.need_grad:
                v.grad.zero()  # the others accumulate
    return out


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_the_last_layers_are_reported_before_the_first_are_computed(
    dynamic: bool,
) -> None:
    if library() is None and not dynamic:
        pytest.skip("the native engine is not built")
    nn.clear_parameters()
    x = nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=(4, 8)))
    h = x
    with nn.auto_forward(dynamic):
        for i in range(4):
            h = F.tanh(PF.affine(h, 8, name=f"layer{i}"))
        loss = F.mean(h**2)
    grads = {id(p.grad): name for name, p in nn.get_parameters().items()}
    first = nn.get_parameters()["layer0/affine/W"].grad
    seen: list[tuple[str, bool]] = []

    class Watcher(Recorder):
        def ready(self, nd: Any) -> None:
            seen.append((grads[id(nd)], first.zeroing))

    for p in nn.get_parameters().values():
        p.grad.zero()
    if not dynamic:
        loss.forward(clear_no_need_grad=True)
    loss.backward(clear_buffer=True, communicator_callbacks=[Watcher(False)])
    nn.clear_parameters()
    assert [name[:6] for name, _ in seen] == [f"layer{i}" for i in (3, 3, 2, 2, 1, 1, 0, 0)]
    assert all(not_there_yet for _, not_there_yet in seen[:6])


@pytest.mark.skipif(library() is None, reason="the native engine is not built")
def test_gradients_of_convolutions_are_written_where_callbacks_want_them() -> None:
    x = nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=(2, 16, 6, 6)))
    loss = F.mean(PF.convolution(F.tanh(PF.convolution(x, 32, (3, 3), name="c1")), 16, (3, 3)))
    grad = nn.get_parameters()["c1/conv/W"].grad

    class Taker(Recorder):
        def ready(self, nd: Any) -> None:
            self.taken[id(nd)] = nd

    taker, values = Taker(True), []
    for _ in range(3):  # tiled at first, as nothing was known of callbacks
        for p in nn.get_parameters().values():
            p.grad.zero()
        loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True, communicator_callbacks=taker)
        buffers = {id(nd): nd.bufs["host"] for nd in taker.taken.values() if "host" in nd.bufs}
        values.append(grad.data.copy())
    assert set(taker.homes) <= set(buffers)
    assert all(buffers[i] is home for i, home in taker.homes.items())
    np.testing.assert_allclose(values[1], values[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(values[1], values[2])


def test_backward_wants_callbacks_of_communicators() -> None:
    x = nn.Variable((2,), need_grad=True)
    y = F.sum(x)
    y.forward()
    with pytest.raises(
        TypeError,
        match=r"communicator_callbacks\[0\] is int, wanted what .* all_reduce_callback returns",
    ):
        y.backward(communicator_callbacks=3)
    assert x.grad.zeroing


def test_a_leaf_with_several_edges_is_reported_once_and_with_all_its_parts() -> None:
    w = nn.Variable.from_numpy_array(np.arange(3.0), need_grad=True)
    again, unused = w.get_unlinked_variable(), nn.Variable((3,), need_grad=True)
    recorder = Recorder(False)
    with nn.auto_forward():
        loss = F.sum(F.exp(w) * w + F.tanh(again)) + F.sum(F.where(unused, w, w))
    want_loss = float(loss.d)
    loss.backward(communicator_callbacks=recorder)
    assert np.isfinite(want_loss) and recorder.done
    x = np.arange(3.0)
    want = np.exp(x) * (x + 1) + 1 - np.tanh(x) ** 2 + 1
    np.testing.assert_allclose(recorder.taken[id(w.grad)], want, rtol=1e-5)


def test_in_another_type_all_gradients_are_found_in_the_end() -> None:
    w = nn.Variable.from_numpy_array(np.arange(3.0), need_grad=True)
    recorder = Recorder(False)
    for reported in (False, True):
        with nn.context_scope(nn.Context(["cpu:double"])), nn.auto_forward():
            w.grad.zero()
            F.sum(F.exp(w)).backward(communicator_callbacks=recorder)
        assert (id(w.grad) in recorder.taken) == reported
    assert recorder.taken[id(w.grad)].dtype == np.float64
