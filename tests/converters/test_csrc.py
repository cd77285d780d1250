# SPDX-License-Identifier: Apache-2.0
"""C source: networks, compiled by the C compiler of the machine."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl import models
from nnl.cli.main import main
from nnl.converters import onnx
from nnl.converters.coverage import types_said
from nnl.converters.csrc.calls import KERNELS
from nnl.converters.csrc.names import distinct, identifier
from nnl.converters.csrc.target import target
from nnl.converters.csrc.writer import save
from nnl.converters.networks.lowering import CannotLower, lower
from nnl.converters.networks.model import Network
from nnl.converters.runtimes.compiled_c import compiled
from nnl.core.ops.elementwise import ARITY
from nnl.core.ops.op import OPS
from tests.cli.test_convert import write_network
from tests.converters.test_nnb import dense, of_sample, values
from tests.converters.test_open_writers import NETWORKS as OPEN
from tests.graph.open_networks import Network as OpenNetwork
from tests.graph.saved import NETWORKS, leaves_of, normal
from tests.test_derived import PUBLIC

SANITIZED = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FAST = ("-O3", "-march=native", "-ffp-contract=fast")  # those of the Makefile
SMALL = ("lenet", "unet", "gpt2", "bert")


def run(folder: Path, network: Network, *flags: str) -> list[Any]:
    """What the compiled example prints, output by output; skips the test without a compiler."""
    program = compiled(str(folder), "the network", flags or ("-O1",))
    if program is None:
        pytest.skip("no C compiler is installed (CC names it)")
    return list(program.run({k: v.d for k, v in network.inputs.items()}))


def check(folder: Path, network: Network, tolerance: float, *flags: str, **options: bool) -> None:
    save(folder, network, **options)
    got = run(folder, network, *flags)
    with np.errstate(all="ignore"):
        want = values(network)
    for name, a, b in zip(network.outputs, got, want, strict=True):
        b = b.astype(np.float64)
        limit = tolerance * np.abs(b[np.isfinite(b)]).max(initial=1e-6)
        np.testing.assert_allclose(a, b, rtol=0, atol=limit, err_msg=name)


def of_samples(every: int) -> tuple[Network, set[str]]:
    """One network of the first and every n-th sample that C can say; the functions in it."""
    whole, said = Network("samples", {}, {}), set()
    for n, (op, i) in enumerate(p.values for p in PUBLIC):
        network = of_sample(op, i) if i == 0 or n % every == 0 else None
        if network is None or op.name == "dropout":  # which draws here, and not in C
            continue
        try:
            lower(network, target())
        except CannotLower:
            continue
        said.add(op.nnp)
        whole.inputs.update({f"{op.name}_{i}_{k}": v for k, v in network.inputs.items()})
        whole.outputs.update({f"{op.name}_{i}_{k}": v for k, v in network.outputs.items()})
    return whole, said


def test_samples_are_what_numpy_computes(tmp_path: Path) -> None:
    whole, said = of_samples(every=4)
    check(tmp_path / "c", whole, 2e-5, "-O0")
    assert len(said) > 190


@pytest.mark.long
def test_all_samples_under_sanitizers(tmp_path: Path) -> None:
    whole, said = of_samples(every=1)
    check(tmp_path / "c", whole, 2e-5, *SANITIZED)
    assert types_said(target()) == {*said, "Dropout"}


@pytest.mark.long
def test_samples_compile_at_full_speed_without_warnings(tmp_path: Path) -> None:
    check(tmp_path / "c", of_samples(every=10**9)[0], 2e-5, *FAST)


def of_models(names: Sequence[str]) -> Network:
    """Several networks as one, with means and variances that matter."""
    whole = Network("models", {}, {})
    for name in names:
        with nn.context_scope(nn.Context(["numpy:float"])), nn.parameter_scope(name):
            y = NETWORKS[name]()
        ys = y if isinstance(y, tuple) else (y,)
        whole.outputs.update({f"{name}_{k}": v for k, v in enumerate(ys)})
        whole.inputs[name] = next(v for v in leaves_of(ys[0]) if v.name == "x")
    for v in nn.get_parameters(grad_only=False).values():
        if v.size > 1 and not np.ptp(v.d):
            v.d = 0.5 + np.random.default_rng(0).random(v.shape)
    return whole


def test_networks_are_what_numpy_computes(tmp_path: Path) -> None:
    check(tmp_path / "c", of_models(SMALL), 1e-5)


def of_windows(rng: np.random.Generator) -> Network:
    """Convolutions and poolings of sizes at which the kernels take different ways."""
    network = Network("windows", {}, {})
    for i in range(60):
        n = int(rng.integers(1, 4))
        kernel, dilation, stride = (tuple(map(int, rng.integers(1, k, n))) for k in (4, 3, 3))
        pad = tuple(int(p) for p in rng.integers(0, 2, n) * (i % 2))
        outs = (*map(int, rng.integers(1, 6, n - 1)), int(rng.choice([3, 8, 16, 24])))
        parts = zip(kernel, dilation, stride, pad, outs, strict=True)
        sizes = [(k - 1) * d + 1 + (o - 1) * s for k, d, s, p, o in parts]
        group, maps, out = (int(v) for v in rng.choice([1, 2, 4], 3))
        x = nn.Variable.from_numpy_array(normal(1 + i % 2, group * maps, *sizes))
        w = nn.Variable.from_numpy_array(normal(group * out, maps, *kernel))
        network.inputs[f"x{i}"] = x
        network.outputs[f"convolution{i}"] = F.convolution(
            x, w, None, 1, pad, stride, dilation, group
        )
        pooling = F.max_pooling if i % 3 else F.sum_pooling
        if n > 1 and all(k <= s + p for k, s, p in zip(kernel, sizes, pad, strict=True)):
            small = tuple(min(p, k - 1) for p, k in zip(pad, kernel, strict=True))
            network.outputs[f"pooling{i}"] = pooling(x, kernel, stride, True, small)
    return network


@pytest.mark.parametrize("flags", [("-O1", "-mavx"), SANITIZED])
def test_windows_of_all_sizes_are_what_numpy_computes(tmp_path: Path, flags: Any) -> None:
    if "-mavx" in flags and "avx " not in Path("/proc/cpuinfo").read_text():
        flags = ("-O1",)
    check(tmp_path / "c", of_windows(np.random.default_rng(0)), 1e-5, *flags)


@pytest.mark.long
def test_large_networks_are_what_numpy_computes(tmp_path: Path) -> None:
    network = of_models([n for n in NETWORKS if n not in SMALL])
    check(tmp_path / "c", network, 1e-5, *FAST, weights_file=True)


@pytest.mark.long
def test_several_threads_compute_the_same(tmp_path: Path) -> None:
    check(tmp_path / "c", of_models(SMALL), 1e-5, "-O2", "-DNNL_OPENMP", "-fopenmp")


# ---- what is in a folder ----


def test_every_code_of_element_wise_programs_has_a_function() -> None:
    text = (KERNELS / "elements.h").read_text()
    found = dict(re.findall(r"float element_(\w+)\(([^)]*)\)\n?\s*{", text))
    assert {name: arguments.count("float") for name, arguments in found.items()} == ARITY


def test_loops_are_joined_and_reshaped_arrays_take_no_memory(tmp_path: Path) -> None:
    x = nn.Variable((2, 3))
    y = F.tanh(F.reshape(F.exp(F.sigmoid(x) + x), (3, 2)))
    save(tmp_path / "c", Network("n", {"x": x}, {"y": y}))
    text, header = ((tmp_path / "c" / f"network.{k}").read_text() for k in "ch")
    assert re.findall(r"^    (\w+)\(", text, re.M) == ["sigmoid_add_exp_0", "tanh_1"]
    assert "n_arena_bytes = 64" in header and "n_input_x_size = 6 /* 2 x 3 */" in header


def test_a_folder_has_the_kernels_that_it_uses(tmp_path: Path) -> None:
    save(tmp_path / "c", dense())
    files = {str(f.relative_to(tmp_path / "c")) for f in (tmp_path / "c").rglob("*")}
    kernels = {f"kernels/{k}.h" for k in ("convolution", "elements", "matmul", "product", "window")}
    own = {"Makefile", "example.c", "kernels", "network.c", "network.h", "weights.c", "weights.h"}
    assert files == own | kernels


def test_weights_are_the_same_as_an_array_and_as_a_file(tmp_path: Path) -> None:
    network, found = dense(), []
    network.inputs["x"].d = normal(2, 3, 8, 8)
    for in_file in (False, True):
        folder = tmp_path / str(in_file)
        save(folder, network, weights_file=in_file)
        assert (folder / "weights.bin").exists() == in_file != (folder / "weights.c").exists()
        found.append(run(folder, network)[0])
    np.testing.assert_array_equal(*found)
    (tmp_path / "True" / "weights.bin").write_bytes(b"1234")
    with pytest.raises(ValueError, match="fails with the network: cannot read weights.bin"):
        run(tmp_path / "True", network)


def test_the_makefile_builds_a_small_program(tmp_path: Path) -> None:
    x = nn.Variable((1, 1, 28, 28))
    with nn.context_scope(nn.Context(["numpy:float"])):
        network = Network("lenet", {"x": x}, {"y": models.lenet(x)})
    folder = tmp_path / "c"
    save(folder, network)
    run(folder, network)  # skips the test where nothing compiles
    subprocess.run(["make", "-s", "-C", folder, "CFLAGS=-std=c99 -O2"], check=True)
    assert (folder / "example").exists()
    code = ["cc", "-std=c99", "-O2", "-c", "network.c", "-o", "network.o"]
    subprocess.run(code, cwd=folder, check=True)
    assert (folder / "network.o").stat().st_size < 64 << 10


def test_an_index_outside_gives_nan_and_harms_nothing(tmp_path: Path) -> None:
    x, i = nn.Variable.from_numpy_array(normal(3, 2)), nn.Variable((4,))
    with nn.context_scope(nn.Context(["numpy:float"])):
        y, z = F.embed(i, x), F.scatter_nd(F.reshape(i, (4,)), F.reshape(i, (1, 4)), shape=(3,))
    network = Network("n", {"i": i}, {"y": y, "z": z})
    i.d = [1, 3, -4, np.nan]
    save(tmp_path / "c", network)
    y, z = run(tmp_path / "c", network, *SANITIZED)
    np.testing.assert_array_equal(y.reshape(4, 2), [x.d[1], *[[np.nan] * 2] * 3])
    np.testing.assert_array_equal(z, [0, 1, 0])


# ---- names ----

HOSTILE = (
    'x"); system("touch hacked"); ("', "*/ }", "../../up", "%s%n", "??/", "line\nbreak", "", "int",
    "a b", "a_b", "a?b", "x_size", "x", "\N{SNOWMAN}", "9" * 99, "\\",
)  # fmt: skip


def test_names_are_data(tmp_path: Path) -> None:
    inputs = {
        name: nn.Variable.from_numpy_array(normal(1, seed=k)) for k, name in enumerate(HOSTILE)
    }
    network = Network(HOSTILE[0], inputs, {n: x * 2.0 for n, x in inputs.items()})
    check(tmp_path / "c", network, 0)
    assert [f.name for f in tmp_path.iterdir()] == ["c"]
    prefix = identifier(network.name, "network")
    (tmp_path / "c" / "example.c").write_text(
        f"""#include <stdio.h>
#include "network.h"
int main(void)
{{
    for (int i = 0; i < {prefix}_inputs; i++)
        printf("%s%c", {prefix}_input[i].name, 0);
    return 0;
}}
"""
    )
    command = ["cc", "-o", "names", "network.c", "example.c", "-lm"]
    subprocess.run(command, cwd=tmp_path / "c", check=True)
    told = subprocess.run([tmp_path / "c" / "names"], capture_output=True).stdout
    assert tuple(told.decode().split("\0")[:-1]) == HOSTILE


def test_identifiers_differ_from_each_other() -> None:
    assert identifier("2 x", "network") == "network_2_x"
    assert distinct(["a b", "a_b", "a_b_size", ""], "v") == ["a_b", "a_b_2", "a_b_size_2", "v"]


# ---- bad input ----


def test_only_a_new_or_empty_folder_is_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", dense())
    (tmp_path / "file").write_text("mine")
    for name in ("empty", "file"):
        with pytest.raises(FileExistsError, match=f"{name} exists already, wanted a new folder or"):
            save(tmp_path / name, dense())
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        save(tmp_path / "none" / "c", dense())


def test_all_functions_that_cannot_be_said_are_named_with_their_place(tmp_path: Path) -> None:
    x = nn.Variable((2, 3))
    y = F.random_flip(F.rand(shape=(2, 3)) + x)
    with pytest.raises(CannotLower) as e:
        save(tmp_path / "c", Network("n", {"x": x}, {"y": y}))
    lines = str(e.value).splitlines()
    where = "(documentation: conversion#what-can-be-converted)"
    assert lines[0] == f"CSRC cannot hold the network 'n' {where}:" and len(lines) == 3
    for line, name in zip(lines[1:], ("rand", "random_flip"), strict=True):
        assert re.fullmatch(rf"  {name} \(test_csrc.py:\d+\): C source does not have it", line)
    assert not list(tmp_path.iterdir())


def test_whole_numbers_that_floats_cannot_be_are_told(tmp_path: Path) -> None:
    x, w = nn.Variable((2,)), nn.Variable.from_numpy_array(np.array([1, 2**24 + 1]))
    with pytest.raises(ValueError, match="a constant holds 16777217, and whole numbers up to 1677"):
        save(tmp_path / "c", Network("n", {"x": x}, {"y": F.where(w, x, x)}))


def test_memory_that_int_cannot_count_is_told(tmp_path: Path) -> None:
    with nn.context_scope(nn.Context(["numpy:float"])):
        x, large = nn.Variable((2**29,)), nn.Variable((2**31,))  # they take no memory yet
        y, z = F.cumsum(F.cumsum(x)), F.exp(large)
    with pytest.raises(ValueError, match="the network needs 2147483648 bytes of memory, wanted at"):
        save(tmp_path / "c", Network("n", {"x": x}, {"y": y}))
    with pytest.raises(CannotLower, match="an array has 2147483648 elements, wanted 1 to 21474836"):
        save(tmp_path / "c", Network("n", {"x": large}, {"y": z}))


def test_a_network_may_have_no_inputs_and_no_axes(tmp_path: Path) -> None:
    w = nn.Variable.from_numpy_array(np.float32(1.5))
    with nn.context_scope(nn.Context(["numpy:float"])):
        check(tmp_path / "c", Network("n", {}, {"y": w * 2.0, "z": w}), 0)


# ---- the command ----


def convert(*args: object) -> int:
    return main(["convert", *map(str, args)])


def test_a_file_becomes_a_folder(tmp_path: Path, capsys: Any) -> None:
    file = write_network(tmp_path / "m.nnp")
    run(tmp_path, Network("n", {}, {})) if compiled(".", "") is None else None
    assert convert(file, tmp_path / "c", "-O", "CSRC", "-E", 0, "-b", 2, "--verify") == 0
    assert re.search(r"largest difference: .* by \w+", capsys.readouterr().out)
    assert "2 x 1 x 8 x 8" in (tmp_path / "c" / "network.h").read_text()
    assert convert(file, f"{tmp_path}/d/", "-O", "CSRC", "-E", 0, "--weights-file") == 0
    assert (tmp_path / "d" / "weights.bin").exists()
    assert convert(file, tmp_path / "d", "-O", "CSRC", "-E", 0) == 1
    assert "d exists already, wanted a new folder or an empty one" in capsys.readouterr().err


def test_wrong_options_are_told(tmp_path: Path, capsys: Any) -> None:
    file = write_network(tmp_path / "m.nnp")
    for args, text in [
        (
            ["o", "-O", "CSRC", "-b", -1],
            "CSRC has memory for the greatest sizes, and batch has none: say it as in --open",
        ),
        (["o", "-O", "CSRC", "-d", 3], "the format CSRC has no versions to choose from"),
        (["o.onnx", "--weights-file"], "the option --weights-file is for CSRC, not ONNX"),
        (["o"], "folders have none, their format is named by -O"),
    ]:
        output, *rest = args
        code = 2 if "--weights-file" in rest else 1
        assert convert(file, tmp_path / output, "-E", 0, *rest) == code
        assert text in capsys.readouterr().err
        assert not (tmp_path / output).exists()


def test_a_file_becomes_a_folder_of_8_bits(tmp_path: Path, capsys: Any) -> None:
    file = write_network(tmp_path / "m.nnp")
    np.save(tmp_path / "x.npy", normal(10, 1, 8, 8))
    options = ["-O", "CSRC", "-E", 0, "--quantization", "--dataset", tmp_path / "x.npy"]
    assert convert(file, tmp_path / "c", *options) == 0
    told = capsys.readouterr().out
    if compiled(".", "") is not None:
        assert re.search(
            r"8 bits against float on 10 samples, by \w+: largest difference 0.0", told
        )


# ---- open sizes ----

RANGES = {
    "branches": "x=n:1..5,3,h:8..64,w:8..64",
    "tokens": "x=N:1..4,T:1..40,8",
    "stacked": "x=N:1..4,T:1..40,8",
}


@pytest.mark.parametrize("name", RANGES)
def test_sizes_in_a_range_are_said_to_the_program(name: str, tmp_path: Path) -> None:
    """In memory for the greatest, under sanitizers, as ONNX Runtime."""
    write, shapes, _ = OPEN[name]
    source, folder = tmp_path / "m.onnx", tmp_path / "c"
    write(source)
    assert convert("--verify", "-O", "CSRC", "--open", RANGES[name], source, folder) == 0
    program = compiled(str(folder), "it", SANITIZED)
    if program is None:
        pytest.skip("no C compiler is installed (CC names it)")
    session = pytest.importorskip("onnxruntime").InferenceSession(str(source))
    for shape in shapes:
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        (want,), (found,) = session.run(None, {"x": x}), program.run({"x": x})
        np.testing.assert_allclose(found, want.reshape(-1), atol=5e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="a size is out of range"):
        program.run({"x": np.ones((9, *shapes[0][1:]), np.float32)})


@pytest.mark.parametrize("seed", [1, 3, 12, 14])
def test_random_networks_of_open_sizes(seed: int, tmp_path: Path) -> None:
    net, rng = OpenNetwork(seed), np.random.default_rng(seed)
    x = nn.Variable(net.shape(rng))
    onnx.save(tmp_path / "m.onnx", net, {"x": x}, open={"x": net.axes})
    sizes = "3,height:6..30,width:6..30" if net.image else "time:2..30,8"
    options = "-O", "CSRC", "--open", f"x=batch:1..7,{sizes}"
    assert convert(*options, tmp_path / "m.onnx", tmp_path / "c") == 0
    program = compiled(str(tmp_path / "c"), "it", SANITIZED)
    for _ in range(3 if program else 0):
        x = nn.Variable.from_numpy_array(rng.normal(size=net.shape(rng)).astype("f4"))
        (y := net(x)).forward()
        (found,) = program.run({"x": x.d})  # type: ignore[union-attr]
        scale = max(1.0, np.abs(y.d).max())
        np.testing.assert_allclose(found / scale, y.d.reshape(-1) / scale, atol=2e-5)


def test_what_c_cannot_leave_open_is_named(tmp_path: Path, capsys: Any) -> None:
    OPEN["picture"][0](tmp_path / "m.onnx")
    for sizes, text in (
        ("x=batch:1..5,3,height,width", "and height, width has none: say it as in --open x="),
        ("x=batch:1..5,3,height:2..64,width:2..64", "CSRC cannot leave sizes open: a constant"),
    ):
        assert convert("-O", "CSRC", "--open", sizes, tmp_path / "m.onnx", tmp_path / "c") == 1
        assert text in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_function_info_tells_what_c_can_say(capsys: Any) -> None:
    assert main(["function_info", "-f", "CSRC"]) == 0
    said = capsys.readouterr().out.split()
    assert {"Convolution", "LSTM", "Interpolate"} < set(said) and "Unique" not in said
    assert len(said) > 190 and len(said) < len([op for op in OPS.values() if op.nnp])
