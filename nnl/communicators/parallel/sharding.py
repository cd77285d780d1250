# SPDX-License-Identifier: Apache-2.0
"""Sharded data parallelism: states, gradients and parameters in pieces, each rank storing one."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.communicators.parallel.layout import LaidOut, layout_of, with_pieces
from nnl.communicators.parallel.mesh import Mesh
from nnl.core.arguments.annotations import shown
from nnl.core.arrays.memory_record import MemoryRecord
from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameters, set_parameter
from nnl.core.settings.context import EPOCH, using
from nnl.solvers.base import Solver, check_elementwise, piece_of
from nnl.solvers.split import cut_piece

SPLIT = MemoryRecord(
    cleared="split by C.shard: give it the graphs that exist already, as outputs= "
    "(documentation: guides/mesh#sharded-data-parallelism)"
)


def shard(
    solver: Solver, mesh: Mesh, level: int = 3, outputs: Variable | Sequence[Variable] = ()
) -> None:
    """Let the ranks of `mesh.shard` store a solver's parameters together.

    | level | in pieces | gradients |
    |---|---|---|
    | 1 | states | as in plain data parallelism: reduce them over `mesh.batch.group` |
    | 2 | states, gradients, parameters between steps | backward gives the mean over `mesh.batch` |
    | 3 | the same, and parameters within a step | as level 2 |

    With levels 2 and 3 a parameter is put together by a step in front of the function that uses
    it; level 3 drops it after that and puts it together again in backward. A parameter of 16 bits
    has its master in float32 in pieces as well.

    Args:
        solver: After set_parameters. Its states are kept.
        outputs: Of static graphs that use the parameters already. Define-by-run networks,
            nnl.compile and graphs made later need none.
    Raises:
        ValueError: level is none of 1, 2, 3; the solver has no parameters; mesh.shard is one rank
            while mesh.data has more.
        NotImplementedError: The solver's rule needs whole parameters: Lars, Lamb, Muon.
        CommunicatorError: Ranks have other parameters, or other values.
    Source: Rajbhandari et al., ZeRO, arXiv:1910.02054; Zhao et al., PyTorch FSDP,
        arXiv:2304.11277.
    Example:
        >>> mesh = C.Mesh()  # one process: nothing to split
        >>> loss = F.mean(PF.affine(array(np.ones((2, 4))), 3, name="ex_shard") ** 2)
        >>> solver = S.Adam()
        >>> solver.set_parameters(nn.get_parameters())
        >>> C.shard(solver, mesh, level=3, outputs=loss)
        >>> nn.get_parameters()["ex_shard/affine/W"].shape
        (4, 3)
    """
    if level not in (1, 2, 3):
        raise ValueError(f"shard: level is {shown(level)}, wanted 1, 2 or 3")
    params = solver.get_parameters()
    if not params:
        raise ValueError(f"shard: {solver.name} has no parameters, call set_parameters first")
    for key, p in params.items():
        if layout_of(p).pieces is not None:
            raise ValueError(f"shard: parameter {key!r} is stored in pieces already")
    check_elementwise(solver, "shard")
    over = mesh.shard
    if mesh.batch.size == 1:
        return
    if over.size == 1:
        raise ValueError(
            f"shard: {mesh} has one rank along shard, wanted 2 or more: Mesh(shard=...)"
        )
    _check_alike(params, mesh, level)
    if level == 1:
        solver.split_states(mesh.comm, over.group)
        return
    states = solver.get_states()
    stored = {v.data: name for name, v in get_parameters(grad_only=False).items()}
    pieces: dict[str, Variable] = {}
    now: dict[Any, LaidOut] = {}
    for key, p in params.items():
        layout = with_pieces(layout_of(p), over, mesh.data, level == 3)
        piece = LaidOut.of(cut_piece(np, p.d, over.size, over.place), layout, p.name, True)
        pieces[key] = now[p.data] = piece
        if p.data in stored:
            set_parameter(stored[p.data], piece)
    rewire([outputs] if isinstance(outputs, Variable) else outputs, now)
    for p in params.values():
        p.data.hold(SPLIT)
        p.grad.fill(0)
    solver.set_parameters(pieces)
    for state in states.values():
        for name, v in state.pstate.items():
            state.pstate[name] = piece_of(v, over.size, over.place)
    solver.set_states(states)


def _check_alike(params: dict[str, Variable], mesh: Mesh, level: int) -> None:
    """All ranks with other data have the same parameters, and the same level."""
    said = 0
    for key, p in params.items():
        said = zlib.crc32(p.d.tobytes(), zlib.crc32(f"{key} {p.spec}".encode(), said))
    of = sum(p.size for p in params.values())
    text = f"shard(level={level}, {len(params)} parameters of {of} elements, checksum {said:08x})"
    mesh.comm.meet(text, group=mesh.batch.group)


def rewire(outputs: Sequence[Variable], now: dict[Any, LaidOut]) -> None:
    """Let the functions below outputs use parameters that are put together."""
    made: dict[Any, Variable] = {}
    for node in capture([v.edge for v in outputs]):
        for v in node.inputs:
            if v is None or v.node is not None or v.data not in now:
                continue
            if v.data not in made:
                with using(auto_forward=False):
                    made[v.data] = now[v.data].handle(v.need_grad)
            whole = made[v.data].edge
            v.become(whole)
            v.recompute = whole.recompute
    EPOCH.advance()
