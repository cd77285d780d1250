# SPDX-License-Identifier: Apache-2.0
"""Structure searches: edits give networks that can be trained, and the front survives restarts."""

import time

import numpy as np
import pytest

from nnl.console.documents.analysis import analyse
from nnl.console.documents.mutation import RULES, Edit, mutate
from nnl.console.documents.samples import digits
from nnl.console.errors import Refused
from nnl.console.server.state import Console
from nnl.console.trials import searches
from nnl.console.trials.searches import checked_settings
from tests.console.networks import chain, named
from tests.console.test_trials import STAND_IN, until


def network():
    return chain(
        ("Input", "x", {"shape": [1, 8, 8]}),
        ("PF.convolution", "conv1", {"outmaps": 4, "kernel": [3, 3], "pad": [1, 1]}),
        ("PF.batch_normalization", "bn"),
        ("F.relu", "relu"),
        ("F.max_pooling", "pool", {"kernel": [2, 2]}),
        ("PF.convolution", "conv2", {"outmaps": 4, "kernel": [3, 3], "pad": [1, 1]}),
        ("F.dropout", "dropout", {"p": 0.5}),
        ("PF.affine", "fc", {"n_outmaps": [10]}),
        loss="F.softmax_cross_entropy",
    )


def names(document):
    return [n.name for n in document.main.nodes.values()]


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        ("RemoveActivation", "relu"),
        ("RemovePooling", "pool"),
        ("RemoveDropout", "dropout"),
        ("RemoveBatchNormalization", "bn"),
        ("RemoveBasicLayer", "conv1"),
    ],
)
def test_removing_takes_one_layer_out_and_joins_its_neighbours(rule, gone):
    document, done = mutate(network(), [Edit(rule)])
    assert sorted(names(network())) == sorted([*names(document), gone])
    assert done == [{"rule": rule, "node": gone, "text": f"{gone} removed"}]
    assert analyse(document)["trainable"]
    assert len(document.main.edges) == len(network().main.edges) - 1


def test_the_layer_that_gives_the_answer_stays():
    document = network()
    for _ in range(5):
        document, _ = mutate(document, [Edit("RemoveBasicLayer", 0.99)])
    kinds = [n.type for n in document.main.nodes.values()]
    assert "fc" in names(document) and "PF.convolution" not in kinds
    document, _ = mutate(network(), [Edit("Property", p, 0.9) for p in (0.99, 0.9)])
    assert named(document.main, "fc").properties["n_outmaps"] == [10]


@pytest.mark.parametrize("rule", [r for r in RULES if r.startswith("Insert") or r == "Branch"])
def test_whatever_is_inserted_can_be_trained(rule):
    for place in (0.0, 0.3, 0.6, 0.99):
        for option in (0.0, 0.99):
            document, done = mutate(network(), [Edit(rule, place, option)])
            found = analyse(document)
            assert found["trainable"], found["problems"]
            if done:
                assert len(names(document)) > len(names(network()))
    assert (rule == "InsertAffine") or done


def test_a_branch_costs_a_convolution_and_can_be_removed_again():
    document, _ = mutate(network(), [Edit("Branch", 0.0, 0.0)])
    more = analyse(document)["totals"]["multiply_adds"]
    base = analyse(network())["totals"]["multiply_adds"]
    assert more - base == 8 * 8 * 9  # 3 x 3 on one channel of 8 x 8 pixels
    again, done = mutate(document, [Edit("RemoveBranch", 0.0, 0.99)])
    assert done and analyse(again)["totals"]["multiply_adds"] == base
    assert sorted(names(again)) == sorted(names(network()))


def test_properties_are_varied():
    document, done = mutate(network(), [Edit("Property", 0.0, 0.99)])
    assert named(document.main, "conv1").properties["outmaps"] == 8
    assert done[0]["text"] == "conv1: outmaps 4 -> 8"


def test_random_edits_never_break_the_code():
    rng = np.random.default_rng(0)
    rules = list(RULES)
    trainable = 0
    for _ in range(60):
        edits = [Edit(rules[rng.integers(len(rules))], *rng.random(2)) for _ in range(4)]
        document, _ = mutate(digits(), edits)
        trainable += analyse(document)["trainable"]
        nodes = list(document.main.nodes.values())
        for i, a in enumerate(nodes):  # none stands on another one: a node is 208 x 64 points
            assert not [b for b in nodes[:i] if abs(a.x - b.x) < 208 and abs(a.y - b.y) < 64]
    assert trainable >= 30


def test_only_what_costs_no_less_than_better_ones_is_stopped_early(tmp_path):
    console = Console(tmp_path)
    store = console.store

    def candidate(name, cost, *errors):
        more = {"kind": "train", "status": "running", "created": 0, "max_epoch": 4}
        row = {"id": name, "project": "p", "number": 0, "name": name, "best_name": "valid_error"}
        store.insert("trial", {**row, **more})
        for epoch, error in enumerate(errors, 1):
            names = ("trial", "name", "epoch", "iteration", "value")
            values = (name, "valid_error", epoch, epoch, error)
            store.insert("metric", dict(zip(names, values, strict=True)))
        return {"trial": name, "multiply_adds": cost, "status": "finished"}

    done = [candidate(f"done{i}", 100, 0.5, 0.4, 0.3, 0.2) for i in range(3)]
    for name, cost, errors, stopped in (
        ("dear", 100, (0.6, 0.6), True),
        ("good", 100, (0.6, 0.3), False),
        ("new", 100, (0.6,), False),
        ("cheap", 50, (0.6, 0.6), False),
    ):
        c = candidate(name, cost, *errors)
        assert console.searches._hopeless(c, done, True) == stopped, name
    assert console.searches._hopeless(candidate("again", 50, 0.6, 0.6), done, False)
    console.close()


def test_settings_are_checked():
    for name, value in (("method", "grid"), ("edits", 0), ("rules", ["Nothing"]), ("hours", -1),
                        ("multiply_adds", [5, 1]), ("jobs", True), ("colour", 1)):  # fmt: skip
        with pytest.raises(Refused) as caught:
            checked_settings({name: value})
        assert caught.value.where == name


def project_of(console, **config):
    """The id of a project with a small network and its data."""
    rng = np.random.default_rng(0)
    data = console.datasets.write(
        "small", {"x": rng.random((20, 1, 8, 8)), "y": np.arange(20) % 10}
    )
    document = network()
    document.config["dataset"].update(train=data["id"], valid=data["id"])
    document.config.update(config)
    return console.store.add_project("small", document)["id"]


@pytest.mark.parametrize("method", ["nsga2", "random"])
def test_a_search_finds_cheaper_networks_and_survives_a_restart(tmp_path, browser_of, method):
    pytest.importorskip("optuna")
    console = Console(tmp_path / "folder", command=STAND_IN)
    project = project_of(console, batch_size=10, max_epoch=1)
    settings = {"method": method, "attempts": 6, "jobs": 2, "edits": 3, "early_stop": False}
    limit = 2 * analyse(network())["totals"]["multiply_adds"]
    settings["multiply_adds"] = [0, limit]
    key = console.searches.add(project, None, settings)["id"]
    for _ in range(3):
        console.searches.step(key)
        console.trials.tick()
    console.close()

    console = Console(tmp_path / "folder", command=STAND_IN)
    console.begin()
    try:
        browser = browser_of(console)
        text = browser.client.get(f"/api/v1/searches/{key}/events").text
        assert '"status": "finished"' in text.rpartition("event: status")[2]
        found = browser.get(f"/searches/{key}/front")
        ended = [c for c in found["candidates"] if c["status"] == "finished"]
        assert len(ended) == 6 and not [c for c in found["candidates"] if c["status"] == "failed"]
        assert found["base"]["edits"] == [] and found["base"]["number"] == 0
        assert all(c["multiply_adds"] <= limit for c in ended)
        cheapest = min(c["multiply_adds"] for c in ended)
        by_number = {c["number"]: c for c in ended}
        # the stand-in's error is the same for all, so that only the cheapest are not beaten
        assert [by_number[n]["multiply_adds"] for n in found["front"]] == [cheapest]
        opened = browser.post(f"/searches/{key}/candidates/{ended[-1]['number']}/open")
        assert opened["document"]["weights_from"] == {"trial": ended[-1]["trial"]}
        listed = browser.get(f"/trials?search={key}")
        assert listed["total"] == 6
        assert browser.get("/searches")["searches"][0]["attempts"] == 6
    finally:
        console.close()


def test_a_search_of_which_all_is_rejected_can_be_stopped_and_ends(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(searches, "GIVE_UP", 12)
    console = Console(tmp_path / "folder", command=STAND_IN)
    try:
        settings = {"attempts": 1000, "multiply_adds": [None, 1]}
        search = console.searches.add(project_of(console), None, settings)["id"]
        console.searches.step(search)  # and has come back
        found = console.searches.candidates(search)
        assert 0 < len(found) < 12 and {c["status"] for c in found} == {"rejected"}
        for _ in range(12):
            console.searches.step(search)
        assert console.searches.one(search)["status"] == "finished"
        assert 12 <= len(console.searches.candidates(search)) < 20
    finally:
        console.close()


def training(console, project, attempts):
    """A new search whose first candidate is being trained, and that training."""
    key = console.searches.add(project, None, {"attempts": attempts})["id"]
    end = time.monotonic() + 60
    while not console.searches.candidates(key) and time.monotonic() < end:
        time.sleep(0.02)
    trial = console.searches.candidates(key)[0]["trial"]
    until(console, trial, "running")
    return key, trial


def test_a_cancelled_search_stops_its_candidates(tmp_path):
    pytest.importorskip("optuna")
    console = Console(tmp_path / "folder", command=STAND_IN)
    project = project_of(console, stand_in={"step_s": 0.2})
    console.begin()
    try:
        key, trial = training(console, project, 3)
        assert console.searches.cancel(key)["status"] == "cancelled"
        until(console, trial, "interrupted")
        with pytest.raises(Refused, match="this search is cancelled"):
            console.searches.cancel(key)
    finally:
        console.close()


@pytest.mark.parametrize("new_server", [False, True])
def test_a_stopped_search_goes_on_where_it_was(tmp_path, new_server):
    pytest.importorskip("optuna")
    console = Console(tmp_path / "folder", command=STAND_IN)
    project = project_of(console, stand_in={"step_s": 0.05})
    console.begin()
    try:
        key = console.searches.add(project, None, {"attempts": 4, "jobs": 2, "hours": 0.1})["id"]
        end = time.monotonic() + 60
        while len(console.searches.candidates(key)) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        with pytest.raises(Refused, match="this search is running"):
            console.searches.resume(key)
        console.searches.cancel(key)
        waiting = [c["trial"] for c in console.searches.candidates(key) if c.get("waits")]
        assert waiting
        if new_server:
            console.close()
            console = Console(tmp_path / "folder", command=STAND_IN)
            console.begin()
        # else at once, while its trainings end; as if it had been stopped longer than it may take
        console.store.update("search", key, {"created": time.time() - 3600})
        console.store.update("search", key, {"ended": time.time() - 3500})
        assert console.searches.resume(key)["status"] == "running"
        while console.searches.one(key)["status"] == "running" and time.monotonic() < end:
            time.sleep(0.05)
        assert console.searches.one(key)["status"] == "finished"
        found = console.searches.candidates(key)
        assert sum(c["status"] != "rejected" for c in found) == 4
        for trial in waiting:
            (c,) = [c for c in found if c["trial"] == trial]
            assert c["status"] in ("finished", "pruned") and not c["waits"]
            assert console.trials.one(trial)["status"] in ("finished", "interrupted")
    finally:
        console.close()


def test_a_search_whose_stopped_training_was_deleted_goes_on_without_it(tmp_path):
    pytest.importorskip("optuna")
    console = Console(tmp_path / "folder", command=STAND_IN)
    project = project_of(console, stand_in={"step_s": 0.05})
    console.begin()
    try:
        key, trial = training(console, project, 2)
        end = time.monotonic() + 60
        console.searches.cancel(key)
        until(console, trial, "interrupted")
        console.trials.delete(trial)
        console.searches.resume(key)
        while console.searches.one(key)["status"] == "running" and time.monotonic() < end:
            time.sleep(0.05)
        assert [c["status"] for c in console.searches.candidates(key)][0] == "failed"
        assert console.searches.one(key)["status"] == "finished"
    finally:
        console.close()


def test_a_search_that_another_process_begins_and_cancels_is_driven_by_the_one_that_leads(tmp_path):
    pytest.importorskip("optuna")
    console = Console(tmp_path / "folder", command=STAND_IN)
    project = project_of(console, stand_in={"step_s": 0.05})
    console.begin()
    until(console, console.trials.add(project)["id"], "running")
    other = Console(tmp_path / "folder", command=STAND_IN)
    other.begin()
    try:
        key = other.searches.add(project, None, {"attempts": 40, "jobs": 2})["id"]
        end = time.monotonic() + 60
        while len(other.searches.candidates(key)) < 3 and time.monotonic() < end:
            time.sleep(0.05)
        assert not other.searches._studies and key in console.searches._studies
        other.searches.cancel(key)
        for c in other.searches.candidates(key):
            if c["trial"]:
                until(other, c["trial"], "interrupted", "finished")
        time.sleep(0.5)
        rows = other.store.rows("SELECT id FROM trial WHERE search = ?", key)
        assert {r["id"] for r in rows} == {c["trial"] for c in other.searches.candidates(key)} - {
            None
        }
    finally:
        other.close()
        console.close()
