# SPDX-License-Identifier: Apache-2.0
"""Decision trees, and what their leaves say together: forests and boosting."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_rank
from nnl.core.ops.op import Cost, Sample, op

CATEGORY = "Special"

__all__: list[str] = []

_FLOATS = {np.dtype(np.int32): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.float64)}
_TOGETHER = ("sum", "min", "max")


def packed_nodes(splits, features, missing, yes, no):
    """Nodes as tree_ensemble takes them.

    Args:
        splits: (M,), float32 or float64, which says the type of the comparison.
        features, missing: (M,) columns of x, and whether NaN means yes.
        yes, no: (M,) what follows: the number of a node, or ~k for leaf k.
    Returns:
        (M, 4), int32 for float32, else int64.
    """
    kind = np.int32 if splits.dtype == np.float32 else np.int64
    columns = np.asarray(features) * 2 + np.asarray(missing, np.int64)
    return np.stack([splits.view(kind), columns, yes, no], 1).astype(kind)


@op("tree_ensemble", keep=("nodes", "roots", "targets"))
class tree_ensemble:
    r"""What the leaves of decision trees say of each row of x, put together by target.

    A row starts at each of the roots. At a node it compares one of its values: $x_{f} \le s$ leads
    to the node's `yes`, anything else to its `no`; NaN to `yes` where the node says so. Where it
    ends, row k of weights is for the targets from targets[k] on.

    Args:
        x: (N, F).
        nodes: (M, 4), int32 or int64, rows (the bits of s, as float32 or float64; 2 f, plus 1 where
            NaN leads to `yes`; yes; no). What follows a node is a number greater than its own, or
            ~k for leaf k.
        roots: (T,), int32: nodes, or ~k for a tree that is one leaf.
        weights: (L, W). NaN says nothing, where together is "min" or "max".
        targets: (L,), int32, in [0, n_targets - W].
        n_targets: How many values a row gets.
        together: "sum", taken in float64; "min" or "max", which are 0 where no leaf says something.
    Returns:
        (N, n_targets), in the type of x. No gradient.
    Raises:
        ShapeError: The shapes do not belong together.
        ValueError: together is another word; a node leads out of the table or backwards, or a
            feature or target is out of range.
    Source: Breiman et al., Classification and Regression Trees, 1984; ONNX, operator TreeEnsemble.
    """

    n_targets: int
    together: str = "sum"

    host = "tables are checked, and rows go different ways"

    def infer(self, x, nodes, roots, weights, targets):
        check_rank("tree_ensemble", "x", x, 2)
        width = weights.shape[1] if weights.ndim == 2 else -1
        if nodes.shape[1:] != (4,) or nodes.ndim != 2 or nodes.dtype not in _FLOATS:
            raise ShapeError(f"tree_ensemble: nodes is {nodes}, wanted int32 or int64 (M, 4)")
        if roots.ndim != 1 or roots.dtype != np.int32:
            raise ShapeError(f"tree_ensemble: roots is {roots}, wanted int32 (T,)")
        if not 0 < width <= self.n_targets or not weights.shape[0]:
            raise ShapeError(
                f"tree_ensemble: weights is {weights}, wanted (L, W) with L from 1 on and W from 1 "
                f"to n_targets {self.n_targets}"
            )
        if targets.shape != weights.shape[:1] or targets.dtype != np.int32:
            raise ShapeError(
                f"tree_ensemble: targets is {targets}, wanted int32 ({weights.shape[0]},)"
            )
        if self.together not in _TOGETHER:
            raise ValueError(
                f"tree_ensemble: together is {self.together!r}, wanted one of {_TOGETHER}"
            )
        return x.with_shape((x.shape[0], self.n_targets))

    def forward(self, xp, x, nodes, roots, weights, targets):
        leaves = self._leaves(xp, x, nodes, roots)
        n, width = len(x), weights.shape[1]
        if leaves.size and (leaves.max() >= len(weights) or targets.min() < 0):
            raise ValueError(f"tree_ensemble: a node leads to leaf {leaves.max()}")
        if targets.max() > self.n_targets - width:
            raise ValueError(
                f"tree_ensemble: targets has {targets.max()}, wanted at most "
                f"{self.n_targets - width}"
            )
        start = 0.0 if self.together == "sum" else np.nan
        y = xp.full((n, self.n_targets), start, np.float64)
        join = {"sum": xp.add, "min": xp.fmin, "max": xp.fmax}[self.together]
        rows, columns = xp.arange(n)[:, None], xp.arange(width)
        for leaf in leaves.T:
            at = rows, targets[leaf][:, None] + columns
            y[at] = join(y[at], weights[leaf])
        if self.together != "sum":
            y = xp.where(xp.isnan(y), 0, y)
        return y.astype(x.dtype)

    def _leaves(self, xp, x, nodes, roots):
        """(N, T) numbers of leaves."""
        n, count = len(x), len(nodes)
        if len(roots) and roots.max() >= count:
            raise ValueError(f"tree_ensemble: roots has {roots.max()}, wanted below {count}")
        splits = xp.ascontiguousarray(nodes[:, 0]).view(_FLOATS[nodes.dtype])
        features, missing = nodes[:, 1] >> 1, (nodes[:, 1] & 1).astype(bool)
        if count and (features.min() < 0 or features.max() >= x.shape[1]):
            raise ValueError(
                f"tree_ensemble: nodes has the feature {features.max()}, x has {x.shape[1]}"
            )
        at = xp.tile(roots.astype(np.int64), n)
        row = xp.repeat(xp.arange(n), len(roots))
        live = xp.flatnonzero(at >= 0)
        while len(live):
            now = at[live]
            value = x[row[live], features[now]]
            yes = (value <= splits[now]) | (missing[now] & xp.isnan(value))
            following = xp.where(yes, nodes[now, 2], nodes[now, 3])
            if ((following >= 0) & ((following <= now) | (following >= count))).any():
                raise ValueError("tree_ensemble: a node leads out of the table, or backwards")
            at[live] = following
            live = live[following >= 0]
        return ~at.reshape(n, len(roots))

    def cost(self, x, nodes, roots, weights, targets):
        # trees of this many nodes, if they are balanced, are this deep
        trees = max(roots.size, 1)
        depth = (nodes.shape[0] // trees + 1).bit_length()
        steps = x.shape[0] * trees * depth
        return Cost(2 * steps, 20 * steps + x.nbytes)

    def samples(rng):
        for kind, together in ((np.float32, "sum"), (np.float64, "max"), (np.float32, "min")):
            splits = np.array([0, 0.5, -0.5, 0.25, np.nan], kind)
            nodes = packed_nodes(
                splits, [0, 1, 2, 0, 1], [0, 1, 0, 1, 0], [1, ~0, ~2, ~1, ~3], [2, ~1, 4, ~4, ~4]
            )
            roots = np.array([0, 3, ~2], np.int32)
            weights = rng.normal(size=(5, 2))
            if together != "sum":
                weights[1, 0] = np.nan
            x = rng.normal(size=(17, 3))
            x[3] = np.nan
            targets = np.array([0, 1, 0, 1, 0], np.int32)
            yield Sample(
                x, nodes, roots, weights, targets, grad=(False,) * 5, n_targets=3, together=together
            )
        yield Sample(
            x[:0], nodes, roots, weights, targets, grad=(False,) * 5, n_targets=3
        )  # no rows
