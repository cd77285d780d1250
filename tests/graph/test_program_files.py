# SPDX-License-Identifier: Apache-2.0
"""Files of programs: what is in them, who reads them, what they share, and which are refused."""

import gc
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.arguments.warn_once import WARNED
from nnl.core.parameters import safetensors
from nnl.core.settings.context import SPACES
from tests.graph.saved import STEPS, check, named, normal, training_step
from tests.native.kernels import require_library, require_onednn

ROOT = Path(nn.__file__).parent.parent


def test_text_has_a_line_for_each_value_that_is_given_and_for_each_step(tmp_path):
    x = nn.Variable((2, 3))
    with nn.context_scope(nn.Context(["numpy:float"])):
        y = F.sum(PF.affine(x, 4, name="fc") * 2, axis=1)
    nn.save_program(tmp_path / "a.nnlp", {"s": y}, {"x": x})
    lines = nn.load_program(tmp_path / "a.nnlp")["main"].text().splitlines()
    assert lines[:3] == [
        "x:f32[2, 3] input",
        "fc/affine/W:f32[3, 4] parameter",
        "fc/affine/b:f32[4] parameter",
    ]
    here = Path(__file__).name
    assert [ln.partition(":")[2].rpartition(":")[0] for ln in lines[3:-1]] == [
        f"f32[2, 4] = affine(x, fc/affine/W, fc/affine/b)  # forward, fc ({here}",
        f"f32[2, 4] = mul_scalar(%4) val=2  # forward, ({here}",
        f"f32[2] = sum(%5) axes=(1)  # forward, ({here}",
    ]
    assert lines[-1] == "return s=%6"


def test_text_calls_another_shape_of_a_value_by_its_name(tmp_path):
    require_library()
    x = named((2, 3, 8, 8))
    with nn.context_scope(nn.Context(["cpu:float"])):
        h = PF.convolution(x, 4, (3, 3), name="c")
        y = PF.batch_normalization(h, batch_stat=False, name="bn")
    nn.save_program(tmp_path / "a.nnlp", y)
    text = nn.load_program(tmp_path / "a.nnlp")["main"].text()
    assert "c/conv/b as [1, 4, 1, 1]" in text
    made = {m for m in re.findall(r"(%\d+):", text)}
    assert made and set(re.findall(r"%\d+", text)) == made


def test_another_library_opens_the_file(tmp_path):
    st = pytest.importorskip("safetensors.numpy")
    x = nn.Variable((2, 3))
    PF.affine(x, 4, name="fc")
    y = PF.affine(x, 4, name="fc")
    nn.save_program(tmp_path / "a.nnlp", y)
    found = st.load_file(tmp_path / "a.nnlp")
    assert set(found) == {"nnl.program", "fc/affine/W", "fc/affine/b"}
    np.testing.assert_array_equal(found["fc/affine/W"], nn.get_parameters()["fc/affine/W"].d)
    data = json.loads(found["nnl.program"].tobytes())
    assert data["version"] == 1 and data["programs"]["main"]["steps"][0]["op"] == "affine"
    assert data["programs"]["main"]["steps"][0]["flops"] == 2 * 2 * 3 * 4


def test_data_begins_at_a_multiple_of_64_bytes_with_the_largest_elements(tmp_path):
    arrays = {"b": np.arange(3, dtype=np.int8), "a": np.arange(3.0), "c": np.float32([1, 2])}
    safetensors.save(tmp_path / "x", arrays, {})
    data = np.fromfile(tmp_path / "x", np.uint8)
    entries, _ = safetensors.read_header(data, "x")
    assert [k for k, _ in sorted(entries.items(), key=lambda e: e[1].begin)] == ["a", "c", "b"]
    assert entries["a"].begin % 64 == 0
    for name, e in entries.items():
        assert data[e.begin : e.end].tobytes() == arrays[name].tobytes()


READ_ALONE = """
import sys, types
package = types.ModuleType("nnl")
package.__path__ = [sys.argv[1]]
sys.modules["nnl"] = package
from nnl.graph.saving.files import load_program
found = load_program(sys.argv[2])
print(found.text())
print(found.costs())
assert "nnl.functions" not in sys.modules
"""


def test_a_file_can_be_read_without_the_functions(tmp_path):
    x = named((2, 3))
    nn.save_program(tmp_path / "a.nnlp", F.relu(PF.affine(x, 4, name="fc")))
    want = nn.load_program(tmp_path / "a.nnlp")
    found = subprocess.run(
        [sys.executable, "-c", READ_ALONE, str(ROOT / "nnl"), str(tmp_path / "a.nnlp")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert not found.returncode, found.stderr
    assert found.stdout == f"{want.text()}\n{want.costs()}\n"


def test_programs_of_one_file_share_their_arrays(tmp_path):
    def build(n, train):
        x = named((n, 4))
        h = PF.batch_normalization(PF.affine(x, 3, name="fc"), batch_stat=train, name="bn")
        return {"y": h}, {"x": x}

    programs = {"one": build(1, False), "eight": build(8, False), "train": build(8, True)}
    nn.save_program(tmp_path / "a.nnlp", programs=programs)
    found = nn.load_program(tmp_path / "a.nnlp")
    assert list(found) == ["one", "eight", "train"]
    assert set(found.arrays) == set(nn.get_parameters(grad_only=False))
    a = normal(8, 4)
    before = found.run("one", x=a[:1])["y"]
    np.testing.assert_allclose(before, found.run("eight", x=a)["y"][:1], rtol=1e-5, atol=1e-6)
    found.run("train", x=a)  # moves the running statistics
    after = found.run("one", x=a[:1])["y"]
    assert not np.allclose(before, after)
    (y, *_), (x, *_) = (tuple(d.values()) for d in programs["train"])
    x.d = a
    y.forward()
    (y, *_), (x, *_) = (tuple(d.values()) for d in programs["one"])
    x.d = a[:1]
    y.forward()
    np.testing.assert_allclose(after, y.d, rtol=1e-5, atol=1e-6)


def test_the_file_never_changes_and_what_a_program_writes_can_be_saved(tmp_path):
    network, values = STEPS["small"]()
    step = training_step(network, S.Momentum(0.1))
    step(**{k: nn.Variable.from_numpy_array(v) for k, v in values.items()})
    step.save(tmp_path / "a.nnlp")
    before = (tmp_path / "a.nnlp").read_bytes()
    found = nn.load_program(tmp_path / "a.nnlp")
    found.run(**values)
    assert (tmp_path / "a.nnlp").read_bytes() == before
    found.save(tmp_path / "b.nnlp")
    again = nn.load_program(tmp_path / "b.nnlp")
    check(again.run(**values), found.run(**values))


def test_gradients_that_a_step_adds_to_are_handed_on(tmp_path):
    w = nn.Variable.from_numpy_array(np.float32([1, 2]), need_grad=True)
    w.name = "w"
    w.grad.zero()
    solver = S.Sgd(1.0)
    solver.set_parameters({"w": w})

    @nn.compile
    def step(x):
        loss = F.sum(w * x)
        loss.backward()
        solver.update()  # by the sum of all gradients so far
        return loss

    x = nn.Variable.from_numpy_array(np.float32([3, 4]))
    step(x)
    step.save(tmp_path / "a.nnlp")
    found = nn.load_program(tmp_path / "a.nnlp")
    np.testing.assert_array_equal(found.arrays["w"].data, [1 - 3, 2 - 4])
    for n in (3, 6):
        found.run(x=x.d)
        np.testing.assert_array_equal(found.arrays["w"].data, [1 - n * 3, 2 - n * 4])


def test_weights_of_a_mapped_file_are_packed_once(tmp_path, monkeypatch):
    require_onednn()
    x = nn.Variable.from_numpy_array(normal(1, 16, 16, 16))
    nn.save_program(tmp_path / "a.nnlp", {"y": PF.convolution(x, 32, (3, 3))}, {"x": x})
    found = nn.load_program(tmp_path / "a.nnlp")
    found.run(x=x.d)
    plan = found.runner().idle[0].plan
    assert plan.native_prepared == 1
    ran = []
    run = plan.native.run

    class Counting:
        def __getattr__(self, name):
            return getattr(plan_native, name)

        def run(self, begin, end):
            ran.append((begin, end))
            run(begin, end)

    plan_native, plan.native = plan.native, Counting()
    for _ in range(3):
        found.run(x=x.d)
    assert (0, 1) not in ran and len(ran) >= 3


def test_a_step_that_is_saved_again_has_its_names_and_the_arrays_of_then(tmp_path):
    step = training_step(lambda x: F.tanh(PF.affine(x, 3, name="fc")) ** 2, S.Adam(0.1))
    x, files = named((2, 4)), [tmp_path / f"{k}.nnlp" for k in range(3)]
    x.d = normal(2, 4)
    step(x=x)
    step.save(files[0])
    step.save(files[1])
    assert files[0].read_bytes() == files[1].read_bytes()
    step(x=x)
    step.save(files[2])
    first, later = nn.load_program(files[0]), nn.load_program(files[2])
    names = {"fc/affine/W", "fc/affine/W/mean", "fc/affine/b/t", "adam_update/lr"}
    assert names < set(first.arrays)
    assert list(first.arrays) == list(later.arrays) and first.text() == later.text()
    assert first.arrays["fc/affine/W"].data.tobytes() != later.arrays["fc/affine/W"].data.tobytes()
    check(later.run(x=x.d), {"loss": step(x=x)["loss"].d})
    check(later.run(x=x.d), {"loss": step(x=x)["loss"].d})


# ---- what goes wrong ----


def rewritten(path, change, **metadata):
    """The file with its program changed, and its metadata, which else follow."""
    data = np.fromfile(path, np.uint8)
    entries, meta = safetensors.read_header(data, str(path))
    arrays = {k: data[e.begin : e.end].view(e.dtype).reshape(e.shape) for k, e in entries.items()}
    program = json.loads(arrays["nnl.program"].tobytes())
    change(program, arrays)
    arrays["nnl.program"] = np.frombuffer(json.dumps(program).encode(), np.uint8)
    del meta["crc32"]
    safetensors.save(path, arrays, {**meta, "version": str(program["version"]), **metadata})


def newer(program, arrays):
    program["version"] = 4


def worded(program, arrays):
    program["version"] = 3
    program["programs"]["main"]["words"] = [["a"], ["nothing"]]


def worded_early(program, arrays):
    program["programs"]["main"]["words"] = [["a"], [*program["programs"]["main"]["outputs"]]]


def lost(program, arrays):
    del arrays["fc/affine/W"]


def other(program, arrays):
    arrays["fc/affine/W"] = arrays["fc/affine/W"][:2]


def unknown(program, arrays):
    program["programs"]["main"]["steps"][0]["ins"][0] = 77


def carried(program, arrays):
    program["programs"]["main"]["carries"] = [[2, 4]]  # a weight of 3 x 4 becomes the output


def copied(program, arrays):
    program["programs"]["main"]["values"][1][2]["copies"] = 1


def named_alike(program, arrays):
    values = program["programs"]["main"]["values"]
    values[1][2] = values[2][2] = {"role": "input", "name": "x"}


@pytest.mark.parametrize(
    "change,text",
    [
        (carried, "a.nnlp: damaged: value 2 gets another shape or type, that of value 4"),
        (copied, "a.nnlp: damaged: value 2 is no copy of value 1"),
        (named_alike, r"a.nnlp: damaged: two of the inputs \['x', 'x', 'x0'\] have one name"),
        (worded, "a.nnlp: damaged: strings are its 'nothing', which it does not have"),
        (worded_early, "a.nnlp: damaged: program 'main' has strings, which are of version 3"),
        (newer, "a.nnlp: has version 4 of the format, this nnl reads 3"),
        (lost, "a.nnlp: damaged: there is no tensor 'fc/affine/W'"),
        (other, r"a.nnlp: damaged: 'fc/affine/W' is float32\[2, 4\], wanted float32\[3, 4\]"),
        (unknown, "a.nnlp: damaged: there is no value 77"),
    ],
)
def test_files_that_are_newer_or_damaged_are_refused(change, text, tmp_path):
    path = tmp_path / "a.nnlp"
    nn.save_program(path, PF.affine(nn.Variable((2, 3)), 4, name="fc"))
    rewritten(path, change)
    with pytest.raises(ValueError, match=text):
        nn.load_program(path)


def refused(path):
    """What Python says of a file, and C++ where it is there."""
    with pytest.raises(ValueError) as e:
        nn.load_program(path)
    said = [str(e.value)]
    lib = SPACES["host"].library()
    if lib is not None:
        with pytest.raises(ValueError) as e:
            lib.Model(str(path))
        said.append(str(e.value))
    return said


def test_versions_agree_with_each_other_and_with_the_program(tmp_path):
    x = nn.Variable((2, 3))
    for version, other, text in [
        (2, "1", "damaged: its version is 1, and 2 in "),
        (1, "2", "damaged: its version is 2, and 1 in "),
        (1, "1", "damaged: program 'main' has open sizes, which are of version 2"),
    ]:
        nn.save_program(tmp_path / "a.nnlp", lambda x: x * 2, {"x": x}, open={"x": ("n", None)})
        rewritten(tmp_path / "a.nnlp", lambda p, _, v=version: p.update(version=v), version=other)
        for said in refused(tmp_path / "a.nnlp"):
            assert f"a.nnlp: {text}" in said


def as_large(program, arrays):
    program["programs"]["main"]["values"][0][1] = [2**31 - 1, 2**31 - 1]


def example(program, arrays):
    program["programs"]["main"]["dims"]["n"][0] = 2**31 - 1


def split_up(program, arrays):
    """Into more parts than there is memory for."""
    main = program["programs"]["main"]
    main["dims"]["n"][0] = main["values"][0][1][0] = 2**31 - 1
    main["steps"][0].update(op="split", attrs={"axis": 0}, open={})
    main["steps"][0].pop("elementwise", None)
    main["ops"]["split"] = {"axis": 0}


@pytest.mark.parametrize("change", [as_large, example, split_up])
def test_sizes_are_looked_at_before_anything_is_made_of_them(change, tmp_path):
    x = nn.Variable((2, 3))
    nn.save_program(tmp_path / "a.nnlp", lambda x: x[1:] * 2, {"x": x}, open={"x": ("n", None)})
    rewritten(tmp_path / "a.nnlp", change)
    start = time.process_time()
    for said in refused(tmp_path / "a.nnlp"):
        assert "a.nnlp: " in said
    assert time.process_time() - start < 1


def test_a_changed_program_is_damaged(tmp_path):
    path = tmp_path / "a.nnlp"
    nn.save_program(path, PF.affine(nn.Variable((2, 3)), 4, name="fc"))
    path.write_bytes(path.read_bytes().replace(b'"base_axis":1', b'"base_axis":2'))
    with pytest.raises(ValueError, match="a.nnlp: damaged: nnl.program has another CRC-32 than"):
        nn.load_program(path)


@pytest.mark.parametrize("collects", [True, False])
def test_loading_leaves_the_garbage_collector_as_it_was(collects, tmp_path):
    path, was = tmp_path / "a.nnlp", gc.isenabled()
    nn.save_program(path, nn.Variable((2,)) * 2)
    try:
        (gc.enable if collects else gc.disable)()
        nn.load_program(path)
        assert gc.isenabled() == collects
        path.write_bytes(b"12345678")
        with pytest.raises(ValueError, match="a.nnlp"):
            nn.load_program(path)
        assert gc.isenabled() == collects
    finally:
        (gc.enable if was else gc.disable)()


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.nnlp"
    safetensors.save(path, {"w": np.zeros(3)}, {})
    with pytest.raises(ValueError, match="a.nnlp: has no tensor 'nnl.program': it is no program"):
        nn.load_program(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="a.nnlp: the file is empty"):
        nn.load_program(path)


def test_inputs_of_one_name_are_told_apart(tmp_path):
    a, b = named((2,)), named((2,))
    nn.save_program(tmp_path / "a.nnlp", a + b * 2)
    assert list(nn.load_program(tmp_path / "a.nnlp").inputs()) == ["x", "x.2"]


def test_what_a_run_was_not_given_is_told(tmp_path):
    x = named((2, 3))
    nn.save_program(tmp_path / "a.nnlp", programs={"f": x * 2, "g": x * 3})
    found = nn.load_program(tmp_path / "a.nnlp")
    with pytest.raises(ValueError, match=r"a.nnlp has the programs \['f', 'g'\]: say which one"):
        found.run(x=1)
    with pytest.raises(KeyError, match=r"has the programs \['f', 'g'\], not 'h'"):
        found.run("h", x=1)
    with pytest.raises(TypeError, match=r"f: run got the inputs \['z'\], wanted \['x'\]"):
        found.run("f", z=1)
    with pytest.raises(ValueError, match=r"f: x has the shape \(3,\), wanted \(2, 3\)"):
        found.run("f", x=[1, 2, 3])
    with pytest.raises(TypeError, match="f: x: got 'a', wanted numbers"):
        found.run("f", x="a")


def test_what_cannot_be_saved_is_told(tmp_path):
    class Double(nn.function.PythonFunction):
        def forward_impl(self, inputs, outputs):
            outputs[0].data = inputs[0].data * 2

        def setup_impl(self, inputs, outputs):
            outputs[0].reset_shape(inputs[0].shape, True)

        def min_outputs(self):
            return 1

    x = named((2,))
    with pytest.raises(NotImplementedError, match="runs Python code, which a program cannot hold"):
        nn.save_program(tmp_path / "a.nnlp", Double()(x))
    with pytest.raises(ValueError, match="the output 'y' is computed by no function"):
        nn.save_program(tmp_path / "a.nnlp", x)
    with pytest.raises(TypeError, match="'main' is tuple, wanted a Variable, a dict of them"):
        nn.save_program(tmp_path / "a.nnlp", 3)
    with pytest.raises(ValueError, match=r"a.nnp: programs are saved in files of the name \*.nnlp"):
        nn.save_program(tmp_path / "a.nnp", x * 2)
    with pytest.raises(TypeError, match="give outputs, or programs"):
        nn.save_program(tmp_path / "a.nnlp")
    with pytest.raises(
        ValueError, match="the input 'h' is computed: Variable, output of mul_scalar"
    ):
        h = x * 2
        nn.save_program(tmp_path / "a.nnlp", {"y": h + 1}, {"h": h})
    with pytest.raises(
        ValueError, match="save: lambda has not been called, so nothing is recorded"
    ):
        nn.compile(lambda x: x).save(tmp_path / "a.nnlp")
    assert not list(tmp_path.iterdir())


def test_what_is_for_training_is_told(tmp_path, caplog):
    WARNED.clear()
    x = nn.Variable.from_numpy_array(np.ones((4, 3), np.float32))
    for training in (False, True):
        h = PF.batch_normalization(x, batch_stat=training, name="bn")
        nn.save_program(tmp_path / "a.nnlp", F.dropout(h, 0.5) if training else h)
    assert [r.getMessage() for r in caplog.records] == [
        "save_program: 'main' has batch_normalization, which uses statistics of its batch in every "
        "run, as in training: build what is for inference without it, or with batch_stat=False",
        "save_program: 'main' has dropout, which drops values in every run, as in training: build "
        "what is for inference without it, or with batch_stat=False",
    ]


def test_inputs_of_a_method_are_called_as_its_arguments(tmp_path):
    class Twice:
        def of(self, given):
            return given * 2

    compiled = nn.compile(Twice().of)
    compiled(nn.Variable((2,)))
    compiled.save(tmp_path / "a.nnlp")
    found = nn.load_program(tmp_path / "a.nnlp").run(given=[1, 2])
    np.testing.assert_array_equal(next(iter(found.values())), [2, 4])
