# SPDX-License-Identifier: Apache-2.0
"""Every collective against numpy, on every back end and number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.communicators.ranks import run

EVERY = """
import functools
import ml_dtypes

@functools.cache
def data(of, shape, dtype):
    "What rank `of` contributes; every rank can compute it."
    if shape == BIG:
        return np.resize(np.arange(of + 7), BIG).astype(dtype)
    rng = np.random.default_rng([of, *shape])
    a = rng.integers(0, 50, shape) if np.dtype(dtype).kind in "iu" else rng.normal(size=shape)
    return a.astype(dtype)

def array(shape, dtype="float32", of=rank):
    return nn.NdArray.from_numpy_array(data(of, shape, dtype))

BIG = (1_100_001,)  # does not fit into the staging area at once
SHAPES = [(5,), (3, 4, 7), (), (0, 2), (70001,)]
TYPES = ["float32", "float64", "float16", ml_dtypes.bfloat16, "int32", "int64", "uint8", "int8"]

def close(got, want, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        np.testing.assert_array_equal(got, want)
        return
    # one rounding of a sum that was taken in float32 or wider
    eps = {2: 2.0**-10 if dtype == np.float16 else 2.0**-7, 4: 1e-6, 8: 1e-14}[dtype.itemsize]
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=eps, atol=eps)

def total(shape, dtype, ranks=range(size)):
    wide = "int64" if np.dtype(dtype).kind in "iu" else "float64"
    whole = sum(data(k, shape, dtype).astype(wide) for k in ranks)
    return whole.astype(dtype) if np.dtype(dtype).kind in "iu" else whole

# all_reduce: all types in one list, in place or packed, with and without division
for inplace in (False, True):
    nds = [array(s, t) for t in TYPES for s in SHAPES]
    comm.all_reduce(nds, inplace=inplace)
    for nd, (t, s) in zip(nds, [(t, s) for t in TYPES for s in SHAPES]):
        assert nd.dtype == np.dtype(t).type
        close(nd.data, total(s, t), t)
for t in TYPES[:4]:
    nd = array((70001,), t)
    comm.all_reduce(nd, division=True)
    close(nd.data, total((70001,), t) / size, t)

# a sum of 16-bit numbers is rounded once: in float16, 2048 + 1 = 2048
nd = nn.NdArray.from_numpy_array(np.full(3, 2048 if rank == 0 else 1, np.float16))
comm.all_reduce(nd)
assert (nd.data == np.float16(2048 + size - 1)).all()

# more than one round of staging, and the same bits on every rank
big = array(BIG)
comm.all_reduce([big, array((3,))])
np.testing.assert_array_equal(big.data, total(BIG, "float32"))
nds = [array((70001,)), array((3,))]
comm.all_reduce(nds)
every = [nn.NdArray(70001) for _ in range(size)]
comm.all_gather(nds[0], every)
assert all((e.data == nds[0].data).all() for e in every)

# what is lazily zero everywhere stays so, what is so somewhere does not
zeros = [nn.NdArray(4), nn.NdArray(4)]
if rank == 0:
    zeros[1].data = 3
comm.all_reduce(zeros)
assert zeros[0].zeroing and (zeros[1].data == 3).all()

for t in ("float32", "int64", ml_dtypes.bfloat16):
    for shape in ((2, 3), BIG) if t == "float32" else ((2, 3),):
        last = size - 1
        nd = array(shape, t)
        comm.reduce(nd, dst=last)
        close(nd.data, total(shape, t) if rank == last else data(rank, shape, t), t)
        nds = [array(shape, t), array((4,), t)]
        comm.bcast(nds, src=last)
        assert (nds[0].data == data(last, shape, t)).all()
        assert (nds[1].data == data(last, (4,), t)).all()
        outs = [nn.NdArray.from_numpy_array(np.zeros(shape, t)) for _ in range(size)]
        comm.all_gather(array(shape, t), outs)
        for k in range(size):
            assert (outs[k].data == data(k, shape, t)).all()
        ins = [nn.NdArray.from_numpy_array(data(rank, shape, t) + np.asarray(k, t))
               for k in range(size)]
        out = nn.NdArray.from_numpy_array(np.zeros(shape, t))
        comm.reduce_scatter(ins, out)
        want = total(shape, t) + float(rank) * size
        close(out.data, want, t)
nd = array((2, 3))
comm.reduce(nd, dst=0, division=True)
close(nd.data, total((2, 3), "float32") / size if rank == 0 else data(rank, (2, 3), "float32"),
      "float32")
ins = [array((2, 3)) for _ in range(size)]
comm.reduce_scatter(ins, nd, division=True)
close(nd.data, total((2, 3), "float32") / size, "float32")
comm.barrier()

# groups
even = list(range(0, size, 2))
assert comm.new_group(("even", even)) == "even"
assert comm.find_group("even") == even and comm.find_group("odd") == []
assert comm.list_groups() == {"world": list(range(size)), "even": even}
nd = array((9,))
if rank in even:
    comm.all_reduce(nd, division=True, group="even")
    close(nd.data, total((9,), "float32", even) / len(even), "float32")
    comm.bcast(nd, src=even[-1], group="even")
else:
    try:
        comm.all_reduce(nd, group="even")
    except ValueError as e:
        assert f"all_reduce: rank {rank} is not in group 'even', which has the ranks" in str(e)
    else:
        raise AssertionError("a rank outside of the group took part")
try:
    comm.new_group("even", [0])
except ValueError as e:
    assert "new_group: name 'even' is taken by" in str(e)

# the registered parameters
w = nn.Variable((3,), need_grad=True)
w.g = rank
comm.add_context_and_parameters((comm.ctx, {"w": w}))
comm.allreduce(division=True)
assert (w.g == (size - 1) / 2).all()
comm.remove_context_parameters((comm.ctx, ["w"]))

# gradients in a flat buffer: a callback without a graph reduces at the end
grads = [array((70001,)), array((3, 4, 7)), array((5,), "float64"), nn.NdArray(6), array((2, 3))]
for again in range(2):
    comm.all_reduce_callback(grads, 50, division=True, scale_grad=0.5).finish()
    for nd, t in zip(grads, ["float32", "float32", "float64", "float32", "float32"]):
        if nd is grads[3]:
            assert nd.zeroing
            continue
        close(nd.data, total(nd.shape, t) / size / 2, t)
        nd.data = data(rank, nd.shape, t)
assert comm.size == size and 0 <= comm.local_rank < size
print(f"passed on {comm.backend}.")
"""

QUICK = [(2, "shared"), (3, "mpi")]
LONG = [(n, b) for b in ("shared", "mpi") for n in (1, 2, 3, 4) if (n, b) not in QUICK]


@pytest.mark.parametrize(
    ("n", "backend"), [*QUICK, *(pytest.param(*x, marks=pytest.mark.long) for x in LONG)]
)
def test_every_collective_gives_what_numpy_gives(tmp_path: Path, n: int, backend: str) -> None:
    out = run(tmp_path, n, EVERY, NNL_COMMUNICATOR=backend)
    assert out.count("passed") == n and f"on {backend}." in out


def test_ranks_of_one_node_share_memory_unless_told_otherwise(tmp_path: Path) -> None:
    assert run(tmp_path, 2, "if rank == 0: print(comm.backend)") == "shared\n"


COLUMNS = """
ref = np.arange(12, dtype=np.float32).reshape(3, 4)
def column():
    whole = ref + 100 * rank  # of another library, say: what it holds must be written
    nd = nn.NdArray((3, 2))
    nd.write("host", whole[:, 1:3])
    return whole, nd
total = (size * ref + 100 * sum(range(size)))[:, 1:3]
calls = {
    "all_reduce": lambda nd: comm.all_reduce(nd),
    "one by one": lambda nd: comm.all_reduce([nd, nn.NdArray(3)], inplace=True),
    "callback": lambda nd: comm.all_reduce_callback(nd, 4).finish(),
    "reduce_scatter": lambda nd: comm.reduce_scatter([column()[1] for _ in range(size)], nd),
    "bcast": lambda nd: comm.bcast(nd, src=1),
    "all_gather": lambda nd: comm.all_gather(
        column()[1], [nn.NdArray((3, 2)), nd, *(nn.NdArray((3, 2)) for _ in range(size - 2))]),
}
for name, call in calls.items():
    whole, nd = column()
    call(nd)
    want = ref[:, 1:3] + 100 if name in ("bcast", "all_gather") else total
    assert (whole[:, 1:3] == want).all() and (nd.data == want).all(), (name, whole, nd.data)
    assert (whole[:, 0] == ref[:, 0] + 100 * rank).all(), name
"""


@pytest.mark.parametrize("backend", ["shared", pytest.param("mpi", marks=pytest.mark.long)])
def test_columns_of_larger_arrays_are_written_where_they_lie(tmp_path: Path, backend: str) -> None:
    run(tmp_path, 2, COLUMNS, NNL_COMMUNICATOR=backend)
