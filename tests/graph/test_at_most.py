# SPDX-License-Identifier: Apache-2.0
"""Results of which values say how many rows there are: nn.at_most, in programs."""

import json
import re

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError
from tests.graph.saved import normal
from tests.graph.test_program_files import rewritten
from tests.native.kernels import require_library


def positive(x):
    """Rows of a positive sum, first: along axis 0, and along axis 1 of the transposed ones."""
    there = F.greater_scalar(F.sum(x, axis=1), 0)
    rows = F.gather(x, F.sort(there, reverse=True, only_index=True), axis=0)
    count = F.sum(there)
    return {
        "rows": nn.at_most(rows, count),
        "columns": nn.at_most(F.transpose(rows, (1, 0)), count, axis=-1),
        "all": F.relu(nn.at_most(rows, count)),
    }


def check(found, x):
    chosen = x[x.sum(1) > 0]
    assert list(found) == ["rows", "columns", "all"]
    assert found["rows"].tolist() == chosen.tolist()
    assert found["columns"].tolist() == chosen.T.tolist()
    assert found["all"].shape == x.shape


@pytest.mark.parametrize("open", [None, {"x": ("n", None)}])
@pytest.mark.parametrize("context", ["cpu", "numpy"])
def test_programs_give_the_rows_that_there_are(open, context, tmp_path):
    x = nn.Variable((4, 3))
    outputs = positive(x) if open is None else positive
    nn.save_program(tmp_path / "a.nnlp", outputs, {"x": x}, open=open)
    program = nn.load_program(tmp_path / "a.nnlp")
    assert list(program.outputs()) == ["rows", "columns", "all"]
    assert re.search(r"rows=%\d+ of %\d+ along 0, rows/count=", program.text())
    data = program["main"].to_dict()
    assert json.loads(json.dumps(data["counts"]))["columns"] == ["columns/count", 1]
    with nn.context_scope(nn.Context([context])):
        for seed in range(6):
            value = normal(4 if open is None else 1 + seed, 3, seed=seed)
            check(program.run(x=value), value)
            check(program.run(x=-np.abs(value)), -np.abs(value))


def test_in_dynamic_mode_it_is_the_slice():
    x = normal(4, 3)
    with nn.auto_forward():
        found = positive(nn.Variable.from_numpy_array(x))
        y = nn.at_most(nn.Variable.from_numpy_array(x), nn.Variable.from_numpy_array(0))
    assert found["columns"].d.tolist() == x[x.sum(1) > 0].T.tolist()
    assert y.shape == (0, 3)


@pytest.mark.parametrize("number", [-1, 5])
@pytest.mark.parametrize("open", [None, {"x": ("n", None)}])
def test_a_count_that_there_cannot_be_is_named(number, open, tmp_path):
    def net(x, k):
        return {"y": nn.at_most(x * 2, k), "z": nn.at_most(x, k)}

    x, k = nn.Variable((4, 3)), nn.Variable(())
    outputs = net(x, k) if open is None else net
    nn.save_program(tmp_path / "a.nnlp", outputs, {"x": x, "k": k}, open=open)
    program = nn.load_program(tmp_path / "a.nnlp")
    assert program.run(x=normal(4, 3), k=3)["z"].tolist() == normal(4, 3)[:3].tolist()
    with pytest.raises(ValueError, match=f"y: at_most: count holds {number}, wanted 0 to 4"):
        program.run(x=normal(4, 3), k=number)


def test_wrong_counts_are_refused():
    with pytest.raises(ShapeError, match=r"at_most: count is float32\[2\], wanted one number"):
        nn.at_most(nn.Variable((4, 3)), nn.Variable((2,)))
    with pytest.raises(TypeError, match="at_most: input 1 is int, wanted nnl.Variable"):
        nn.at_most(nn.Variable((4, 3)), 2)
    with pytest.raises(ShapeError, match="at_most: axis 2 is outside"):
        nn.at_most(nn.Variable((4, 3)), nn.Variable(()), axis=2)


@pytest.mark.parametrize(
    "count,text",
    [
        (["rows/count", 2], "'rows' is float32.4, 3., with int64.. entries along axis 2"),
        (["columns", 0], "'rows' is .* with float32.3, 4. entries along axis 0"),
        (["nobody", 0], "its fields are not those of a program"),
    ],
)
def test_damaged_counts_are_refused(count, text, tmp_path):
    path = tmp_path / "a.nnlp"
    x = nn.Variable((4, 3))
    nn.save_program(path, positive(x), {"x": x})

    def change(program, arrays):
        program["programs"]["main"]["counts"]["rows"] = count

    rewritten(path, change)
    with pytest.raises(ValueError, match=f"damaged: {text}"):
        nn.load_program(path)


@pytest.mark.parametrize("open", [None, {"x": ("n", None)}])
def test_cpp_gives_the_rows_that_there_are(open, tmp_path):
    library = require_library()
    x = nn.Variable((4, 3))
    nn.save_program(
        tmp_path / "a.nnlp", positive(x) if open is None else positive, {"x": x}, open=open
    )
    model = library.Model(library.ModelFile(str(tmp_path / "a.nnlp")), "main")
    assert model.shape("columns") == [3, 4]
    for seed in range(5):
        value = normal(4 if open is None else 2 + seed, 3, seed=seed)
        got = model.run({"x": value})
        found = {k: np.frombuffer(b, np.float32).reshape(model.shape(k)) for k, b in got.items()}
        check(found, value)
