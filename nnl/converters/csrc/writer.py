# SPDX-License-Identifier: Apache-2.0
"""The folder of a network in C."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from nnl.converters.csrc.calls import KERNELS
from nnl.converters.csrc.int8 import ranges_of
from nnl.converters.csrc.loops import Call, Key, Loop, Read, Work, Written, read, written
from nnl.converters.csrc.memory import Plan, plan
from nnl.converters.csrc.names import distinct, identifier, string
from nnl.converters.csrc.open_sizes import OpenSizes
from nnl.converters.csrc.target import target
from nnl.converters.networks.lowering import Lowered, lower
from nnl.converters.networks.model import Model, Network
from nnl.converters.networks.open_networks import moving_nodes, record_networks
from nnl.converters.nnp.open_batch import count_by_sums
from nnl.core.graph.node import Value
from nnl.core.parameters.atomic import replacing
from nnl.graph.open_sizes.recording import OpenGraphs

_MADE = "/* Made by `nnl convert -O CSRC`. */\n"
_KINDS = {"f4": "float", "i1": "int8_t", "i4": "int32_t"}
_CALLED = {"elements": "element_", "stored": "nnl_stored("}  # what loops use of a kernel


def save(
    path: str | os.PathLike[str],
    network: Network,
    weights_file: bool = False,
    samples: Mapping[str, Any] | None = None,
) -> None:
    """Write a network as a folder of C.

    Args:
        path: A folder that does not exist yet, or is empty.
        weights_file: Whether the weights are a file that the program loads, not part of it.
        samples: Arrays of samples for the inputs by name, for numbers of 8 bits in the ranges that
            these have; None for floats.
    Raises:
        CannotLower: C cannot say some functions; all are listed.
        FileExistsError: There are files in the folder.
        ValueError: A constant is not a float32, samples do not fit, or weights of 8 bits shall be
            a file.
    """
    network, samples = network.calibrated(samples)
    lowered = lower(network, target())
    if samples is not None and weights_file:
        raise ValueError("CSRC: weights of 8 bits are an array in the program, not a file")
    ranges = None if samples is None else ranges_of(lowered, samples)
    _write(path, _Writer(lowered, plan(lowered, ranges), network.name, weights_file).files())


def save_open(path: str | os.PathLike[str], model: Model, weights_file: bool = False) -> None:
    """Write a model as a folder of C for all sizes that it leaves open, in memory for the greatest.

    Raises:
        Like `save`; ValueError: a size has no greatest, or the C would differ between sizes.
    """

    def use(graphs: OpenGraphs, networks: list[Network]) -> dict[str, str | bytes]:
        if bounds := [n for n, d in graphs.dims.items() if d.greatest is None]:
            raise ValueError(
                f"CSRC has memory for the greatest sizes, and {', '.join(bounds)} has none: say it "
                "as in --open x=batch:1..8,3"
            )
        count_by_sums(graphs)
        pairs = zip(networks, moving_nodes(networks), strict=True)
        lowered = [lower(n, target(), moving) for n, moving in pairs]
        plans = [plan(low, any_size=True) for low in lowered]
        sizes = OpenSizes(graphs.dims, graphs.sizes, lowered, plans)
        begins = [
            set().union(*[s.begins() for s in steps if isinstance(s, Loop)])
            for steps in zip(*[p.steps for p in plans], strict=False)
        ]
        every = []
        for low, own, ranks in zip(lowered, plans, sizes.ranks, strict=True):
            every.append(_Writer(low, own, networks[0].name, weights_file, sizes, ranks, begins))
        writer = every[-1]
        steps = []
        for step, *said in zip(plans[0].steps, *[w.said for w in every], strict=True):
            own = sizes.sizes_of((*read(step), *written(step)))
            steps.append(tuple([sizes.text(t, own) for t in zip(*said, strict=True)]))
        writer.said = steps
        for kind in ("input", "output"):
            ends = [getattr(low, f"{kind}s").values() for low in lowered]
            shapes = [[v.current_spec.shape for v in e] for e in ends]
            writer.shapes[kind] = list(zip(*shapes, strict=True))
        return writer.files()

    _write(path, record_networks(model, use, greatest=True))


def _write(path: str | os.PathLike[str], texts: Mapping[str, str | bytes]) -> None:
    with replacing(path, folder=True) as folder:
        for name, content in texts.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())


class _Writer:
    """Attributes:
    prefix: What every name begins with that others can see.
    said: The function of the loop that each step is, "" for a kernel, and the call.
    shapes: Those of inputs and outputs at all networks, where sizes are open.
    """

    def __init__(
        self,
        lowered: Lowered,
        plan: Plan,
        name: str,
        weights_file: bool,
        sizes: OpenSizes | None = None,
        ranks: Mapping[Key, int] | None = None,
        begins: Sequence[Collection[int]] | None = None,
    ) -> None:
        self.sizes, self.ranks = sizes, ranks or {}
        self.shapes: dict[str, list[Any]] = {}
        self.lowered, self.plan, self.in_file = lowered, plan, weights_file
        self.prefix = identifier(name, "network")
        self.names: dict[str, dict[str, str]] = {}
        taken = {"input", "output"}  # the tables
        for kind, edges in (("input", lowered.inputs), ("output", lowered.outputs)):
            found = distinct((f"{kind}_{name}" for name in edges), kind, taken)
            self.names[kind] = dict(zip(edges, found, strict=True))
            taken.update(found)
        self.kinds: dict[str, list[np.ndarray[Any, Any]]] = {}  # constants by type
        self.starts: dict[Key, tuple[str, int]] = {}
        for key, data in plan.constants.items():
            kind = _KINDS[data.dtype.kind + str(data.dtype.itemsize)]
            others = self.kinds.setdefault(kind, [])
            self.starts[key] = kind, sum(a.size for a in others)
            others.append(data)
        if begins is None:
            begins = [s.begins() if isinstance(s, Loop) else () for s in plan.steps]
        self.said = [self._said(*pair) for pair in zip(plan.steps, begins, strict=True)]

    def files(self) -> dict[str, str | bytes]:
        """What the folder holds, by name."""
        network, kernels = self._network()
        found: dict[str, str | bytes] = {
            "network.h": self._header(),
            "network.c": network,
            "example.c": self._example(),
            "Makefile": _makefile(bool(self.kinds) and not self.in_file),
        }
        for name in kernels:
            found[f"kernels/{name}"] = (KERNELS / name).read_bytes()
        if self.kinds and self.in_file:
            found["weights.bin"] = b"".join(a.tobytes() for a in self.kinds["float"])
        elif self.kinds:
            found["weights.h"] = self._weights_header()
            found["weights.c"] = self._weights()
        return found

    # ---- weights ----

    @property
    def weight_count(self) -> int:
        """How many floats there are."""
        return sum(a.size for a in self.kinds.get("float", ()))

    def _weights_header(self) -> str:
        p, parts = self.prefix, []
        for kind, arrays in self.kinds.items():
            n = sum(a.size for a in arrays)
            parts.append(
                f"extern const {kind} {p}_{kind}[{n}];\n"
                if kind != "float"
                else "/* Numbers of type float by their bits, exactly. */\n"
                f"extern const union {p}_weights {{\n    uint32_t bits[{n}];\n"
                f"    float values[{n}];\n}} {p}_weights;\n"
            )
        guard = f"#ifndef {p}_WEIGHTS_H\n#define {p}_WEIGHTS_H\n\n#include <stdint.h>\n\n"
        return f"{_MADE}{guard}{''.join(parts)}\n#endif\n"

    def _weights(self) -> bytes:
        """The arrays; in numpy, because there are millions of numbers."""
        p, parts = self.prefix, [f'{_MADE}#include "weights.h"\n'.encode()]
        for kind, arrays in self.kinds.items():
            values = np.concatenate(arrays)
            if kind == "float":
                head, rows, tail = f"union {p}_weights {p}_weights = {{{{", _hex(values), "}};"
            else:
                head, tail = f"{kind} {p}_{kind}[{len(values)}] = {{", "};"
                lines = [", ".join(map(str, values[k : k + 16])) for k in range(0, len(values), 16)]
                rows = ",\n".join(lines).encode()
            parts += [f"\nconst {head}\n".encode(), rows, f"\n{tail}\n".encode()]
        return b"".join(parts)

    # ---- the header ----

    def _header(self) -> str:
        p, low = self.prefix, self.lowered
        numbers = [f"{p}_inputs = {len(low.inputs)}", f"{p}_outputs = {len(low.outputs)}"]
        for kind, edges in (("input", low.inputs), ("output", low.outputs)):
            for i, (name, v) in enumerate(edges.items()):
                own = f"{p}_{self.names[kind][name]}"
                shape = " x ".join(map(str, v.current_spec.shape)) or "one number"
                numbers += [f"{own} = {i}", f"{own}_size = {v.current_spec.size} /* {shape} */"]
        numbers.append(f"{p}_arena_bytes = {4 * self.plan.arena}")
        listed = ",\n    ".join(numbers)
        rank = max([1, *(len(v.current_spec.shape) for v in self._ends())])
        table = f"{p}_input[{max(len(low.inputs), 1)}], {p}_output[{max(len(low.outputs), 1)}]"
        load = (
            f"/* Read the weights, once and before all else; 0 if that was done. */\n"
            f"int {p}_load(const char *path);\n\n"
            if self.kinds and self.in_file
            else ""
        )
        resize = ""
        if self.sizes is not None:
            resize = f"""/* Say the sizes, in this order, before the first run and where they
   change: above are then the shapes, at first the greatest ones. 0, or -1 if one is out of range.
{self.sizes.comment()} */
int {p}_resize(const int *sizes);

"""
        return f"""{_MADE}#ifndef {p}_NETWORK_H
#define {p}_NETWORK_H

#ifdef __cplusplus
extern "C" {{
#endif

/* Numbers of the inputs and outputs, and how many floats each has. */
enum {{
    {listed}
}};

typedef struct {{
    const char *name;
    int size, rank, shape[{rank}];
}} {p}_array;

extern {self.fixed}{p}_array {table};

{load}{resize}\
/* Compute all outputs. No array may overlap another. Memory is static: one call at a time. */
void {p}_run(const float *const *inputs, float *const *outputs);

#ifdef __cplusplus
}}
#endif

#endif
"""

    @property
    def fixed(self) -> str:
        """What arrays of shapes are."""
        return "const " if self.sizes is None else ""

    def _ends(self) -> list[Value]:
        return [*self.lowered.inputs.values(), *self.lowered.outputs.values()]

    def _table(self, kind: str, edges: Mapping[str, Value]) -> str:
        rows = []
        for name, v in edges.items():
            shape = v.current_spec.shape
            sizes = ", ".join(map(str, shape)) or "0"
            rows.append(f"{{{string(name)}, {v.current_spec.size}, {len(shape)}, {{{sizes}}}}}")
        listed = ",\n    ".join(rows) or "{0, 0, 0, {0}}"
        p = self.prefix
        return f"{self.fixed}{p}_array {p}_{kind}[{max(len(edges), 1)}] = {{\n    {listed},\n}};\n"

    # ---- the network ----

    def _network(self) -> tuple[str, list[str]]:
        """Its text, and the kernels that it includes, with those that these include."""
        loops: dict[str, str] = {}
        calls: list[str] = []
        used: set[str] = set()
        for text, call in self.said:
            name, arguments = call.split("(", 1)
            if text:
                name = loops.setdefault(text, f"{name}_{len(loops)}")
                used |= {f"{name}.h" for name in ("elements", "stored") if _CALLED[name] in text}
            else:
                used.add(f"{name}.h")
                name = f"nnl_{name}"
            calls.append(f"    {name}({arguments};")
        p, low = self.prefix, self.lowered
        parts = [_MADE + "#include <math.h>\n"]
        if self.kinds and self.in_file:
            parts[0] += "#include <stdio.h>\n"
        own = ['#include "network.h"', *(f'#include "kernels/{k}"' for k in sorted(used))]
        if self.kinds and not self.in_file:
            own.append('#include "weights.h"')
        parts.append("\n".join(own) + "\n")
        if self.plan.arena:
            parts.append(f"static float arena[{self.plan.arena}];\n")
        if self.sizes is not None:
            n = len(self.ranks)
            room = f", room[{n}], at[{n}]" if n else ""
            parts.append(f"static int s[{len(self.sizes.known)}]{room};\n")
        parts += [self._table("input", low.inputs), self._table("output", low.outputs)]
        if "float" in self.kinds:
            parts.append(self._loading())
        parts += [text.replace("@", name, 1) + "\n" for text, name in loops.items()]
        if self.sizes is not None:
            parts.append(self.sizes.resize(p, self.shapes))
        body = "\n".join(calls)
        unused = "" if "inputs[" in body else "    (void)inputs;\n"
        unused += "" if "outputs[" in body else "    (void)outputs;\n"
        parts.append(
            f"void {p}_run(const float *const *inputs, float *const *outputs)\n{{\n"
            f"{unused}{body}\n}}\n"
        )
        return "\n".join(parts), _with_included(used)

    def _said(self, step: Loop | Call, begins: Collection[int]) -> tuple[str, str]:
        if isinstance(step, Loop):
            codes = "_".join(code for code, _ in step.body)[:40]
            arrays = ", ".join([self._place(key) for key in step.arrays])
            return step.text("@", self.plan.scales, begins), f"{codes}({arrays})"
        return "", f"{step.kernel}({', '.join(map(self._argument, step.arguments))})"

    def _loading(self) -> str:
        n, p = self.weight_count, self.prefix
        if not self.in_file:
            return f"static const float *const weights = {p}_weights.values;\n"
        return f"""static float weights[{n}];

int {p}_load(const char *path)
{{
    FILE *file = fopen(path, "rb");
    if (!file)
        return -1;
    const int complete = fread(weights, sizeof *weights, {n}, file) == {n};
    fclose(file);
    return complete ? 0 : -1;
}}
"""

    def _argument(self, a: Any) -> str:
        if isinstance(a, (Read, Written)):
            return self._place(a.key)
        return self._place(a) if isinstance(a, Work) else "NULL" if a is None else str(a)

    def _place(self, key: Key) -> str:
        if key in self.plan.outputs:
            return f"outputs[{self.plan.outputs[key]}]"
        if key in self.ranks:
            return f"arena + at[{self.ranks[key]}]"
        if key in self.plan.places:
            place = f"arena + {self.plan.places[key]}"
            return f"(int8_t *)({place})" if key in self.plan.scales else place
        if key in self.starts:
            kind, at = self.starts[key]
            return f"{'weights' if kind == 'float' else f'{self.prefix}_{kind}'} + {at}"
        keys = [v.key for v in self.lowered.inputs.values()]
        return f"inputs[{keys.index(key)}]"  # type: ignore[arg-type]

    def _example(self) -> str:
        p, low = self.prefix, self.lowered
        lines = []
        for kind, edges in (("input", low.inputs), ("output", low.outputs)):
            names = [f"{p}_{self.names[kind][n]}_size" for n in edges]
            lines += [f"static float {kind}_{i}[{n}];" for i, n in enumerate(names)]
        ins = ", ".join(f"input_{i}" for i in range(len(low.inputs))) or "0"
        outs = ", ".join(f"output_{i}" for i in range(len(low.outputs))) or "0"
        load = ""
        if self.kinds and self.in_file:
            load = f"""    if ({p}_load("weights.bin")) {{
        fprintf(stderr, "cannot read weights.bin\\n");
        return 1;
    }}
"""
        arrays, first, say = "\n".join(lines), 1, ""
        about = "Takes a file of floats for each input; prints the outputs, one number a line."
        if self.sizes is not None:
            first += len(self.sizes.dims)
            about = f"Takes the sizes first. {about}"
            say = f"""    int sizes[{first - 1}];
    for (int i = 0; i < {first - 1}; i++)
        sizes[i] = atoi(paths[i + 1]);
    if ({p}_resize(sizes)) {{
        fprintf(stderr, "a size is out of range\\n");
        return 1;
    }}
"""
        return f"""{_MADE}/* {about} */
#include <stdio.h>
#include <stdlib.h>

#include "network.h"

{arrays}

int main(int count, char **paths)
{{
    float *const inputs[] = {{{ins}}}, *const outputs[] = {{{outs}}};
    if (count != {first} + {p}_inputs) {{
        fprintf(stderr, "wanted {first - 1} sizes and a file for each of %d inputs\\n", {p}_inputs);
        return 1;
    }}
{say}    for (int i = 0; i < {p}_inputs; i++) {{
        FILE *file = fopen(paths[i + {first}], "rb");
        const size_t size = (size_t){p}_input[i].size;
        if (!file || fread(inputs[i], sizeof(float), size, file) != size) {{
            fprintf(stderr, "cannot read %s for %s\\n", paths[i + {first}], {p}_input[i].name);
            return 1;
        }}
        fclose(file);
    }}
{load}    {p}_run((const float *const *)inputs, outputs);
    for (int i = 0; i < {p}_outputs; i++)
        for (int j = 0; j < {p}_output[i].size; j++)
            printf("%s%.9g\\n", i && !j ? "\\n" : "", outputs[i][j]);
    return 0;
}}
"""


def _hex(values: np.ndarray[Any, Any]) -> bytes:
    """Bits of floats, eight a line: 0x3f800000, ..."""
    digits = np.frombuffer(values.view("<u4").astype(">u4").tobytes().hex().encode(), np.uint8)
    rows = np.empty((len(values), 12), np.uint8)
    rows[:, :2] = np.frombuffer(b"0x", np.uint8)
    rows[:, 2:10] = digits.reshape(-1, 8)
    rows[:, 10:] = np.frombuffer(b", ", np.uint8)
    rows[7::8, 11] = ord("\n")
    return rows.tobytes()


def _with_included(names: set[str]) -> list[str]:
    """Files of kernels and what they include of each other."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += re.findall(r'^#include "(.+)"$', (KERNELS / name).read_text(), re.M)
    return sorted(found)


def _makefile(weights: bool) -> str:
    sources = "example.c network.c" + (" weights.c" if weights else "")
    headers = "network.h" + (" weights.h" if weights else "")
    return f"""# Made by `nnl convert -O CSRC`. `make OPENMP=1` uses several cores.
CFLAGS ?= -std=c99 -O3 -march=native -ffp-contract=fast -Wall -Wextra -Werror
ifdef OPENMP
CFLAGS += -DNNL_OPENMP -fopenmp
endif

example: {sources} {headers} $(wildcard kernels/*.h)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ {sources} -lm

clean:
	$(RM) example

.PHONY: clean
"""
