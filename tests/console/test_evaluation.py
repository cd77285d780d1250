# SPDX-License-Identifier: Apache-2.0
"""What a network says of samples, counted; scikit-learn counts the same."""

import json
import time

import numpy as np
import pytest

from nnl.console.errors import Refused
from nnl.console.server.state import Console
from nnl.console.trials.evaluation import Results, confusion, table
from nnl.console.trials.inferring import infer
from nnl.converters.nnp.parameter_files import Stored, stored_bytes
from tests.console.networks import chain


def said(labels, likelihoods):
    rows = [[f"x/{i}.png", str(k)] for i, k in enumerate(labels)]
    rows = [[*r, *map(str, p)] for r, p in zip(rows, likelihoods, strict=True)]
    header = ["x", "y", *(f"y'__{i}" for i in range(likelihoods.shape[1]))]
    return Results(header, rows, 2, {"y'": likelihoods}, "d")


def test_the_matrix_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    likelihoods = rng.random((200, 5))  # nobody is of the last class
    likelihoods /= likelihoods.sum(1, keepdims=True)
    found = confusion(said(labels, likelihoods))
    predicted = likelihoods.argmax(1)
    assert found["counts"] == metrics.confusion_matrix(labels, predicted).tolist()
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted))
    for average in (None, "macro", "weighted"):
        wanted = metrics.precision_recall_fscore_support(
            labels, predicted, average=average, zero_division=0
        )
        got = found if average is None else found[average]
        for name, values in zip(("precision", "recall", "f1"), wanted[:3], strict=True):
            assert np.allclose(got[name], values)


def test_a_cell_shows_its_samples_and_the_worst_come_first():
    likelihoods = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.6, 0.4]])
    found = said([0, 0, 0, 1], likelihoods)
    rows = table(found, 0, 10, cell="0,1", sort="-loss")
    assert [r["index"] for r in rows["rows"]] == [1, 2] and rows["total"] == 2
    assert rows["rows"][0]["loss"] == pytest.approx(-np.log(0.2))
    assert rows["rows"][0]["cells"][0] == {"text": "x/1.png", "kind": "image"}
    assert table(found, 1, 1)["rows"][0]["predicted"] == 1


def test_what_is_no_classification_has_no_matrix(browser, console, tmp_path):
    values = np.array([[0.1, 3.0], [1.5, 2.0]])
    found = Results(["x", "y"], [["1", "0.5"], ["2", "1.5"]], 2, {"y'": values[:, :1]}, "d")
    with pytest.raises(Refused, match="no classification"):
        confusion(found)
    assert [r["loss"] for r in table(found, 0, 5)["rows"]] == pytest.approx([0.16, 0])
    shown = table(found, 0, 5)
    assert not shown["is_classification"] and shown["mean_loss"] == pytest.approx(0.08)
    assert shown["output"] == "y'" and shown["rows"][1]["outputs"] == [1.5]
    # y' is compared with y, wherever that stands
    found = Results(["y", "x"], [["0.5", "1"], ["1.5", "2"]], 2, {"y'": values[:, :1]}, "d")
    assert [r["loss"] for r in table(found, 0, 5)["rows"]] == pytest.approx([0.16, 0])
    # an output that nothing is like is not called right
    found = Results(["x", "y"], [["1", "0.5"], ["2", "1.5"]], 2, {"y'": values}, "d")
    shown = table(found, 0, 5, sort="-loss")
    assert shown["mean_loss"] is None and [r["loss"] for r in shown["rows"]] == [None, None]
    browser.get("/trials/none/confusion", 404)


def finish(console, key):
    for _ in range(600):
        console.trials.tick()
        entry = console.trials.one(key)
        if entry["status"] not in ("queued", "running"):
            break
        time.sleep(0.05)
    assert entry["status"] == "finished", json.dumps(entry["error"])


def test_a_trained_network_is_evaluated_by_nnl_forward(browser_of, tmp_path):
    console = Console(tmp_path / "folder")
    try:
        rng = np.random.default_rng(0)
        x, y = rng.random((12, 1, 2, 2)), np.arange(12) % 3
        data = console.datasets.write("small", {"x": x, "y": y})
        document = chain(
            ("Input", "x", {"shape": [1, 2, 2]}),
            ("PF.affine", "fc", {"n_outmaps": [3]}),
            loss="F.softmax_cross_entropy",
        )
        document.config.update(batch_size=5)
        w, b = rng.normal(size=(4, 3)).astype(np.float32), np.zeros(3, np.float32)
        stored = [Stored("fc/affine/W", w, True), Stored("fc/affine/b", b, True)]
        (tmp_path / "w.h5").write_bytes(stored_bytes(stored, ".h5"))
        blob = console.trials.keep_weights(tmp_path / "w.h5")
        document.weights_from = {"blob": blob}
        project = console.store.add_project("small", document)["id"]
        browser = browser_of(console)
        given = {"project": project, "kind": "evaluate", "dataset": data["id"]}
        trial = browser.post("/trials", given, 201)
        finish(console, trial["id"])
        pixels = np.round(x * 255) / 255
        predicted = (pixels.reshape(12, 4) @ w).argmax(1)
        counts = np.zeros((3, 3), int)
        np.add.at(counts, (y, predicted), 1)
        assert browser.get(f"/trials/{trial['id']}/confusion")["counts"] == counts.tolist()
        compared = browser.get(f"/compare?trials={trial['id']}")
        assert compared["confusion"][0]["counts"] == counts.tolist()
        path, z = f"/trials/{trial['id']}/infer", pixels[4].reshape(4) @ w
        found = browser.post(path, {"dataset": data["id"], "row": 4})
        (said,) = found["outputs"]
        assert said["name"] == "y'" and said["shape"] == [3]
        assert np.allclose(said["values"], np.exp(z) / np.exp(z).sum(), atol=1e-5)
        assert np.allclose(found["inputs"][0]["values"], pixels[4].reshape(4), atol=1e-6)
        assert found["inputs"][0]["picture"].startswith("data:image/png;base64,")
        picture = console.datasets.path(data["id"]).parent / "x/00004.png"
        assert browser.upload(f"{path}?name=a.png", picture.read_bytes(), 200)["outputs"] == [said]
        network = str(console.trials.trained(trial["id"]))
        assert infer(network, {"x": pixels[4].tolist()})["outputs"] == [said]
        for values, message in (
            ({"x": [1, 2]}, r"x is \[2\], the network takes \[1, 2, 2\]"),
            ({"x": "a"}, "x has values that are no numbers"),
            ({"z": 1}, "the network has no input 'z', only x"),
            ({}, "the input 'x' has no value"),
        ):
            with pytest.raises(Refused, match=message):
                infer(network, values)
        rows = browser.get(f"/trials/{trial['id']}/results?limit=3")
        assert [r["label"] for r in rows["rows"]] == [0, 1, 2] and rows["total"] == 12
        assert rows["dataset"] == data["id"]

        # compared are the trials on the same data only, whichever was evaluated last
        other = console.datasets.write("other", {"x": x[::-1], "y": y})["id"]
        later = browser.post(f"/trials/{trial['id']}/evaluate", {"dataset": other}, 201)["id"]
        alone = browser.post(f"/trials/{later}/evaluate", {"dataset": data["id"]}, 201)["id"]
        finish(console, later)
        finish(console, alone)
        found = browser.get(f"/compare?trials={trial['id']},{later}")
        assert found["evaluated_on"] == {"id": data["id"], "name": "small"}
        assert [c["counts"] for c in found["confusion"]] == [counts.tolist()] * 2
        browser.send("DELETE", f"/trials/{alone}")
        found = browser.get(f"/compare?trials={trial['id']},{later}")
        assert found["evaluated_on"] == {"id": other, "name": "other"}
        assert None not in found["confusion"] and found["confusion"][0]["counts"] != counts.tolist()
        browser.send("DELETE", f"/trials/{later}")
        never = browser.post("/trials", {**given, "dataset": other}, 201)["id"]
        finish(console, never)
        found = browser.get(f"/compare?trials={trial['id']},{never}")
        assert found["evaluated_on"]["id"] == other and found["confusion"][0] is None
    finally:
        console.close()
