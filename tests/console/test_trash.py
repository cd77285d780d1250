# SPDX-License-Identifier: Apache-2.0
"""What is deleted stays until the trash is emptied, and some of it longer."""

import time

import numpy as np
import pytest

from nnl.console.server.state import Console
from nnl.console.server.trash import KEEP_S
from tests.console.networks import chain


@pytest.fixture
def filled(console):
    """A console with a data set, a project and three trials of it."""
    rng = np.random.default_rng(0)
    data = console.datasets.write("small", {"x": rng.random((8, 4)), "y": np.arange(8) % 2})
    document = chain(
        ("Input", "x", {"shape": [1]}),
        ("PF.affine", "fc", {"n_outmaps": [2]}),
        loss="F.softmax_cross_entropy",
    )
    document.config["dataset"].update(train=data["id"], valid=data["id"])
    console.data = data["id"]
    console.project = console.store.add_project("small", document)["id"]
    console.keys = [console.trials.add(console.project)["id"] for _ in range(3)]
    return console


def test_what_is_deleted_comes_back_until_the_trash_is_emptied(filled, browser):
    first, second, third = filled.keys
    for key in (first, second):
        browser.send("DELETE", f"/trials/{key}")
    found = browser.get("/trash")
    assert {t["id"] for t in found["trials"]} == {first, second} and found["datasets"] == []
    assert browser.post(f"/trials/{second}/restore")["id"] == second
    assert browser.post("/trash/empty", {"older_than_days": 1})["trials"] == 0
    removed = browser.post("/trash/empty")
    assert removed["trials"] == 1 and removed["bytes"] > 1000 and removed["projects"] == 0
    assert browser.get(f"/trials/{first}", 404) and not filled.trials.folder(first).exists()
    assert {t["id"] for t in browser.get("/trials")["trials"]} == {second, third}
    assert browser.get("/trash") == {"projects": [], "trials": [], "datasets": []}


def test_pinned_and_locked_trials_stay_with_their_project(filled, browser):
    first, second, third = filled.keys
    browser.send("PATCH", f"/trials/{first}", {"pinned": True})
    browser.send("PATCH", f"/trials/{second}", {"locked": True})
    browser.send("DELETE", f"/trials/{first}")
    browser.send("DELETE", f"/projects/{filled.project}")
    browser.send("DELETE", f"/datasets/{filled.data}")
    assert browser.post("/trash/empty") == {"projects": 0, "trials": 0, "datasets": 0, "bytes": 0}
    browser.send("PATCH", f"/trials/{first}", {"pinned": False})
    browser.send("PATCH", f"/trials/{second}", {"locked": False})
    removed = browser.post("/trash/empty")
    assert (removed["projects"], removed["trials"], removed["datasets"]) == (1, 3, 1)
    tables = ("project", "version", "document", "trial", "metric", "dataset")
    assert [t for t in tables if filled.store.rows(f"SELECT 1 FROM {t}")] == []
    assert not list(filled.trials.root.iterdir()) and not list(filled.datasets.root.iterdir())


def test_a_data_set_stays_while_something_names_it_and_parts_of_it_leave_the_others(filled):
    parts = filled.datasets.split(filled.data, [0.5, 0.5], ["a", "b"], 0, None)
    filled.datasets.delete(filled.data)
    filled.datasets.delete(parts[0]["id"])
    assert filled.trash.empty()["datasets"] == 1
    assert filled.datasets.path(filled.data).is_file()  # the project's
    assert filled.datasets.path(parts[1]["id"]).is_file()
    assert filled.datasets.restore(filled.data)["id"] == filled.data
    assert len(filled.datasets.all()) == 2


def test_a_trial_whose_data_vanish_while_it_waits_says_which(filled):
    key, *others = filled.keys
    for other in others:
        filled.trials.cancel(other)
    path = filled.datasets.path(filled.data)
    path.unlink()
    filled.trials.tick()  # starts it
    end = time.monotonic() + 60
    while filled.trials.one(key)["status"] == "running" and time.monotonic() < end:
        time.sleep(0.1)
        filled.trials.tick()
    entry = filled.trials.one(key)
    assert entry["status"] == "failed" and str(path) in entry["error"]["message"]
    assert entry["error"]["code"] == "not_found" and "put the file back" in entry["error"]["hint"]


def test_a_server_that_begins_removes_what_was_deleted_long_ago(filled):
    old, new, _ = filled.keys
    filled.trials.delete(old)
    filled.trials.delete(new)
    filled.store.update("trial", old, {"deleted": int(time.time() - KEEP_S - 60)})
    again = Console(filled.folder, children=0)
    try:
        again.begin()
        assert not again.trials.folder(old).exists() and again.trials.folder(new).exists()
    finally:
        again.close()
