# SPDX-License-Identifier: Apache-2.0
"""Ensembles of decision trees in ONNX files, as the tables that F's tree_ensemble takes.

All comparisons become x <= s, which is exact: x < s is x <= the number before s, and x > s asks
the other way round. x == s is two of these, and "one of some values" is a chain of x == s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.values.values import check_size
from nnl.functions.tree_ensemble import packed_nodes

Array = np.ndarray[Any, Any]
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)  # as TreeEnsemble numbers them
_MODES = {f"BRANCH_{m}": i for i, m in enumerate("LEQ LT GTE GT EQ NEQ MEMBER".split())}


class Tables(NamedTuple):
    """What tree_ensemble takes besides x."""

    nodes: Array
    roots: Array
    weights: Array
    targets: Array


@dataclass
class Branches:
    """Nodes that compare, as a file has them.

    Attributes:
        modes, splits, features, missing: (M,) of each node; missing: whether NaN passes the test.
        yes, no: (M,) the number of a node, or ~k for leaf k.
        roots: (T,) as these.
        members: Of nodes that ask for one of some values: these.
    """

    modes: Array
    splits: Array
    features: Array
    missing: Array
    yes: Array
    no: Array
    roots: Array
    members: dict[int, Sequence[float]]

    def nodes_and_roots(self, kind: Any) -> tuple[Array, Array]:
        """Nodes in the order of their trees, parents first, with comparisons in float32 or float64.

        Raises:
            OnnxError: What is below the roots are no trees.
        """
        order = self._order()
        sizes = np.ones(len(self.modes), np.int64)
        sizes[(self.modes == EQ) | (self.modes == NEQ)] = 2
        for i, values in self.members.items():
            sizes[i] = max(2 * len(values), 1)
        starts = np.zeros(len(self.modes), np.int64)
        starts[order] = np.cumsum(sizes[order]) - sizes[order]
        count = int(sizes[order].sum())
        check_size([count, 4], 8)
        rows: dict[str, Array] = {
            "splits": np.empty(count), "features": np.zeros(count, np.int64),
            "missing": np.zeros(count, bool), "yes": np.empty(count, np.int64),
            "no": np.empty(count, np.int64),
        }  # fmt: skip

        def put(at: Any, **columns: Any) -> None:
            for name, values in columns.items():
                rows[name][at] = values

        def moved(to: Array) -> Array:
            return np.where(to < 0, to, np.append(starts, 0)[np.maximum(to, 0)])

        yes, no = moved(self.yes), moved(self.no)
        s, m = self.splits.astype(np.float64), self.missing
        before = _before(s)
        for mode in (LEQ, LT, GTE, GT):
            i = order[self.modes[order] == mode]
            split = before[i] if mode in (LT, GTE) else s[i]
            turned = np.isin(mode, (GTE, GT)) & ~np.isnan(s[i])
            first, second = np.where(turned, no[i], yes[i]), np.where(turned, yes[i], no[i])
            put(starts[i], splits=split, features=self.features[i], missing=m[i] ^ turned,
                yes=first, no=second)  # fmt: skip
        for mode in (EQ, NEQ):
            i = order[self.modes[order] == mode]
            same, other = (yes[i], no[i]) if mode == EQ else (no[i], yes[i])
            first, second = starts[i], starts[i] + 1
            put(first, splits=s[i], features=self.features[i], missing=m[i] & (mode == EQ),
                yes=second, no=other)  # fmt: skip
            put(second, splits=before[i], features=self.features[i], yes=other, no=same)
        for i in order[self.modes[order] == MEMBER]:
            values = np.asarray(self.members[i], np.float64)
            first = starts[i] + 2 * np.arange(len(values))
            if not len(values):
                put(starts[i], splits=np.nan, features=self.features[i], missing=m[i], yes=yes[i],
                    no=no[i])  # fmt: skip
                continue
            other = np.append(first[1:], no[i])
            put(first, splits=values, features=self.features[i], yes=first + 1, no=other)
            put(first + 1, splits=_before(values), features=self.features[i], yes=other, no=yes[i])
            rows["missing"][first[0]] = m[i]
        rows["splits"] = _rounded_down(rows["splits"], kind)
        return packed_nodes(**rows), moved(self.roots).astype(np.int32)

    def _order(self) -> Array:
        """Numbers of the nodes below the roots: tree by tree, and there by their depth."""
        count = len(self.modes)
        parents = np.zeros(count, np.int64)
        for children in (self.yes, self.no[self.no != self.yes], self.roots):
            np.add.at(parents, children[children >= 0], 1)
        if (parents > 1).any():
            raise OnnxError(
                f"two nodes, or a root, lead to node {int(np.argmax(parents > 1))} of "
                f"{count}: it has a cycle, or is no tree"
            )
        at, tree = self.roots, np.arange(len(self.roots))
        nodes, trees = [], []
        while len(at):
            at, tree = at[at >= 0], tree[at >= 0]
            nodes.append(at)
            trees.append(tree)
            two = self.no[at] != self.yes[at]
            at = np.concatenate([self.yes[at], self.no[at[two]]])
            tree = np.concatenate([tree, tree[two]])
        if not nodes:
            return np.empty(0, np.int64)
        return np.concatenate(nodes)[np.argsort(np.concatenate(trees), kind="stable")]


def _before(values: Array) -> Array:
    """The float64 before each; NaN, which nothing is up to, for -infinity."""
    return np.where(values == -np.inf, np.nan, np.nextafter(values, -np.inf))


def _rounded_down(values: Array, kind: Any) -> Array:
    """The largest number of a type that is not above: comparing with it gives the same."""
    with np.errstate(over="ignore"):
        near = values.astype(kind)
    return np.where(near > values, np.nextafter(near, kind(-np.inf)), near)


class Votes(NamedTuple):
    """What leaves say: entry i says value[i] for a target, at a leaf."""

    leaves: Array
    targets: Array
    values: Array

    def rows(self, count: int, n_targets: int, together: str) -> tuple[Array, Array]:
        """Weights (L, W) and the first target of each row, in double precision."""
        first = np.full(count, n_targets, np.int64)
        last = np.full(count, -1, np.int64)
        np.minimum.at(first, self.leaves, self.targets)
        np.maximum.at(last, self.leaves, self.targets)
        width = max(int((last - first).max(initial=0)) + 1, 1)
        first = np.clip(first, 0, n_targets - width)
        check_size([count, width])
        weights = np.full((count, width), 0.0 if together == "sum" else np.nan)
        join: Any = {"sum": np.add, "min": np.fmin, "max": np.fmax}[together]
        join.at(weights, (self.leaves, self.targets - first[self.leaves]), self.values)
        return weights, first.astype(np.int32)


def _column(node: Any, name: str, size: int | None, default: Any = None) -> Array:
    """An attribute with an entry for each node or vote, as float64 or int64."""
    value = node.attributes.get(f"{name}_as_tensor", node.attributes.get(name))
    if value is None or not len(value):
        if default is None and size:
            raise OnnxError(f"has no {name}, wanted {size}")
        return np.full(size or 0, default or 0)
    found = np.asarray(value).reshape(-1)
    if size is not None and len(found) != size:
        raise OnnxError(f"{name} has {len(found)} entries, wanted {size} as the others")
    return found.astype(np.float64 if found.dtype.kind == "f" else np.int64)


def _in_range(what: str, values: Array, count: int) -> Array:
    bad = (values < 0) | (values >= count)
    if bad.any():
        raise OnnxError(f"{what} has {values[bad][0]}, wanted numbers in [0, {count})")
    return values


def by_names(node: Any, votes: str, n_targets: int, ids: Any, together: str, kind: Any) -> Tables:
    """Tables of a TreeEnsembleClassifier or TreeEnsembleRegressor.

    Args:
        votes: "class" or "target".
        ids: The target of each vote.
    """
    names = node.nodes_nodeids or ()
    n = len(names)
    trees, names = _column(node, "nodes_treeids", n), np.asarray(names, np.int64)
    words = node.nodes_modes or ()
    if len(words) != n:
        raise OnnxError(f"nodes_modes has {len(words)} entries, wanted {n} as the others")
    unknown = {*words} - {*_MODES, "LEAF"} | {*words} & {"BRANCH_MEMBER"}
    if unknown:
        raise OnnxError(f"nodes_modes has {min(unknown)!r}, wanted LEAF, BRANCH_LEQ, ... or _NEQ")
    modes = np.array([_MODES.get(w, -1) for w in words], np.int64)
    keys, order, find = _finder(trees, names)
    if (np.diff(keys) == 0).any():
        i = order[int(np.argmax(np.diff(keys) == 0))]
        raise OnnxError(f"two nodes are node {names[i]} of tree {trees[i]}")
    inner = modes >= 0
    number = np.where(inner, np.cumsum(inner) - 1, ~(np.cumsum(~inner) - 1))
    led, follow = np.zeros(n, bool), []
    for name in ("nodes_truenodeids", "nodes_falsenodeids"):
        to = find(trees[inner], _column(node, name, n)[inner], name)
        led[to] = True
        follow.append(number[to])
    branches = Branches(
        modes[inner],
        _column(node, "nodes_values", n)[inner],
        _column(node, "nodes_featureids", n)[inner],
        _column(node, "nodes_missing_value_tracks_true", n, 0)[inner] != 0,
        follow[0],
        follow[1],
        number[_roots(trees, led)],
        {},
    )
    size = len(getattr(node, f"{votes}_ids") or ())
    at = find(
        _column(node, f"{votes}_treeids", size), _column(node, f"{votes}_nodeids", size),
        f"{votes}_nodeids",
    )  # fmt: skip
    said = modes[at] < 0  # what an inner node says is never heard
    found = Votes(
        ~number[at][said],
        _in_range(f"{votes}_ids", np.asarray(ids, np.int64), n_targets)[said],
        _column(node, f"{votes}_weights", size)[said],
    )
    return _tables(branches, found, int((~inner).sum()), n_targets, together, kind)


def _tables(
    branches: Branches, votes: Votes, leaves: int, n_targets: int, together: str, kind: Any
) -> Tables:
    nodes, roots = branches.nodes_and_roots(kind)
    weights, targets = votes.rows(max(leaves, 1), n_targets, together)
    return Tables(nodes, roots, weights.astype(kind), targets)


def _finder(trees: Array, names: Array) -> Any:
    """Keys of nodes in order, that order, and what finds nodes by tree and name."""
    known, tree = np.unique(trees, return_inverse=True)
    least = int(names.min(initial=0))
    span = int(names.max(initial=0)) - least + 1
    if span * max(len(known), 1) > 2**62:
        raise OnnxError(f"nodes_nodeids reaches from {least} over {span} numbers")
    keys = tree * span + (names - least)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]

    def find(of: Array, wanted: Array, what: str) -> Array:
        at = np.searchsorted(known, of)
        inside = (at < len(known)) & (wanted >= least) & (wanted < least + span)
        at = np.where(inside, at, 0)
        key = at * span + np.where(inside, wanted - least, 0)
        place = np.minimum(np.searchsorted(keys, key), max(len(keys) - 1, 0))
        good = inside & (keys[place] == key) if len(keys) else np.zeros(len(of), bool)
        if len(known):
            good &= known[np.minimum(at, len(known) - 1)] == of
        if not good.all():
            i = int(np.argmin(good))
            raise OnnxError(f"{what} has node {wanted[i]} of tree {of[i]}, which is not there")
        return order[place]

    return keys, order, find


def _roots(trees: Array, led: Array) -> Array:
    """The node of each tree that no other leads to."""
    known, tree = np.unique(trees, return_inverse=True)
    counts = np.bincount(tree[~led], minlength=len(known))
    if (counts != 1).any():
        i = int(np.argmax(counts != 1))
        raise OnnxError(
            f"tree {known[i]} has {counts[i]} nodes that no other leads to, wanted one: it has a "
            "cycle, or is no tree"
        )
    first = np.flatnonzero(~led)
    return first[np.argsort(tree[first], kind="stable")]


def by_positions(node: Any, n_targets: int, together: str, kind: Any) -> Tables:
    """Tables of a TreeEnsemble."""
    modes = node.nodes_modes.reshape(-1).astype(np.int64)
    n, leaves = len(modes), len(node.leaf_targetids)
    if ((modes < 0) | (modes > MEMBER)).any():
        raise OnnxError(f"nodes_modes has {modes.max()}, wanted 0 to {MEMBER}")
    follow = []
    for which in ("true", "false"):
        to, leaf = (
            _column(node, f"nodes_{which}nodeids", n),
            _column(node, f"nodes_{which}leafs", n),
        )
        what = f"nodes_{which}nodeids"
        _in_range(what, to[leaf == 0], n)
        _in_range(what, to[leaf != 0], leaves)
        follow.append(np.where(leaf != 0, ~to, to))
    roots = _in_range("tree_roots", np.asarray(node.tree_roots, np.int64), n)
    branches = Branches(
        modes,
        _column(node, "nodes_splits", n),
        _column(node, "nodes_featureids", n),
        _column(node, "nodes_missing_value_tracks_true", n, 0) != 0,
        follow[0],
        follow[1],
        roots,
        _members(node.membership_values, np.flatnonzero(modes == MEMBER)),
    )
    targets = _in_range("leaf_targetids", np.asarray(node.leaf_targetids, np.int64), n_targets)
    votes = Votes(np.arange(leaves), targets, _column(node, "leaf_weights", leaves))
    return _tables(branches, votes, leaves, n_targets, together, kind)


def _members(values: Any, at: Array) -> dict[int, Sequence[float]]:
    """The values that each of the nodes `at` asks for; NaN ends those of a node."""
    flat = np.empty(0) if values is None else values.reshape(-1).astype(np.float64)
    ends = np.flatnonzero(np.isnan(flat))
    if len(ends) != len(at) or (len(flat) and not np.isnan(flat[-1])):
        raise OnnxError(
            f"membership_values has {len(ends)} groups that end with NaN, wanted {len(at)}, one "
            "for each node of mode 6"
        )
    groups = np.split(flat, ends + 1)
    return {int(i): g[:-1].tolist() for i, g in zip(at, groups, strict=False)}
