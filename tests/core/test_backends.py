# SPDX-License-Identifier: Apache-2.0
"""A second memory space, standing for a device: copies on demand, and what runs there."""

from functools import partial

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.array import NdArray
from nnl.core.settings.context import BACKENDS, SPACES, Backend, Context
from nnl.ext.numpy import bind as numpy_bind


class Box:
    """A buffer that the host cannot read."""

    def __init__(self, array):
        self.array = array

    def fill(self, value):
        self.array.fill(value)

    def astype(self, dtype):
        return Box(self.array.astype(dtype))


class BoxSpace:
    """Counts the copies in each direction."""

    def __init__(self):
        self.copies = {"to": 0, "from": 0}

    def to_host(self, box):
        self.copies["to"] += 1
        return box.array.copy()

    def from_host(self, array):
        self.copies["from"] += 1
        return Box(array.copy())

    def empty(self, shape, dtype):
        return Box(np.empty(shape, dtype))


def unbox(call, *boxes, **kw):
    y = call(*[None if b is None else b.array for b in boxes], **kw)
    return tuple(Box(v) for v in y) if isinstance(y, tuple) else Box(y)


def context(accepts):
    """A context that prefers the box backend, which has the ops that `accepts` says, then numpy."""

    def bind(op, attrs, in_specs, out_specs):
        made = numpy_bind(op, attrs, in_specs, out_specs) if accepts(op) else None
        return None if made is None else (partial(unbox, made[0]), False)

    BACKENDS["box"] = lambda device_id: (Backend("box", "box", bind),)
    return Context(["box:float", "numpy:float"], device_id=str(id(bind)))


@pytest.fixture(autouse=True)
def space():
    SPACES["box"] = BoxSpace()
    yield SPACES["box"]
    del SPACES["box"]
    BACKENDS.pop("box", None)


def test_an_op_that_a_backend_declines_runs_in_the_next_one():
    with nn.context_scope(context(lambda op: op.name == "relu")), nn.auto_forward():
        x = nn.Variable.from_numpy_array(np.array([-1, 2], np.float32))
        y = F.relu(x)
        assert list(y.data.bufs) == ["box"]
        z = F.exp(y)
        assert list(z.data.bufs) == ["host"]
    np.testing.assert_allclose(z.d, np.exp([0, 2]), rtol=1e-6)


def test_copies_are_made_when_a_space_is_read_and_only_once(space):
    nd = NdArray.from_numpy_array(np.arange(3, dtype=np.float32))
    box = nd.read("box")
    assert nd.read("box") is box and space.copies == {"to": 0, "from": 1}
    assert set(nd.bufs) == {"host", "box"}
    nd.read("host")
    assert space.copies == {"to": 0, "from": 1}


def test_writing_in_one_space_makes_the_others_stale(space):
    nd = NdArray.from_numpy_array(np.zeros(3, np.float32))
    nd.read("box")
    nd.data[0] = 5  # .data is writable, so the box is stale from here on
    assert set(nd.bufs) == {"host"}
    assert nd.read("box").array.tolist() == [5, 0, 0]
    nd.write("box", Box(np.ones(3, np.float32)))
    assert nd.data.tolist() == [1, 1, 1] and space.copies["to"] == 1


# Where a value is current: before, an action, after it, and the copies (to the host, from the host)
# that it takes. "box2" is a second device: what the first one has comes there over the host.
TRANSITIONS = [
    ("", "read host", "host", (0, 0)),  # zeros, until something is written
    ("", "read box", "box", (0, 0)),
    ("", "write host", "host", (0, 0)),
    ("", "write box", "box", (0, 0)),
    ("host", "read host", "host", (0, 0)),
    ("host", "read box", "host box", (0, 1)),
    ("host", "write host", "host", (0, 0)),
    ("host", "write box", "box", (0, 0)),
    ("host", "touch box", "box", (0, 1)),  # written in place: the old value is there first
    ("box", "read box", "box", (0, 0)),
    ("box", "read host", "box host", (1, 0)),
    ("box", "write host", "host", (0, 0)),
    ("box", "write box", "box", (0, 0)),
    ("box", "touch host", "host", (1, 0)),
    ("box", "read box2", "box box2", (1, 1)),
    ("box", "write box2", "box2", (0, 0)),
    ("host box", "read host", "host box", (0, 0)),
    ("host box", "read box", "host box", (0, 0)),
    ("host box", "write host", "host", (0, 0)),
    ("host box", "write box", "box", (0, 0)),
    ("host box", "touch host", "host", (0, 0)),
    ("host box", "touch box", "box", (0, 0)),
    ("host box", "read box2", "host box box2", (0, 1)),
]


@pytest.mark.parametrize("before, action, after, copies", TRANSITIONS)
def test_transitions_of_memory(space, monkeypatch, before, action, after, copies):
    monkeypatch.setitem(SPACES, "box2", space)

    def made(where, value):
        array = np.full(2, value, np.float32)
        return array if where == "host" else Box(array)

    nd = NdArray(2)
    for where in before.split():
        if nd.bufs:
            nd.read(where)
        else:
            nd.write(where, made(where, 1))
    assert set(nd.bufs) == set(before.split())
    space.copies = {"to": 0, "from": 0}
    what, where = action.split()
    if what == "write":
        nd.write(where, made(where, 2))
    else:
        getattr(nd, what)(where)
    assert set(nd.bufs) == set(after.split())
    assert (space.copies["to"], space.copies["from"]) == copies
    nd.read(where)  # again: there is nothing to copy
    assert (space.copies["to"], space.copies["from"]) == copies
    assert nd.data.tolist() == [2 if what == "write" else 1 if before else 0] * 2


def test_a_lazy_fill_is_made_in_the_space_that_reads_it(space):
    nd = NdArray(2)
    nd.fill(3)
    assert nd.read("box").array.tolist() == [3, 3] and set(nd.bufs) == {"box"}


def test_without_a_kernel_the_error_names_op_and_backends():
    def none(op, attrs, in_specs, out_specs):
        return None

    BACKENDS["box"] = lambda device_id: (Backend("box", "box", none),)
    with nn.context_scope(Context(["box:float"], device_id="none")), nn.auto_forward():
        with pytest.raises(NotImplementedError, match=r"relu: no kernel for .* in the .*\['box'\]"):
            F.relu(nn.Variable((2,)))
