# SPDX-License-Identifier: Apache-2.0
"""What the editor shows of a document: shapes, costs, errors, and repairs that repair."""

import json
import subprocess
import sys

import numpy as np
import pytest

import nnl as nn
from nnl.console.documents.analysis import analyse
from nnl.console.documents.code import code
from nnl.console.documents.document import Document, Edge, Invalid, Net, parse
from nnl.console.documents.training import Data, write_training
from nnl.console.palette.palette import CATEGORIES, layers, schema
from tests.console.networks import chain, lenet, named


def entry(document, name, found=None):
    """The analysis of one node of the main network."""
    found = found or analyse(document)
    net = document.main
    return found["networks"][net.name]["nodes"][named(net, name).id]


def applied(document, fix):
    """The document after the edits of a fix, as the page does them."""
    document = document.copy()
    for edit in fix["edits"]:
        net = document.networks[edit["network"]]
        if edit["op"] == "set":
            net.nodes[edit["node"]].properties[edit["property"]] = edit["value"]
        elif edit["op"] == "add_node":
            node = parse({"networks": [{"name": "n", "nodes": [edit["value"]]}]}).main.nodes
            net.nodes.update(node)
        elif edit["op"] == "add_edge":
            e = edit["value"]
            net.edges.append(Edge(e["id"], e["source"], e["out"], e["target"], e["in"]))
        elif edit["op"] == "delete_edge":
            net.edges = [e for e in net.edges if e.id != edit["edge"]]
        elif edit["op"] == "delete_node":
            key = edit["node"]
            del net.nodes[key]
            net.edges = [e for e in net.edges if key not in (e.source, e.target)]
        elif edit["op"] == "rename":
            net.nodes[edit["node"]].name = edit["value"]
        else:
            raise AssertionError(edit)
    return document


EDGE = {"id": "e", "source": "a", "target": "b", "in": "x"}


def errors(document):
    return [p for p in analyse(document)["problems"] if p["severity"] == "error"]


def test_shapes_parameters_and_multiply_adds_are_those_counted_by_hand():
    found = analyse(lenet())
    conv = entry(lenet(), "conv", found)
    assert conv["outputs"][0]["shape"] == [1, 16, 24, 24] and conv["outputs"][0]["batch"]
    assert conv["parameters"] == 16 * 25 + 16
    assert conv["parameter_shapes"] == {"conv/conv/W": [16, 1, 5, 5], "conv/conv/b": [16]}
    assert conv["multiply_adds"] == 16 * 24 * 24 * 25
    assert conv["values"] == {"pad": [0, 0], "stride": [1, 1], "dilation": [1, 1]}
    relu = entry(lenet(), "relu", found)
    assert relu["ifs"] == 16 * 24 * 24 and relu["bytes"] == 4 * 16 * 24 * 24
    totals = found["totals"]
    assert totals["parameters"] == 416 + 16 * 12 * 12 * 10 + 10
    assert totals["multiply_adds"] == 16 * 24 * 24 * 25 + 16 * 12 * 12 * 10
    assert found["trainable"] and not found["problems"]


def test_instructions_of_elementwise_programs_are_counted_by_kind():
    document = chain(("Input", "x", {"shape": [6]}), ("F.exp", "a"), ("F.add_scalar", "b"))
    found = analyse(document)["totals"]
    assert (found["exps"], found["adds"], found["divisions"]) == (6, 6, 0)


def test_statistics_of_batch_normalization_are_fixed_parameters():
    document = chain(("Input", "x", {"shape": [3, 4, 4]}), ("PF.batch_normalization", "bn"))
    found = entry(document, "bn")
    assert (found["parameters"], found["fixed_parameters"]) == (6, 6)


@pytest.mark.parametrize(
    ("properties", "message", "changed"),
    [
        (
            {"kernel": [40, 40]},
            "spans 40 pixels on spatial axis 0, x float32",
            "kernel",
        ),
        ({"kernel": [5]}, "inp has the shape (1, 1, 28, 28), wanted 3 axes", "kernel"),
        ({"kernel": "five"}, "kernel is 'five', wanted whole numbers", "kernel"),
        ({"group": 3}, "1 input channels do not divide into group 3", "group"),
        ({"pad": [1, 1, 1]}, "pad", "pad"),
        ({"outmaps": None}, "outmaps is not set", "outmaps"),
    ],
)
def test_a_node_says_what_is_wrong_and_its_fix_repairs_it(properties, message, changed):
    document = lenet(**properties)
    wrong = errors(document)
    first = next(p for p in wrong if p["code"] != "upstream")
    assert message in first["message"] and first["node"] == named(document.main, "conv").id
    assert first["property"] == changed
    assert {p["code"] for p in wrong} - {first["code"]} == {"upstream"}
    assert not errors(applied(document, first["fix"]))


def test_a_missing_label_can_be_added():
    document = lenet()
    document.main.edges.pop()
    del document.main.nodes[named(document.main, "y").id]
    (wrong,) = errors(document)
    assert wrong["message"] == "its input 'target' is not connected"
    assert analyse(applied(document, wrong["fix"]))["trainable"]


def test_cycles_names_and_edges_that_cannot_be():
    document = chain(("Input", "x", {"shape": [3]}), ("F.add2", "a"), ("F.relu", "b"))
    net = document.main
    net.connect(named(net, "b"), named(net, "a"), "x1")
    cycle = next(p for p in errors(document) if p["code"] == "cycle")
    assert "depends on its own output" in cycle["message"]
    repaired = applied(document, cycle["fix"])
    assert not any(p["code"] == "cycle" for p in errors(repaired))

    document = lenet()
    named(document.main, "relu").name = "conv"
    (wrong,) = errors(document)
    assert wrong["message"] == "another node has the name 'conv' too"
    assert not errors(applied(document, wrong["fix"]))

    document = lenet()
    document.main.connect(named(document.main, "x"), named(document.main, "relu"), "z")
    (wrong,) = [p for p in errors(document) if p["code"] != "upstream"]
    assert wrong["message"] == "it has no input 'z'"
    assert not errors(applied(document, wrong["fix"]))


def test_units_are_placed_where_they_are_used_with_parameters_of_their_own():
    document = chain(("Input", "x", {"shape": [8]}), ("F.relu", "end"))
    unit = document.networks["block"] = Net("block")
    fc = unit.add("PF.affine", "fc", {"n_outmaps": [8]})
    unit.connect(unit.add("Input", "h", {"shape": None}), fc, "inp")
    net = document.main
    net.edges.clear()
    one, two = (net.add("Unit", n, {"network": "block"}) for n in ("one", "two"))
    net.connect(named(net, "x"), one, "h")
    net.connect(one, two, "h")
    net.connect(two, named(net, "end"), "x")
    found = analyse(document)
    assert not [p for p in found["problems"] if p["severity"] == "error"]
    assert found["totals"]["parameters"] == 2 * (64 + 8)
    assert list(entry(document, "two", found)["parameter_shapes"]) == [
        "two/fc/affine/W",
        "two/fc/affine/b",
    ]
    assert found["networks"]["block"]["nodes"][fc.id]["multiply_adds"] == 64
    fc.properties["n_outmaps"] = [-1]
    wrong = {(p["network"], p["code"]) for p in errors(document)}
    assert ("main", "unit") in wrong and any(network == "block" for network, _ in wrong)
    unit.add("Unit", "again", {"network": "block"})
    assert any("holds itself" in p["message"] for p in errors(document))


def test_units_in_units_do_not_fill_memory(monkeypatch):
    monkeypatch.setattr("nnl.console.documents.building.MAX_NODES", 500)
    document = chain(("Input", "x", {"shape": [2]}))
    document.main.add("Unit", "u", {"network": "u0"})
    for i in range(14):  # 5^14 nodes if nobody counted
        unit = document.networks[f"u{i}"] = Net(f"u{i}")
        unit.add("Input", "inp", {"shape": None})
        for k in range(5):
            unit.add("Unit", f"n{k}", {"network": f"u{i + 1}"})
            unit.connect(named(unit, "inp"), named(unit, f"n{k}"), "inp")
    last = document.networks["u14"] = Net("u14")
    last.connect(last.add("Input", "inp"), last.add("F.relu", "relu"), "x")
    document.main.connect(named(document.main, "x"), named(document.main, "u"), "inp")
    assert any("more than 500 nodes" in p["message"] for p in errors(document))


def test_every_layer_of_the_palette_is_in_a_category_and_has_a_description():
    found = schema()
    assert len(found["layers"]) > 200
    assert {entry["category"] for entry in found["layers"]} <= set(CATEGORIES)
    assert not [entry["type"] for entry in found["layers"] if not entry["doc"]]
    assert layers()["PF.convolution"].parameters == ("W", "b")


def test_the_code_makes_the_same_network():
    document = lenet()
    named(document.main, "fc").name = "class"  # a word of Python
    text, lines = code(document)
    assert text.splitlines()[lines["main"][named(document.main, "conv").id] - 1] == (
        "    conv = PF.convolution(x, outmaps=16, kernel=(5, 5), name='conv')"
    )
    with nn.parameter_scope("code"):
        names = {}
        exec(text, names)
        try:
            shapes = {k: v.shape for k, v in nn.get_parameters().items()}
            assert shapes["class/affine/W"] == (16 * 12 * 12, 10)
            results = names["results"]
            names["x"].d, names["y"].d = 0, 3
            results["loss"].forward()
            assert np.allclose(results["loss"].d, np.log(10))
        finally:
            nn.clear_parameters()


@pytest.mark.parametrize("count", [5, 37, 64])
def test_a_validation_set_is_measured_whole(tmp_path, count):
    document = lenet()
    document.config.update(batch_size=32, max_epoch=1)
    shapes = {"x": (1, 28, 28), "y": (1,)}
    sets = {}
    for name, number in (("train", 32), ("valid", count)):
        rng = np.random.default_rng(number)
        np.save(tmp_path / f"{name}.npy", rng.random((1, 28, 28)))
        rows = "".join(f"./{name}.npy,{i % 3 + 7}\n" for i in range(number))
        (tmp_path / f"{name}.csv").write_text(f"x,y\n{rows}")
        sets[name] = Data(str(tmp_path / f"{name}.csv"), shapes, number)
    write_training(document, tmp_path / "network.nnp", sets["train"], sets["valid"])
    command = ["train", "-c", str(tmp_path / "network.nnp"), "-o", str(tmp_path / "out"), "--json"]
    command += ["--every-row", "--set", "max_epoch=2"]
    done = subprocess.run(
        [sys.executable, "-m", "nnl.cli.main", *command], capture_output=True, text=True, check=True
    )
    # One picture has one answer, which is right for some of the labels 7, 8, 9, or for none.
    error = json.loads(done.stdout)["metrics"]["valid_error"]
    possible = [1.0] + [1 - sum(i % 3 == k for i in range(count)) / count for k in range(3)]
    assert min(abs(error - p) for p in possible) < 1e-6


def test_the_code_begins_with_the_weights_of_the_training(tmp_path):
    document = lenet()
    document.config["seed"] = 11
    data = Data("train.csv", {"x": (1, 28, 28), "y": (1,)}, 64)
    write_training(document, tmp_path / "network.nnp", data, None)
    with nn.parameter_scope("trained"):
        nn.load_parameters(str(tmp_path / "network.nnp"))
        trained = nn.get_parameters()
        first = {k: v.d.copy() for k, v in trained.items()}
    with nn.parameter_scope("code"):
        exec(code(document)[0], {})
        drawn = nn.get_parameters()
        assert drawn.keys() == first.keys()
        assert all((drawn[k].d == first[k]).all() for k in first)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "document: it is [], wanted an object"),
        ({"networks": []}, "networks: there is no network, wanted at least one"),
        ({"format": 2, "networks": []}, "document: its format is 2, this version knows 1"),
        (
            {"networks": [{"name": "m", "nodes": [{"id": "a", "type": "F.relu"}]}]},
            "networks[0].nodes[0].name: it is None, wanted a text of 1 to 400 characters",
        ),
        (
            {
                "networks": [
                    {"name": "m", "edges": [{"id": "e", "source": "a", "target": "b", "in": "x"}]}
                ]
            },
            "networks[0].edges[0]: there is no node 'a'",
        ),
        (
            {"networks": [{"name": "m"}], "config": {"seed": float("inf")}},
            "config.seed: it is inf, wanted a finite number",
        ),
    ],
)
def test_what_is_no_document_is_refused_with_its_place(data, message):
    with pytest.raises(Invalid) as caught:
        parse(data)
    assert str(caught.value) == message


def test_a_document_survives_json():
    document = lenet()
    assert document.copy().key() == document.key()
    assert Document(document.networks, {**document.config, "seed": 1}).key() != document.key()


def test_an_input_of_another_size_than_its_column_says_so():
    columns = {"x": (1, 8, 8), "y": (1,)}
    [problem] = analyse(lenet(), columns)["problems"]
    assert problem["message"] == (
        "its shape is [1, 28, 28], the data set has 1 x 8 x 8 in the column 'x'"
    )
    document = applied(lenet(), problem["fix"])
    found = analyse(document, columns)
    assert entry(document, "x", found)["outputs"][0]["shape"] == [1, 1, 8, 8]
    assert found["trainable"] and found["problems"] == []
    assert not analyse(lenet(), columns)["trainable"]


def test_an_input_without_a_column_is_told_which_there_are():
    columns = {"image": (1, 28, 28), "y": (1,)}
    [problem] = analyse(lenet(), columns)["problems"]
    assert problem["message"] == "the data set has no column 'x'; it has image, y"
    assert problem["severity"] == "warning"
    assert analyse(applied(lenet(), problem["fix"]), columns)["problems"] == []
    assert analyse(lenet())["problems"] == []  # without a data set


def test_a_network_without_a_loss_gets_one_below_its_end():
    document = chain(("Input", "x", {"shape": [8]}), ("PF.affine", "fc", {"n_outmaps": [3]}))
    document.main.nodes["n2"].y = 300
    [problem] = analyse(document)["problems"]
    assert problem["code"] == "no_loss" and problem["fix"]["label"] == "Add softmax cross entropy"
    repaired = applied(document, problem["fix"])
    assert analyse(repaired)["trainable"]
    assert named(repaired.main, "loss").y > 300 and named(repaired.main, "y").x > 0


@pytest.mark.parametrize(
    ("end", "n", "loss", "shape"),
    [
        ("F.softmax", 3, "F.softmax_cross_entropy", [1]),
        ("F.sigmoid", 2, "F.sigmoid_cross_entropy", [2]),
        ("F.tanh", 1, "F.squared_error", [1]),
        ("F.tanh", 3, "F.softmax_cross_entropy", [1]),
    ],
)
def test_the_loss_that_is_offered_fits_the_end(end, n, loss, shape):
    document = chain(
        ("Input", "x", {"shape": [8]}), ("PF.affine", "fc", {"n_outmaps": [n]}), (end, "said")
    )
    [problem] = analyse(document)["problems"]
    repaired = applied(document, problem["fix"])
    found = analyse(repaired)
    assert found["trainable"] and found["problems"] == []
    made = named(repaired.main, "loss")
    words = loss.removeprefix("F.").replace("_", " ")
    assert made.type == loss and problem["fix"]["label"] == f"Add {words}"
    assert named(repaired.main, "y").properties["shape"] == shape
    # A softmax or sigmoid is part of its loss; a second one below it would learn badly.
    compared = next(e.source for e in repaired.main.edges if e.target == made.id)
    assert repaired.main.nodes[compared].name == ("said" if end == "F.tanh" else "fc")


def test_labels_of_pixels_have_the_size_of_the_picture():
    document = chain(
        ("Input", "x", {"shape": [3, 8, 8]}),
        ("PF.convolution", "conv", {"outmaps": 4, "kernel": [3, 3], "pad": [1, 1]}),
    )
    [problem] = analyse(document)["problems"]
    repaired = applied(document, problem["fix"])
    assert named(repaired.main, "y").properties["shape"] == [1, 8, 8]
    assert analyse(repaired)["trainable"]
