# SPDX-License-Identifier: Apache-2.0
"""nnl trials, search and plugin speak of what the console keeps."""

import json
import shutil
import signal
import subprocess

import numpy as np
import pytest

from nnl.cli.main import main
from nnl.console.documents.document import parse
from nnl.console.server.ready_models import add_loss
from nnl.console.server.state import Console
from nnl.console.trials.searches import Searches
from nnl.console.trials.trials import NNL
from nnl.converters.formats import read_model
from nnl.converters.nnp.archive import read_files
from tests.console.networks import chain
from tests.console.test_files import archive
from tests.console.test_search import project_of as search_project_of
from tests.console.test_trials import STAND_IN, until


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """(folder of a console with one network trained by `nnl train` itself, project, trial)."""
    folder = tmp_path_factory.mktemp("trained")
    console = Console(folder)
    rng = np.random.default_rng(0)
    x = rng.random((40, 1, 2, 2))
    y = (x.reshape(40, 4).sum(1) > 2).astype(int)
    data = console.datasets.write("sums", {"x": x, "y": y})["id"]
    document = chain(
        ("Input", "x", {"shape": None}),
        ("PF.affine", "fc", {"n_outmaps": [2]}),
        loss="F.softmax_cross_entropy",
    )
    document.config.update(batch_size=10, max_epoch=2)
    document.config["dataset"].update(train=data, valid=data)
    project = console.store.add_project("sums", document)
    console.begin()
    first = console.trials.add(project["id"], name="first")["id"]
    assert until(console, first, "finished", "failed", seconds=60)["status"] == "finished"
    console.close()
    return folder, project, first


@pytest.fixture
def trained(network, tmp_path):
    """A console of its own with that network."""
    folder, project, first = network
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    console = Console(tmp_path)
    console.begin()
    console.first, console.project = first, project
    yield console
    console.close()


def said(capsys, *args):
    assert main([str(a) for a in args]) == 0
    return capsys.readouterr().out


def test_trials_of_a_console_from_the_command_line(trained, tmp_path, capsys):
    pytest.importorskip("optuna")
    first, again = trained.first, {"trial": trained.first}
    second = trained.trials.add(trained.project["id"], weights_from=again, name="second")["id"]
    assert until(trained, second, "finished", "failed", seconds=60)["status"] == "finished"
    losses = [
        [r["value"] for r in trained.store.rows(
            "SELECT value FROM metric WHERE trial = ? AND name = 'train_loss' ORDER BY epoch", key
        )]
        for key in (first, second)
    ]  # fmt: skip
    assert (
        losses[0][0] > losses[0][1] > losses[1][0] > losses[1][1]
    )  # goes on where the other ended
    trained.close()
    where = ("-d", tmp_path)
    table = said(capsys, "trials", "list", *where)
    assert first in table and "valid_error" in table and "finished" in table
    found = json.loads(said(capsys, "trials", "show", first, "--json", *where))
    assert found["config"]["batch_size"] == 10
    text = said(capsys, "trials", "compare", first, second, *where)
    assert "last train_loss" in text
    path = tmp_path / "out.nnp"
    said(capsys, "trials", "export", first, "-o", path, *where)
    (network,) = [read_model([str(path)])[0].network(1)]
    assert list(network.outputs) == ["y'"]
    said(capsys, "trials", "export", "all", "-o", tmp_path / "all.csv", *where)
    assert "best valid_error" in (tmp_path / "all.csv").read_text()
    assert "locked" in said(capsys, "trials", "lock", first, *where)
    assert main(["trials", "show", "none", *map(str, where)]) == 3
    said_of_none = capsys.readouterr().err
    assert "there is no trial 'none'" in said_of_none
    assert f"try: nnl trials list -d {tmp_path}" in said_of_none
    assert main(["trials", "list", "--status", "done", *map(str, where)]) == 2
    assert "--status is 'done', wanted one of queued, running," in capsys.readouterr().err
    assert main(["search", "front", *map(str, where)]) == 3
    assert (
        f"there is no search\n  try: nnl search run PROJECT -d {tmp_path}"
        in capsys.readouterr().err
    )
    assert main(["search", "run", "summs", *map(str, where)]) == 3
    assert "there is no project 'summs', there are: sums" in capsys.readouterr().err
    assert main(["plugin", "run", "none", *map(str, where)]) == 3
    assert f"try: nnl plugin list -d {tmp_path}" in capsys.readouterr().err
    assert first in said(capsys, "trials", "list", "--project", "sums", *where)
    assert main(["trials", "list", "-d", str(tmp_path / "other")]) == 3
    store = Console(tmp_path).store
    head = store.project(trained.project["id"])["head"]
    store.save(trained.project["id"], head, parse({"networks": [{"name": "main"}]}))
    store.close()
    said(capsys, "trials", "revert", first, *where)
    store = Console(tmp_path).store
    document = store.document(store.project(trained.project["id"])["head"])
    assert len(document.main.nodes) == 4
    store.close()
    table = said(capsys, "plugin", "list", *where)
    assert "grad_cam" in table and "TracIn" in table
    lime = ("plugin", "run", "lime", "--trial", first, "--row", 0, "--set", "grid=2", *where)
    assert "lime.png" in said(capsys, *lime)
    search = ("search", "run", "sums", "--attempts", 2, "--jobs", 2, *where)
    text = said(capsys, *search)
    assert "the network itself" in text
    assert text.endswith(said(capsys, "search", "front", *where))  # of the newest one


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["console", "--port", "99999"], "--port is 99999, wanted 0 to 65535"),
        (["console", "--children", "0"], "--children is 0, wanted at least 1"),
        (["plugin", "run", "lime", "--set", "grid"], "--set grid: wanted NAME=VALUE, names are "),
    ],
)
def test_wrong_values_of_options_are_wrong_usage(trained, tmp_path, capsys, args, text):
    pytest.importorskip("fastapi")
    folder = [str(tmp_path)] if args[0] == "console" else ["-d", str(tmp_path)]
    assert main([*args, *folder]) == 2
    assert text in capsys.readouterr().err


def test_a_search_that_fails_says_why(trained, tmp_path, capsys, monkeypatch):
    pytest.importorskip("optuna")

    def fails(searches, key):
        raise OSError("the study cannot be read")

    monkeypatch.setattr(Searches, "step", fails)
    assert main(["search", "run", "sums", "-d", str(tmp_path)]) == 1
    assert "search failed: the study cannot be read" in capsys.readouterr().err


def test_an_interrupted_search_leaves_no_trial_that_seems_to_run(trained, tmp_path):
    pytest.importorskip("optuna")
    trained.close()  # so that the command runs its trials itself
    command = [*NNL, "search", "run", "sums", "--attempts", "100", "-d", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert "the network itself" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "nnl search: error: interrupted\n"
    assert process.returncode == 130
    again = Console(tmp_path)
    try:
        assert again.searches.all()[0]["status"] == "cancelled"
        statuses = {row["status"] for row in again.store.rows("SELECT status FROM trial")}
        assert statuses <= {"finished", "interrupted"}
    finally:
        again.close()


# ---- the quick page, and sets of pictures ----


def test_a_dropped_model_is_looked_at_and_trained(browser_of, trained, tmp_path):
    browser = browser_of(trained)
    path = tmp_path / "sums.onnx"
    pytest.importorskip("onnx")
    exported = browser.client.get(f"/api/v1/trials/{trained.first}/export?format=onnx")
    path.write_bytes(exported.content)
    found = browser.upload("/quick/inspect?name=sums.onnx", path.read_bytes(), 200)
    assert found["supported"] and found["inputs"] == [{"name": "x", "shape": [1, 1, 2, 2]}]
    assert {f["type"] for f in found["functions"]} >= {"PF.affine", "F.softmax"}
    assert found["multiply_adds"] == 8
    data = browser.get("/datasets")["datasets"][0]["id"]
    given = {"file": found["file"], "dataset": data, "max_epoch": 1, "batch_size": 10}
    trial = browser.post("/quick/train", given, 201)
    entry = until(trained, trial["id"], "finished", "failed", seconds=60)
    assert entry["status"] == "finished", entry["error"]
    weights = read_files(str(trained.trials.results(trained.first)), "", "test").stored
    before = {p.name: p.value for p in weights}
    after = {p.name: p.value for p in trained.trials.weights({"trial": trial["id"]})}
    assert (
        np.abs(before["fc/affine/W"] - after["fc/affine/W"]).max() < 0.05
    )  # it went on from there
    assert browser.post("/quick/train", {**given, "file": "../x"}, 404)["code"] == "not_found"


def test_operators_that_are_not_known_are_counted_by_name(browser):
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Flatten", ["x"], ["a"]),
        helper.make_node("Bend", ["a"], ["b"], domain="com.example"),
        helper.make_node("Bend", ["b"], ["y"], domain="com.example"),
    ]
    ends = [helper.make_tensor_value_info(name, kind, ["n", 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "bent", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    content = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    found = browser.upload("/quick/inspect?name=bent.onnx", content, 200)
    assert not found["supported"] and found["file"] is None
    assert [(f["type"], f["count"], f["supported"]) for f in found["functions"]] == [
        ("ai.onnx.Flatten", 1, True),
        ("com.example.Bend", 2, False),
    ]
    assert "'Bend' of the domain 'com.example'" in found["functions"][1]["reason"]
    assert found["inputs"] == [{"name": "x", "shape": ["n", 3]}]


def test_a_loss_is_added_that_fits_the_data():
    columns = [{"name": "x", "shape": [3]}, {"name": "y", "shape": [2]}]
    document = chain(("Input", "in", {"shape": [3]}), ("PF.affine", "fc", {"n_outmaps": [2]}))
    add_loss(document, columns)
    assert [n.type for n in document.main.nodes.values()][-2:] == ["F.squared_error", "Input"]
    document = chain(("Input", "in", {"shape": [4]}), ("PF.affine", "fc", {"n_outmaps": [2]}))
    with pytest.raises(Exception, match="takes \\[4\\], the column 'x' has \\[3\\]"):
        add_loss(document, columns)


def test_folders_of_pictures_become_data_sets(browser):
    from nnl.console.data.pictures import png

    image = png(np.zeros((4, 4), np.uint8))
    members = {f"all/{name}/{i}.png": image for name in ("cat", "dog") for i in range(5)}
    path = "/datasets/build?name=pets.zip&width=3&height=2&split=0.2"
    found = browser.upload(path, archive(members))["datasets"]
    assert [(d["name"], d["rows"]) for d in found] == [("pets train", 8), ("pets valid", 2)]
    assert found[0]["columns"][0]["shape"] == [1, 2, 3]
    (whole,) = browser.upload("/datasets/build?name=pets.zip", archive(members))["datasets"]
    assert whole["columns"][0]["shape"] == [1, 4, 4] and whole["rows"] == 10
    assert browser.upload(path, archive({"a.txt": "1"}), 422)["code"] == "unreadable"
    assert browser.upload("/datasets/build?name=a.zip&kind=x", b"", 422)["where"] == "kind"

    # As Finder makes it, of a folder in a folder, with a picture that is broken.
    found = {f"my pets/{name}": content for name, content in members.items()}
    found |= {"__MACOSX/my pets/all/cat/._0.png": b"\0\5\x16\7", "my pets/.DS_Store": b"\0"}
    found |= {"my pets/all/cat/00.png": b"\x89PNG\r\n\x1a\n"}
    built = browser.upload("/datasets/build?name=pets.zip", archive(found))
    (pets,) = built["datasets"]
    assert built["left_out"] == ["my pets/all/cat/00.png"]
    assert (pets["rows"], pets["columns"]) == (whole["rows"], whole["columns"])
    answer = browser.upload(
        "/datasets/build?name=pets.zip", archive({"a/1.png": b"", "b/1.png": b""}), 422
    )
    assert answer["message"] == "the archive has no pictures that can be read"
    members = {f"{i}.png": image for i in range(4)}
    members |= {f"{i}.txt": "0 0.5 0.5 0.25 0.5\n" for i in range(4)}
    path = "/datasets/build?name=boxes.zip&kind=object_detection&width=32&height=32&anchors=1"
    (boxes,) = browser.upload(path, archive(members))["datasets"]
    assert boxes["rows"] == 4 and boxes["columns"][0]["shape"] == [1, 32, 32]
    assert browser.get("/datasets/samples")["samples"][0]["id"] == "digits"


def test_a_stopped_search_is_resumed_from_the_command_line(tmp_path, capsys):
    pytest.importorskip("optuna")
    where = ["-d", str(tmp_path)]
    Console(tmp_path).close()
    assert main(["search", "resume", *where]) == 3
    assert "there is no search" in capsys.readouterr().err
    console = Console(tmp_path, command=STAND_IN)
    key = console.searches.add(search_project_of(console), None, {"attempts": 1})["id"]
    console.searches.cancel(key)
    console.close()
    text = said(capsys, "search", "resume", key, *where)
    assert "finished" in text or "failed" in text
    assert main(["search", "resume", key, *where]) == 1
    assert "this search is finished" in capsys.readouterr().err
