# SPDX-License-Identifier: Apache-2.0
"""Llama 3 on H100s as `nnl plan` predicts it, beside published figures.

    python benchmarks/plan.py    # a table on stdout; nothing is trained

Tokens per second of a GPU as published: Llama 3 8B on 8 and 128 GPUs with selective recomputation
from torchtitan's benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3 (cards of 500 W and
96 GB of HBM2e); 70B from the GPU-hours of its model card, restarts and all (6.4 million for 15
trillion tokens); 405B from its use of 38 to 43 % of the peak (arXiv:2407.21783, section 3.3).
"""

from __future__ import annotations

from math import prod

import nnl as nn
import nnl.communicators as C
import nnl.solvers as S
from nnl.communicators.parallel.planning import (
    H100,
    Absent,
    DecoderSizes,
    bound,
    decoder_quantities,
    step_s,
)
from nnl.core.settings.context import Context

LLAMA = {
    "8B": DecoderSizes(4096, 14336, 32, 32, 8, 128256),
    "70B": DecoderSizes(8192, 28672, 80, 64, 8, 128256),
    "405B": DecoderSizes(16384, 53248, 126, 128, 8, 128256),
}
LENGTH = 8192
RUNS = [  # model, mesh, level, micro batch, micro batches, chunks, published
    ("8B", {"shard": 8}, 3, 1, 1, 1, "5,762 to 6,667"),
    ("8B", {"data": 16, "shard": 8}, 3, 1, 1, 1, "5,605 to 6,514"),
    ("70B", {"shard": 8, "model": 8}, 3, 1, 1, 1, ""),
    ("70B", {"shard": 64, "model": 8, "pipe": 4}, 1, 1, 8, 5, "651"),
    ("405B", {"shard": 8, "model": 8, "pipe": 16}, 1, 1, 32, 7, ""),
    ("405B", {"shard": 64, "model": 8, "pipe": 16}, 1, 1, 32, 7, ""),
    ("405B", {"shard": 128, "model": 8, "pipe": 16}, 1, 1, 16, 7, "38 to 43 %"),
]


def main() -> None:
    print("| model | GPUs | mesh, level | GB | s | tokens/s | of peak | bound by | published |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, sizes, level, batch, m, chunks, said in RUNS:
        c, n = LLAMA[name], prod(sizes.values())
        with nn.context_scope(Context(["cpu:bfloat16"])):
            mesh = C.Mesh(**sizes, comm=Absent(n))  # type: ignore[arg-type]
            q = decoder_quantities(c, S.Adam(), mesh, level, H100, (batch, LENGTH), m, chunks)
        memory = sum(q[k] for k in ("parameters", "gradients", "states", "step")) / 1e9
        tokens = batch * LENGTH * m / (mesh.model.size * mesh.pipe.size)
        flops = 6 * (c.parameters - c.vocabulary * c.width) + 6 * c.layers * c.width * LENGTH
        turn, meanwhile = (tokens / s for s in step_s(q))
        used = [f"{r * flops / 989e12:.0%}" for r in (turn, meanwhile)]
        print(
            f"| {name} | {n:,} | {', '.join(f'{k}={v}' for k, v in sizes.items())}, {level} | "
            f"{memory:.0f} | {step_s(q)[0]:.2f} | {turn:,.0f} to {meanwhile:,.0f} | "
            f"{used[0]} to {used[1]} | {bound(q)} | {said} |"
        )


if __name__ == "__main__":
    main()
