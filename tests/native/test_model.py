# SPDX-License-Identifier: Apache-2.0
"""Programs that C++ runs alone: the same bits as Python's runs."""

import json

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl import models
from nnl.core.ops.op import OPS
from nnl.core.parameters import safetensors
from tests.graph.saved import MORE, NETWORKS, STEPS, leaves_of, saved_sample, training_step
from tests.native.cpp_functions import PAGE, page
from tests.native.kernels import require_library, require_onednn
from tests.test_derived import CASES, Case


def model(path, program=""):
    lib = require_library()
    return lib.Model(lib.ModelFile(str(path)), program)


def equal(got, want, name, exact):
    if exact:
        assert got == want.tobytes(), name
        return
    assert len(got) == want.nbytes, name
    y = np.frombuffer(got, want.dtype).reshape(want.shape)
    np.testing.assert_allclose(y, want, rtol=2e-4, atol=2e-5, err_msg=name)


def check(found, path, values):
    """Run a program in C++ and in Python; returns how C++ did.

    Where C++ has no kernel, it runs functions that say the same up to rounding.
    """
    exact = not any(s.whole for name in found for s in found[name].steps)
    m = model(path)
    inputs = {k: np.ascontiguousarray(values[k], s.dtype) for k, s in found.inputs().items()}
    for _ in range(2):
        got, want = m.run(inputs), found.run(**values)
        assert set(got) == set(want)
        for k, w in want.items():
            equal(got[k], w, k, exact)
    for name in m.file.parameters:
        equal(m.file.parameter(name), found.arrays[name].data, name, exact)
    return m


def test_samples_run_to_the_same_bits_or_say_which_op_has_no_kernel(tmp_path):
    ran, refused = set(), set()
    for op, i in [p.values for p in CASES]:
        path = tmp_path / f"{op.name}-{i}.nnlp"
        try:
            values, _ = saved_sample(Case(op, i, np.float32), path)
        except NotImplementedError:  # Python code
            continue
        try:
            check(nn.load_program(path), path, values)
            ran.add(op.name)
        except ValueError as e:
            assert ": this build has no kernel of " in str(e), str(e)
            assert str(e).startswith(str(path))
            refused.add(op.name)
    assert len(ran) > 200
    for name in ("convolution", "affine", "lstm", "softmax", "adam_update", "dropout", "embed"):
        assert name in ran and name not in refused
    functions = {name for name in refused if OPS[name].nnp}
    assert len(functions) <= 20
    assert page(functions) == PAGE.read_text(), "run python -m tests.native.cpp_functions"


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_run_to_the_same_bits(name, tmp_path):
    ys = NETWORKS[name]()
    ys = ys if isinstance(ys, tuple) else (ys,)
    x = next(v for y in ys for v in leaves_of(y) if v.name == "x")
    path = tmp_path / "n.nnlp"
    nn.save_program(path, {f"y{k}": y for k, y in enumerate(ys)}, {"x": x})
    found = nn.load_program(path)
    m = check(found, path, {"x": x.d})
    assert m.profile() == found.costs()


@pytest.mark.parametrize("name", [*STEPS, *(pytest.param(n, marks=pytest.mark.long) for n in MORE)])
def test_training_steps_run_to_the_same_bits(name, tmp_path):
    network, values = {**STEPS, **MORE}[name]()
    step = training_step(network, S.Adam(0.001))
    step(**{k: nn.Variable.from_numpy_array(v) for k, v in values.items()})
    step.save(tmp_path / "step.nnlp")
    check(nn.load_program(tmp_path / "step.nnlp"), tmp_path / "step.nnlp", values)


@pytest.mark.parametrize("dtype", ["bfloat16", "half"])
def test_training_steps_in_16_bits(dtype, tmp_path):
    network, values = STEPS["small"]()
    step = training_step(network, S.Momentum(0.01), dtype)
    step(**{k: nn.Variable.from_numpy_array(v) for k, v in values.items()})
    step.save(tmp_path / "step.nnlp")
    check(nn.load_program(tmp_path / "step.nnlp"), tmp_path / "step.nnlp", values)


def test_weights_in_tiles_and_their_copies_are_read_in_the_plain_order(tmp_path):
    require_onednn()

    def network(x, t):
        h = F.relu(PF.convolution(x, 32, (3, 3), pad=(1, 1), name="c1"))
        h = F.relu(PF.convolution(h, 32, (3, 3), pad=(1, 1), name="c2"))
        return F.softmax_cross_entropy(PF.affine(h, 64, name="fc"), t)

    values = {
        "x": np.random.default_rng(0).normal(size=(4, 16, 8, 8)).astype(np.float32),
        "t": np.arange(4).reshape(4, 1),
    }
    for dtype in ("float", "bfloat16"):
        step = training_step(network, S.Momentum(0.01), dtype, decay=0)
        xs = {k: nn.Variable.from_numpy_array(v) for k, v in values.items()}
        step(**xs), step(**xs)
        path = tmp_path / f"{dtype}.nnlp"
        step.save(path)
        found = nn.load_program(path)
        orders = {s.order for p in found for s in found[p].slots if s.given}
        assert "tiled" in orders
        check(found, path, values)


@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
def test_what_a_step_writes_the_other_programs_of_its_file_read(dtype, tmp_path):
    """Weights in tiles, packed and in 16 bits follow the plain ones."""
    network, values = STEPS["resnet18"]()
    step = training_step(network, S.Momentum(0.01), dtype)
    step(**{k: nn.Variable.from_numpy_array(v) for k, v in values.items()})
    path = tmp_path / "both.nnlp"
    x = nn.Variable.from_numpy_array(values["x"])
    y = models.resnet(x, depth=18, num_classes=10, test=True)
    nn.save_program(path, programs={"step": step, "test": (y, {"x": x})})
    found, lib = nn.load_program(path), require_library()
    file = lib.ModelFile(str(path))
    train, *tests = [lib.Model(file, name) for name in ("step", "test", "test")]
    images = {"x": values["x"]}
    inputs = {k: np.ascontiguousarray(values[k], s.dtype) for k, s in found.inputs("step").items()}
    seen = set()
    for _ in range(3):
        want = found.run("test", **images)["y"].tobytes()
        assert all(test.run(images)["y"] == want for test in tests)
        assert train.run(inputs)["loss"] == found.run("step", **values)["loss"].tobytes()
        seen.add(want)
    assert len(seen) == 3


# ---- what goes wrong ----


def saved(tmp_path):
    x = nn.Variable((2, 3))
    x.name = "x"
    path = tmp_path / "a.nnlp"
    nn.save_program(path, programs={"f": PF.affine(x, 4, name="fc"), "g": x * 2})
    return path


def test_wrong_names_and_sizes_are_told(tmp_path):
    path = saved(tmp_path)
    with pytest.raises(ValueError, match=r"a.nnlp has the programs 'f', 'g': say which one"):
        model(path)
    with pytest.raises(ValueError, match=r"a.nnlp has the programs 'f', 'g', not 'h'"):
        model(path, "h")
    m = model(path, "f")
    with pytest.raises(ValueError, match="the model has the inputs 'x', not 'z'"):
        m.run({"z": np.zeros((2, 3), np.float32)})
    with pytest.raises(ValueError, match=r"x is resized to \(2, 2\), wanted \(2, 3\)"):
        m.run({"x": np.zeros((2, 2), np.float32)})
    with pytest.raises(ValueError, match="has no parameter 'W'"):
        m.file.parameter("W")
    with pytest.raises(ValueError, match="missing.nnlp: No such file or directory"):
        model(tmp_path / "missing.nnlp")
    with pytest.raises(ValueError, match="the file is empty, or no file"):
        model(tmp_path)


def test_a_label_out_of_range_names_the_function(tmp_path):
    i = nn.Variable.from_numpy_array(np.array([1, 7]))
    i.name = "i"
    path = tmp_path / "a.nnlp"
    nn.save_program(path, PF.embed(i, 5, 3, name="tok"))
    with pytest.raises(ValueError, match=r"embed in tok \(test_model.py:\d+\): .*7"):
        model(path).run({"i": np.array([1, 7])})


@pytest.mark.parametrize(
    "version,text",
    [("4", "has version 4 of the format, this nnl reads 3"), ("x", "its version is unknown")],
)
def test_other_versions_are_refused(version, text, tmp_path):
    path = saved(tmp_path)
    data = np.fromfile(path, np.uint8)
    entries, meta = safetensors.read_header(data, str(path))
    arrays = {k: data[e.begin : e.end].view(e.dtype).reshape(e.shape) for k, e in entries.items()}
    safetensors.save(path, arrays, {**meta, "version": version})
    with pytest.raises(ValueError, match=f"a.nnlp: .*{text}"):
        model(path, "f")


def test_the_schema_names_what_the_library_runs():
    names = set(require_library().kernel_names())
    assert names <= set(OPS) and json.dumps(sorted(names))
