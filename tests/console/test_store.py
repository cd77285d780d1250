# SPDX-License-Identifier: Apache-2.0
"""Projects and versions: nothing that was saved is ever lost or changed."""

import sqlite3

import pytest

from nnl.console.documents.diff import diff
from nnl.console.errors import Refused
from nnl.console.machine.store import MIGRATIONS, Store
from tests.console.networks import lenet, named


def test_two_tabs_that_save_one_project_are_told(tmp_path):
    store = Store(tmp_path)
    project = store.add_project("digits", lenet())
    first, new = store.save(project["id"], project["head"], lenet(outmaps=8), "less")
    assert new and first["parent"] == project["head"] and first["note"] == "less"
    with pytest.raises(Refused) as caught:
        store.save(project["id"], project["head"], lenet(outmaps=4))
    assert caught.value.status == 412 and caught.value.where == first["id"]
    same, new = store.save(project["id"], first["id"], lenet(outmaps=8))
    assert not new and same["id"] == first["id"]


def test_reverting_adds_a_version_that_equals_the_old_one(tmp_path):
    store = Store(tmp_path)
    project = store.add_project("digits", lenet())
    old = project["head"]
    middle, _ = store.save(project["id"], old, lenet(outmaps=8))
    back = store.revert(project["id"], middle["id"], old)
    assert store.document(back["id"]).key() == store.document(old).key()
    assert [v["id"] for v in store.versions(project["id"])] == [back["id"], middle["id"], old]
    store.close()
    assert Store(tmp_path).project(project["id"])["head"] == back["id"]


def test_deleted_projects_come_back_from_the_trash(tmp_path):
    store = Store(tmp_path)
    project = store.add_project("digits", lenet())
    store.delete_project(project["id"])
    assert not store.projects() and store.projects(deleted=True)
    store.delete_project(project["id"], False)
    assert store.projects()[0]["name"] == "digits"


def test_an_index_of_a_later_version_is_refused(tmp_path):
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / ".nnl" / "console.db") as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(ValueError, match="use a newer one"):
        Store(tmp_path)


def test_differences_are_found_by_name_and_not_by_place():
    a, b = lenet(), lenet(outmaps=32)
    named(b.main, "conv").x = 99
    b.main.connect(named(b.main, "fc"), b.main.add("Output", "out"), "x")
    b.config["optimizer"]["properties"] = {"alpha": 0.01}
    found = diff(a, b)
    assert found["nodes"]["changed"] == [
        {"network": "main", "name": "conv", "type": None, "properties": {"outmaps": [16, 32]}}
    ]
    assert [e["node"]["name"] for e in found["nodes"]["added"]] == ["out"]
    assert found["edges"]["added"][0]["source"] == "fc" and not found["edges"]["removed"]
    assert found["config"] == {"optimizer.properties.alpha": [None, 0.01]}
