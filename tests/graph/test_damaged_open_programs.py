# SPDX-License-Identifier: Apache-2.0
"""Files of open programs whose expressions of sizes were changed are refused or seen."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from tests.graph.open_networks import Network
from tests.graph.test_program_files import rewritten


def another_name(program):
    program["values"][0][2]["sizes"][0] = "m"


def stop(size):
    return lambda program: program["steps"][0]["open"]["stop"][0].update(size=size)


def another_shape(program):
    program["values"][0][1] = [5, 3]


@pytest.mark.parametrize(
    "change,text",
    [
        (another_name, "there is no open size 'm'"),
        (stop([99, 0]), "slice .* does not take the sizes n=4: "),
        (stop([1, 7]), "slice .* does not take the sizes n=4: "),
        (stop(["+", [1, 0], 1]), r"slice .*: stop is \(4, 3\), its expressions give \(5, 3\)"),
        (another_shape, r"value 1 is float32\[5, 3\], its open sizes give float32\[4, 3\]"),
        (stop(["%", [1, 0], 2]), r"\['%', \[1, 0\], 2\] is no expression of sizes"),
        (lambda p: p["dims"].update(n=[4, 1, None, 0]), "the open size 'n' has the range"),
    ],
)
def test_damaged_expressions_are_refused(change, text, tmp_path):
    path, x = tmp_path / "a.nnlp", nn.Variable((4, 3))
    nn.save_program(path, lambda x: x[1:], {"x": x}, open={"x": ("n", None)})
    rewritten(path, lambda data, arrays: change(data["programs"]["main"]))
    with pytest.raises(ValueError, match=f"a.nnlp: damaged: .*{text}"):
        nn.load_program(path)


def test_damaged_constants_of_element_wise_steps_are_refused(tmp_path):
    """C++ alone reads them: here they follow from the attributes."""
    path, x = tmp_path / "a.nnlp", nn.Variable((4, 3))
    net = lambda x: F.sum(x, axis=0) * (1.0 / x.shape[0])  # noqa: E731
    nn.save_program(path, net, {"x": x}, open={"x": ("n", None)})

    def change(data, arrays):
        open = data["programs"]["main"]["steps"][-1]["open"]
        open["elementwise.constants"][0]["size"][1] = 2.0

    rewritten(path, change)
    with pytest.raises(ValueError, match=r"elementwise.constants is .*0.25.*give .*0.5"):
        nn.load_program(path)


@pytest.mark.parametrize("seed", [1, 2, 3, 6])
def test_a_changed_number_of_an_expression_in_a_file_is_noticed(seed, tmp_path):
    """One byte of a file: its CRC is another. Who writes that anew is refused at the example, or
    has other shapes or no program at other sizes."""
    net, path = Network(seed), tmp_path / "a.nnlp"
    x = nn.Variable(net.shape(np.random.default_rng(seed)))
    nn.save_program(path, net, {"x": x}, open={"x": net.axes})
    data, found = path.read_bytes(), nn.load_program(path)["main"]
    steps = found.to_dict()["steps"]
    rng = np.random.default_rng(seed)
    sizes = [{n: int(rng.integers(9, 60)) for n in found.dims} for _ in range(4)]
    wanted = [closed_or_none(found, s) for s in sizes]
    noticed = 0
    for place in leaves([s.get("open", {}) for s in steps]):

        def change(program, arrays, place=place):
            tree = [s.get("open", {}) for s in program["programs"]["main"]["steps"]]
            for key in place[:-1]:
                tree = tree[key]
            value = tree[place[-1]]
            tree[place[-1]] = value + 1 if type(value) in (int, float) else value

        path.write_bytes(data)
        rewritten(path, change)
        try:
            other = nn.load_program(path)["main"]
        except ValueError as e:
            assert "a.nnlp: damaged: " in str(e)
            noticed += 1
            continue
        if other.to_dict()["steps"] == steps:
            continue  # no number
        if any(closed_or_none(other, s) != w for s, w in zip(sizes, wanted, strict=True)):
            noticed += 1
            continue
        tree = [s.get("open", {}) for s in steps]
        for key in place[:-1]:
            tree = tree[key]
        # the name of another value with the same size at all sizes, or rounded away
        assert len(tree) == 2 or "//" in str(tree), place
    assert noticed >= 3
    at = data.index(b'"open":{')
    path.write_bytes(data[: at + 1] + b"q" + data[at + 2 :])
    with pytest.raises(ValueError, match="a.nnlp: damaged: nnl.program has another CRC-32 than it"):
        nn.load_program(path)


def closed_or_none(program, sizes):
    try:
        return program.at(sizes).to_dict()
    except (ValueError, IndexError):
        return None


def leaves(tree, path=()):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        if isinstance(value, (dict, list)):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)
