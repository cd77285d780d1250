# SPDX-License-Identifier: Apache-2.0
"""Open programs run in the native library: what a plan gives, whatever happens meanwhile."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.graph.open_sizes.native import Models
from tests.graph.saved import check, normal
from tests.native.kernels import require_library


@pytest.fixture(autouse=True)
def _library():
    require_library()


def network(x):
    h = F.relu(PF.convolution(x, 8, (3, 3), pad=(1, 1), name="conv"))
    return PF.affine(F.mean(h, axis=(2, 3)), 5, name="fc")


def saved(path, net=network, shape=(1, 3, 9, 9), axes=("b", None, "h", "w")):
    nn.save_program(path, net, {"x": nn.Variable(shape)}, open={"x": axes})
    return nn.load_program(path)


def planned(program, **values):
    """What a plan gives that Python makes."""
    shapes = tuple([v.shape for v in values.values()])
    return program._for_shapes("main", shapes).run(values)


def is_native(program):
    return all(isinstance(m, Models) for m in program._models.values())


def test_the_library_gives_what_a_plan_gives(tmp_path):
    program = saved(tmp_path / "a.nnlp")
    for shape in [(1, 3, 9, 9), (2, 3, 17, 6), (1, 3, 9, 9), (3, 3, 30, 30), (1, 3, 5, 4)]:
        x = normal(*shape)
        check(program.run(x=x), planned(program, x=x))
    x = normal(5, 3, 30, 40)[:, :, ::2, ::-1]
    check(program.run(x=x), planned(program, x=x))
    check(program.run(x=x.tolist()), planned(program, x=x))
    check(program.run(x=x.astype(np.float64)), planned(program, x=x))
    assert is_native(program) and program._models


def test_arrays_that_are_written_reach_it(tmp_path):
    program, x = saved(tmp_path / "a.nnlp"), normal(2, 3, 8, 7)
    first = program.run(x=x)["y"]
    for name in ("conv/conv/W", "fc/affine/W", "fc/affine/b"):
        program.arrays[name].data = program.arrays[name].data * 2  # by another array
        check(program.run(x=x), planned(program, x=x))
        held = program.arrays[name].data
        for _ in range(2):
            held[...] += 1  # unseen
            check(program.run(x=x), planned(program, x=x))
        del held
        check(program.run(x=x), planned(program, x=x))
    assert is_native(program) and np.abs(program.run(x=x)["y"] - first).max() > 1


def test_a_file_that_another_has_replaced_is_not_read_again(tmp_path):
    program, x = saved(tmp_path / "a.nnlp"), normal(2, 3, 8, 7)
    nn.get_parameters()["fc/affine/b"].d += 1
    saved(tmp_path / "b.nnlp")
    os.replace(tmp_path / "b.nnlp", tmp_path / "a.nnlp")
    check(program.run(x=x), planned(program, x=x))
    assert not is_native(program)


def test_a_file_that_is_gone_still_runs(tmp_path):
    program, x = saved(tmp_path / "a.nnlp"), normal(2, 3, 8, 7)
    shutil.rmtree(tmp_path)
    check(program.run(x=x), planned(program, x=x))


def test_errors_are_those_of_plans(tmp_path):
    program = saved(
        tmp_path / "a.nnlp", lambda x: PF.embed(x, 10, 4, name="words"), (2, 3), ("n", None)
    )
    good, bad = np.ones((4, 3)), np.full((4, 3), 17)
    check(program.run(x=good), planned(program, x=good))
    for _ in range(2):
        with pytest.raises(ValueError) as found:
            program.run(x=bad)
        with pytest.raises(ValueError) as wanted:
            planned(program, x=bad)
        assert str(found.value) == str(wanted.value) and "17" in str(found.value)
        with pytest.raises(ValueError, match=r"main: x has the shape \(4, 2\), wanted \(n, 3\)"):
            program.run(x=good[:, 1:])
    with pytest.raises(TypeError, match=r"run got the inputs \['z'\], wanted \['x'\]"):
        program.run(z=good)
    with pytest.raises(TypeError, match="main: x: got 'words', wanted numbers"):
        program.run(x="words")
    assert is_native(program)


def test_what_writes_arrays_is_left_to_plans(tmp_path):
    program = saved(tmp_path / "a.nnlp", lambda x: F.dropout(x, 0.5), (2, 3), ("n", None))
    assert not np.array_equal(
        program.run(x=np.ones((9, 3)))["y"], program.run(x=np.ones((9, 3)))["y"]
    )
    assert not is_native(program)


def test_other_backends_have_plans(tmp_path):
    program, x = saved(tmp_path / "a.nnlp"), normal(2, 3, 8, 7)
    native = program.run(x=x)["y"]
    with nn.context_scope(nn.Context(["numpy:float"])):
        np.testing.assert_allclose(program.run(x=x)["y"], native, rtol=1e-4, atol=1e-5)
    assert not is_native(program)


def test_profiles_tell_of_steps(tmp_path):
    program, x = saved(tmp_path / "a.nnlp"), normal(2, 3, 8, 7)
    program.run(x=x)
    with nn.profile() as p:
        program.run(x=x)
    assert any("convolution" in e.op for e in p.events)
    program.run(x=x)
    assert is_native(program)


def test_threads_have_models_of_their_own(tmp_path):
    program = saved(tmp_path / "a.nnlp")
    values = [normal(1 + k % 3, 3, 8 + k % 5, 7) for k in range(40)]
    wanted = [planned(program, x=x) for x in values]
    with ThreadPoolExecutor(4) as pool:
        for got, want in zip(pool.map(lambda x: program.run(x=x), values), wanted, strict=True):
            check(got, want)
    assert is_native(program)


def test_a_parameter_is_set_as_a_whole(tmp_path):
    saved(tmp_path / "a.nnlp")
    file = require_library().ModelFile(str(tmp_path / "a.nnlp"))
    with pytest.raises(ValueError, match="a.nnlp has no parameter 'W'"):
        file.set_parameter("W", np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"fc/affine/b is float32\[5\], 20 bytes, got 16"):
        file.set_parameter("fc/affine/b", np.zeros(4, np.float32))
