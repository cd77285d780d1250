# SPDX-License-Identifier: Apache-2.0
"""Communicators over NCCL, between processes with an emulated GPU each."""

from __future__ import annotations

import os
import textwrap

import pytest

if "EMULATOR_FOLDER" not in os.environ:
    pytest.skip("not run by tests.cuda.emulator", allow_module_level=True)
from tests.communicators.ranks import finish, run, start
from tests.communicators.test_collectives import EVERY
from tests.communicators.test_failures import SLOW_ONES_LONG, assert_the_job_ends
from tests.communicators.test_training import (
    MODES,
    ON_RANKS,
    SYNC,
    SYNC_ON_RANKS,
    TRAIN,
    assert_same_results,
)

# Before the script: a GPU for each rank, and an order of work that is this rank's own.
BEFORE = """
import os
place = int(os.environ["MPI_LOCALRANKID"])
os.environ["EMULATOR_ORDER"] = os.environ["ORDER"].replace("random", f"random:{7 + place}")
import nnl as nn
from nnl.ext_utils import get_extension_context
nn.set_default_context(get_extension_context("cudnn", device_id=os.environ.get("DEVICE", place)))
"""
LONG = pytest.param(3, "random", marks=pytest.mark.long)


def settings(n, order="late", **more):
    """What tests.communicators.ranks needs to start n ranks with n GPUs."""
    path = os.environ["PYTHONPATH"]  # with the emulator's folder
    known = {"before": BEFORE, "PYTHONPATH": path, "ORDER": order, "EMULATOR_DEVICES": n}
    return {**known, "NNL_COMMUNICATOR_TIMEOUT": 20, **more}


@pytest.mark.parametrize(("n", "order"), [(2, "random"), LONG, (2, "early")])
def test_every_collective_gives_what_numpy_gives(tmp_path, n, order):
    assert run(tmp_path, n, EVERY, **settings(n, order)).count("passed on nccl.") == n


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.long)])
def test_sync_batch_normalization_is_that_of_the_whole_batch(tmp_path, n):
    run(tmp_path, n, SYNC + SYNC_ON_RANKS, **settings(n))


@pytest.mark.parametrize(("n", "order"), [(2, "late"), LONG])
def test_n_processes_give_the_single_process_result(tmp_path, n, order):
    folders = {1: tmp_path / "alone", n: tmp_path / "ranks"}
    for k, folder in folders.items():
        folder.mkdir()
        code = TRAIN + ON_RANKS.format(modes=MODES, folder=folder)
        backend = "nccl" if k > 1 else "local"
        run(tmp_path, k, code, **settings(n, order, NNL_COMMUNICATOR=backend))
    assert_same_results(folders[1], folders[n])


# The statistics are summed by one communicator while another one sums gradients.
TWO_AT_ONCE = """
import nnl.parametric_functions as PF
nn.seed(1)
x = nn.Variable((4, 3, 5))
h = x
for i in range(4):
    h = F.reshape(F.tanh(PF.affine(h, 15, name=f"a{i}")), (4, 3, 5))
    h = PF.sync_batch_normalization(h, comm, name=f"b{i}")
loss = F.mean(h ** 2)
grads = [p.grad for p in nn.get_parameters().values()]
for i in range(20):
    x.d = np.random.default_rng([i, rank]).normal(size=x.shape)
    loss.forward(clear_no_need_grad=True)
    for g in grads:
        g.zero()
    loss.backward(clear_buffer=True, communicator_callbacks=comm.all_reduce_callback(grads, 1))
every = [nn.NdArray(grads[0].shape) for _ in range(size)]
comm.all_gather(grads[0], every)
assert all((e.data == grads[0].data).all() for e in every) and grads[0].data.any()
"""


def test_calls_of_two_communicators_run_in_one_order_on_all_ranks(tmp_path):
    run(tmp_path, 2, TWO_AT_ONCE, **settings(2, "random"))


COMPILED = """
w = nn.Variable.from_numpy_array(np.zeros(8, "f"), need_grad=True)

@nn.compile
def step(x):
    loss = F.sum(F.tanh(x) * w)
    loss.forward()
    w.grad.zero()
    loss.backward()
    comm.all_reduce(w.grad)
    return loss

x = nn.Variable((8,))
for i in range(6):
    x.d = rank + i
    if rank == 1 and i in (3, 4):  # recorded again, on this rank
        w.grad = nn.NdArray.from_numpy_array(np.ones(8, "f"))
    step(x)
    np.testing.assert_allclose(w.g, sum(np.tanh(k + i) for k in range(size)), rtol=1e-5)
calls = comm._groups["world"].main.calls
assert calls == 6, calls
"""


def test_a_compiled_step_agrees_at_each_replay(tmp_path):
    run(tmp_path, 2, COMPILED, **settings(2))


# A gradient that a convolution of the host has left in an order of its own.
FROM_HOST = """
import nnl.parametric_functions as PF
with nn.context_scope(get_extension_context("cpu")):
    x = nn.Variable((2, 16, 6, 6))
    loss = F.mean(PF.convolution(F.tanh(PF.convolution(x, 32, (3, 3), name="a")), 16, (3, 3)) ** 2)
    x.d = np.random.default_rng(0).normal(size=x.shape)
    loss.forward(clear_no_need_grad=True)
    loss.backward(clear_buffer=True)
grads = [p.grad for p in nn.get_parameters().values()]
copies = [nn.NdArray.from_numpy_array(g.data.copy()) for g in grads]
loss.forward(clear_no_need_grad=True)
for g in grads:
    g.zero()
loss.backward(clear_buffer=True)
comm.all_reduce(grads)
comm.all_reduce(copies)
for g, c in zip(grads, copies):
    np.testing.assert_allclose(g.data, c.data, rtol=1e-5, atol=1e-7)
"""


def test_gradients_of_the_host_are_summed_too(tmp_path):
    run(tmp_path, 2, "nn.seed(1)\n" + FROM_HOST, **settings(2))


def test_a_communicator_moves_to_the_gpu_of_its_rank(tmp_path):
    code = """
    x = nn.NdArray.from_numpy_array(np.full(3, rank + 1, "f"))
    comm.all_reduce(x, division=True)
    assert (x.data == 1.5).all() and comm.ctx.device_id == str(rank)
    assert nn.get_current_context().device_id == "0"
    """
    run(tmp_path, 2, code, **settings(2, DEVICE=0))
    code = SYNC + "normalized(comm, slice(0, 4), [4, 4], True, False)"
    _, _, err = finish(start(tmp_path, 2, code, **settings(2, DEVICE=0)))
    assert "an array is on GPU 0, but rank 1 has GPU 1: make the context with device_id=" in err


def test_a_rank_without_a_gpu_ends_the_job(tmp_path):
    code, _, err = finish(start(tmp_path, 3, "", **settings(2, DEVICE=0)))
    assert code != 0
    assert "init: rank 2 has no GPU of its own: 3 ranks run on this node, which has 2 GPUs" in err


def test_what_a_gpu_has_to_do_is_done_though_its_script_ends(tmp_path):
    code = """
    import time
    x = nn.NdArray.from_numpy_array(np.full(3, rank + 1, "f"))
    comm.all_reduce(x)
    if rank == 0:
        time.sleep(1)
        assert (x.data == 3).all()
    """
    run(tmp_path, 2, code, **settings(2))


@pytest.mark.parametrize("case", SLOW_ONES_LONG)
def test_the_job_ends_with_an_error_that_names_rank_and_call(tmp_path, case):
    assert_the_job_ends(tmp_path, case, **settings(2))


RAW = """
from mpi4py import MPI
import cupy
from cupy.cuda import nccl
unique = MPI.COMM_WORLD.bcast(nccl.get_unique_id() if rank == 0 else None)
device = cupy.cuda.Device({device})
device.use()
c = nccl.NcclCommunicator(size, unique, rank)
assert (c.size(), c.rank_id(), c.device_id()) == (size, rank, device.id)
x = cupy.arange(300000, dtype="f") + rank
y = cupy.empty_like(x)
nccl.groupStart()
c.send(x.data.ptr, x.size, nccl.NCCL_FLOAT32, (rank + 1) % size, 0)
c.recv(y.data.ptr, x.size, nccl.NCCL_FLOAT32, (rank - 1) % size, 0)
nccl.groupEnd()
assert (y.get() == np.arange(300000) + (rank - 1) % size).all()
values = np.array([2, 3, 5])[:size]
for name, want in [("PROD", values.prod()), ("MAX", values.max()), ("MIN", values.min())]:
    for dtype in ("float32", "float16", "int64", "uint8"):
        x = cupy.full(7, values[rank], dtype)
        kind = getattr(nccl, "NCCL_" + dtype.upper())
        c.allReduce(x.data.ptr, x.data.ptr, 7, kind, getattr(nccl, "NCCL_" + name), 0)
        assert (x.get() == want).all()
"""


def test_ranks_send_to_each_other_and_reduce_in_every_way(tmp_path):
    run(tmp_path, 3, RAW.format(device="rank"), **settings(3, NNL_COMMUNICATOR="mpi"))


def test_two_ranks_cannot_share_a_gpu(tmp_path):
    more = settings(2, NNL_COMMUNICATOR="mpi")
    code, _, err = finish(start(tmp_path, 2, textwrap.dedent(RAW.format(device=0)), **more))
    assert code != 0 and "NCCL_ERROR_INVALID_USAGE: invalid usage" in err
