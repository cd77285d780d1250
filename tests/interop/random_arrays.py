# SPDX-License-Identifier: Apache-2.0
"""Random uses of arrays that share memory: parts, other shapes, `outputs=`, leaves of a graph.

All arrays have four elements. Every one is read at the end of every line that writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# {0} is written, {1} and {2} are read.
WRITES = (
    "{0}.fill({v})", "{0}.zero()", "{0}.data[...] = r.randn(4)",
    "{0}.data[1] = {v}", "{0}.copy_from({1})", "{0} += {v}", "{0} *= {v}", "{0} -= {1}",
    "{0} += {1}", "F.identity({1}, outputs=[{0}])", "F.add2({1}, {2}, outputs=[{0}])",
    "F.sin({1}, outputs=[{0}])", "F.mul_scalar({1}, {v}, outputs=[{0}])",
    "F.add2({1}, {2}, inplace=True, outputs=[{0}])", "{0}.data *= {v}",
)  # fmt: skip


def script(seed: int, kind: str = "") -> str:
    """The text of a random script."""
    rng = np.random.default_rng(seed)
    pick: Any = lambda of: of[int(rng.integers(len(of)))]  # noqa: E731
    lines = [f"r = np.random.RandomState({seed})"]
    names: list[str] = []
    for i in range(int(rng.integers(1, 3))):  # wholes, and parts of them
        lines += [f"b{i} = nn.NdArray((12,))", f"b{i}.data = r.randn(12).astype(np.float32)"]
        for k in range(int(rng.integers(1, 4))):  # NNabla's may not overlap
            lines.append(f"n{i}{k} = b{i}.narrow(0, {4 * k}, 4)")
            names.append(f"n{i}{k}")
            if rng.random() < 0.3:
                lines.append(f"m{i}{k} = n{i}{k}.view((4,))")
                names.append(f"m{i}{k}")
    x = [f"x{i}" for i in range(2)]  # leaves; one may be a part
    for v in x:
        lines += [
            f"{v} = nn.Variable((4,), need_grad=True)",
            f"{v}.d = r.randn(4).astype(np.float32)",
        ]
    if rng.random() < 0.5:
        lines.append(f"x1.data = {pick(names)}")
    if rng.random() < 0.3:
        lines.append("x0.data = x1.data")
    names += [f"{v}.data" for v in x]
    lines.append("y = F.sum(F.sin(x0) * x1 + x0)")
    wholes = sorted({f"b{n[1]}" for n in names if n[0] == "n"})
    for k in range(int(rng.integers(2, 8))):
        text = pick(WRITES).format(*(pick(names) for _ in range(3)), v=f"{rng.uniform(0.3, 2):.3g}")
        lines.append(text)
        lines += [f"outputs['{k}{n}'] = {n}.data.copy()" for n in [*wholes, *names]]
        if rng.random() < 0.3:
            lines += [f"{v}.grad.zero()" for v in x]
            lines += ["y.forward()", "y.backward()", f"outputs['{k}y'] = y.d.copy()"]
            lines += [f"outputs['{k}g{v}'] = {v}.g.copy()" for v in x]
    return "\n".join(lines)
