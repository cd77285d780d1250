# SPDX-License-Identifier: Apache-2.0
"""Programs that run at any size: equal, bit for bit, to those that are recorded at that size."""

import os
import re
from dataclasses import replace

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.core.arrays.spec import ShapeError
from nnl.ext import native
from nnl.ext.library import PROGRAM
from nnl.graph.program.program import Program
from nnl.graph.program.sizes import Dim, Solver, Unexplained, evaluate, wider, witnesses
from tests.graph.open_networks import Network, array
from tests.graph.saved import check, normal


def closed(net, inputs, path):
    """What a program gives that was recorded at the sizes of these inputs."""
    variables = {k: nn.Variable(v.shape) for k, v in inputs.items()}
    nn.save_program(path, net(**variables), variables)
    return nn.load_program(path).run(**inputs)


def check_sizes(net, open, shapes, tmp_path, ranges=None):
    nn.clear_parameters()
    inputs = {k: nn.Variable(s) for k, s in shapes[0].items()}
    nn.save_program(tmp_path / "open.nnlp", net, inputs, open=open, ranges=ranges)
    program = nn.load_program(tmp_path / "open.nnlp")
    for n, at in enumerate(shapes):
        values = {k: normal(*s, seed=n) for k, s in at.items()}
        try:
            want = closed(net, values, tmp_path / "closed.nnlp")
        except ShapeError:  # too small for a window: the program does not take it either
            with pytest.raises(ValueError, match="does not take the sizes"):
                program.run(**values)
            continue
        check(program.run(**values), want)
    return program


# Many more by hand: NNL_OPEN_PROGRAMS=10000 pytest tests/graph/test_open_programs.py -k random
@pytest.mark.parametrize(
    "block", [0, 1, *[pytest.param(n, marks=pytest.mark.long) for n in range(2, 8)]]
)
def test_random_networks_at_random_sizes(block, tmp_path):
    count = int(os.environ.get("NNL_OPEN_PROGRAMS", 80)) // 8
    for seed in range(block * count, (block + 1) * count):
        net, rng = Network(seed), np.random.default_rng(seed)
        shapes = [{"x": net.shape(rng)} for _ in range(4)]
        try:
            check_sizes(net, {"x": net.axes}, shapes, tmp_path)
        except Exception as e:
            e.add_note(f"seed {seed}: {[f.__name__ for f, _ in net.layers]}")
            raise


def small(x):
    """Pictures of one pixel at some sizes: their order in memory is chosen all the same."""
    for name in ("a", "b", "c"):
        x = PF.convolution(
            F.max_pooling(x, (2, 2), pad=(1, 1)), 4, (1, 1), stride=(2, 2), name=name
        )
    return x


def means(x):
    y = F.tanh(x)
    return {"y": y, "mean": F.mean(y, axis=1)}  # of few elements, which is a step of its own


def none(x):
    return F.mean(F.tanh(x[:, : x.shape[1] // 8]))


def masked_attention(x):
    scores = F.batch_matmul(x, x, transpose_b=True) * 0.3
    mask = F.reshape(F.mean(x, axis=2), (x.shape[0], 1, x.shape[1]))
    return F.batch_matmul(F.softmax(scores + mask), x)


@pytest.mark.parametrize(
    "net,axes,shapes,op",
    [
        (small, ("n", None, "h", "w"), [(3, 3, h, 11) for h in (15, 9, 40)], "to_layout"),
        (means, ("n", "t", None), [(3, t, 8) for t in (1, 2, 7, 8, 9, 60)], PROGRAM),
        (none, ("n", "t"), [(3, 9), (3, 99)], PROGRAM),
        (masked_attention, ("n", "t", None), [(2, t, 8) for t in (4, 31, 32, 90)], "attention"),
    ],
)
def test_what_passes_decide_by_sizes_is_decided_at_every_size(
    net, axes, shapes, op, tmp_path, monkeypatch
):
    if native.library() is not None:
        traits = replace(native.TRAITS, least_attention_bytes=2 * 32 * 32 * 4)
        monkeypatch.setattr(native.library(), "traits", traits)
    program = check_sizes(net, {"x": axes}, [{"x": s} for s in shapes], tmp_path)
    assert native.library() is None or op in [s.op for s in program["main"].steps]


def test_sizes_are_said_in_their_names(tmp_path):
    def net(x):
        h = PF.convolution(x, 4, (3, 3), stride=(2, 2), name="conv")
        b, c, height, width = h.shape
        return F.reshape(h, (b, c, height * width))

    x = nn.Variable((1, 3, 32, 32))
    open = {"x": ("batch", None, "height", "width")}
    ranges = {"height": (8, 64, 8)}
    nn.save_program(tmp_path / "a.nnlp", net, {"x": x}, open=open, ranges=ranges)
    text = nn.load_program(tmp_path / "a.nnlp").text()
    assert "height: any size, at least 8 and at most 64, a multiple of 8" in text
    assert "x:f32[batch, 3, height, width] input" in text
    (expression,) = re.findall(r"shape=\(batch,4,(.*?)\)  #", text)
    for height, width in ((8, 9), (64, 30), (32, 3)):
        said = eval(expression, {"height": height, "width": width})
        assert said == ((height - 3) // 2 + 1) * ((width - 3) // 2 + 1)


def test_axes_with_one_name_are_of_one_size(tmp_path):
    program = check_sizes(
        lambda a, b: F.sum(a * b, axis=1),
        {"a": ("n", None), "b": ("n", None)},
        [{"a": (n, 3), "b": (n, 3)} for n in (2, 5, 1)],
        tmp_path,
    )
    with pytest.raises(ValueError, match=r"main: b has .* \(3, 3\): n is 3, and 2 in another"):
        program.run(a=normal(2, 3), b=normal(3, 3))


@pytest.mark.parametrize(
    "shape,text",
    [
        ((2, 3, 40), r"x has the shape \(2, 3, 40\), wanted \(batch, 3, height, width\)"),
        ((2, 4, 32, 32), r"x has the shape \(2, 4, 32, 32\), wanted \(batch, 3, height, width\)"),
        ((2, 3, 36, 32), "axis 2: height is 36, wanted at least 8, a multiple of 8"),
        ((2, 3, 0, 32), "axis 2: height is 0, wanted at least 8, a multiple of 8"),
        ((2, 3, 32, 99), "axis 3: width is 99, wanted at least 1 and at most 64"),
    ],
)
def test_sizes_out_of_range_are_refused(shape, text, tmp_path):
    x = nn.Variable((2, 3, 32, 32))
    nn.save_program(
        tmp_path / "a.nnlp", lambda x: x * 2, {"x": x},
        open={"x": ("batch", None, "height", "width")},
        ranges={"height": (8, None, 8), "width": (1, 64)},
    )  # fmt: skip
    with pytest.raises(ValueError, match=f"a.nnlp: main: .*{text}"):
        nn.load_program(tmp_path / "a.nnlp").run(x=normal(*shape))


def test_a_size_that_a_function_does_not_take_names_it(tmp_path):
    def net(x):
        return PF.convolution(x, 2, (5, 5), name="conv")

    x = nn.Variable((1, 3, 32, 32))
    nn.save_program(tmp_path / "a.nnlp", net, {"x": x}, open={"x": (None, None, "h", "w")})
    with pytest.raises(ValueError, match="convolution in conv .* does not take the sizes h=4, w=9"):
        nn.load_program(tmp_path / "a.nnlp").run(x=normal(1, 3, 4, 9))


def chosen(x):
    return F.tanh(x) if x.shape[0] % 2 else F.relu(x)


def longer(x):
    for _ in range(x.shape[0]):
        x = x + 1
    return x


def squared(x):
    return F.reshape(F.broadcast(F.reshape(F.sum(x), (1,)), (x.shape[0] ** 4 + 3,)), (-1, 1))


def chunked(x):
    return x * 2 if x.shape[0] < 120 else F.concatenate(x[:60] * 2, x[60:] * 2, axis=0)


def table(x):
    return x + array(np.sin(np.arange(x.shape[0])).reshape(-1, 1))


@pytest.mark.parametrize(
    "net,text",
    [
        (
            chosen,
            r"steps differ between sizes at n=.*(tanh|relu).* and .*: close the size that",
        ),
        (
            chunked,
            r"steps differ between sizes at n=.*: mul_scalar .* and slice .*: close the size",
        ),
        (longer, r"only there at some sizes at n=.* or write it with nn.while_loop"),
        (squared, r"broadcast in .*test_open_programs.py:\d+\): shape is .*: no expression of the"),
        (table, r"x1 is an array of the shapes \(.*that depends on open sizes"),
    ],
)
def test_what_no_expression_says_is_named(net, text, tmp_path):
    x = nn.Variable((4, 3))
    with pytest.raises(ValueError, match=text):
        nn.save_program(tmp_path / "a.nnlp", net, {"x": x}, open={"x": ("n", None)})
    assert not (tmp_path / "a.nnlp").exists()


@pytest.mark.parametrize(
    "open,ranges,text",
    [
        ({"z": ("n",)}, {}, r"open: there is no input 'z' among \['x'\]"),
        ({"x": ("n",)}, {}, r"open: x has the shape \(4, 3\), wanted a name or None for each axis"),
        ({"x": ("a b", None)}, {}, "open: 'a b' is no name of a size, wanted an identifier"),
        ({"x": ("n", 4)}, {}, r"open: x has the shape \(4, 3\), \('n', 4\) fixes 4"),
        ({"x": ("n", None)}, {"m": (1,)}, r"ranges: there is no open size 'm' among \['n'\]"),
        ({"x": ("n", None)}, {"n": (8, 4)}, r"ranges: n has \(8, 4\), wanted \(least, greatest or"),
    ],
)
def test_wrong_names_and_ranges(open, ranges, text, tmp_path):
    x = nn.Variable((4, 3))
    with pytest.raises(ValueError, match=text):
        nn.save_program(tmp_path / "a.nnlp", lambda x: x * 2, {"x": x}, open=open, ranges=ranges)


def test_what_happens_at_large_sizes_alone_is_seen(tmp_path):
    """A bound that no witness reaches: sizes that only confirm do, as far as the range goes."""
    program = check_sizes(
        lambda x: x[:, :100] * (1.0 / min(x.shape[1], 100)), {"x": ("n", "t")},
        [{"x": (2, t)} for t in (7, 99, 100, 101, 400)], tmp_path,
    )  # fmt: skip
    assert "stop=(n,min(t, 100))" in program.text()
    check_sizes(
        lambda x: F.pad(x, (0, 0, 0, -x.shape[1] % 256)), {"x": (None, "n")},
        [{"x": (2, n)} for n in (16, 256, 257, 1000)], tmp_path,
    )  # fmt: skip
    x = nn.Variable((4, 3))
    nn.save_program(
        tmp_path / "a.nnlp", chunked, {"x": x}, open={"x": ("n", None)}, ranges={"n": (1, 119)}
    )
    assert nn.load_program(tmp_path / "a.nnlp").run(x=normal(119, 3))["y"].shape == (119, 3)


@pytest.mark.parametrize("bounds", [(1, 1), (1, 2), (2, 2), (2, 3)])
def test_a_range_of_one_or_two_sizes_is_all_of_it(bounds, tmp_path):
    check_sizes(
        lambda x: F.reshape(F.concatenate(x, F.mean(x, 0, keepdims=True), axis=0), (-1,)),
        {"x": ("n", None)}, [{"x": (n, 3)} for n in reversed(range(bounds[0], bounds[1] + 1))],
        tmp_path, ranges={"n": bounds},
    )  # fmt: skip


def test_the_rounds_of_a_loop_may_be_an_open_size(tmp_path):
    """As many as there are rows, or fewer where values say so, and one row of each."""

    def net(x):
        h, rows = nn.while_loop(
            lambda h: F.less_scalar(F.sum(h), 6), lambda h: (h + 1, h * h), F.mean(x, axis=0),
            max_trips=x.shape[0],
        )  # fmt: skip
        return {"h": h, "rows": rows}

    program = check_sizes(net, {"x": ("n", None)}, [{"x": (n, 3)} for n in (4, 1, 9)], tmp_path)
    assert "rows=n" in program.text()
    found = program.run(x=np.zeros((9, 3)))
    assert found["h"].tolist() == [2, 2, 2]  # 0 + 3 < 6, and 6 is not
    assert found["rows"].tolist() == [[0] * 3, [1] * 3, *[[0] * 3] * 7]


def test_open_sizes_want_a_function(tmp_path):
    x = nn.Variable((4, 3))
    with pytest.raises(TypeError, match="outputs is .*, wanted with open sizes a function that"):
        nn.save_program(tmp_path / "a.nnlp", x * 2, {"x": x}, open={"x": ("n", None)})


def test_what_sizes_are_a_multiple_of_is_found_out(tmp_path):
    def net(x):
        y = F.max_pooling(F.max_pooling(x, (2, 2)), (2, 2))
        return x + F.interpolate(y, scale=(4, 4), mode="nearest")

    program = check_sizes(
        net, {"x": ("n", None, "h", None)},
        [{"x": (1, 2, h, 16)} for h in (16, 32, 8)], tmp_path,
    )  # fmt: skip
    dims = program["main"].dims
    assert (dims["n"].multiple, dims["h"].multiple) == (1, 4)


@pytest.mark.parametrize(
    "table",
    [
        lambda n, m: np.arange(n)[:, None] * m + np.arange(m),  # places in rows that follow another
        lambda n, m: np.array([n, m, n * m]),
        lambda n, m: np.full((n, 1), m // 2) + np.arange(3) * n,
        lambda n, m: np.arange(m) % 1 + n,
    ],
)
def test_arrays_of_numbers_that_sizes_give_are_computed(table, tmp_path):
    check_sizes(
        lambda x: {"t": array(table(*x.shape)) * 1, "y": x * 2}, {"x": ("n", "m")},
        [{"x": s} for s in ((2, 5), (1, 1), (7, 3), (1, 40))], tmp_path,
    )  # fmt: skip


def test_data_and_back(tmp_path):
    x = nn.Variable((4, 3))
    nn.save_program(tmp_path / "a.nnlp", lambda x: x[1:] * 2, {"x": x}, open={"x": ("n", None)})
    data = nn.load_program(tmp_path / "a.nnlp")["main"].to_dict()
    assert data["dims"] == {"n": [4, 1, None, 1]}
    again = Program.from_dict(data)
    assert again.to_dict() == data
    assert again.at({"n": 7}).to_dict() != data and not again.at({"n": 7}).dims
    with pytest.raises(ValueError, match=r"sizes of \['m'\] are given, wanted \['n'\]"):
        again.at({"m": 7})


def test_closed_programs_are_files_that_older_versions_read(tmp_path):
    x = nn.Variable((4, 3))
    nn.save_program(tmp_path / "a.nnlp", x * 2, {"x": x})
    assert b'"version":"1"' in (tmp_path / "a.nnlp").read_bytes().replace(b" ", b"")
    nn.save_program(tmp_path / "a.nnlp", lambda x: x * 2, {"x": x}, open={"x": ("n", None)})
    assert b'"version":"2"' in (tmp_path / "a.nnlp").read_bytes().replace(b" ", b"")


def test_plans_of_few_sizes_stay(tmp_path):
    x = nn.Variable((4, 3))
    nn.save_program(tmp_path / "a.nnlp", lambda x: x * 2, {"x": x}, open={"x": ("n", None)})
    program = nn.load_program(tmp_path / "a.nnlp")
    runners = [program.runner("main", {"n": n}) for n in range(1, 9)]
    assert program.runner("main", {"n": 1}) is runners[0]
    program.runner("main", {"n": 99})
    assert program.runner("main", {"n": 1}) is runners[0]  # the latest stay
    assert program.runner("main", {"n": 2}) is not runners[1]


def test_witnesses_are_in_range_and_not_alike():
    dims = {"a": Dim(1), "b": Dim(224, 32, 4096, 32), "c": Dim(1, 1, 3), "d": Dim(16, 16, 16)}
    found = witnesses(dims)
    for sizes in found:
        for name, dim in dims.items():
            dim.check(name, sizes[name])
    assert len({s["b"] for s in found}) == len(found) and {s["d"] for s in found} == {16}
    assert {s["a"] % 8 for s in found} == set(range(8))  # how eighths are rounded shows


@pytest.mark.parametrize(
    "rule",
    [
        lambda a, b, c: 3 * a - 7,
        lambda a, b, c: 2 * a * b,
        lambda a, b, c: a * b * c,
        lambda a, b, c: (5 * a + 3) // 8,
        lambda a, b, c: (a // 2) * ((b + 1) // 2),
        lambda a, b, c: a + b + 2,
        lambda a, b, c: a - b + 100,
        lambda a, b, c: a + b + c + 5,
        lambda a, b, c: min(a, 40),
        lambda a, b, c: max(a, 8),
        lambda a, b, c: max(0, 256 - b),
        lambda a, b, c: -b % 256,
        lambda a, b, c: c % 300,
        lambda a, b, c: 1 + (c - 400) // 160,
        lambda a, b, c: -(-c // 480),
        lambda a, b, c: max(40, 3 * a - 7),
        lambda a, b, c: min(c // 3, 20),
    ],
)
def test_numbers_are_explained_at_sizes_that_were_not_seen(rule):
    check_rule(rule, {"a": Dim(8), "b": Dim(16), "c": Dim(32)}, 200)


@pytest.mark.parametrize(
    "rule",
    [
        lambda a, b, c: max((c + 352) // 256, 4),  # frames of a recording, of at least some
        lambda a, b, c: max(-(-c // 512), 3),
        lambda a, b, c: max(1024, -(-c // 256) * 256),
        lambda a, b, c: min(-(-c // 8), 100),
    ],
)
def test_numbers_that_are_rounded_and_bounded_are_explained(rule):
    check_rule(rule, {"a": Dim(8), "b": Dim(16), "c": Dim(1000, 500)}, 3000)


def check_rule(rule, dims, most):
    sizes = witnesses(dims)
    sizes.extend([*wider(dims, sizes)])
    found = None
    while found is None:  # more sizes are asked for until one expression is left
        solver = Solver({n: tuple([s[n] for s in sizes]) for n in "abc"}, dims)
        try:
            found = solver.size(tuple([rule(**s) for s in sizes]))
        except Unexplained as e:
            assert e.ask and len(sizes) < 40
            sizes.append({**sizes[0], **e.ask})
    least = [dims[n].least for n in "abc"]
    for a, b, c in np.random.default_rng(0).integers(least, most, (100, 3)).tolist():
        names = {"a": a, "b": b, "c": c}
        assert evaluate(found, names, lambda i: ()) == rule(a, b, c), (found, names)


def test_a_size_that_is_divided_by_is_not_zero():
    with pytest.raises(ValueError, match="a size that something is divided by is 0"):
        evaluate(("//", 4, "n"), {"n": 0}, lambda i: ())
