# SPDX-License-Identifier: Apache-2.0
"""Ensembles of trees: random ones beside ONNX Runtime and onnx.reference, and damaged ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto as T  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from nnl.converters.formats import WriteOptions  # noqa: E402
from nnl.converters.networks.model import OnnxFile  # noqa: E402
from nnl.converters.onnx import load  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError  # noqa: E402
from nnl.converters.programs import write_programs  # noqa: E402

ML = "ai.onnx.ml"
MODES = [f"BRANCH_{m}" for m in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")]


def one_node(op: str, version: int = 3, kind: int = T.FLOAT, **attributes: Any) -> Any:
    """A model of one node; its input has open rows."""
    outputs = ["label", "scores"] if op.endswith("Classifier") else ["y"]
    types = [T.INT64, T.FLOAT] if len(outputs) == 2 else [T.FLOAT if version < 5 else kind]
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], outputs, "it", domain=ML, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", kind, ["n", 3])],
        [helper.make_tensor_value_info(*o, None) for o in zip(outputs, types, strict=True)],
    )
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=versions, ir_version=9)


def grown(rng: Any, trees: int, n_targets: int, sparse: bool) -> dict[str, Any]:
    """Attributes of random trees, nodes in any order, splits among few values that x has, too."""
    nodes, votes = [], []
    for t in range(trees):
        names = iter(range(1, 99))

        def grow(name: int, depth: int, t: int = t, names: Any = names) -> None:
            if depth and rng.random() < 0.8:
                yes, no = next(names), next(names)
                nodes.append((t, name, rng.integers(3), rng.choice(SPLITS), rng.choice(MODES), yes,
                              no, rng.integers(2)))  # fmt: skip
                grow(yes, depth - 1)
                grow(no, depth - 1)
                return
            nodes.append((t, name, 0, 0.0, "LEAF", 0, 0, 0))
            said = rng.permutation(n_targets)[: 1 if sparse else n_targets]
            votes.extend((t, name, k, rng.normal()) for k in said)

        grow(0, 4)
    nodes = sorted(nodes, key=lambda n: (n[0], n[1] > 0, rng.random()))
    columns = [list(c) for c in zip(*nodes, strict=True)]
    names = "treeids nodeids featureids values modes truenodeids falsenodeids".split()
    found = dict(zip([f"nodes_{n}" for n in (*names, "missing_value_tracks_true")], columns,
                     strict=True))  # fmt: skip
    said = [list(c) for c in zip(*votes, strict=True)]
    return found | {"votes": dict(zip(("treeids", "nodeids", "ids", "weights"), said, strict=True))}


SPLITS = np.float32([-1.5, -0.1, 0.0, 0.1, 1e-45, 3.0])


def points(rng: Any, n: int = 60) -> Any:
    """Rows that hit splits exactly, miss them by one bit, and have NaN and infinities."""
    near = np.concatenate([SPLITS, np.nextafter(SPLITS, np.float32(9)), -SPLITS])
    x = rng.choice(np.append(near, [np.nan, np.inf, -np.inf]).astype(np.float32), (n, 3))
    return np.where(rng.random((n, 3)) < 0.3, rng.normal(size=(n, 3)), x).astype(np.float32)


def run_in_file(proto: Any, x: Any, tmp_path: Any) -> Any:
    """The outputs of the program of a model, with rows left open; C++ runs it where it is built."""
    onnx.save(proto, tmp_path / "m.onnx")
    write_programs(OnnxFile(tmp_path / "m.onnx"), str(tmp_path / "m.nnlp"), WriteOptions())
    return list(nn.load_program(tmp_path / "m.nnlp").run(x=x).values())


@pytest.mark.parametrize("seed", range(12))
def test_random_regressors(seed, tmp_path):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 4))
    votes = (attributes := grown(rng, 7, n, sparse=seed % 4 == 1)).pop("votes")
    attributes |= {f"target_{k}": v for k, v in votes.items()} | {"n_targets": n}
    attributes["aggregate_function"] = ("SUM", "AVERAGE", "MIN", "MAX")[seed % 4]
    if seed % 3 == 0:
        attributes["base_values"] = rng.normal(size=n).tolist()
    proto, x = one_node("TreeEnsembleRegressor", **attributes), points(rng)
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    found = load(proto).run(x)[0], run_in_file(proto, x, tmp_path)[0]
    with nn.context_scope(nn.Context(["numpy:float"])):
        found = *found, load(proto).run(x)[0]
    for y in found:
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("seed", range(3))
def test_random_classifiers(seed, post, tmp_path):
    rng = np.random.default_rng(seed)
    votes = (attributes := grown(rng, 5, 3, sparse=False)).pop("votes")
    attributes |= {f"class_{k}": v for k, v in votes.items()}
    attributes |= {"classlabels_int64s": [7, -3, 2], "post_transform": post}
    proto, x = one_node("TreeEnsembleClassifier", **attributes), points(rng)
    want = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for found in (load(proto).run(x), run_in_file(proto, x, tmp_path)):
        np.testing.assert_array_equal(found[0], want[0])
        np.testing.assert_allclose(found[1], want[1], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_double_thresholds(seed):
    """Double rows and splits; and float32 rows beside splits that float32 does not have."""
    rng = np.random.default_rng(seed)
    votes = (attributes := grown(rng, 5, 2, sparse=True)).pop("votes")
    splits = np.array(attributes.pop("nodes_values"), np.float64) + 1e-12
    weights = np.array(votes.pop("weights"))
    attributes |= {f"target_{k}": v for k, v in votes.items()} | {"n_targets": 2}
    attributes["nodes_values_as_tensor"] = numpy_helper.from_array(splits, "")
    attributes["target_weights_as_tensor"] = numpy_helper.from_array(weights, "")
    narrow = points(rng)
    x = np.where(rng.random(narrow.shape) < 0.4, rng.choice(splits, narrow.shape), narrow)
    double = one_node("TreeEnsembleRegressor", kind=T.DOUBLE, **attributes)
    session = ort.InferenceSession(double.SerializeToString())
    for rows in (x, narrow.astype(np.float64)):
        want = session.run(None, {"x": rows})[0]
        np.testing.assert_allclose(load(double).run(rows)[0], want, rtol=1e-6, atol=1e-6)
    single = one_node("TreeEnsembleRegressor", **attributes)
    np.testing.assert_allclose(load(single).run(narrow)[0], want, rtol=1e-5, atol=1e-6)


def by_position(rng: Any, kind: Any) -> dict[str, Any]:
    """Attributes of a random TreeEnsemble, whose nodes may ask for one of some values."""
    nodes, leaves, roots = [], [], []

    def grow(depth: int) -> tuple[int, int]:
        if depth and rng.random() < 0.8:
            nodes.append(at := [])
            i = len(nodes) - 1
            at += [rng.choice(SPLITS), rng.integers(3), rng.integers(7), rng.integers(2)]
            at += [*grow(depth - 1), *grow(depth - 1)]
            return i, 0
        leaves.append((rng.integers(2), rng.normal()))
        return len(leaves) - 1, 1

    for _ in range(4):
        before = len(nodes)
        grow(5)
        roots += [before] if len(nodes) > before else []
    splits, features, modes, missing, yes, yes_leaf, no, no_leaf = zip(*nodes, strict=True)
    members = [rng.choice(SPLITS[SPLITS != 0], m) for m in rng.integers(0, 4, modes.count(6))]
    ends = [v for group in members for v in (*group, np.nan)]
    tensors = {
        "nodes_splits": np.array(splits, kind),
        "nodes_modes": np.array(modes, np.uint8),
        "leaf_weights": np.array([w for _, w in leaves], kind),
    } | ({"membership_values": np.array(ends, kind)} if ends else {})
    return {k: numpy_helper.from_array(v, k) for k, v in tensors.items()} | dict(
        nodes_featureids=features, nodes_missing_value_tracks_true=missing, nodes_truenodeids=yes,
        nodes_trueleafs=yes_leaf, nodes_falsenodeids=no, nodes_falseleafs=no_leaf, tree_roots=roots,
        leaf_targetids=[int(t) for t, _ in leaves], n_targets=2,
    )  # fmt: skip


def answers(attributes: dict[str, Any], x: Any) -> Any:
    """What the standard says of a TreeEnsemble, by the letter: sums by target, for each row."""
    a = {k: numpy_helper.to_array(v) if hasattr(v, "dims") else v for k, v in attributes.items()}
    groups: list[list[float]] = [[]]
    for v in a.get("membership_values", ()):
        groups[-1].append(v)
        groups += [[]] if np.isnan(v) else []
    members = {i: groups[k] for k, i in enumerate(np.flatnonzero(a["nodes_modes"] == 6))}
    tests = np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal
    y = np.zeros((len(x), 2))
    for row, sums in zip(x, y, strict=True):
        for at in a["tree_roots"]:
            leaf = 0
            while not leaf:
                value, mode = row[a["nodes_featureids"][at]], a["nodes_modes"][at]
                if np.isnan(value):
                    yes = a["nodes_missing_value_tracks_true"][at] or mode == 5
                elif mode == 6:
                    yes = value in members[at]
                else:
                    yes = tests[mode](value, a["nodes_splits"][at])
                which = "true" if yes else "false"
                at, leaf = a[f"nodes_{which}nodeids"][at], a[f"nodes_{which}leafs"][at]
            sums[a["leaf_targetids"][at]] += a["leaf_weights"][at]
    return y


@pytest.mark.parametrize("seed", range(10))
def test_random_ensembles_of_version_5(seed, tmp_path):
    rng = np.random.default_rng(seed)
    double = seed % 3 == 0
    attributes = by_position(rng, np.float64 if double else np.float32)
    proto = one_node("TreeEnsemble", 5, T.DOUBLE if double else T.FLOAT, **attributes)
    x = points(rng).astype(np.float64 if double else np.float32)
    want = answers(attributes, x)
    np.testing.assert_allclose(load(proto).run(x)[0], want, rtol=1e-5, atol=1e-6)
    if not double:
        np.testing.assert_allclose(run_in_file(proto, x, tmp_path)[0], want, rtol=1e-5, atol=1e-6)


STUMP: dict[str, Any] = dict(
    nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
    nodes_values=[0.0, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
    nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
)  # fmt: skip


def two_classes(weights: Any, ids: Any, post: str, base: Any) -> Any:
    votes = dict(class_treeids=[0, 0], class_nodeids=[1, 2], class_ids=ids, class_weights=weights)
    more = {"base_values": base} if base else {}
    return one_node(
        "TreeEnsembleClassifier", classlabels_int64s=[10, 20], post_transform=post, **STUMP,
        **votes, **more,
    )  # fmt: skip


@pytest.mark.parametrize("base", [[], [0.1]])
@pytest.mark.parametrize(
    ("weights", "post"),
    [([0.3, 0.8], "NONE"), ([-0.3, 0.8], "NONE"), ([-0.3, 0.8], "LOGISTIC")],
)
def test_two_classes_that_share_a_score(weights, post, base):
    proto = two_classes(weights, [0, 0], post, base)
    x = np.float32([[-1, 0, 0], [1, 0, 0]])
    want = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    label, scores = load(proto).run(x)
    np.testing.assert_array_equal(label, want[0])
    np.testing.assert_allclose(scores, want[1], atol=1e-6)
    # the class that has the weights is not that of the score: one score is that of the second
    label, again = load(two_classes(weights, [1, 1], post, base)).run(x)
    np.testing.assert_array_equal(again, scores)


@pytest.mark.parametrize("post", ["SOFTMAX", "SOFTMAX_ZERO", "LOGISTIC"])
def test_two_classes_as_onnx_reference_transforms_them(post):
    proto = two_classes([0.3, 0.8], [0, 0], post, [])
    x = np.float32([[-1, 0, 0], [1, 0, 0]])
    want = ReferenceEvaluator(proto).run(None, {"x": x})
    label, scores = load(proto).run(x)
    np.testing.assert_array_equal(label, want[0])
    np.testing.assert_allclose(scores, want[1], atol=1e-6)


def test_probit_is_the_quantile_of_the_normal_distribution():
    """ONNX Runtime's is an approximation with three digits."""
    from scipy.special import ndtri

    p = np.float32([1e-30, 1e-6, 0.02, 0.3, 0.5, 0.8, 0.999, 0, 1, -0.1, 1.5])
    votes = dict(target_treeids=range(11), target_nodeids=[0] * 11, target_ids=[0] * 11)
    for one, k in zip(p, range(11), strict=True):
        leaf = dict(
            nodes_treeids=[0], nodes_nodeids=[0], nodes_featureids=[0], nodes_values=[0.0],
            nodes_modes=["LEAF"], nodes_truenodeids=[0], nodes_falsenodeids=[0], n_targets=1,
            target_weights=[float(one)], post_transform="PROBIT",
            **{n: v[:1] for n, v in votes.items()},
        )  # fmt: skip
        with np.errstate(all="ignore"):
            (y,) = load(one_node("TreeEnsembleRegressor", **leaf)).run(np.zeros((1, 3), np.float32))
            np.testing.assert_allclose(y[0, 0], ndtri(np.float64(one)), rtol=2e-6, err_msg=str(k))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_truenodeids": [7, 0, 0]}, "nodes_truenodeids has node 7 of tree 0, which is not"),
        ({"nodes_falsenodeids": [1, 0, 0]}, "tree 0 has 2 nodes that no other leads to, wan"),
        ({"nodes_falsenodeids": [1, 1, 0], "nodes_truenodeids": [2, 1, 0],
          "nodes_modes": ["BRANCH_LEQ", "BRANCH_LT", "LEAF"]}, "lead to node 1 of 2: it has a cy"),
        ({"nodes_falsenodeids": [1, 2, 0], "nodes_truenodeids": [1, 0, 0],
          "nodes_modes": ["BRANCH_LEQ", "BRANCH_LT", "LEAF"]}, "tree 0 has 0 nodes that no"),
        ({"nodes_nodeids": [0, 1, 1]}, "two nodes are node 1 of tree 0"),
        ({"nodes_values": [0.0]}, "nodes_values has 1 entries, wanted 3 as the others"),
        ({"nodes_modes": ["LEAF"]}, "nodes_modes has 1 entries, wanted 3 as the others"),
        ({"nodes_modes": ["BRANCH_BEST", "LEAF", "LEAF"]}, "nodes_modes has 'BRANCH_BEST', wanted"),
        ({"nodes_featureids": [3, 0, 0]}, "nodes_featureids has 3, x has 3 features"),
        ({"nodes_featureids": [-1, 0, 0]}, "nodes_featureids has a number below 0"),
        ({"target_ids": [0, 1]}, r"target_ids has 1, wanted numbers in \[0, 1\)"),
        ({"target_nodeids": [1, 5]}, "target_nodeids has node 5 of tree 0, which is not there"),
        ({"target_weights": [1.0]}, "target_weights has 1 entries, wanted 2 as the others"),
        ({"base_values": [1.0, 2, 3]}, "base_values has 3 numbers, wanted 1"),
        ({"n_targets": 0}, "n_targets is 0, wanted at least 1"),
        ({"aggregate_function": "MEAN"}, "aggregate_function is 'MEAN', wanted one of"),
        ({"post_transform": "TANH"}, "post_transform is 'TANH', wanted one of"),
    ],
)  # fmt: skip
def test_damaged_ensembles(change, message):
    votes = dict(target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0],
                 target_weights=[1.0, 2], n_targets=1)  # fmt: skip
    proto = one_node("TreeEnsembleRegressor", **STUMP | votes | change)
    with pytest.raises(OnnxError, match=message) as caught:
        load(proto).run(np.zeros((2, 3), np.float32))
    assert "node ai.onnx.ml.TreeEnsembleRegressor 'it': " in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_truenodeids": (9,)}, r"nodes_truenodeids has 9, wanted numbers in \[0, 2\)"),
        ({"tree_roots": (4,)}, r"tree_roots has 4, wanted numbers in \[0, 1\)"),
        ({"leaf_targetids": (0, 2)}, r"leaf_targetids has 2, wanted numbers in \[0, 2\)"),
        ({"nodes_falseleafs": (0,), "nodes_falsenodeids": (0,)}, "lead to node 0 of 1: it has a c"),
        ({"nodes_modes": np.uint8([9])}, "nodes_modes has 9, wanted 0 to 6"),
        ({"nodes_modes": np.uint8([6])}, "membership_values has 0 groups that end with NaN, want"),
        ({"aggregate_function": 7}, "aggregate_function is 7, wanted one of"),
    ],
)
def test_damaged_ensembles_of_version_5(change, message):
    parts = dict(
        nodes_splits=np.float32([0]), nodes_modes=np.uint8([0]), leaf_weights=np.float32([1, 2]),
        nodes_featureids=(0,), nodes_truenodeids=(0,), nodes_trueleafs=(1,),
        nodes_falsenodeids=(1,), nodes_falseleafs=(1,), tree_roots=(0,), leaf_targetids=(0, 1),
        n_targets=2,
    ) | change  # fmt: skip
    parts = {k: numpy_helper.from_array(v, k) if isinstance(v, np.ndarray) else v
             for k, v in parts.items()}  # fmt: skip
    with pytest.raises(OnnxError, match=message) as caught:
        load(one_node("TreeEnsemble", 5, **parts)).run(np.zeros((2, 3), np.float32))
    assert "node ai.onnx.ml.TreeEnsemble 'it': " in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([[0, 0, 0, ~0]], "leads out of the table"),
        ([[0, 0, 5, ~0]], "leads out of the table"),
        ([[0, 6, ~0, ~0]], "feature"),
        ([[0, 0, ~4, ~4]], "leaf"),
    ],
)
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_tables_that_lead_nowhere_are_errors_of_every_backend(nodes, message, backend):
    from nnl.core.ops.op import OPS

    tables = [np.int32(nodes), np.int32([0]), np.ones((1, 1), np.float32), np.int32([0])]
    with nn.context_scope(nn.Context([f"{backend}:float"])), nn.auto_forward():
        x = nn.Variable.from_numpy_array(np.zeros((40, 3), np.float32))
        with pytest.raises(ValueError, match=f"tree_ensemble: .*{message}"):
            OPS["tree_ensemble"](x, *map(nn.Variable.from_numpy_array, tables), n_targets=1)
