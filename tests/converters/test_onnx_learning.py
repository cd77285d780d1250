# SPDX-License-Identifier: Apache-2.0
"""ai.onnx.ml: its operators beside onnx.reference and ONNX Runtime, and what skl2onnx writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto as T  # noqa: E402
from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from nnl.cli.main import main  # noqa: E402
from nnl.converters.onnx import load  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError  # noqa: E402
from tests.native.kernels import require_library  # noqa: E402

ML = "ai.onnx.ml"
TYPES = {"f": T.FLOAT, "i": T.INT64, "O": T.STRING, "d": T.DOUBLE}


def words(*values: str) -> Any:
    return np.array(values, object)


def one_node(op: str, x: Any, outputs: str, version: int = 4, **attributes: Any) -> Any:
    """A model of one node, with outputs of these types, and open rows."""
    names = [f"y{i}" for i in range(len(outputs))]
    shape = ["n", *x.shape[1:]]
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], names, "it", domain=ML, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TYPES[x.dtype.kind], shape)],
        [helper.make_tensor_value_info(n, TYPES[k], None) for n, k in zip(names, outputs,
                                                                      strict=True)],
    )  # fmt: skip
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=versions, ir_version=9)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype(np.float32)
HOLES = np.where(RNG.random((12, 3)) < 0.3, np.float32(np.nan), X)
WHOLE = RNG.integers(-2, 4, (12, 3))
WORDS = RNG.choice(words("a", "b", "é", "?"), (12, 1))
W2, W3 = RNG.normal(size=6).tolist(), RNG.normal(size=9).tolist()
PARAMETERS = [0.3, 0.1, 3.0]
LINEAR = dict(coefficients=W3, intercepts=[0.1, 0, -0.3], classlabels_ints=[3, 5, -1])
LINEAR_SVC = dict(kernel_params=PARAMETERS, coefficients=W3, rho=[0.2], classlabels_ints=[1, 2, 3])
SVC: dict[str, Any] = dict(
    vectors_per_class=[2, 3, 1], support_vectors=RNG.normal(size=18).tolist(),
    coefficients=RNG.normal(size=12).tolist(), rho=[0.1, -0.2, 0.3], classlabels_ints=[4, 5, 6],
    kernel_params=PARAMETERS,
)  # fmt: skip
PAIR: dict[str, Any] = dict(
    vectors_per_class=[2, 3], support_vectors=RNG.normal(size=15).tolist(),
    coefficients=RNG.normal(size=5).tolist(), rho=[0.1], classlabels_ints=[4, 5],
    kernel_params=PARAMETERS,
)  # fmt: skip
SVR: dict[str, Any] = dict(
    n_supports=4, support_vectors=RNG.normal(size=12).tolist(), rho=[0.2],
    coefficients=RNG.normal(size=4).tolist(),
)  # fmt: skip
CASES = [
    ("Scaler", X, "f", dict(offset=[1.0, 2, 3], scale=[0.5, 2, -1])),
    ("Scaler", WHOLE, "f", dict(offset=[1.0], scale=[0.5])),
    *[("Normalizer", X, "f", dict(norm=n)) for n in ("MAX", "L1", "L2")],
    ("Normalizer", X * 0, "f", dict(norm="L2")),
    ("Imputer", HOLES, "f", dict(imputed_value_floats=[1.0, 2, 3], replaced_value_float=np.nan)),
    ("Imputer", WHOLE, "i", dict(imputed_value_int64s=[9], replaced_value_int64=2)),
    ("Binarizer", X, "f", dict(threshold=0.2)),
    ("OneHotEncoder", WHOLE, "f", dict(cats_int64s=[3, -1, 0])),
    ("OneHotEncoder", WORDS, "f", dict(cats_strings=["é", "a"])),
    ("LinearRegressor", X, "f", dict(coefficients=W2, intercepts=[1.0, 2], targets=2)),
    ("LinearRegressor", X, "f", dict(coefficients=W2[:3], targets=1, intercepts=[0.0])),
    *[
        ("LinearClassifier", X, "if", dict(LINEAR, post_transform=p))
        for p in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    ],
    ("LinearClassifier", X, "Of", dict(coefficients=W2, intercepts=[0.1, 0.2],
                                       classlabels_strings=["no", "yes"])),
    *[
        ("SVMRegressor", X, "f", dict(SVR, kernel_type=k, kernel_params=PARAMETERS))
        for k in ("LINEAR", "POLY", "RBF", "SIGMOID")
    ],
    ("SVMRegressor", X, "f", dict(SVR, kernel_type="RBF", kernel_params=PARAMETERS, one_class=1)),
    ("SVMRegressor", X, "f", dict(coefficients=W2[:3], rho=[0.5], kernel_params=PARAMETERS)),
    ("SVMClassifier", X, "if", dict(SVC, kernel_type="RBF")),
    ("SVMClassifier", X, "if", dict(SVC, kernel_type="POLY")),
    ("SVMClassifier", X, "if", dict(SVC, prob_a=[-1.0, -2, -0.5], prob_b=[0.1, 0, 0.3])),
    ("SVMClassifier", X, "if", dict(PAIR, kernel_type="RBF")),
    ("SVMClassifier", X, "if", dict(PAIR, prob_a=[-2.0], prob_b=[0.1])),
    ("SVMClassifier", X, "if", dict(LINEAR_SVC)),
    ("LabelEncoder", WHOLE, "i", dict(keys_int64s=[0, 2], values_int64s=[7, -8])),
    ("LabelEncoder", WHOLE, "O", dict(keys_int64s=[0, 2], values_strings=["zero", "two"])),
    ("LabelEncoder", WHOLE, "f", dict(keys_int64s=[0, 2], values_floats=[0.5, 2.5],
                                      default_float=9.0)),
    ("LabelEncoder", HOLES, "i", dict(keys_floats=[np.nan, float(X[0, 0])], values_int64s=[1, 2])),
    ("LabelEncoder", WORDS, "i", dict(keys_strings=["b", "a"], values_int64s=[1, 2])),
    ("LabelEncoder", WORDS, "O", dict(keys_strings=["b", "a"], values_strings=["B", "A"])),
    ("LabelEncoder", WORDS, "f", dict(keys_strings=["é"], values_floats=[0.5])),
]  # fmt: skip


@pytest.mark.parametrize(("op", "x", "outputs", "attributes"), CASES)
def test_operators(op, x, outputs, attributes):
    """Beside ONNX Runtime; twice, and as numpy does.

    It takes the largest value for the norm MAX, and sums of SOFTMAX_ZERO without zeros: there
    onnx.reference is asked, as scikit-learn does the same.
    """
    proto = one_node(op, x, outputs, **attributes)
    session = ort.InferenceSession(proto.SerializeToString())
    want = session.run(None, {"x": x})
    if "SOFTMAX_ZERO" in attributes.values() or "MAX" in attributes.values():
        want = ReferenceEvaluator(proto).run(None, {"x": x})
    net = load(proto)
    for _ in range(2):
        for y, wanted in zip(net.run(x), want, strict=True):
            assert y.dtype == wanted.dtype and y.shape == wanted.shape
            if y.dtype.kind in "Oi":
                np.testing.assert_array_equal(y, wanted)
            else:
                np.testing.assert_allclose(y, wanted, rtol=3e-5, atol=1e-5)
    assert all(e.runners is not None for e in net._plans._plans.values())
    with nn.context_scope(nn.Context(["numpy:float"])):
        for y, again in zip(net.run(x), load(proto).run(x), strict=True):
            np.testing.assert_array_equal(y, again)


def test_labels_by_number_and_name():
    numbers = one_node("LabelEncoder", WORDS, "i", version=1, classes_strings=["b", "a"])
    np.testing.assert_array_equal(
        load(numbers).run(words("a", "b", "x").reshape(3, 1))[0].ravel(), [1, 0, -1]
    )
    both = dict(cats_strings=["b", "a"], cats_int64s=[5, 7])
    names = load(one_node("CategoryMapper", WHOLE, "O", **both)).run(np.array([[7, 5, 0]]))
    assert names[0].tolist() == [["a", "b", "_Unused"]]


def test_zip_map_gives_dicts():
    node = helper.make_node("ZipMap", ["x"], ["y"], "it", domain=ML, classlabels_strings=["p", "q"])
    y = helper.make_value_info(
        "y",
        helper.make_sequence_type_proto(
            helper.make_map_type_proto(T.STRING, helper.make_tensor_type_proto(T.FLOAT, []))
        ),
    )
    x = helper.make_tensor_value_info("x", T.FLOAT, [None, 2])
    proto = helper.make_model(helper.make_graph([node], "g", [x], [y]), ir_version=9,
        opset_imports=[helper.make_opsetid(ML, 1), helper.make_opsetid("", 17)])  # fmt: skip
    net, values = load(proto), X[:2, :2]
    want = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": values})
    assert net.run(values) == want == net.run(values.copy())
    with pytest.raises(
        OnnxError, match=r"ZipMap 'it': has 2 labels for scores of the shape \(1, 3"
    ):
        load(proto).run(X[:1])


@pytest.mark.parametrize(
    ("op", "x", "outputs", "attributes", "message"),
    [
        ("Scaler", X, "f", dict(scale=[1.0, 2]), "scale has 2 numbers, wanted 3"),
        ("Normalizer", X, "f", dict(norm="L3"), "norm is 'L3', wanted MAX, L1 or L2"),
        ("Imputer", X, "f", {}, "imputed_value_floats has 0 numbers, wanted 3"),
        ("OneHotEncoder", WORDS, "f", dict(cats_strings=["a"], zeros=0), "which is none of the 1 "),
        ("OneHotEncoder", WORDS, "f", {}, "has no cats"),
        ("LabelEncoder", WORDS, "i", dict(keys_strings=["a", "b"], values_int64s=[1]),
         "values has 1 numbers, wanted 2"),
        ("LinearRegressor", X, "f", dict(coefficients=[1.0]), "coefficients are for 1 features, x"),
        ("LinearRegressor", X, "f", dict(coefficients=W2, targets=4), "has 6 numbers for 4 targ"),
        ("LinearClassifier", X, "if", dict(coefficients=W3), "has neither classlabels_strings nor"),
        ("SVMRegressor", X, "f", dict(SVR, n_supports=5), "support_vectors has 12 numbers, want"),
        ("SVMRegressor", X, "f", dict(SVR, kernel_type="X"), "kernel_type is 'X', wanted LINEAR, "),
        ("SVMClassifier", X, "if", dict(SVC, rho=[0.0]), "rho has 1 numbers, wanted 3"),
        ("SVMClassifier", X, "if", dict(SVC, vectors_per_class=[1]), "vectors_per_class has 1 num"),
    ],
)  # fmt: skip
def test_damaged_operators(op, x, outputs, attributes, message):
    proto = one_node(op, x, outputs, **attributes)
    with pytest.raises(OnnxError, match=message) as caught:
        load(proto).run(x)
    assert f"node ai.onnx.ml.{op} 'it': " in str(caught.value)


def test_strings_that_a_graph_needs_themselves():
    graph = helper.make_graph(
        [helper.make_node("StringNormalizer", ["x"], ["y"], "it", case_change_action="LOWER")],
        "g",
        [helper.make_tensor_value_info("x", T.STRING, ["n"])],
        [helper.make_tensor_value_info("y", T.STRING, ["n"])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert load(proto).run(words("Ab"))[0].tolist() == ["ab"]
    with (
        nn.auto_forward(False),
        pytest.raises(OnnxError, match="StringNormalizer needs the string"),
    ):
        load(proto)(nn.Variable((2,)))


# ---- what skl2onnx writes ----


def exported(model: Any, x: Any, **settings: Any) -> Any:
    """The ONNX file of a fitted model."""
    from skl2onnx import to_onnx

    return to_onnx(model, x[:1], target_opset={"": 20, ML: 3}, **settings).SerializeToString()


def agrees(file: bytes, want: Any, x: Any, threshold: float = 2e-5) -> None:
    """What a file gives is what scikit-learn predicts, and what ONNX Runtime gives."""
    session = ort.InferenceSession(file)
    given = {i.name: x if not isinstance(x, dict) else x[i.name] for i in session.get_inputs()}
    ours = load(file).run(**given)
    theirs = session.run(None, given)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(ours[0].ravel(), want.ravel(), rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert (ours[0] == want).mean() > 0.99  # it computes in float64
    for y, other in zip(ours[1:], theirs[1:], strict=True):
        if isinstance(y, list):
            assert [list(r) for r in y] == [list(r) for r in other]
            y, other = ([list(r.values()) for r in rows] for rows in (y, other))
        np.testing.assert_allclose(y, other, rtol=threshold, atol=threshold)


def data(classes: int) -> Any:
    from sklearn.datasets import make_classification

    x, y = make_classification(200, 6, n_informative=5, n_redundant=0, n_classes=classes,
                               random_state=classes)  # fmt: skip
    return x.astype(np.float32), y


def classifiers() -> dict[str, Any]:
    from sklearn import ensemble, linear_model, naive_bayes, neural_network, pipeline, svm, tree
    from sklearn import preprocessing as p

    return {
        "forest": ensemble.RandomForestClassifier(10, random_state=0),
        "extra": ensemble.ExtraTreesClassifier(10, random_state=0),
        "tree": tree.DecisionTreeClassifier(max_depth=4, random_state=0),
        "boosting": ensemble.GradientBoostingClassifier(n_estimators=8, random_state=0),
        "ada": ensemble.AdaBoostClassifier(n_estimators=5, random_state=0),
        "bagging": ensemble.BaggingClassifier(n_estimators=4, random_state=0),
        "logistic": linear_model.LogisticRegression(),
        "svc": svm.SVC(),
        "svc_poly": svm.SVC(kernel="poly"),
        "svc_sigmoid": svm.SVC(kernel="sigmoid"),
        "linear_svc": svm.LinearSVC(random_state=0),
        "sgd": linear_model.SGDClassifier(loss="log_loss", random_state=0),
        "bayes": naive_bayes.GaussianNB(),
        "network": neural_network.MLPClassifier((5,), max_iter=30, random_state=0),
        "pipeline": pipeline.make_pipeline(
            p.StandardScaler(), p.MinMaxScaler(), p.PolynomialFeatures(2), p.Normalizer(),
            linear_model.LogisticRegression()),
    }  # fmt: skip


NAMES = (
    "forest extra tree boosting ada bagging logistic svc svc_poly svc_sigmoid linear_svc sgd bayes "
    "network pipeline"
).split()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_classifiers_of_scikit_learn(name, classes):
    x, y = data(classes)
    model = classifiers()[name].fit(x, y)
    agrees(exported(model, x), model.predict(x), x)


@pytest.mark.filterwarnings("ignore")
def test_regressors_of_scikit_learn():
    from sklearn import ensemble, linear_model, svm

    x, y = data(2)
    y = x @ np.arange(6) + y
    for model in (
        ensemble.RandomForestRegressor(10, random_state=0),
        ensemble.GradientBoostingRegressor(n_estimators=10, random_state=0),
        linear_model.Ridge(),
        svm.SVR(),
    ):
        with nn.parameter_scope(type(model).__name__):
            agrees(exported(model.fit(x, y), x), model.predict(x), x)


def test_strings_in_and_labels_out(tmp_path):
    """A ColumnTransformer over strings and numbers, with labels that are strings."""
    import skl2onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn import compose, linear_model, pipeline, preprocessing

    x, y = data(3)
    colours = np.array(["red", "green", "blue", "grün"], object)[RNG.integers(0, 4, (200, 1))]
    sizes = np.array(["S", "M"], object)[(x[:, :1] > 0).astype(int)]
    labels = words("no", "maybe", "yes")[y]
    table = np.concatenate([colours, sizes, x[:, :3].astype(object)], 1)
    columns = compose.ColumnTransformer([
        ("words", preprocessing.OneHotEncoder(handle_unknown="ignore"), [0, 1]),
        ("numbers", preprocessing.StandardScaler(), [2, 3, 4]),
    ])  # fmt: skip
    model = pipeline.make_pipeline(columns, linear_model.LogisticRegression())
    model.fit(table, labels)
    types = [("colour", StringTensorType([None, 1])), ("size", StringTensorType([None, 1])),
             ("numbers", FloatTensorType([None, 3]))]  # fmt: skip
    file = skl2onnx.convert_sklearn(model, initial_types=types, target_opset={"": 20, ML: 3})
    file = file.SerializeToString()
    given = {"colour": colours, "size": sizes, "numbers": x[:, :3]}
    agrees(file, model.predict(table), given)
    net = load(file)
    net.run(**given)
    assert all(e.runners is not None for e in net._plans._plans.values())
    check_programs(file, net, given, tmp_path)
    given["colour"] = np.where(RNG.random((200, 1)) < 0.5, colours, "unheard of")
    table[:, 0] = given["colour"][:, 0]
    np.testing.assert_array_equal(net.run(**given)[0], model.predict(table))


def check_programs(file: bytes, net: Any, given: Any, tmp_path: Any) -> None:
    """A program has strings at its ends, in Python and in C++; other formats say what they lack."""
    (tmp_path / "m.onnx").write_bytes(file)
    path = str(tmp_path / "m.nnlp")
    assert main(["convert", str(tmp_path / "m.onnx"), path]) == 0
    want = dict(zip(net.outputs, net.run(**given), strict=True))
    want["output_probability"] = np.array([list(r.values()) for r in want["output_probability"]])
    programs = nn.load_program(path)
    programs.save(tmp_path / "again.nnlp")
    for program in (programs, nn.load_program(tmp_path / "again.nnlp")):
        found = program.run(**given)
        np.testing.assert_array_equal(found["output_label"], want["output_label"])
        np.testing.assert_allclose(
            found["output_probability"], want["output_probability"], atol=1e-6
        )
    with pytest.raises(TypeError, match=r"colour is int64 \(200, 1\), wanted strings"):
        programs.run(**given | {"colour": np.zeros((200, 1), int)})
    model = require_library().Model(path)
    for k, v in given.items():
        model.resize(k, v.shape)
    texts = {
        k: v.ravel().tolist() if v.dtype == object else np.ascontiguousarray(v)
        for k, v in given.items()
    }
    assert model.run(texts)["output_label"] == want["output_label"].tolist()
    with pytest.raises(ValueError, match="numbers takes no strings"):
        model.run({"numbers": ["a"]})
    with pytest.raises(ValueError, match="colour has 200 elements, got 1"):
        model.run({"colour": ["a"]})
    for name in ("m.nnp", "m.tflite"):
        assert main(["convert", str(tmp_path / "m.onnx"), str(tmp_path / name)]) != 0


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_a_string_that_comes_back_unknown(backend, tmp_path):
    """One that only moves is not known: a program has no string to give."""
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "s"], ["y"]),
         helper.make_node("Equal", ["x", "a"], ["e"])],
        "g",
        [helper.make_tensor_value_info("x", T.STRING, [2])],
        [helper.make_tensor_value_info("y", T.STRING, [2, 1]),
         helper.make_tensor_value_info("e", T.BOOL, [2])],
        [helper.make_tensor("s", T.INT64, [2], [2, 1]),
         helper.make_tensor("a", T.STRING, [1], [b"a"])],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(proto, tmp_path / "m.onnx")
    x = words("a", "b")
    y, e = load(proto).run(x)
    assert y.tolist() == [["a"], ["b"]] and e.tolist() == [True, False]
    assert main(["convert", str(tmp_path / "m.onnx"), str(tmp_path / "m.nnlp")]) == 0
    program = nn.load_program(tmp_path / "m.nnlp")
    with nn.context_scope(nn.Context([f"{backend}:float"])):
        assert program.run(x=words("a", "a"))["y"].tolist() == [["a"], ["a"]]
        with pytest.raises(
            ValueError, match="m.nnlp: g: gives a string back that it does not know"
        ):
            program.run(x=x)
    model = require_library().Model(str(tmp_path / "m.nnlp"))
    with pytest.raises(ValueError, match="y is a string that the model does not know"):
        model.run({"x": ["a", "b"]})


def test_text_of_scikit_learn():
    """Counts of words and pairs of words; ONNX Runtime needs a locale that machines may lack."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn import feature_extraction, linear_model, pipeline

    texts = words("This is the first one.", "The second, the SECOND one!", "is this it?", "")
    for options in ({}, {"ngram_range": (1, 2)}, {"binary": True, "lowercase": False}):
        counts = feature_extraction.text.TfidfVectorizer(token_pattern="[a-zA-Z]+", **options)
        model = pipeline.make_pipeline(counts, linear_model.LogisticRegression())
        model.fit(texts, words("a", "b", "a", "b"))
        settings = {id(model[-1]): {"zipmap": False}}
        file = to_onnx(model, initial_types=[("x", StringTensorType([None, 1]))], options=settings,
                       target_opset={"": 20, ML: 3})  # fmt: skip
        with nn.parameter_scope(str(options)):
            label, scores = load(file).run(texts.reshape(-1, 1))
        np.testing.assert_array_equal(label, model.predict(texts))
        np.testing.assert_allclose(scores, model.predict_proba(texts), atol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "want"),
    [
        (dict(separators=[" ", ",+"], mark=0, mincharnum=1), [["ab", "c", "de"], ["é", "#", "#"]]),
        (dict(separators=[""], mark=0, mincharnum=1), [[*"ab, c,,de"], ["é", *"########"]]),
        (dict(tokenexp="[a-z]+", mark=0, mincharnum=2), [["ab", "de"], ["#", "#"]]),
        (
            dict(tokenexp="[a-z]", mark=1, mincharnum=1),
            [["\x02", *"abcde", "\x03"], ["\x02", "\x03", *"#####"]],
        ),
    ],
)
def test_tokenizer(attributes, want):
    graph = helper.make_graph(
        [helper.make_node("Tokenizer", ["x"], ["y"], "it", domain="com.microsoft", pad_value="#",
                          **attributes)],
        "g", [helper.make_tensor_value_info("x", T.STRING, ["n"])],
        [helper.make_tensor_value_info("y", T.STRING, None)],
    )  # fmt: skip
    versions = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=versions, ir_version=9)
    x = words("ab, c,,de", "é")
    assert load(proto).run(x)[0].tolist() == want
    file = proto.SerializeToString()
    assert ort.InferenceSession(file).run(None, {"x": x})[0].tolist() == want


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["lightgbm", "xgboost"])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_boosting_of_others(name, classes):
    """LightGBM and XGBoost by onnxmltools; holes among the features, which trees have a way for."""
    package = pytest.importorskip(name)
    convert = getattr(pytest.importorskip("onnxmltools"), f"convert_{name}")
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, y = data(max(classes, 2))
    x[::5, 2] = np.nan
    kind = "Classifier" if classes else "Regressor"
    settings = {"n_estimators": 12, "max_depth": 4}
    model = getattr(package, f"{'LGBM' if name == 'lightgbm' else 'XGB'}{kind}")(**settings)
    model.fit(x, y if classes else np.nan_to_num(x) @ np.arange(6))
    types = [("x", FloatTensorType([None, 6]))]
    file = convert(model, initial_types=types, target_opset=15).SerializeToString()
    agrees(file, model.predict(x), x)
