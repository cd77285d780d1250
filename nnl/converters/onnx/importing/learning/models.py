# SPDX-License-Identifier: Apache-2.0
"""Importers of ai.onnx.ml that compute: trees, linear models, support vectors, scaling."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.importing.learning.trees import Tables, by_names, by_positions
from nnl.converters.onnx.values.strings import chosen
from nnl.converters.onnx.values.values import check_size, dtype_of, reshape, shape_of, var
from nnl.core.ops.op import OPS
from nnl.graph.control_flow.while_loop import while_loop

ML = "ai.onnx.ml"


def rows(x: Any) -> Any:
    """x as (N, F); one axis is one row."""
    rank = len(shape_of(x))
    if rank not in (1, 2):
        raise OnnxError(f"takes rows of features, got the shape {shape_of(x)}")
    return reshape(var(x), (1, -1)) if rank == 1 else var(x)


def floats(node: Any, name: str) -> Any:
    """A list of numbers among the attributes, as float64; empty where there is none."""
    value = node.attributes.get(f"{name}_as_tensor", node.attributes.get(name))
    return np.asarray(() if value is None else value, np.float64).reshape(-1)


def fit(what: str, values: Any, count: int, *others: int) -> Any:
    """The values, if they are as many as wanted."""
    if len(values) not in (count, *others):
        raise OnnxError(f"{what} has {len(values)} numbers, wanted {count}")
    return values


def constant(values: Any) -> Any:
    """Numbers as a constant of the graph."""
    return var(np.asarray(values, np.float32))


# ---- scores ----

# Numerators and denominators of M. Wichura, The percentage points of the normal distribution,
# Applied Statistics 37 (1988), PPND7: in the middle, towards the ends, at the ends.
_QUANTILES = (
    ((59.109374720, 159.29113202, 50.434271938, 3.3871327179),
     (67.187563600, 78.757757664, 17.895169469, 1.0)),
    ((0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777),
     (0.12021132975, 0.73700164250, 1.0)),
    ((0.017337203997, 0.42868294337, 3.0812263860, 6.6579051150),
     (0.012258202635, 0.24197894225, 1.0)),
)  # fmt: skip


def _ratio(which: int, t: Any) -> Any:
    found = []
    for coefficients in _QUANTILES[which]:
        y = t * coefficients[0]
        for c in coefficients[1:-1]:
            y = (y + c) * t
        found.append(y + coefficients[-1])
    return found[0] / found[1]


def probit(p: Any) -> Any:
    """Where the normal distribution reaches p; ends are infinite, beyond them is NaN."""
    q = p - 0.5
    least = F.minimum2(p, 1.0 - p)
    r = (-F.log(least)) ** 0.5
    far = F.where(F.less_equal_scalar(r, 5.0), _ratio(1, r - 1.6), _ratio(2, r - 5.0))
    far = F.where(F.equal_scalar(least, 0.0), r, far) * F.sign(q)
    middle = _ratio(0, 0.180625 - q * q) * q
    return F.where(F.less_equal_scalar(F.abs(q), 0.425), middle, far)


def _softmax_zero(y: Any) -> Any:
    """Softmax in which zeros stay zeros."""
    largest = F.max(y, axis=1, keepdims=True)
    near = F.less_equal_scalar(F.abs(y), 1e-7)
    e = F.where(near, y * F.exp(-largest), F.exp(y - largest))
    total = F.sum(e, axis=1, keepdims=True)
    none = F.equal_scalar(total, 0.0)  # all are 0: as likely as not
    return e / (total + none) + none * 0.5


_TRANSFORMS = {
    "NONE": lambda y: y,
    "SOFTMAX": lambda y: F.softmax(y, axis=1),
    "LOGISTIC": F.sigmoid,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": probit,
}


def transformed(y: Any, how: str | int) -> Any:
    """Scores (N, C) as the attribute post_transform wants them."""
    known = list(_TRANSFORMS)
    name = known[how] if isinstance(how, int) and 0 <= how < len(known) else how
    if name not in _TRANSFORMS:
        raise OnnxError(f"post_transform is {how!r}, wanted one of {known}")
    return _TRANSFORMS[name](y)


def labels_of(node: Any) -> Any:
    """The labels of a classifier, int64 or strings."""
    for name in ("classlabels_strings", "classlabels_int64s", "classlabels_ints"):
        value = node.attributes.get(name)
        if value:
            return np.array(value, object if name.endswith("strings") else np.int64)
    raise OnnxError("has neither classlabels_strings nor labels that are numbers")


def pair(score: Any, how: str, is_probability: bool) -> Any:
    """Scores of two classes from that of the second, before they are transformed.

    The standard leaves them open. A probability has the rest of 1 beside it, what a function
    makes one of has its negative.
    """
    one = 1.0 if how == "PROBIT" or how == "NONE" and is_probability else 0.0
    return F.concatenate(one - score, score, axis=1)


def best(ctx: Any, scores: Any, labels: Any) -> Any:
    """The label of the largest score of each row, the first one of equals."""
    return chosen(ctx, F.max(scores, axis=1, only_index=True), labels)


# ---- trees ----


def _tables(ctx: Any, node: Any, make: Any, *args: Any) -> Tables:
    """Tables of a node, made once."""
    made = ctx.tables.get((id(node), args[-1]))
    if made is None:
        made = ctx.tables[id(node), args[-1]] = node, make(node, *args)
    found: Tables = made[1]
    return found


def _leaves(ctx: Any, node: Any, x: Any, n_targets: int, together: str, make: Any) -> Any:
    """Scores (N, n_targets) of the trees of a node, and how many trees it has."""
    check_size([shape_of(x)[0], n_targets], 8)
    kind = np.float64 if dtype_of(x) == np.float64 else np.float32
    t = _tables(ctx, node, make, kind)
    wanted = int(t.nodes[:, 1].max(initial=0) >> 1) + 1
    if shape_of(x)[1] < wanted:
        raise OnnxError(f"nodes_featureids has {wanted - 1}, x has {shape_of(x)[1]} features")
    if t.nodes[:, 1].min(initial=0) < 0:
        raise OnnxError("nodes_featureids has a number below 0")
    y = OPS["tree_ensemble"](x, *map(var, t), n_targets=n_targets, together=together)
    return y, len(t.roots)


_TOGETHER = ("AVERAGE", "SUM", "MIN", "MAX")


def _together(how: str | int) -> tuple[str, bool]:
    """How leaves of a target are put together, and whether that is divided by the trees."""
    name = _TOGETHER[how] if isinstance(how, int) and 0 <= how < 4 else how
    if name not in _TOGETHER:
        raise OnnxError(f"aggregate_function is {how!r}, wanted one of {list(_TOGETHER)}")
    return ("sum" if name in ("AVERAGE", "SUM") else str(name).lower()), name == "AVERAGE"


@onnx_import("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(ctx: Any, node: Any, x: Any) -> Any:
    """What the leaves of decision trees say, put together by target."""
    x, n = rows(x), node.n_targets
    if n is None or n < 1:
        raise OnnxError(f"n_targets is {n}, wanted at least 1")
    together, average = _together(node.aggregate_function)

    def make(node: Any, kind: Any) -> Tables:
        return by_names(node, "target", n, node.target_ids or (), together, kind)

    y, trees = _leaves(ctx, node, x, n, together, make)
    if average:
        y = F.mul_scalar(y, 1.0 / max(trees, 1))
    base = floats(node, "base_values")
    if len(base):
        y = y + constant(fit("base_values", base, n, 1)).reshape((1, -1))
    return transformed(y, node.post_transform)


@onnx_import("TreeEnsemble", domain=ML)
def tree_ensemble(ctx: Any, node: Any, x: Any) -> Any:
    """The same, as version 5 of ai.onnx.ml writes it."""
    x, n = rows(x), node.n_targets or 1
    together, average = _together(node.aggregate_function)

    def make(node: Any, kind: Any) -> Tables:
        return by_positions(node, n, together, kind)

    y, trees = _leaves(ctx, node, x, n, together, make)
    if average:
        y = F.mul_scalar(y, 1.0 / max(trees, 1))
    return transformed(y, node.post_transform)


@onnx_import("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(ctx: Any, node: Any, x: Any) -> Any:
    """Labels and scores of decision trees; two classes may share one score."""
    x, labels, how = rows(x), labels_of(node), node.post_transform
    ids = np.asarray(node.class_ids or (), np.int64)
    shared = len(labels) == 2 and len(np.unique(ids)) == 1
    n = 1 if shared else len(labels)

    def make(node: Any, kind: Any) -> Tables:
        return by_names(node, "class", n, ids * 0 if shared else ids, "sum", kind)

    y, _ = _leaves(ctx, node, x, n, "sum", make)
    base = floats(node, "base_values")
    if len(base):
        fit("base_values", base, len(labels), 1)
        base = base[ids[:1] % len(base)] if shared else base
        y = y + constant(base).reshape((1, -1))
    if shared:
        y = pair(y, how, bool((floats(node, "class_weights") >= 0).all()))
    return best(ctx, y, labels), transformed(y, how)


# ---- linear models and support vectors ----


def _affine(x: Any, weights: Any, bias: Any) -> Any:
    """x (N, F) times weights (F, C), plus bias (C,)."""
    if shape_of(x)[1] != len(weights):
        raise OnnxError(f"coefficients are for {len(weights)} features, x has {shape_of(x)[1]}")
    return F.affine(x, constant(weights), constant(bias))


def _linear(node: Any, x: Any, count: int) -> Any:
    """Scores (N, count) of a linear model."""
    weights, bias = floats(node, "coefficients"), floats(node, "intercepts")
    if count < 1 or not len(weights) or len(weights) % count:
        raise OnnxError(f"coefficients has {len(weights)} numbers for {count} targets")
    bias = fit("intercepts", bias, count) if len(bias) else np.zeros(count)
    return _affine(x, weights.reshape(count, -1).T, bias)


@onnx_import("LinearRegressor", domain=ML)
def linear_regressor(ctx: Any, node: Any, x: Any) -> Any:
    """Weighted sums of features."""
    return transformed(_linear(node, rows(x), node.targets), node.post_transform)


@onnx_import("LinearClassifier", domain=ML)
def linear_classifier(ctx: Any, node: Any, x: Any) -> Any:
    """Labels and scores of a linear model; two classes may share one score."""
    x, labels = rows(x), labels_of(node)
    shared = len(labels) == 2 and len(floats(node, "coefficients")) == shape_of(x)[1]
    y = _linear(node, x, 1 if shared else len(labels))
    if shared:
        y = pair(y, node.post_transform, False)
    return best(ctx, y, labels), transformed(y, node.post_transform)


def _kernel(node: Any, x: Any, vectors: Any) -> Any:
    """Values (N, V) of the kernel function for rows and support vectors (V, F)."""
    kind = node.kernel_type
    gamma, coef, degree = [*floats(node, "kernel_params"), 0.0, 0.0, 0.0][:3]
    if kind == "RBF":
        # relative to their mean, where squares lose less
        mean = vectors.mean(0, keepdims=True) if len(vectors) else np.zeros((1, vectors.shape[1]))
        v = vectors - mean
        d = x - constant(mean)
        away = F.sum(d * d, axis=1, keepdims=True) + _affine(d, -2 * v.T, (v * v).sum(1))
        return F.exp(F.mul_scalar(F.maximum_scalar(away, 0.0), -gamma))
    y = _affine(x, vectors.T, np.zeros(len(vectors)))
    if kind == "LINEAR":
        return y
    y = F.add_scalar(F.mul_scalar(y, gamma), coef)
    if kind == "POLY":
        return F.pow_scalar(y, degree)
    if kind == "SIGMOID":
        return F.tanh(y)
    raise OnnxError(f"kernel_type is {kind!r}, wanted LINEAR, POLY, RBF or SIGMOID")


def _vectors(node: Any, count: int, features: int) -> Any:
    vectors = floats(node, "support_vectors")
    if len(vectors) != count * features:
        raise OnnxError(
            f"support_vectors has {len(vectors)} numbers, wanted {count} vectors of {features} "
            "features"
        )
    return vectors.reshape(count, features)


@onnx_import("SVMRegressor", domain=ML)
def svm_regressor(ctx: Any, node: Any, x: Any) -> Any:
    """A weighted sum of kernel functions, or where it is above 0 and where not (1 and -1)."""
    x, count = rows(x), node.n_supports
    weights, rho = floats(node, "coefficients"), floats(node, "rho")
    if count < 0:
        raise OnnxError(f"n_supports is {count}, wanted at least 0")
    values = _kernel(node, x, _vectors(node, count, shape_of(x)[1])) if count else x
    fit("coefficients", weights, shape_of(values)[1])
    y = _affine(values, weights.reshape(-1, 1), fit("rho", rho, 1))
    if node.one_class:
        y = F.add_scalar(F.mul_scalar(F.greater_scalar(y, 0.0), 2.0), -1.0)
    return transformed(y, node.post_transform)


@onnx_import("SVMClassifier", domain=ML)
def svm_classifier(ctx: Any, node: Any, x: Any) -> Any:
    """Labels and scores of support vectors: each two classes have a judge, who votes."""
    x, labels, how = rows(x), labels_of(node), node.post_transform
    n, counts = len(labels), node.vectors_per_class or ()
    weights, rho = floats(node, "coefficients"), floats(node, "rho")
    if not counts:
        fit("coefficients", weights, n * shape_of(x)[1])
        if not len(rho):
            raise OnnxError("rho has 0 numbers, wanted 1")
        y = _affine(x, weights.reshape(n, -1).T, np.full(n, rho[0]))
        return best(ctx, y, labels), transformed(y, how)
    fit("vectors_per_class", counts, n)
    total, judges = sum(counts), [(i, j) for i in range(n) for j in range(i + 1, n)]
    if min(counts) < 0 or n < 2:
        raise OnnxError(f"vectors_per_class is {counts}, for {n} classes")
    fit("coefficients", weights, (n - 1) * total)
    fit("rho", rho, len(judges))
    starts = np.cumsum((0, *counts))
    table = np.zeros((total, len(judges)))
    by_class = weights.reshape(n - 1, total)
    for k, (i, j) in enumerate(judges):
        for own, other in ((i, j - 1), (j, i)):
            part = slice(starts[own], starts[own + 1])
            table[part, k] = by_class[other, part]
    values = _kernel(node, x, _vectors(node, total, shape_of(x)[1]))
    scores = _affine(values, table, rho)
    for_first = np.array([[i == c for c in range(n)] for i, _ in judges], np.float64)
    for_second = np.array([[j == c for c in range(n)] for _, j in judges], np.float64)
    won = F.greater_scalar(scores, 0.0)
    votes = _affine(won, for_first - for_second, for_second.sum(0))
    a, b = floats(node, "prob_a"), floats(node, "prob_b")
    if len(a):
        slope, shift = fit("prob_a", a, len(judges)), fit("prob_b", b, len(judges))
        beside = scores * constant(-slope).reshape((1, -1))
        beside = F.sigmoid(beside - constant(shift).reshape((1, -1)))
        y = _coupled(F.clip_by_value(beside, 1e-7, 1 - 1e-7), judges, n)
        return best(ctx, votes, labels), transformed(y, how)
    if n == 2:
        scores = pair(scores, how, how != "NONE")
    return best(ctx, votes, labels), transformed(scores, how)


def _coupled(beside: Any, judges: Any, n: int) -> Any:
    """Probabilities (N, n) of classes from those (N, judges) of one of each two.

    Source: Wu, Lin and Weng, Probability estimates for multi-class classification by pairwise
    coupling, JMLR 5 (2004), algorithm 2 with libsvm's bound, which every row meets by itself.
    """
    size = shape_of(beside)[0]
    r = {}
    for k, (i, j) in enumerate(judges):
        r[i, j] = F.slice(beside, (0, k), (size, k + 1), (1, 1))
        r[j, i] = 1.0 - r[i, j]
    q = [[-r[i, t] * r[t, i] if i != t else None for i in range(n)] for t in range(n)]
    for t in range(n):
        q[t][t] = F.add_n(*[r[i, t] * r[i, t] for i in range(n) if i != t])
    rows = [F.concatenate(*row, axis=1) for row in q]

    def state(p: Any) -> Any:
        """Q p, p Q p, and whether a row has further to go."""
        qp = F.concatenate(*[F.sum(row * p, axis=1, keepdims=True) for row in rows], axis=1)
        pqp = F.sum(p * qp, axis=1, keepdims=True)
        error = F.max(F.abs(qp - pqp), axis=1, keepdims=True)
        return qp, pqp, F.greater_equal_scalar(error, 0.005 / n)

    def better(p: Any) -> Any:
        qp, pqp, goes_on = state(p)
        for t in range(n):
            mine = F.slice(qp, (0, t), (size, t + 1), (1, 1))
            step = (pqp - mine) / q[t][t] * goes_on
            whole = step + 1.0
            pqp = (pqp + step * (step * q[t][t] + mine * 2.0)) / (whole * whole)
            p = (p + step * constant(np.eye(n)[t : t + 1])) / whole
            qp = (qp + step * rows[t]) / whole
        return p

    start = F.add_scalar(F.mul_scalar(rows[0], 0.0), 1.0 / n)
    return while_loop(lambda p: F.max(state(p)[2]), better, start, max_trips=max(100, n))
