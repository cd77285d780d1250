# SPDX-License-Identifier: Apache-2.0
"""Network texts with loops, as Neural Network Console writes them."""

from __future__ import annotations


def variable(name: str, *shape: int, kind: str = "Buffer", loops: str = "") -> str:
    dims = " ".join(f"dim: {n}" for n in shape)
    ids = " ".join(f'repeat_id: "{r}"' for r in loops.split())
    return f'variable {{ name: "{name}" type: "{kind}" shape {{ {dims} }} {ids} }}\n'


def function(kind: str, inputs: str, outputs: str, more: str = "", loops: str = "") -> str:
    ends = " ".join(f'input: "{n}"' for n in inputs.split())
    ends += " ".join(f' output: "{n}"' for n in outputs.split())
    ids = " ".join(f'repeat_id: "{r}"' for r in loops.split())
    return f'function {{ name: "f{outputs}" type: "{kind}" {ends} {more} {ids} }}\n'


def net(body: str, **loops: int) -> str:
    info = "".join(f'repeat_info {{ id: "{k}" times: {n} }}\n' for k, n in loops.items())
    return f'network {{ name: "n" batch_size: 2\n{info}{body} }}\n'


AFFINE = "affine_param { base_axis: 1 }"
TIMES = 'repeat_param { repeat_id: "R" times: 3 }'
SLICES = 'recurrent_param { repeat_id: "L" length: 3 axis: 1 }'

REPEAT = (
    variable("x", -1, 4)
    + variable("s", -1, 4, loops="R")
    + variable("W{R}", 4, 4, kind="Parameter", loops="R")
    + variable("h", -1, 4, loops="R")
    + variable("e", -1, 4)
    + variable("y", -1, 4)
    + function("RepeatStart", "x h", "s", TIMES, "R")
    + function("Affine", "s W{R}", "h", AFFINE, "R")
    + function("RepeatEnd", "h", "e", TIMES)
    + function("Tanh", "e", "y")
)
SHARED = REPEAT.replace(
    '"W{R}" type: "Parameter" shape { dim: 4 dim: 4 } repeat_id: "R"',
    '"W" type: "Parameter" shape { dim: 4 dim: 4 }',
).replace("W{R}", "W")
UNMARKED = REPEAT.replace("W{R}", "W")
RECURRENT = (
    variable("x", -1, 3, 4)
    + variable("xi", -1, 4, loops="L")
    + variable("init", -1, 4)
    + variable("d", -1, 4, loops="L")
    + variable("c", -1, 4, loops="L")
    + variable("h", -1, 4, loops="L")
    + variable("o", -1, 3, 4)
    + variable("y", -1, 3, 4)
    + function("RecurrentInput", "x", "xi", SLICES, "L")
    + function("Delay", "h init", "d", 'recurrent_param { repeat_id: "L" }', "L")
    + function("Add2", "xi d", "c", "", "L")
    + function("Tanh", "c", "h", "", "L")
    + function("RecurrentOutput", "h", "o", SLICES)
    + function("Tanh", "o", "y")
)
NESTED = (
    variable("x", -1, 3, 4)
    + variable("xi", -1, 4, loops="L")
    + variable("s", -1, 4, loops="L R")
    + variable("W{L}{R}", 4, 4, kind="Parameter", loops="L R")
    + variable("h", -1, 4, loops="L R")
    + variable("e", -1, 4, loops="L")
    + variable("y", -1, 3, 4)
    + function("RecurrentInput", "x", "xi", SLICES, "L")
    + function("RepeatStart", "xi h", "s", TIMES, "L R")
    + function("Affine", "s W{L}{R}", "h", AFFINE, "L R")
    + function("RepeatEnd", "h", "e", TIMES, "L")
    + function("RecurrentOutput", "e", "y", SLICES)
)
NETWORKS = {
    "repeat": net(REPEAT, R=3),
    "repeat with one weight": net(SHARED, R=3),
    "repeat with weights without a place for the number": net(UNMARKED, R=3),
    "recurrent": net(RECURRENT, L=3),
    "repeat in a recurrent part": net(NESTED, L=3, R=3),
}
