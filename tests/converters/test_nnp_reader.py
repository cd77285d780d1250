# SPDX-License-Identifier: Apache-2.0
"""load() and NnpLoader: what they build, and what they say of broken files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.converters.nnp.training_reader import generator
from nnl.utils.load import load
from nnl.utils.nnp_graph import NnpLoader
from nnl.utils.save import save
from tests.converters.test_nnp_writer import everything, network

Text = str


def text_file(text: Text) -> io.BytesIO:
    return io.BytesIO(text.encode())


def variable(name: str, *shape: int, kind: str = "Buffer") -> Text:
    dims = " ".join(f"dim: {n}" for n in shape)
    return f'variable {{ name: "{name}" type: "{kind}" shape {{ {dims} }} }}\n'


def function(kind: str, inputs: str, outputs: str, more: str = "") -> Text:
    ends = "".join(f' input: "{n}"' for n in inputs.split())
    ends += "".join(f' output: "{n}"' for n in outputs.split())
    return f'function {{ name: "f{outputs}" type: "{kind}"{ends} {more} }}\n'


def net(body: Text, batch: int = 4) -> Text:
    return f'network {{ name: "n" batch_size: {batch}\n{body} }}\n'


def saved(path: Path, steps: int = 2) -> dict[str, Any]:
    """A trained classifier in a file, and its variables."""
    contents = everything()
    solver = contents["optimizers"][0]["solver"]
    given = {**contents["networks"][0]["names"], **contents["networks"][0]["outputs"]}
    rng = np.random.default_rng(2)
    given["x"].d = rng.normal(size=(4, 6))
    given["t"].d = rng.integers(0, 3, (4, 1))
    for _ in range(steps):
        given["loss"].forward()
        solver.zero_grad()
        given["loss"].backward()
        solver.update()
    save(path, contents, include_solver_state=True, include_params=path.suffix != ".nnp")
    return {**given, "solver": solver}


def train_step(v: dict[str, Any], solver: Any) -> np.ndarray:
    nn.seed(7)  # for dropout
    v["loss"].forward()
    solver.zero_grad()
    v["loss"].backward()
    solver.update()
    return v["loss"].d.copy()


@pytest.mark.parametrize("extension", [".nnp", ".nntxt", ".prototxt", ".protobuf"])
def test_training_goes_on_after_loading(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a{extension}"
    first = saved(path)
    values = {"x": first["x"].d.copy(), "t": first["t"].d.copy()}
    want = [train_step(first, first["solver"]) for _ in range(3)]
    nn.clear_parameters()
    info = load(path)
    optimizer = info.optimizers["o"]
    assert isinstance(optimizer.solver, S.Adam) and optimizer.solver.info["alpha"] == 0.01
    v = {k: p.variable_instance for k, p in info.networks["n"].variables.items()}
    v["x"].d, v["t"].d = values["x"], values["t"]
    got = [train_step(v, optimizer.solver) for _ in range(3)]
    np.testing.assert_array_equal(got, want)


def test_need_grad_is_that_of_the_file(tmp_path: Path) -> None:
    saved(tmp_path / "a.nnp")
    flags = {k: v.need_grad for k, v in nn.get_parameters(grad_only=False).items()}
    nn.clear_parameters()
    load(tmp_path / "a.nnp")
    got = nn.get_parameters(grad_only=False)
    assert {k: v.need_grad for k, v in got.items()} == flags
    assert not flags["b/bn/mean"] and flags["a/affine/W"]


def test_what_belongs_to_a_network_is_linked_to_it(tmp_path: Path) -> None:
    saved(tmp_path / "a.nnp")
    info = load(tmp_path / "a.nnp")
    n = info.networks["n"]
    assert list(n.inputs) == ["x", "t"] and list(n.outputs) == ["loss"]
    e, m, o = info.executors["e"], info.monitors["m"], info.optimizers["o"]
    assert e.network is m.network is o.network is n
    assert e.dataset_assign == {n.variables["x"]: "x"} and e.num_evaluations == 1
    assert e.output_assign == {n.variables["y"]: ["", "y"]}
    assert list(e.parameters.values()) == list(n.parameters)
    assert m.monitor_variables == o.loss_variables == [n.variables["loss"]]
    assert list(o.parameters) == list(nn.get_parameters()) == list(o.solver.get_parameters())
    assert o.parameter_learning_rate_multipliers[n.variables["b/bn/mean"]] == 0
    assert o.data_iterators["d"] is info.datasets["d"].data_iterator is not None
    d = info.datasets["d"]
    assert (d.uri, d.variables, d.batch_size, d.normalize) == ("u.csv", ["x", "t"], 4, True)
    t = info.training_config
    assert (t.max_epoch, t.iter_per_epoch, t.save_best, t.monitor_interval) == (2, 3, True, 10)
    assert info.default_context.backend == ["cpu:float"]
    assert (type(o.scheduler).__name__, o.scheduler.gamma, o.update_interval) == (
        "ExponentialScheduler",
        1.0,
        1,
    )
    e.forward_target.forward()
    assert load(tmp_path / "a.nnp", prepare_data_iterator=False).datasets["d"].data_iterator is None


def test_the_target_of_an_optimizer_has_the_gradient_of_the_mean() -> None:
    text = net(variable("x", 4, 2) + variable("y", 4, 2) + function("Tanh", "x", "y"))
    text += 'optimizer { name: "o" network_name: "n" solver { type: "Sgd" }'
    text += ' loss_variable { variable_name: "y" } }'
    info = load(text_file(text))
    x = info.networks["n"].variables["x"].variable_instance
    x.need_grad = True
    x.d = 0.0
    info.optimizers["o"].target.forward()
    info.optimizers["o"].target.backward()
    np.testing.assert_allclose(x.g, np.full((4, 2), 1 / 8))


@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_the_batch_size_is_chosen_when_a_network_is_built(batch_size: int | None) -> None:
    x = nn.Variable((4, 6))
    y = F.reshape(PF.affine(x, 6) + F.randn(0, 1, (4, 6)), (4, 2, 3))
    file = io.BytesIO()
    save(file, network({"y": y}, {"x": x}))
    loader = NnpLoader(io.BytesIO(file.getvalue()), extension=".nnp")
    assert loader.get_network_names() == ["n"]
    n = loader.get_network("n", batch_size)
    size = batch_size or 4
    assert n.inputs["x"].shape == (size, 6) and n.outputs["y"].shape == (size, 2, 3)
    assert list(n.variables)[:2] == ["x", "@n/Affine_out"]
    n.outputs["y"].forward()


def test_parameters_are_kept_in_the_scope_that_is_given(tmp_path: Path) -> None:
    saved(tmp_path / "a.nnp")
    nn.clear_parameters()
    with nn.parameter_scope("elsewhere") as scope:
        pass
    with nn.parameter_scope("here"):
        NnpLoader(tmp_path / "a.nnp", scope).get_network("n")
    names = list(nn.get_parameters(grad_only=False))
    assert sorted({n.split("/")[0] for n in names}) == ["elsewhere", "here"] and len(names) == 16


def test_parameters_can_be_left_out_or_read_alone(tmp_path: Path) -> None:
    saved(tmp_path / "a.nnp")
    w = nn.get_parameters()["a/affine/W"]
    w.d = 3.0
    load(tmp_path / "a.nnp", exclude_parameter=True)
    assert (w.d == 3).all()
    info = load(tmp_path / "a.nnp", parameter_only=True)
    assert not (w.d == 3).any() and not info.networks  # the same Variable, so handles follow


def test_several_files_are_merged(tmp_path: Path) -> None:
    contents = everything()
    save(tmp_path / "a.nntxt", contents)
    nn.save_parameters(tmp_path / "p.h5")
    want = nn.get_parameters()["c/affine/W"].d.copy()
    nn.clear_parameters()
    info = load([tmp_path / "a.nntxt", str(tmp_path / "p.h5")])
    got = info.networks["n"].variables["c/affine/W"].variable_instance
    np.testing.assert_array_equal(got.d, want)


def test_the_network_is_static_under_auto_forward(tmp_path: Path) -> None:
    saved(tmp_path / "a.nnp")
    with nn.auto_forward():
        n = load(tmp_path / "a.nnp").networks["n"]
    assert n.variables["y"].variable_instance.parent is not None


def test_a_file_for_another_device_runs_here(caplog: pytest.LogCaptureFixture) -> None:
    old = 'global_config { default_context { backend: "cuda|default" compute_backend: "cudnn" } }'
    assert load(text_file(old)).default_context.backend == ["cpu:float"]
    assert "['cuda', 'default', 'cudnn'] is not available" in caplog.text


# ---- initial values ----


@pytest.mark.parametrize(
    ("kind", "shape", "std"),
    [
        ("Normal", (50, 60), 1),
        ("NormalAffineHe", (50, 60), np.sqrt(2 / 50)),
        ("NormalAffineHeBackward", (50, 60), np.sqrt(2 / 60)),
        ("NormalAffineGlorot", (50, 60), np.sqrt(2 / 110)),
        ("NormalConvolutionHeForward", (40, 20, 3, 3), np.sqrt(2 / 180)),
        ("NormalConvolutionHeBackward", (40, 20, 3, 3), np.sqrt(2 / 360)),
        ("NormalCLConvGlorot", (40, 3, 3, 20), np.sqrt(2 / 540)),
        ("Uniform", (50, 60), 1 / np.sqrt(3)),
        ("UniformAffineGlorot", (50, 60), np.sqrt(2 / 110)),
        ("UniformConvolutionGlorot", (40, 20, 3, 3), np.sqrt(2 / 540)),
        ("NormalConvolutionHe", (400, 3, 3), np.sqrt(2 / 3600)),
        ("UniformConvolutionGlorot", (400, 3, 3), np.sqrt(2 / 7200)),
        ("UniformAffineGlorot", (4000,), np.sqrt(2 / 4001)),
        ("UniformCLConvGlorot", (40, 3, 3, 20), np.sqrt(2 / 540)),
    ],
)
def test_initialisers_have_the_spread_of_their_rule(
    kind: str, shape: tuple[int, ...], std: float
) -> None:
    text = variable("w", *shape, kind="Parameter")[:-3]
    text += f' initializer {{ type: "{kind}" multiplier: 2 }} }}'
    load(text_file(net(text)))
    w = nn.get_parameters()["w"].d
    assert abs(w.std() / (2 * std) - 1) < 0.05 and abs(w.mean()) < 0.1 * w.std() * 2


def test_values_of_simple_initialisers() -> None:
    def one(kind: str) -> Text:
        text = variable(kind or "none", 2, 2, kind="Parameter")[:-3]
        return text + f' initializer {{ type: "{kind}" multiplier: 2 }} }}'

    load(text_file(net(one("Constant") + one("Range") + one(""))))
    got = {k: v.d.ravel().tolist() for k, v in nn.get_parameters().items()}
    assert got == {"Constant": [2.0] * 4, "Range": [0.0, 2.0, 4.0, 6.0], "none": [0.0] * 4}


def test_generators_make_arrays_of_a_shape() -> None:
    assert generator("Constant", 2, "f")((2, 3)).tolist() == [[2.0] * 3] * 2
    assert generator("Range", 2, "f")((3,)).tolist() == [0, 2, 4]
    assert np.abs(generator("Uniform", 0.5, "f")((100,))).max() <= 0.5
    assert generator("Normal", 1, "f")((2,)).shape == (2,)
    with pytest.raises(ValueError, match="f: the generator 'Poisson' is unknown"):
        generator("Poisson", 1, "f")


# ---- optional inputs ----


def test_omitted_inputs_are_found_by_shape_and_flags() -> None:
    x, w, bias = nn.Variable((2, 3, 8, 8)), nn.Variable((5, 3, 3, 3)), nn.Variable((5,))
    offset = nn.Variable((2, 18, 8, 8))
    m, v = nn.Variable((1, 3, 1, 1)), nn.Variable((1, 3, 1, 1))
    y = F.deformable_convolution(x, w, offset, None, bias, pad=(1, 1))
    z = F.batch_normalization(x, None, None, m, v, batch_stat=False)
    file = io.BytesIO()
    save(file, network({"y": y, "z": z}, {"x": x, "b": bias, "m": m, "v": v}))
    n = load(io.BytesIO(file.getvalue()), extension=".nnp", batch_size=2).networks["n"]
    inputs = n.variables["y"].variable_instance.edge.node.inputs
    assert inputs[3] is None and inputs[4].current_spec.shape == (5,)
    inputs = n.variables["z"].variable_instance.edge.node.inputs
    assert [i is None for i in inputs] == [False, True, True, False, False]


# ---- broken files ----

XY = variable("x", 4, 6) + variable("y", 4, 6)
AFFINE = function("Affine", "x w", "y", "affine_param { base_axis: 1 }")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("network {", ValueError, "load: file: no NNablaProtoBuf message"),
        ("a { " * 2000, ValueError, "load: file: no NNablaProtoBuf message"),
        (
            net(XY + function("Nope", "x", "y")),
            ValueError,
            r"network 'n': function 'fy' \(Nope\): nnl has no function of type 'Nope'",
        ),
        (net(XY + function("", "x", "y")), ValueError, r"function 'fy' \(\): the function has no"),
        (
            net(variable("x", 4) + function("ReLU", "x", "y")),
            ValueError,
            "network 'n': function 'fy': there is no variable 'y'",
        ),
        (
            net(XY + function("ReLU", "y", "x") + function("ReLU", "x", "y")),
            ValueError,
            "function 'fx': its inputs depend on its outputs",
        ),
        (
            net(XY + function("ReLU", "x", "y") + function("Tanh", "x", "y")),
            ValueError,
            "variable 'y' is already computed by the function 'fy'",
        ),
        (net(XY + XY), ValueError, "variable 'x': two variables have this name"),
        (net(variable("x", -1), 0), ValueError, "its batch size is open, give batch_size"),
        (net(variable("x", -2)), ValueError, r"variable 'x': its shape \(-2,\) is impossible"),
        (net(variable("x", 2**40, 2**40)), ValueError, "variable 'x': its shape .* is impossible"),
        (
            net(
                variable("y")
                + function("Constant", "", "y", "constant_param { shape { dim: -3 } }")
            ),
            ValueError,
            r"\(Constant\): its shape \(-3,\) is impossible",
        ),
        (
            net(XY + variable("z", 4, 6) + function("Add2", "x", "z y")),
            ValueError,
            r"\(Add2\): 1 inputs do not fit add2\(x0, x1\)",
        ),
        (
            net(variable("x", 4, 6) + variable("w", 5, 6) + variable("y") + AFFINE),
            ValueError,
            r"function 'fy' \(Affine\): affine: ",
        ),
        (
            net(XY + variable("z") + function("ReLU", "x", "y z")),
            ValueError,
            "the file names 2 outputs, the function has 1",
        ),
        (
            net(XY + function("RepeatStart", "x", "y", "repeat_param { repeat_id: 'r' times: 2 }")),
            ValueError,
            r"'fy' \(RepeatStart\): it has 1 inputs and 1 outputs, wanted 2 and 1",
        ),
        (net("") + net(""), ValueError, "two networks have the name 'n'"),
        (
            'parameter { variable_name: "w" shape { dim: 3 } data: 1 }',
            ValueError,
            r"'w' has 1 values for the shape \(3,\)",
        ),
        (
            'parameter { variable_name: "w" shape { dim: 1 } data: 1 }'
            + net(variable("w", 2, kind="Parameter")),
            ValueError,
            r"parameter 'w' has the shape \(1,\), the network wants \(2,\)",
        ),
        (net(variable("//", 1, kind="Parameter")), ValueError, "a parameter has the name '//'"),
        (
            net(variable("a", 1, kind="Parameter") + variable("a/b", 1, kind="Parameter")),
            ValueError,
            "'a' is a parameter and the scope of 'a/b'",
        ),
        ('executor { name: "e" network_name: "k" }', ValueError, "executor 'e': there is no netw"),
        (
            net("") + 'executor { name: "e" network_name: "n" data_variable {variable_name: "x"} }',
            ValueError,
            "executor 'e': the network 'n' has no variable 'x'",
        ),
        (
            net("") + 'optimizer { name: "o" network_name: "n" solver { type: "Best" } }',
            ValueError,
            "optimizer 'o': the solver 'Best' is unknown",
        ),
        (
            net("")
            + 'optimizer { name: "o" network_name: "n" solver {type: "Sgd" sgd_param {lr: -1}} }',
            ValueError,
            "optimizer 'o': Sgd: lr is -1",
        ),
        (
            net("") + 'monitor { name: "m" network_name: "n" dataset_name: "d" }',
            ValueError,
            "monitor 'm': there is no dataset 'd'",
        ),
        (
            net(
                'variable { name: "w" type: "Parameter" shape { dim: 4 }'
                ' initializer { type: "NormalConvolutionHe" multiplier: 1 } }'
            ),
            ValueError,
            r"parameter 'w': weights of an initialiser ConvolutionHe cannot have the shape \(4,\)",
        ),
        (
            net(
                'variable { name: "w" type: "Parameter" shape { dim: 4 }'
                ' initializer { type: "NormalNope" multiplier: 1 } }'
            ),
            ValueError,
            "parameter 'w': the initialiser NormalNope is unknown",
        ),
        (
            net(
                'variable { name: "w" type: "Parameter" shape { dim: 2147483648 }'
                ' initializer { type: "Normal" multiplier: 1 } }'
            ),
            ValueError,
            r"no values for the shape \(2147483648,\), which is too large",
        ),
    ],
)
def test_broken_files_are_named_and_change_nothing(
    text: Text, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load(text_file(text))
    assert nn.get_parameters(grad_only=False) == {}


def test_a_parameter_of_another_shape_is_left_alone(tmp_path: Path) -> None:
    saved(tmp_path / "a.nnp")
    nn.clear_parameters()
    w = nn.parameter.get_parameter_or_create("c/affine/W", (2, 2))
    with pytest.raises(ValueError, match=r"parameter 'c/affine/W' has the shape \(8, 3\) in the"):
        load(tmp_path / "a.nnp")
    assert list(nn.get_parameters(grad_only=False)) == ["c/affine/W"] and not w.d.any()


def test_files_are_told_by_their_extension(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"a.txt has the extension '.txt', wanted .nnp, .nntxt,"):
        load(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.nnp")
    with pytest.raises(ValueError, match="there is no network 'k', only"):
        NnpLoader(text_file(net(""))).get_network("k")
    with pytest.raises(TypeError, match="callback is builtin_function_or_method, wanted NnpNetw"):
        NnpLoader(text_file(net(""))).get_network("n", callback=print)
