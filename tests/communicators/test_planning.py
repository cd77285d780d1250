# SPDX-License-Identifier: Apache-2.0
"""Plans on paper, against ranks that run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.communicators as C
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.cli.main import main
from nnl.communicators.parallel.planning import (
    H100,
    Absent,
    DecoderSizes,
    bound,
    decoder_quantities,
    quantities,
    step_s,
)
from nnl.utils.save import save
from tests.communicators.ranks import run

# Runs two steps on ranks, counts all arrays, and compares with what one process predicts.
RUN = """
import nnl.solvers as S
from nnl.communicators.parallel.planning import (
    H100, Absent, DecoderSizes, decoder_quantities, decoder_stage)

def grown():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS"))

def measure(c, shape, sizes, level):
    nn.clear_parameters()
    before = grown()
    mesh = C.Mesh(**sizes, comm=comm)
    loss = decoder_stage(c, mesh.model, shape, c.layers, True, True)
    solver = S.Adam()
    solver.set_parameters(nn.get_parameters())
    grads = [p.grad for p in nn.get_parameters().values()]
    if level:
        C.shard(solver, mesh, level, outputs=loss)
    for _ in range(2):
        loss.forward(clear_no_need_grad=True), solver.zero_grad(), loss.backward(clear_buffer=True)
        if level < 2 and mesh.batch.size > 1:
            comm.all_reduce(grads, division=True, group=mesh.batch.group)
        solver.update()
    states = [v for s in solver.get_states().values() for v in s.pstate.values()]
    got = sum(v.d.nbytes for v in [*nn.get_parameters().values(), *states])
    (session,) = loss.sessions.values()
    got += session.plans["train"].plan.nbytes  # gradients are a part of it
    absent = C.Mesh(**sizes, comm=Absent(size))
    q = decoder_quantities(c, S.Adam(), absent, level, H100, shape)
    want = sum(q[k] for k in ("parameters", "gradients", "states", "step"))
    assert abs(got - want) <= 0.05 * want, (sizes, level, got, want)
    return grown() - before, want

for sizes, level in CASES:
    measure(DecoderSizes(64, 96, 5, 4, 2, 96), (2, 32), sizes, level)
"""


@pytest.mark.parametrize(
    ("n", "cases"),
    [
        (1, "[({}, 0)]"),
        (2, "[({'shard': 2}, 1), ({'shard': 2}, 3), ({'model': 2}, 0)]"),
        pytest.param(
            4,
            "[({'shard': 4}, 2), ({'data': 2, 'shard': 2}, 3), ({'shard': 2, 'model': 2}, 3)]",
            marks=pytest.mark.long,
        ),
    ],
)
def test_memory_is_what_ranks_take(tmp_path: Path, n: int, cases: str) -> None:
    run(tmp_path, n, RUN.replace("CASES", cases), fresh=True)


def test_a_process_grows_by_what_is_planned(tmp_path: Path) -> None:
    code = (
        RUN.partition("for sizes, level in")[0]
        + """
grew, want = measure(DecoderSizes(512, 1024, 4, 8, 4, 2048), (2, 128), {}, 0)
assert 0.95 * want < grew < 1.05 * want + 60e6, (grew, want)  # and code, scratch of kernels
"""
    )
    run(tmp_path, 1, code, fresh=True)


LLAMA = DecoderSizes(4096, 11008, 32, 32, 32, 32000)


def plan(level: int = 3, shape: tuple[int, int] = (1, 4096), m: int = 1, **sizes: int) -> dict:
    n = int(np.prod([*sizes.values()]))
    mesh = C.Mesh(**sizes, comm=Absent(n))  # type: ignore[arg-type]
    return decoder_quantities(LLAMA, S.Adam(), mesh, level, H100, shape, m)


def test_a_decoder_of_7_billion_parameters() -> None:
    """Rajbhandari et al., arXiv:1910.02054, fig. 1 and section 7: memory, and what is exchanged."""
    assert LLAMA.parameters == 6_738_415_616  # of Llama 2 7B, arXiv:2307.09288
    one, split = plan(level=0), plan(shard=8)
    bytes_of = 4 * LLAMA.parameters
    assert one["parameters"] == one["gradients"] == bytes_of and one["states"] == 2 * bytes_of
    assert split["states"] == pytest.approx(2 * bytes_of / 8, rel=1e-4)
    assert split["sent shard"] == pytest.approx(3 * bytes_of * 7 / 8, rel=1e-2)
    assert plan(level=0, data=8)["sent batch"] == pytest.approx(2 * bytes_of * 7 / 8, rel=1e-2)
    # 6 operations a parameter and token; those of the embedding are none, of attention some more
    arithmetic = 6 * (LLAMA.parameters - 32000 * 4096) * 4096 / H100.flops[4]
    assert 1 < one["arithmetic"] / arithmetic < 1.2
    assert bound(one) == "arithmetic" and step_s(split)[0] > step_s(split)[1]
    # twice the layers on a rank, twice the waiting for half of the micro batches
    few, many = (plan(level=0, pipe=4, m=m) for m in (4, 8))
    assert few["waiting"] / few["arithmetic"] == pytest.approx(
        2 * many["waiting"] / many["arithmetic"], rel=0.05
    )
    assert few["parameters"] < 0.3 * bytes_of


def test_the_command_prints_what_a_file_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    nn.clear_parameters()
    y = PF.affine(F.relu(PF.affine(nn.Variable((4, 6)), 64, name="a")), 4, name="b")
    file = str(tmp_path / "net.nnp")
    contents = {
        "networks": [{"name": "n", "batch_size": 4, "outputs": {"y": y}, "names": {}}],
        "executors": [{"name": "e", "network": "n", "data": [], "output": ["y"]}],
    }
    save(file, contents)
    assert main(["plan", file, "--mesh", "data=2,shard=4", "--device", "h100"]) == 0
    out = capsys.readouterr().out
    assert "Mesh(pipe=1, data=2, shard=4, model=1)" in out and "bound by links" in out, out
    assert main(["plan", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["parameters"] == 4 * (6 * 64 + 64 + 64 * 4 + 4)
        and found["states"] == 2 * found["parameters"]
    )
    mesh = C.Mesh(comm=Absent(1))  # type: ignore[arg-type]
    solver = S.Momentum()
    solver.set_parameters(nn.get_parameters())
    q = quantities(F.mean(y), solver, mesh, 0, H100)
    assert q["step"] == found["step"] and q["states"] == found["parameters"]
    nn.clear_parameters()


CONFIG = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
          "num_attention_heads": 4, "vocab_size": 96}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--mesh", "data=2,row=3"],
            "--mesh is 'data=2,row=3', wanted numbers of pipe, data, shard",
        ),
        (["--mesh", "model=3"], "wanted a size of axis 1 that the 3 ranks"),
        (["--mesh", "pipe=8"], "plan: 4 layers, wanted one for each of 8 stages"),
        (["--micro-batches", "0"], "plan: micro_batches is 0, wanted a number >= 1"),
        (["--solver", "Best"], "plan: --solver is 'Best', wanted one of "),
    ],
)
def test_the_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture, arguments: list[str], text: str
) -> None:
    import re

    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    assert main(["plan", str(file), *arguments]) in (1, 2)
    assert re.search(text, capsys.readouterr().err)


def test_a_config_without_a_size_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "config.json"
    for said, text in (
        (json.dumps(CONFIG | {"vocab_size": "many"}), "has no vocab_size, wanted a number >= 1"),
        ("[", "is no config.json: Expecting value"),
    ):
        file.write_text(said)
        assert main(["plan", str(file)]) == 1
        assert text in capsys.readouterr().err
