# SPDX-License-Identifier: Apache-2.0
"""What a communicator checks, on one rank; buckets, groups and names without other processes."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.communicators as C
import nnl.functions as F
from nnl.communicators.base import Group
from nnl.communicators.callback import CommunicatorBackwardCallback, describe
from nnl.communicators.channel import Channel, rounds
from nnl.communicators.mpi import STARTED_BY, import_mpi, timeout_s
from nnl.communicators.nccl import DTYPES, dtype_name, gpu_of
from nnl.core.arrays.spec import Spec
from nnl.ext_utils import get_extension_context
from nnl.utils import communicator_util


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*STARTED_BY, "NNL_COMMUNICATOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def comm() -> Any:
    comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
    comm.init()
    return comm


def array(*values: float, dtype: Any = np.float32) -> nn.NdArray:
    return nn.NdArray.from_numpy_array(np.array(values, dtype))


# ---- one process ----


def test_one_process_is_a_world_of_its_own(comm: Any) -> None:
    assert (comm.rank, comm.size, comm.local_rank, comm.backend) == (0, 1, 0, "local")
    assert comm.name == "MultiProcessDataParallelCommunicator"
    comm.init()  # again
    x, y = array(1, 2), array(0, 0)
    comm.all_reduce([x], division=True)
    comm.all_reduce(x, inplace=True)
    comm.reduce(x, dst=0)
    comm.bcast(x, src=0)
    comm.reduce_scatter([x], y)
    assert y.data.tolist() == [1, 2]
    y.data = 5
    comm.all_gather(y, [x])
    assert x.data.tolist() == [5, 5]
    comm.barrier()
    assert comm.new_group("me", [0]) == "me" and comm.list_groups() == {"world": [0], "me": [0]}


def test_names_of_nnabla_are_there() -> None:
    import nnl.communicator as old

    for name in ("Comm", "Communicator", "Dist", "MultiProcessDataParalellCommunicator"):
        assert getattr(old, name) is getattr(C, name)
    assert C.MultiProcessCommunicator(nn.get_current_context()).name.startswith("MultiProcess")
    assert nn.communicators is C and nn.communicator is old


def test_importing_communicators_loads_no_mpi() -> None:
    code = "import sys, nnl.communicators; print('mpi4py' in sys.modules, 'cupy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False False\n"


def test_communicator_util_knows_one_process() -> None:
    assert communicator_util.create_communicator(extension_module="cpu") is None
    assert communicator_util.current_communicator() is None
    assert communicator_util.single_or_rankzero()


def test_create_communicator_goes_on_without_one_if_told_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(ValueError, match="ext_name is 'nothing'"):
        communicator_util.create_communicator(extension_module="nothing")
    assert communicator_util.create_communicator(True, "nothing") is None


# ---- errors ----


def test_init_comes_first() -> None:
    comm = C.Dist(nn.get_current_context())
    with pytest.raises(ValueError, match=r"all_reduce: .* not connected, call init\(\) first"):
        comm.all_reduce(array(1))
    with pytest.raises(NotImplementedError, match=r"Communicator: init\(\) is for its subclasses"):
        C.Communicator().init()
    with pytest.raises(TypeError, match="ctx is str, wanted nnl.Context"):
        C.Dist("cpu")


def test_the_back_end_that_is_asked_for_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNL_COMMUNICATOR", "pigeons")
    comm = C.Dist(nn.get_current_context())
    with pytest.raises(
        ValueError, match="init: NNL_COMMUNICATOR is 'pigeons', wanted one of local, shared, mpi"
    ):
        comm.init()
    assert comm.list_groups() == {}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda c, x: c.all_reduce(3), TypeError, "all_reduce: data is int, wanted nnl.NdArray$"),
        (
            lambda c, x: c.all_reduce([x, nn.Variable((2,))]),
            TypeError,
            r"all_reduce: data\[1\] is Variable, wanted nnl.NdArray: use its .data or .grad",
        ),
        (
            lambda c, x: c.bcast(array(1, dtype=bool), 0),
            TypeError,
            r"bcast: data is bool\[1\], wanted integers or floating point",
        ),
        (
            lambda c, x: c.all_reduce(array(1, dtype=np.int32), division=True),
            TypeError,
            r"all_reduce: data is int32\[1\], wanted floating point for division=True",
        ),
        (
            lambda c, x: c.all_reduce(x, group="odd"),
            ValueError,
            r"all_reduce: group is 'odd', known are \['world'\]",
        ),
        (
            lambda c, x: c.bcast(x, src=2),
            ValueError,
            r"bcast: src is 2, wanted one of the ranks \[0\] of group 'world'",
        ),
        (lambda c, x: c.reduce(x, dst=-1), ValueError, "reduce: dst is -1, wanted one of the"),
        (
            lambda c, x: c.all_gather(x, [x, x]),
            ValueError,
            "all_gather: ndarray_list has 2 arrays, wanted one for each of the 1 ranks",
        ),
        (
            lambda c, x: c.reduce_scatter([array(1)], x),
            nn.core.arrays.spec.ShapeError,
            r"reduce_scatter: ndarray_list\[0\] is float32\[1\], but ndarray is float32\[2\]",
        ),
        (
            lambda c, x: c.all_reduce_callback(x, 0),
            ValueError,
            "all_reduce_callback: pack_size is 0, wanted a number of elements >= 1",
        ),
        (
            lambda c, x: c.new_group(("g", [0, 0])),
            ValueError,
            r"new_group: ranks of 'g' are \[0, 0\], wanted different ones of 0..0",
        ),
        (lambda c, x: c.new_group(("g", [1])), ValueError, r"new_group: ranks of 'g' are \[1\]"),
        (
            lambda c, x: c.new_group(("world", [0])),
            ValueError,
            r"new_group: name 'world' is taken by \[0\]",
        ),
        (
            lambda c, x: c.new_group("g"),
            TypeError,
            r"new_group: name_ranks is 'g', wanted \(name, ranks\)",
        ),
        (lambda c, x: c.new_group((1, [0])), TypeError, "new_group: name is int, wanted a str"),
        (lambda c, x: c.allreduce(), ValueError, "allreduce: no parameters, call add_context_and"),
        (
            lambda c, x: c.add_context_and_parameters({"w": x}),
            TypeError,
            r"add_context_and_parameters: ctx_param_dict is dict, wanted \(Context, dict of",
        ),
        (
            lambda c, x: c.add_context_and_parameters((c.ctx, {"w": x})),
            TypeError,
            "add_context_and_parameters: ctx_param_dict: 'w' is NdArray, wanted nnl.Variable",
        ),
        (
            lambda c, x: c.remove_context_parameters((c.ctx, ["w"])),
            ValueError,
            "remove_context_parameters: 'w' is not registered",
        ),
    ],
)
def test_errors_name_call_and_argument(comm: Any, call: Any, error: Any, text: str) -> None:
    x = array(1, 2)
    with pytest.raises(error, match=text):
        call(comm, x)
    assert x.data.tolist() == [1, 2] and comm.list_groups() == {"world": [0]}


def test_a_timeout_is_a_positive_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timeout_s() == 50
    for text in ("0", "-3", "soon", "nan"):
        monkeypatch.setenv("NNL_COMMUNICATOR_TIMEOUT", text)
        with pytest.raises(ValueError, match=f"TIMEOUT is '{text}', wanted a number of seconds"):
            timeout_s()


# ---- nnl.compile ----


def test_only_all_reduce_can_be_compiled(comm: Any) -> None:
    x, w = nn.Variable((2,)), nn.Variable((2,), need_grad=True)
    x.d = 3

    def step(call: str) -> Any:
        @nn.compile
        def f(x: Any) -> Any:
            loss = F.sum(x * w)
            loss.forward()
            loss.backward()
            getattr(comm, call)(w.grad, *([0] if call == "bcast" else []))
            return loss

        return f(x)

    with pytest.raises(
        NotImplementedError, match="bcast: nnl.compile is recording and only all_reduce can be"
    ):
        step("bcast")
    other = array(1)

    @nn.compile
    def f(x: Any) -> Any:
        comm.all_reduce(other)
        return x + 1

    with pytest.raises(NotImplementedError, match=r"data\[0\] float32\[1\] is not a gradient of"):
        f(x)
    w.grad.zero()
    step("all_reduce")
    assert w.g.tolist() == [3, 3]


def test_a_compiled_callback_scales_the_gradients(comm: Any) -> None:
    x, w = nn.Variable((2,)), nn.Variable((2,), need_grad=True)
    x.d = 3

    @nn.compile
    def step(x: Any) -> Any:
        loss = F.sum(x * w)
        w.grad.zero()
        callback = comm.all_reduce_callback(w.grad, 1, division=True, scale_grad=0.5)
        loss.backward(communicator_callbacks=callback)
        return loss

    for _ in range(2):
        step(x)
        assert w.g.tolist() == [1.5, 1.5]


# ---- buckets ----


class Pair(Channel):
    """Another rank that always has the same: sums are twice this rank's."""

    def __init__(self, zero: bool = True) -> None:
        super().__init__((0, 1), 0)
        self.calls: list[str] = []
        self.zero = zero

    def agree(self, call: str, extra: bytes = b"") -> list[bytes]:
        self.calls.append(call)
        return [extra, extra if self.zero else bytes(len(extra))]

    def sum(self, arrays: Any, divisor: int = 1, dst: Any = None) -> None:
        for a in arrays:
            a *= 2 / divisor


def callback(comm: Any, arrays: Any, pack_size: int, **kw: Any) -> tuple[Any, Pair]:
    channel = Pair(kw.pop("zero", True))
    group = Group("pair", (0, 1), channel, channel)
    made = CommunicatorBackwardCallback(
        comm, group, arrays, pack_size, kw.get("division", False), kw.get("scale", 1.0)
    )
    return made, channel


def test_buckets_follow_the_order_of_backward_and_dtypes(comm: Any) -> None:
    a, b, c, d = array(1, 2), array(3), array(4, dtype=np.float64), array(5, 6, 7)
    made, channel = callback(comm, [a, b, c, d], 3)
    made.begin([(x, x.spec) for x in (d, b, a)])  # c is not part of this graph
    assert [[id(x) for x in k.arrays] for k in made.buckets] == [
        [id(d)],
        [id(b), id(a)],
        [id(c)],
    ]
    made.ready(b)
    made.ready(a)
    assert channel.calls == [f"all_reduce_callback(order of {describe(made.specs)})"]
    channel.calls.clear()  # d comes first, on every rank
    made.ready(d)
    made.finish()
    assert [x.data.tolist() for x in (a, b, c, d)] == [[2, 4], [6], [8], [10, 12, 14]]
    assert channel.calls[0] == (
        "all_reduce_callback(bucket 1 of 3: float32[3], division=False) in group 'pair'"
    )
    assert [k.flat.ctypes.data % 64 for k in made.buckets] == [0, 0, 0]


def test_results_lie_in_the_flat_buffer_and_are_not_copied_again(comm: Any) -> None:
    a, b = array(1, 2), array(3)
    made, _ = callback(comm, [a, b, a], 10, division=True, scale=3.0)
    made.finish()
    assert a.data.tolist() == [3, 6] and b.data.tolist() == [9]
    home = made.home(a, a.spec)
    assert a.bufs["host"] is home and np.shares_memory(home, made.buckets[0].flat)
    assert made.home(a, Spec.of((2,), np.float64)) is None
    made.finish()
    assert a.data.tolist() == [9, 18]


def test_a_gradient_that_is_lazily_zero_on_all_ranks_stays_so(comm: Any) -> None:
    a, b = nn.NdArray(2), array(3)
    callback(comm, [a, b], 10)[0].finish()
    assert a.zeroing and b.data.tolist() == [6]
    callback(comm, [a, b], 10, zero=False)[0].finish()
    assert not a.zeroing and a.data.tolist() == [0, 0]


def test_a_new_dtype_gives_a_new_layout(comm: Any) -> None:
    a = array(1, 2)
    made, _ = callback(comm, [a], 10)
    made.finish()
    a.data = np.array([1.5, 2.5])
    made.finish()
    assert a.data.tolist() == [3, 5] and a.data.dtype == np.float64


def test_a_gradient_that_is_added_to_keeps_its_dtype(comm: Any) -> None:
    w = nn.Variable((2,), need_grad=True)
    w.g = np.array([1.0, 2.0])  # float64
    made, channel = callback(comm, [w.grad], 1)
    y = F.sum(w * 3)
    y.forward()
    y.backward(communicator_callbacks=made)
    assert w.g.dtype == np.float64 and w.g.tolist() == [8, 10]
    assert len(channel.calls) == 2  # the order, and one bucket


def test_a_backward_that_failed_leaves_nothing_behind(comm: Any) -> None:
    w = nn.Variable((2,), need_grad=True)
    w.d = 1.5
    made, channel = callback(comm, [w.grad], 1)
    for dynamic in (False, True):
        with nn.auto_forward(dynamic):
            h = w * 1
            y = F.sum(h * h)
        if not dynamic:
            y.forward(clear_buffer=True)
            with pytest.raises(ValueError, match="had been cleared"):
                y.backward(communicator_callbacks=made)
            y.forward()
        w.grad.zero()
        y.backward(communicator_callbacks=made)
        assert w.g.tolist() == [6, 6]
    assert len(channel.calls) == 3  # the order, and the bucket twice


def test_two_callbacks_each_reduce_their_own_gradients(comm: Any) -> None:
    v, w = (nn.Variable((2,), need_grad=True) for _ in range(2))
    one, two = callback(comm, [v.grad], 1)[0], callback(comm, [w.grad], 1)[0]
    y = F.sum(v * 3 + w * 5)
    for _ in range(2):
        y.forward(clear_no_need_grad=True)
        v.grad.zero()
        w.grad.zero()
        y.backward(clear_buffer=True, communicator_callbacks=[one, two])
        assert v.g.tolist() == [6, 6] and w.g.tolist() == [10, 10]


def test_gradients_of_several_backwards_add_up_before_they_are_exchanged(comm: Any) -> None:
    w = nn.Variable((2,), need_grad=True)
    made, _ = callback(comm, [w.grad], 1)
    y = F.sum(w * 3)
    for _ in range(3):
        w.grad.zero()
        for callbacks in (None, None, made):
            y.forward(clear_no_need_grad=True)
            y.backward(clear_buffer=True, communicator_callbacks=callbacks)
        assert w.g.tolist() == [18, 18]


def test_callbacks_are_kept_and_not_too_many(comm: Any) -> None:
    grads = [array(k) for k in range(20)]
    first = comm.all_reduce_callback(grads[0], 5)
    assert comm.all_reduce_callback(grads[0], 5) is first
    assert comm.all_reduce_callback(grads[0], 6) is not first
    for g in grads:
        comm.all_reduce_callback(g, 5)
    assert len(comm._callbacks) == 8


def test_two_lists_have_the_same_description_only_if_they_are_the_same() -> None:
    f, g = Spec.of((2, 3), np.float32), Spec.of((3, 2), np.float32)
    assert describe([f, g]) == "float32[2, 3], float32[3, 2]"
    assert describe([f] * 4) != describe([f, f, f, g])
    assert describe([f] * 4).startswith("4 arrays of 24 elements, ")


def test_rounds_cut_arrays_where_the_room_ends() -> None:
    arrays = [np.arange(n) for n in (3, 0, 5, 2)]
    got = [np.concatenate(pieces).tolist() for pieces in rounds(arrays, 4)]
    assert got == [[0, 1, 2, 0], [1, 2, 3, 4], [0, 1]]
    assert list(rounds([np.arange(0)], 4)) == []


# ---- several devices of one process, and NCCL without a device ----


def test_data_parallel_sums_the_gradients_of_copies() -> None:
    comm = C.DataParallelCommunicator(get_extension_context("cpu"))
    copies = [{"w": nn.Variable((2,), need_grad=True)} for _ in range(3)]
    for k, params in enumerate(copies):
        comm.add_context_and_parameters((get_extension_context("cpu", device_id=str(k)), params))
        params["w"].g = k + 1
    comm.init()
    assert comm.size == 3 and comm.rank == 0
    comm.allreduce(division=True)
    assert [p["w"].g.tolist() for p in copies] == [[2, 2]] * 3
    comm.allreduce()
    assert [p["w"].g.tolist() for p in copies] == [[6, 6]] * 3
    copies[1]["b"] = nn.Variable((1,))
    comm.clear_context_parameters()
    with pytest.raises(ValueError, match="allreduce: no parameters, call add_context_and_par"):
        comm.allreduce()
    for params in copies:
        comm.add_context_and_parameters((comm.ctx, params))
    with pytest.raises(ValueError, match="init: the parameters of context 1 are .* wanted those"):
        comm.init()


def test_nccl_has_a_type_for_every_dtype_that_is_summed() -> None:
    import ml_dtypes

    assert dtype_name(np.dtype(ml_dtypes.bfloat16)) == "NCCL_BFLOAT16"
    assert dtype_name(np.dtype(np.float16)) == "NCCL_FLOAT16"
    assert len(set(DTYPES.values())) == len(DTYPES)
    with pytest.raises(TypeError, match="nccl: dtype is int16, wanted one of int8, uint8, int32"):
        dtype_name(np.dtype(np.int16))


def test_constants_of_nccl_are_those_of_cupy() -> None:
    nccl = pytest.importorskip("cupy.cuda.nccl")
    assert all(hasattr(nccl, name) for name in DTYPES.values())


def test_a_rank_without_a_gpu_of_its_own_is_told_how_many_there_are() -> None:
    ranks = [SimpleNamespace(rank=8 + k, local_rank=k, local_size=3) for k in range(3)]
    assert [gpu_of(r, 3) for r in ranks] == [0, 1, 2]
    with pytest.raises(
        C.CommunicatorError,
        match="init: rank 10 has no GPU of its own: 3 ranks run on this node, which has 2 GPUs; "
        "start at most 2 on it",
    ):
        gpu_of(ranks[2], 2)


def test_a_missing_mpi_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    text = r"need mpi4py and an MPI library .*\(documentation: distributed#back-ends\)$"
    with pytest.raises(ModuleNotFoundError, match=text):
        import_mpi()
