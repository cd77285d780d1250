# SPDX-License-Identifier: Apache-2.0
"""Networks written in C++: functions, gradients and solvers beside the definitions in Python."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.initializer as I
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.ext.library import DTYPES
from nnl.utils.save import save
from tests.native.kernels import F32, assert_close, require_library
from tests.test_derived import CASES, Case

NUMPY = nn.Context(["numpy:float"])


def to_cpp(a):
    a = np.asarray(a)
    return a.tobytes(), DTYPES[a.dtype.name], list(a.shape)


def from_cpp(found):
    data, dtype, shape = found
    return np.frombuffer(data, list(DTYPES)[dtype]).reshape(shape)


def known():
    """Ops that networks in C++ may be made of: those with a rule of gradients, and comparisons."""
    lib = require_library()
    return {*lib.gradient_names()} | {n for n in OPS if n.partition("_")[0] in COMPARISONS}


COMPARISONS = {"equal", "greater", "less", "not", "isnan", "isinf"}


def expected(case):
    """(outputs, gradients) by numpy, in define-by-run."""
    xs = case.variables()
    with nn.context_scope(NUMPY), nn.auto_forward(), np.errstate(all="ignore"):
        ys = case.run(xs)
        total = None
        for y, w in zip(ys, weights([y.d for y in ys]), strict=True):
            if y.need_grad and w is not None:
                part = OPS["sum"](y * Variable.from_numpy_array(w), axes=tuple(range(y.ndim)))
                total = part if total is None else total + part
        if total is not None:
            total.backward()
        return [y.d for y in ys], [x.g if g else None for x, g in zip(xs, case.grad, strict=True)]


def weights(ys):
    """Of the outputs in the loss; None for those of integers."""
    rng = np.random.default_rng(3)
    return [rng.normal(size=y.shape).astype(F32) if y.dtype.kind == "f" else None for y in ys]


@pytest.mark.parametrize("at_once", [False, True], ids=["planned", "at once"])
def test_every_sample_has_the_values_and_gradients_of_the_definition(at_once):
    lib, tested, refused = require_library(), set(), set()
    for op, i in [p.values for p in CASES]:
        if op.name not in known():
            continue
        case = Case(op, i, np.float32)
        inputs = [None if a is None else to_cpp(a) for a in case.arrays]
        ys, gxs = expected(case)
        if op.takes_rng:
            inputs.append(to_cpp(np.array([7, 0], np.uint64)))
        need = [bool(g) for g in case.grad] + [False] * op.takes_rng
        gys = [None if w is None else to_cpp(w) for w in weights(ys)]
        attrs = case.resolved_attrs.as_dict()
        try:
            got_ys, got_gxs = lib.graph_call(op.name, attrs, inputs, need, gys, at_once)
        except ValueError as e:
            assert str(e).startswith(f"{op.name}: this build has no kernel of {op.name} for ")
            refused.add((op.name, i))
            continue
        for got, want in zip(got_ys, ys, strict=False):  # hidden outputs follow
            assert_close(from_cpp(got), want, F32, f"{op.name} {i}")
        for got, want in zip(got_gxs, gxs, strict=False):
            if want is not None:
                assert_close(from_cpp(got), want, F32, f"gradient of {op.name} {i}")
        tested.add(op.name)
    assert known() == tested
    assert len(tested) > 100
    # two outputs; a mean of nothing
    assert {name for name, _ in refused} <= {"max", "min", "global_average_pooling"}


def test_a_function_without_a_gradient_in_cpp_says_so():
    x = gy = to_cpp(np.ones((2, 3), F32))
    attrs = {"shifts": (1,), "border_mode": "nearest"}
    with pytest.raises(ValueError, match="^backward: shift has no gradient in C\\+\\+$"):
        require_library().graph_call("shift", attrs, [x], [True], [gy], False)


@pytest.mark.parametrize("options", [{}, {"decay": 0.1}, {"clip": 0.5, "rate": 0.02}])
def test_every_solver_follows_the_trajectory_of_python(options):
    lib, rng = require_library(), np.random.default_rng(0)
    w = rng.normal(size=(3, 4)).astype(F32)
    gradients = [rng.normal(size=w.shape).astype(F32) for _ in range(5)]
    names = lib.solver_names()
    assert len(names) == 19
    for name in names:
        p = Variable.from_numpy_array(w.copy(), need_grad=True)
        solver = getattr(S, name)()
        solver.set_parameters({"w": p})
        if "rate" in options:
            solver.set_learning_rate(options["rate"])
        for g in gradients:
            p.g = g
            if "clip" in options:
                solver.clip_grad_by_norm(options["clip"])
            if "decay" in options:
                solver.weight_decay(options["decay"])
            solver.update()
        arguments = [options.get(k, d) for k, d in (("decay", 0.0), ("clip", 0.0), ("rate", -1.0))]
        got = from_cpp(
            lib.solver_updates(name, to_cpp(w), [to_cpp(g) for g in gradients], *arguments)
        )
        assert_close(got, p.d, F32, name)


@pytest.mark.parametrize("key, shape", [("embed/W", (3, 4)), ("b", (4,)), ("w", (5, 2))])
def test_muon_updates_by_name_and_shape(key, shape):
    lib, rng = require_library(), np.random.default_rng(0)
    w, *gradients = rng.normal(size=(6, *shape)).astype(F32)
    p, solver = Variable.from_numpy_array(w.copy(), need_grad=True), S.Muon()
    solver.set_parameters({key: p})
    solver.set_learning_rate(0.02)
    for g in gradients:
        p.g = g
        solver.weight_decay(0.3)
        solver.update()
    given = to_cpp(w), [to_cpp(g) for g in gradients], 0.3, 0.0, 0.02
    assert_close(from_cpp(lib.solver_updates("Muon", *given, name=key)), p.d, F32, key)


def test_initial_values_are_those_of_python_bit_for_bit():
    lib = require_library()
    for kind, make in {
        "uniform": lambda rng: I.UniformInitializer((-0.5, 2.0), rng),
        "normal": lambda rng: I.NormalInitializer(0.3, rng),
    }.items():
        want = make(np.random.RandomState(313))((3, 5))
        a, b = (-0.5, 2.0) if kind == "uniform" else (0.3, 0.0)
        assert np.array_equal(from_cpp(lib.initial_values(kind, (3, 5), a, b)), want), kind
    with nn.parameter_scope("", {}):
        state = nn.Variable((1, 1, 1, 3))
        PF.lstm(nn.Variable((1, 1, 2)), state, state, rng=np.random.RandomState(313))
        want = nn.get_parameters()["lstm/weight_l0"].d
    assert np.array_equal(from_cpp(lib.initial_values("lstm", (1, 1, 2), 0.0, 0.0)), want)


@pytest.mark.parametrize("extension", [".h5", ".protobuf"])
def test_files_of_parameters_are_read_and_written(tmp_path, extension):
    given, made = (str(tmp_path / (name + extension)) for name in ("given", "made"))
    rng = np.random.default_rng(0)
    shapes = {"b/W": (3, 4), "b/b": (4,), "a/number": (), "c/empty": (0, 2)}
    if extension == ".h5":
        pytest.importorskip("h5py")
    with nn.parameter_scope("", {}):
        for name, shape in shapes.items():
            v = Variable.from_numpy_array(rng.normal(size=shape).astype(F32))
            v.need_grad = name != "b/b"
            nn.parameter.set_parameter(name, v)
        nn.save_parameters(given)
        want = nn.get_parameters(grad_only=False)
        require_library().copy_parameters(given, made)
    with nn.parameter_scope("", {}):
        nn.load_parameters(made)
        found = nn.get_parameters(grad_only=False)
    assert list(found) == list(want)
    for name, v in want.items():
        assert np.array_equal(found[name].d, v.d)
        assert found[name].shape == v.shape and found[name].need_grad == v.need_grad


def test_a_network_from_a_file_is_a_graph_that_can_be_trained(tmp_path):
    lib, path = require_library(), str(tmp_path / "net.nnlp")
    rng = np.random.default_rng(0)
    with nn.parameter_scope("", {}):
        x = nn.Variable((2, 1, 12, 12))
        h = F.relu(F.max_pooling(PF.convolution(x, 16, (3, 3), name="conv1"), (2, 2)))
        h = PF.convolution(h, 16, (3, 3), name="conv2")
        h = F.relu(PF.batch_normalization(h, batch_stat=False)) * 2.0  # fused with the convolution
        y = F.tanh(PF.affine(h, 3) * 0.001)
        for v in nn.get_parameters(grad_only=False).values():
            v.d = rng.uniform(0.5, 1.0, v.shape)
        nn.save_program(path, {"y": y}, {"x": x})
        x.d = rng.normal(size=x.shape)
        total = F.sum(y)
        total.forward()
        total.backward()
        outputs, gradients = lib.network(path, 0, {"x": to_cpp(x.d.astype(F32))})
        assert_close(from_cpp(outputs["y"]), y.d, F32, "y")
        assert set(gradients) == set(nn.get_parameters())
        for name, v in nn.get_parameters().items():
            assert_close(from_cpp(gradients[name]), v.g, F32, name)
        more = np.concatenate([x.d, x.d]).astype(F32)
        outputs, _ = lib.network(path, 4, {"x": to_cpp(more)})
        assert_close(from_cpp(outputs["y"])[2:], y.d, F32, "another batch size")
    with pytest.raises(ValueError, match="^Network: there is no input 'z', only 'x'$"):
        lib.network(path, 0, {"z": to_cpp(more)})


NNABLA = """
#include <cstdlib>
#include <nnl/nnabla.h>
namespace nbla = nnl::nnabla;
int main() {
  nbla::Context ctx{"cpu", "CpuCachedArray", "0", "default"};
  nbla::utils::nnp::Nnp nnp(ctx);
  if (nnp.add("no_such_file") || !nnp.add("net.nnp")) return 1;
  auto executor = nnp.get_executor("runtime");
  executor->set_batch_size(1);
  nbla::CgVariablePtr x = executor->get_data_variables().at(0).variable;
  uint8_t* data = x->variable()->cast_data_and_get_pointer<uint8_t>(ctx);
  for (int i = 0; i < 4; ++i) data[i] = i;
  executor->execute();
  nbla::CgVariablePtr y = executor->get_output_variables().at(0).variable;
  std::printf("%g", y->variable()->get_data_pointer<float>(ctx)[0]);

  auto net = nnp.get_network("training");
  net->set_batch_size(2);
  x = net->get_variable("x");
  nbla::CgVariablePtr loss = net->get_variable("y");
  auto solver = nbla::create_SgdSolver(ctx, 0.5);
  solver->set_parameters(nnp.get_parameters());
  for (int i = 0; i < 8; ++i) x->variable()->cast_data_and_get_pointer<float>(ctx)[i] = 1;
  solver->zero_grad();
  loss->forward(false, true);
  loss->variable()->grad()->fill(1.0);
  loss->backward(nullptr, true);
  solver->update();
  return nnp.save_parameters("parameter.h5") ? 0 : 1;
}
"""


def test_nnabla_s_names_for_networks_of_files(tmp_path):
    require_library()
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    pytest.importorskip("h5py")
    with nn.parameter_scope("", {}):
        x = nn.Variable((3, 4))
        w = nn.parameter.get_parameter_or_create("w", (4, 1), np.ones((4, 1)))
        names = {"names": {"x": x}, "outputs": {"y": F.affine(x, w)}, "batch_size": 3}
        executor = {"name": "runtime", "network": "runtime", "data": ["x"], "output": ["y"]}
        networks = [{"name": "training", **names}, {"name": "runtime", **names}]
        save(str(tmp_path / "net.nnp"), {"networks": networks, "executors": [executor]})
        (tmp_path / "main.cpp").write_text(NNABLA)
        command = [sys.executable, "-m", "nnl.cli.main", "cpp-flags"]
        flags = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        subprocess.run(f"g++ -std=c++17 main.cpp {flags.strip()} -o main", shell=True, cwd=tmp_path,
                       check=True)  # fmt: skip
        run = subprocess.run("./main", cwd=tmp_path, capture_output=True, text=True, check=True)
        assert run.stdout == "6"
        nn.load_parameters(str(tmp_path / "parameter.h5"))
        assert (nn.get_parameters()["w"].d == 0.0).all()  # 1 - 0.5 times a gradient of 2


def test_the_paper_s_network_has_as_many_lines_as_in_python():
    examples = Path(__file__).parents[2] / "examples"
    cpp = (examples / "cpp/train_lenet.cpp").read_text().split("Variable lenet(")[1]
    python = (examples / "digits/train.py").read_text().split("def lenet(")[1]
    lines = [
        [x for x in text.split("return h")[0].splitlines() if " h = " in x]
        for text in (cpp, python)
    ]
    assert [len(x) for x in lines] == [9, 9]
