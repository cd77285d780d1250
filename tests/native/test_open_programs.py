# SPDX-License-Identifier: Apache-2.0
"""Open programs run by C++ alone: the same bits as closed ones saved at their sizes."""

import os

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.graph.program.open_program import sizes_of
from nnl.graph.saving.files import write
from tests.graph.open_networks import Network
from tests.graph.saved import normal
from tests.native.kernels import require_library


def check_sizes(net, axes, shapes, folder, order=()):
    """Run an open program in C++ at several shapes: as the closed program that it is there, bit for
    bit, and as one that was recorded there but for rounding, which is another in other orders."""
    lib = require_library()
    nn.clear_parameters()
    inputs = {k: nn.Variable(s) for k, s in shapes[0].items()}
    nn.save_program(folder / "open.nnlp", net, inputs, open=axes)
    found = nn.load_program(folder / "open.nnlp")
    model = lib.Model(str(folder / "open.nnlp"))
    wanted = []
    for n, at in enumerate(shapes):
        variables = {k: nn.Variable(s) for k, s in at.items()}
        values = {k: normal(*s, seed=n) for k, s in at.items()}
        sizes = sizes_of(found["main"], at)
        write(folder / "at.nnlp", {"main": found["main"].at(sizes)}, found.arrays, {})
        closed = lib.Model(str(folder / "at.nnlp"))
        want = closed.run(values)
        nn.save_program(folder / "recorded.nnlp", net(**variables), variables)
        other = lib.Model(str(folder / "recorded.nnlp")).run(values)
        for k, y in want.items():
            y, z = np.frombuffer(y, np.float32), np.frombuffer(other[k], np.float32)
            np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-5 * np.abs(z).max(initial=1))
        wanted.append((values, want["y"], closed.shape("y"), closed.arena_bytes))
    for n in (*range(len(shapes)), *order):
        values, y, shape, _ = wanted[n]
        for k, v in values.items():
            model.resize(k, v.shape)
        assert model.run(values)["y"] == y, (n, shape)
        assert model.shape("y") == shape
    return model, wanted


# Many more by hand: NNL_OPEN_PROGRAMS=10000 pytest tests/native/test_open_programs.py -k random
@pytest.mark.parametrize(
    "block", [0, *[pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3)]]
)
def test_random_networks_at_random_sizes(block, tmp_path):
    count = int(os.environ.get("NNL_OPEN_PROGRAMS", 60)) // 4
    for seed in range(block * count, (block + 1) * count):
        net, rng = Network(seed), np.random.default_rng(seed)
        shapes = [{"x": net.shape(rng)} for _ in range(4)]
        try:
            check_sizes(net, {"x": net.axes}, shapes, tmp_path, (0, 3, 1))
        except Exception as e:
            e.add_note(f"seed {seed}: {[f.__name__ for f, _ in net.layers]}")
            raise


def network(x):
    h = F.relu(PF.convolution(x, 16, (3, 3), pad=(1, 1), name="conv"))
    return PF.affine(F.mean(h, axis=(2, 3)), 10, name="fc")


def test_runners_of_all_sizes_lie_in_one_arena(tmp_path):
    sizes = [(1, 3, 8 * n, 8 * m) for n in range(1, 5) for m in range(1, 4)]  # more than are kept
    model, wanted = check_sizes(
        network, {"x": ("b", None, "h", "w")}, [{"x": s} for s in sizes], tmp_path, (0, 11, 5)
    )
    assert model.arena_bytes == max(bytes for *_, bytes in wanted)


def test_parameters_that_are_loaded_reach_the_runners_of_all_sizes(tmp_path):
    lib = require_library()
    nn.save_program(
        tmp_path / "a.nnlp", network, {"x": nn.Variable((1, 3, 16, 16))},
        open={"x": ("b", None, "h", "w")},
    )  # fmt: skip
    model = lib.Model(str(tmp_path / "a.nnlp"))
    shapes = [(1, 3, 16, 16), (2, 3, 8, 24)]
    before = [model.run({"x": normal(*s)})["y"] for s in shapes]
    for p in nn.get_parameters().values():
        p.d *= 2
    nn.save_parameters(tmp_path / "p.h5")
    model.file.load_parameters(str(tmp_path / "p.h5"))
    fresh = lib.Model(model.file)
    for s, old in zip(shapes, before, strict=True):
        x = {"x": normal(*s)}
        found = model.run(x)["y"]
        assert found != old and found == fresh.run(x)["y"]


def test_states_are_those_of_all_sizes(tmp_path):
    lib = require_library()
    x = nn.Variable((2, 3))
    nn.save_program(
        tmp_path / "a.nnlp", lambda x: F.dropout(x, 0.5), {"x": x}, open={"x": ("n", None)}
    )
    model = lib.Model(str(tmp_path / "a.nnlp"))
    ones = [model.run({"x": np.ones((n, 3), np.float32)})["y"] for n in (40, 50, 40)]
    assert ones[0] != ones[2]  # the stream of random numbers has gone on


def error_of(f, *args):
    with pytest.raises(ValueError) as e:
        f(*args)
    return str(e.value)


def test_errors_name_the_input_and_the_range(tmp_path):
    lib, path = require_library(), tmp_path / "a.nnlp"
    nn.save_program(
        path, lambda x, z: PF.convolution(x, 2, (5, 5), name="conv") * z,
        {"x": nn.Variable((2, 3, 32, 32)), "z": nn.Variable((2, 1, 1, 1))},
        open={"x": ("b", None, "h", "w"), "z": ("b", None, None, None)},
        ranges={"h": (4, None, 4), "w": (1, 64)},
    )  # fmt: skip
    model = lib.Model(str(path))
    for shape, text in [
        ((2, 3, 40), "x is resized to (2, 3, 40), wanted (b, 3, h, w)"),
        ((2, 4, 32, 32), "x is resized to (2, 4, 32, 32), wanted (b, 3, h, w)"),
        (
            (2, 3, 36, 32, 1),
            "x is resized to (2, 3, 36, 32, 1), wanted (b, 3, h, w)",
        ),
        (
            (2, 3, 34, 32),
            "x is resized to (2, 3, 34, 32): axis 2: h is 34, wanted at least 4, a multiple of 4",
        ),
        (
            (2, 3, 4, 99),
            "x is resized to (2, 3, 4, 99): axis 3: w is 99, wanted at least 1 and at most 64",
        ),
        (
            (2**31 - 1, 3, 2**31 - 4, 64),
            "x is resized to (2147483647, 3, 2147483644, 64), which is larger than any memory",
        ),
    ]:
        assert error_of(model.resize, "x", shape) == text
    model.resize("x", (3, 3, 8, 8))
    assert error_of(model.prepare) == (
        "z has the shape (2, 1, 1, 1): b is 2, and 3 in another input or axis: resize both"
    )
    model.resize("z", (3, 1, 1, 1))
    model.resize("x", (3, 3, 4, 8))
    text = error_of(model.prepare)
    assert text.startswith(f"{path}: convolution in conv ")
    assert " does not take the sizes b=3, h=4, w=8: convolution: " in text
    model.resize("x", (3, 3, 8, 8))
    model.prepare()
    assert model.shape("y") == [3, 2, 4, 4]


def test_what_several_threads_set_up_is_the_same(tmp_path):
    lib = require_library()
    before = lib.threads()
    shapes = [{"x": (1, 3, 9, 8)}, {"x": (2, 3, 17, 12)}]

    def net(x):
        for k in range(6):  # of other sizes: each has primitives of its own
            x = F.relu(PF.convolution(x, 8 + k, (3, 3), pad=(1, 1), name=f"conv{k}"))
        return network(x)

    try:
        lib.set_threads(3)
        check_sizes(net, {"x": ("b", None, "h", "w")}, shapes, tmp_path, (0, 1))
    finally:
        lib.set_threads(before)


def test_arrays_of_one_number_are_as_large_as_the_sizes(tmp_path):
    shapes = [{"x": (n, 3)} for n in (2, 7, 4)]
    check_sizes(lambda x: x * F.constant(0.5, x.shape), {"x": ("n", None)}, shapes, tmp_path, (0,))
