# SPDX-License-Identifier: Apache-2.0
"""Files become documents and documents become files, and nothing is lost on the way."""

import io
import re
import time
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.console.data.tables import sized
from nnl.console.data.uploads import tables
from nnl.console.documents.analysis import analyse
from nnl.console.documents.building import build
from nnl.console.documents.diff import diff
from nnl.console.documents.reading import of_network, read
from nnl.console.documents.samples import digits, resnet_152
from nnl.console.documents.training import Data, DocumentModel, export, result, write_training
from nnl.console.errors import Refused
from nnl.converters.formats import read_model
from nnl.converters.networks.model import Network
from nnl.converters.nnp.parameter_files import Stored
from nnl.utils.load import load
from tests.console.networks import chain, named


def test_a_training_file_opens_as_the_document_that_it_was_made_of(tmp_path):
    document = digits()
    document.config["optimizer"] = {
        "type": "Momentum",
        "properties": {"lr": 0.02},
        "weight_decay": 1e-4,
        "schedule": {"type": "cosine"},
    }
    data = Data("train.csv", {"x": (1, 8, 8), "y": (1,)}, 320)
    write_training(document, tmp_path / "a.nntxt", data, data)
    found = read(tmp_path / "a.nntxt")
    difference = diff(document, found.document)
    assert difference["nodes"]["added"] == difference["nodes"]["removed"] == []
    assert difference["nodes"]["changed"] == [
        {"network": "main", "name": "loss", "type": None, "properties": {"axis": [None, 1]}}
    ]
    assert difference["edges"] == {"added": [], "removed": []}
    assert set(difference["config"]) <= {"optimizer.schedule.type"}
    loaded = load(str(tmp_path / "a.nntxt"))
    assert loaded.training_config.iter_per_epoch == 10
    assert list(loaded.monitors) == ["valid_error"]


def test_the_three_networks_of_a_file_agree_with_the_drawn_one(tmp_path):
    document = chain(
        ("Input", "x", {"shape": [3]}),
        ("PF.affine", "fc", {"n_outmaps": [4]}),
        ("PF.batch_normalization", "bn"),
        ("F.dropout", "drop", {"p": 0.5}),
        loss="F.softmax_cross_entropy",
    )
    write_training(document, tmp_path / "a.nnp", Data("t.csv", {"x": (3,), "y": (1,)}, 8), None)
    network = read_model([str(tmp_path / "a.nnp")])[0].network(2)
    assert list(network.outputs) == ["y'"] and list(network.inputs) == ["x"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = network.run({"x": x})["y'"]
    with nn.parameter_scope("", network.parameters):
        w = nn.get_parameters(grad_only=False)
        z = x @ w["fc/affine/W"].d + w["fc/affine/b"].d
        z = z / np.sqrt(w["bn/bn/var"].d + 1e-5)  # new statistics: mean 0, gamma 1, beta 0
    e = np.exp(z - z.max(1, keepdims=True))
    assert np.allclose(y, e / e.sum(1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("kind", ["nnp", "onnx", "nnlp"])
def test_a_network_goes_out_and_comes_back_with_its_weights(tmp_path, kind):
    pytest.importorskip("onnx")
    document = digits()
    document.main.nodes.pop(named(document.main, "loss").id)
    document.main.nodes.pop(named(document.main, "y").id)
    document.main.edges = [e for e in document.main.edges if e.target in document.main.nodes]
    graph = build(document, values=True)
    weights = [Stored(n, v.d.copy(), True) for n, v in graph.parameters().items()]
    x = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    wanted = DocumentModel(document, weights=weights).network(1).run({"x": x})
    export(document, tmp_path / f"net.{kind}", weights=weights)
    found = read(tmp_path / f"net.{kind}")
    assert not found.report
    assert analyse(found.document)["totals"]["multiply_adds"] == 88064
    again = DocumentModel(found.document, weights=found.weights).network(1).run({"x": x})
    (y,), (z,) = wanted.values(), again.values()
    assert np.allclose(y, z, atol=1e-5)


def test_resnet_152_becomes_515_nodes_with_the_published_counts_within_100_ms():
    document = resnet_152()
    assert len(document.main.nodes) == 515 + 2  # with the loss and the labels
    times = []
    for _ in range(5):
        begin = time.thread_time()  # other tests use the machine too
        analysis = analyse(document)
        times.append(time.thread_time() - begin)
    assert min(times) <= 0.1
    assert analysis["trainable"] and not analysis["problems"]
    totals = analysis["totals"]
    assert totals["parameters"] == 60_192_808  # of torchvision's resnet152
    assert round(totals["multiply_adds"] / 1e9, 2) == 11.51


def test_statistics_of_onnx_become_those_of_batch_normalization(tmp_path):
    pytest.importorskip("onnx")
    document = chain(
        ("Input", "x", {"shape": [3, 4, 4]}),
        ("PF.batch_normalization", "norm", {"batch_stat": False}),
        ("PF.affine", "fc", {"n_outmaps": [2]}),
    )
    rng = np.random.default_rng(0)
    sizes = {n: v.shape for n, v in build(document).parameters().items()}
    weights = [Stored(n, rng.random(s, np.float32) + 0.5, True) for n, s in sizes.items()]
    x = rng.random((1, 3, 4, 4), np.float32)
    (wanted,) = DocumentModel(document, weights=weights).network(1).run({"x": x}).values()
    export(document, tmp_path / "a.onnx", weights=weights)
    found = read(tmp_path / "a.onnx")
    nodes = found.document.main.nodes.values()
    kinds = ["Input", "PF.batch_normalization", "F.reshape", "PF.affine"]  # the data is flattened
    assert [n.type for n in nodes] == kinds
    assert next(n for n in nodes if n.type == kinds[1]).properties == {"batch_stat": False}
    again = DocumentModel(found.document, weights=found.weights).network(1).run({"x": x})
    assert np.allclose(next(iter(again.values())), wanted, atol=1e-5)


def test_shared_weights_stay_shared():
    scope = OrderedDict()
    with nn.parameter_scope("", scope):
        x = nn.Variable((1, 4))
        h = F.tanh(PF.affine(x, 4, name="fc"))
        y = PF.affine(h, 4, name="fc")
    found = of_network(Network("net", {"x": x}, {"y": y}, scope))
    assert analyse(found.document)["totals"]["parameters"] == 20
    scopes = [n.properties.get("scope") for n in found.document.main.nodes.values()]
    assert scopes.count("fc") == 1


def test_what_no_layer_says_is_kept_and_reported():
    scope = OrderedDict()
    with nn.parameter_scope("", scope):
        x = nn.Variable((1, 4))
        y = F.sink(F.relu(x), F.tanh(x))
        w = nn.parameter.get_parameter_or_create("gain", (1, 4), np.full((1, 4), 2.0))
        z = F.mul2(F.reshape(x, (1, 4)), w)
    found = of_network(Network("net", {"x": x}, {"y": y, "z": z}, scope))
    unknown = next(n for n in found.document.main.nodes.values() if n.type == "Unknown")
    assert unknown.properties["function"] == "Sink"
    assert ("warning", "the function Sink has no layer") in found.report
    assert [p.name for p in found.weights] == ["gain"]
    reshape = next(n for n in found.document.main.nodes.values() if n.type == "F.reshape")
    assert reshape.properties["shape"] == [-1, 4]


def test_losses_decide_what_the_network_says_and_what_is_watched():
    for loss, function in (
        ("F.squared_error", "affine"),
        ("F.sigmoid_cross_entropy", "sigmoid"),
        ("F.softmax_cross_entropy", "softmax"),
    ):
        document = chain(
            ("Input", "x", {"shape": [3]}), ("PF.affine", "fc", {"n_outmaps": [1]}), loss=loss
        )
        graph = build(document)
        with nn.auto_forward(False):
            (y,) = result(document, graph).values()
        assert y.parent.name.lower() == function


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        ("a.txt", b"", "unreadable", "its extension is '.txt'"),
        ("a.nntxt", b"network {", "unreadable", "a.nntxt"),
        ("a.nnp", b"PK\x03\x04 no archive", "unreadable", "a.nnp"),
        ("a.onnx", b"\xff" * 40, "unreadable", "a.onnx"),
        ("a.nnlp", b"\x08" + bytes(40), "unreadable", "a.nnlp"),
    ],
)
def test_broken_files_are_refused_with_their_name(tmp_path, name, content, code, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Refused) as caught:
        read(tmp_path / name)
    assert caught.value.code == code and message in caught.value.message
    assert str(tmp_path) not in caught.value.message and caught.value.where == name


def test_the_page_imports_edits_and_exports(browser, tmp_path):
    write_training(digits(), tmp_path / "a.nnp", Data("t.csv", {"x": (1, 8, 8), "y": (1,)}), None)
    found = browser.upload("/import?name=a.nnp", (tmp_path / "a.nnp").read_bytes(), 200)
    assert found["name"] == "a" and not found["report"]
    given = {"document": found["document"]}
    assert list(given["document"]["weights_from"]) == ["blob"]
    headers = {"X-NNL": "1"}
    for kind in ("nntxt", "nnp", "onnx", "nnlp", "python", "html"):
        answer = browser.client.post(f"/api/v1/export?format={kind}", json=given, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-disposition"].startswith("attachment")
    assert browser.post("/export?format=exe", given, 422)["code"] == "unsupported"
    given["document"]["weights_from"] = {"blob": "../../console"}
    assert browser.post("/export?format=nnp", given, 404)["code"] == "not_found"
    given["document"]["weights_from"] = {"blob": 3}
    said = browser.post("/export?format=nnp", given, 422)
    assert said["where"] == "weights_from.blob" and "wanted a text" in said["message"]
    assert browser.upload("/import?name=..%2f..%2fx.nntxt", b"{", 422)["where"] == "x.nntxt"


def test_weights_stay_where_an_edited_network_has_room_for_them(tmp_path):
    document = chain(
        ("Input", "x", {"shape": [3]}),
        ("PF.affine", "first", {"n_outmaps": [4]}),
        ("PF.affine", "second", {"n_outmaps": [2]}),
    )
    graph = build(document, values=True)
    weights = [Stored(n, v.d.copy(), True) for n, v in graph.parameters().items()]
    named(document.main, "second").properties["n_outmaps"] = [5]
    export(document, tmp_path / "a.nnp", weights=weights)
    found = {p.name: p.value for p in read(tmp_path / "a.nnp").weights}
    assert (found["first/affine/W"] == graph.parameters()["first/affine/W"].d).all()
    assert found["second/affine/W"].shape == (4, 5)


def test_a_file_without_values_brings_no_weights(tmp_path):
    data = Data("", {"x": (1, 8, 8), "y": (1,)})
    for kind, count in (("nntxt", 0), ("nnp", 6)):
        write_training(digits(), tmp_path / f"a.{kind}", data, None)
        assert len(read(tmp_path / f"a.{kind}").weights) == count


def test_an_exported_training_file_names_its_data(browser, console, tmp_path):
    found = browser.upload("/datasets?name=some.zip", pictures()[1])
    layers = ("Input", "x", {"shape": None}), ("PF.affine", "fc", {"n_outmaps": [2]})
    headers = {"X-NNL": "1"}
    for loss, csv in (("F.softmax_cross_entropy", console.datasets.path(found["id"])), (None, "")):
        document = chain(*layers, loss=loss)
        document.config["dataset"]["train"] = found["id"]
        given = {"document": document.to_json()}
        answer = browser.client.post("/api/v1/export?format=nntxt", json=given, headers=headers)
        (tmp_path / "a.nntxt").write_bytes(answer.content)
        with nn.parameter_scope("", OrderedDict()):
            info = load(str(tmp_path / "a.nntxt"), prepare_data_iterator=False)
        assert [d.uri for d in info.datasets.values()] == ([str(csv)] if csv else [])


# ---- data sets ----


def archive(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def pictures(count=10):
    from nnl.console.data.pictures import png

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 6, 4), np.uint8)
    rows = "".join(f"x/{i}.png,{i % 2}\n" for i in range(count))
    members = {f"x/{i}.png": png(image) for i, image in enumerate(images)}
    return images, archive({"data.csv": "x:image,y:label\n" + rows, **members})


def test_an_uploaded_set_of_pictures_is_seen_counted_and_split(browser):
    images, content = pictures()
    found = browser.upload("/datasets?name=some.zip", content)
    assert found["rows"] == 10 and not found["missing"]
    assert [(c["name"], c["type"], c["shape"]) for c in found["columns"]] == [
        ("x", "image", [1, 6, 4]),
        ("y", "number", [1]),
    ]
    rows = browser.get(f"/datasets/{found['id']}/rows?offset=3&limit=2")
    assert [r["index"] for r in rows["rows"]] == [3, 4] and rows["total"] == 10
    assert rows["rows"][0]["cells"][0] == {"text": "x/3.png", "kind": "image"}
    picture = browser.client.get(f"/api/v1/datasets/{found['id']}/thumb/3/x?size=12").content
    from nnl.data.image import imread

    assert (imread(io.BytesIO(picture)) == images[3].repeat(2, 0).repeat(2, 1)).all()
    x, y = browser.get(f"/datasets/{found['id']}/stats")["columns"]
    assert np.allclose([x["mean"], x["std"]], [images.mean() / 255, images.std() / 255], atol=1e-6)
    assert y["values"] == [{"value": 0, "count": 5}, {"value": 1, "count": 5}]
    parts = {"parts": [0.6, 0.4], "names": ["train", "valid"], "stratify": "y", "seed": 1}
    made = browser.post(f"/datasets/{found['id']}/split", parts, 201)["datasets"]
    assert [d["rows"] for d in made] == [6, 4] and made[0]["name"] == "some train"
    browser.send("DELETE", f"/datasets/{found['id']}")
    assert len(browser.get("/datasets")["datasets"]) == 2


def test_the_editor_takes_shapes_from_the_data_set(browser):
    found = browser.upload("/datasets?name=some.zip", pictures()[1])
    document = chain(("Input", "x", {"shape": None}), ("PF.affine", "fc", {"n_outmaps": [2]}))
    wrong = browser.post("/analyze", {"document": document.to_json()})["problems"]
    assert wrong[0]["message"] == "its shape is not set, and no data set gives it"
    document.config["dataset"]["train"] = found["id"]
    analysis = browser.post("/analyze", {"document": document.to_json()})
    nodes = analysis["networks"]["main"]["nodes"]
    assert nodes["n1"]["values"] == {"shape": [1, 6, 4]} and nodes["n2"]["parameters"] == 50


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"../data.csv": "x\n1\n"}, "leads out of it"),
        ({"/data.csv": "x\n1\n"}, "leads out of it"),
        ({"data.csv": "x\n../../console.db\n"}, "leads out of the data set"),
        ({"data.csv": "x\n/etc/passwd\n"}, "leads out of the data set"),
        ({"data.csv": "x\nhttp://example.com/a.png\n"}, "there is no file"),
        ({"data.csv": "x\nmissing.png\n"}, "there is no file 'missing.png'"),
        ({"data.csv": "x\nrun.py\n", "run.py": "1"}, "neither a number nor a file of a known kind"),
        ({"data.csv": "x,y\n1\n"}, "line 2 has 1 cells, the header 2"),
        ({"data.csv": "x\n"}, "a header and no rows"),
        ({"1.csv": "1,2\n3,4\n"}, "has no table"),
        ({"data.csv": "x\n1\n" + "0" * 10**7}, "it is no data set"),
    ],
)
def test_hostile_and_broken_data_sets_are_refused(tmp_path, members, message):
    (tmp_path / "a.zip").write_bytes(archive(members))
    folder = tmp_path / "there"
    folder.mkdir()
    with pytest.raises(Refused, match=re.escape(message)) as caught:
        tables(str(tmp_path / "a.zip"), str(folder), "a.zip")
    assert caught.value.code in ("unreadable", "too_large")
    assert {p.name for p in tmp_path.iterdir()} == {"a.zip", "there"}


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"a;b\n1;0,5\n", "row 1, column b: '0,5' is neither a number", "numbers have points here"),
        (b"1,2\n3,4\n", "begins with the numbers 1,2", "a first line that names the columns"),
        ("größe,y\n1,2\n".encode("latin-1"), "data.csv, line 1 is not UTF-8", "save it as UTF-8"),
        (b"a,b\n1,2\n3,\n", "t, row 2, column b: the cell is empty", "fill it in"),
        (b"a,b\n1,cat\n", "row 1, column b: 'cat' is neither a number", "classes as numbers"),
    ],
)
def test_tables_of_other_programs_are_refused_with_what_to_do(tmp_path, content, message, hint):
    (tmp_path / "t").write_bytes(content)
    (tmp_path / "there").mkdir()
    with pytest.raises(Refused, match=re.escape(message)) as caught:
        tables(str(tmp_path / "t"), str(tmp_path / "there"), "t.csv")
    assert hint in caught.value.hint


def test_lists_of_other_systems_are_read(tmp_path):
    (tmp_path / "there").mkdir()
    found = io.BytesIO()
    np.save(found, np.arange(3.0))
    members = {"data.csv": "x ; y\n im\\a.npy ;1\n", "im/a.npy": found.getvalue()}
    (tmp_path / "a.zip").write_bytes(archive(members))
    (entry,) = tables(str(tmp_path / "a.zip"), str(tmp_path / "there"), "a.zip")["datasets"]
    assert [(c["name"], c["shape"]) for c in entry["columns"]] == [("x", [3]), ("y", [1])]


def test_an_archive_of_pictures_alone_is_told_where_it_belongs(tmp_path):
    (tmp_path / "a.zip").write_bytes(archive({"cat/1.png": "?", "dog/1.png": "?"}))
    (tmp_path / "there").mkdir()
    with pytest.raises(Refused, match=r"a.zip has no table") as caught:
        tables(str(tmp_path / "a.zip"), str(tmp_path / "there"), "a.zip")
    assert caught.value.hint.endswith("choose Bring, Pictures")


@pytest.mark.parametrize("what", ["junk", "cut", "objects", "texts"])
def test_an_array_that_is_refused_is_named(tmp_path, what):
    arrays = {
        "cut": np.ones(30),
        "objects": np.array([{"a": 1}], object),
        "texts": np.array(["a"]),
    }
    buffer = io.BytesIO(b"junk")
    if what in arrays:
        np.save(buffer, arrays[what], allow_pickle=True)
    content = buffer.getvalue()[: -4 if what == "cut" else None]
    (tmp_path / "a.zip").write_bytes(archive({"data.csv": "x\nim/a.npy\n", "im/a.npy": content}))
    (tmp_path / "there").mkdir()
    with pytest.raises(Refused, match=r"^im/a.npy: ") as caught:
        tables(str(tmp_path / "a.zip"), str(tmp_path / "there"), "a.zip")
    assert caught.value.where == "im/a.npy" and caught.value.code == "unreadable"


def test_nothing_stays_of_an_archive_that_is_refused(browser, console):
    content = archive({"data.csv": "x\n1\n", "b.csv": "x\nmissing.png\n"})
    answer = browser.upload("/datasets?name=a.zip", content, 422)
    assert "there is no file 'missing.png'" in answer["message"] and answer["where"]
    assert not list(console.datasets.root.iterdir()) and browser.get("/datasets")["datasets"] == []


def test_arrays_with_objects_in_them_are_not_opened(browser):
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
    content = archive({"data.csv": "x\na.npy\n", "a.npy": buffer.getvalue()})
    assert browser.upload("/datasets?name=a.zip", content, 422)["code"] in ("unreadable", "invalid")
    assert browser.upload("/datasets?name=a.zip", b"no archive", 422)["code"] == "unreadable"


def test_a_broken_picture_is_named_without_its_place(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n?")
    with pytest.raises(Refused, match=r"^a\.png: it is no picture, or a damaged one$"):
        sized(tmp_path / "a.png")
