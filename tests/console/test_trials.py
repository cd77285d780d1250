# SPDX-License-Identifier: Apache-2.0
"""Trials: what child processes do is recorded whatever happens to the server."""

import csv
import errno
import io
import json
import os
import signal
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from nnl.console.errors import Refused
from nnl.console.machine.store import MIGRATIONS, Store
from nnl.console.server.state import Console
from nnl.console.trials.comparing import front
from nnl.console.trials.events import thinned
from nnl.converters.nnp.archive import read_files
from tests.console.networks import chain

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in.py")))


def digits(console):
    """A project with 20 samples of 2 x 2 pixels, and its data sets."""
    rng = np.random.default_rng(0)
    columns = {"x": rng.random((20, 1, 2, 2)), "y": np.arange(20) % 2}
    made = console.datasets.write("small", columns)
    document = chain(
        ("Input", "x", {"shape": None}),
        ("PF.affine", "fc", {"n_outmaps": [2]}),
        loss="F.softmax_cross_entropy",
    )
    document.config["dataset"].update(train=made["id"], valid=made["id"])
    document.config.update(batch_size=5, max_epoch=3)
    return console.store.add_project("small", document)


@pytest.fixture
def console(tmp_path):
    made = Console(tmp_path / "folder", command=STAND_IN)
    made.project = digits(made)["id"]
    made.begin()
    yield made
    made.close()


def until(console, key, *statuses, seconds=60):
    """The trial as soon as it has one of these statuses."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        entry = console.trials.one(key)
        if entry["status"] in statuses:
            return entry
        time.sleep(0.02)
    raise AssertionError(f"{entry['status']}: {console.trials.folder(key)}")


def add(console, name=None, **stand_in):
    config = {"stand_in": stand_in} if stand_in else {}
    return console.trials.add(console.project, config=config, name=name)["id"]


def test_a_trial_records_what_its_child_says(console):
    key = add(console, "first")
    entry = until(console, key, "finished", "failed")
    assert entry["status"] == "finished", entry["error"]
    assert entry["epoch"] == entry["max_epoch"] == 3
    assert entry["best"] == {"name": "valid_error", "value": 0.25, "epoch": 3}
    assert entry["last"] == {"train_loss": 1 / 3, "valid_error": 0.25}
    assert entry["parameters"] == 4 * 2 + 2 and entry["multiply_adds"] == 8
    assert console.trials.one(key, True)["environment"]["numpy"] == np.__version__
    weights = console.trials.weights({"trial": key})
    assert [p.name for p in weights] == ["fc/affine/W", "fc/affine/b"]


def test_a_child_that_ends_while_it_is_asked_has_not_died(tmp_path):
    class Ending:
        """Runs still when it is asked, and has ended before /proc is looked at."""

        def poll(self):
            return None

        def wait(self):
            return 0

    made = Console(tmp_path / "folder", command=STAND_IN)
    try:
        made.project = digits(made)["id"]
        key = add(made)
        made.store.update("trial", key, {"status": "running", "kind": "profile"})
        made.trials._processes[key] = Ending()
        made.trials.tick()
        assert made.trials.one(key)["status"] == "finished"
    finally:
        made.close()


def test_children_wait_for_a_free_place(console):
    keys = [add(console, step_s=0.05) for _ in range(3)]
    until(console, keys[1], "running")
    assert console.trials.one(keys[2])["status"] == "queued"
    for key in keys:
        until(console, key, "finished")


def test_suspended_trials_go_on_where_they_were(console):
    key = add(console, step_s=0.1)
    until(console, key, "running")
    time.sleep(0.3)  # it may have begun or not, and both must do
    console.trials.suspend(key)
    epoch = until(console, key, "suspended")["epoch"]
    assert epoch < 3
    with pytest.raises(Refused, match="this trial is suspended"):
        console.trials.suspend(key)
    console.trials.resume(key)
    assert until(console, key, "finished")["epoch"] == 3
    path = console.trials.folder(key) / "out" / "events.jsonl"
    ends = [json.loads(x)["epoch"] for x in path.read_text().splitlines() if "epoch_end" in x]
    assert ends == [1, 2, 3]


def test_a_cancelled_trial_is_interrupted_and_a_failed_one_says_why(console):
    key = add(console, step_s=0.1)
    until(console, key, "running")
    console.trials.cancel(key)
    assert until(console, key, "interrupted")["error"] is None
    failed = until(console, add(console, fails_at=3), "failed")
    assert failed["error"]["message"] == "the loss is nan" and failed["error"]["hint"] == "less"


def test_a_training_is_finished_before_its_time(browser_of, console):
    browser = browser_of(console)
    key, _, waits = [add(console, step_s=0.1) for _ in range(3)]
    assert browser.post(f"/trials/{waits}/finish", status=409)["code"] == "conflict"
    while not console.trials.one(key)["last"]:
        time.sleep(0.02)
    browser.post(f"/trials/{key}/finish")
    entry = until(console, key, "finished", "interrupted")
    assert entry["status"] == "finished" and entry["error"] is None and 1 < entry["epoch"] < 3


def test_a_trial_whose_process_was_killed_can_be_resumed(console):
    key = add(console, step_s=0.1)
    until(console, key, "running")
    time.sleep(0.2)
    os.kill(console.store.row("SELECT pid FROM trial WHERE id = ?", key)["pid"], signal.SIGKILL)
    entry = until(console, key, "interrupted")
    assert entry["error"]["message"] == "its process has died"
    console.trials.resume(key)
    assert until(console, key, "finished")["epoch"] == 3


def test_a_trial_whose_files_are_gone_fails_and_holds_nobody_up(console):
    first, second = add(console, step_s=0.05), add(console, step_s=0.05)
    lost, last = add(console), add(console)
    (console.trials.folder(lost) / "command.json").unlink()
    entry = until(console, lost, "failed")
    assert "it cannot be started" in entry["error"]["message"] and entry["error"]["where"]
    for key in (first, second, last):
        until(console, key, "finished")
    name = console.store.rows("SELECT csv FROM dataset")[0]["csv"]
    (console.datasets.root / name).unlink()
    assert console.datasets.all()[0]["missing"]
    with pytest.raises(Refused, match="the file of the data set .* is gone"):
        add(console)


def test_a_server_that_starts_again_finds_its_children(console):
    key = add(console, step_s=0.1)
    until(console, key, "running")
    console.close()  # the child goes on
    again = Console(console.folder, command=STAND_IN)
    again.begin()
    try:
        assert again.trials.one(key)["status"] == "running"
        entry = until(again, key, "finished")
        assert entry["epoch"] == 3
        rows = again.store.rows("SELECT * FROM metric WHERE trial = ? AND name = 'train_loss'", key)
        assert [r["value"] for r in rows] == [1, 1 / 2, 1 / 3]
    finally:
        again.close()
        console.store = Store(console.folder)


def test_of_two_processes_one_follows_the_trials_and_the_other_goes_on_after_it(console):
    other = Console(console.folder, command=STAND_IN)
    other.project = console.project
    other.begin()
    try:
        assert console.store.leads() and not other.store.leads()
        # each would take a child of the other that has just ended for one that has died
        keys = [add(one) for _ in range(4) for one in (console, other)]
        for key in keys:
            assert until(other, key, "finished", "failed", "interrupted")["status"] == "finished"
            text = (console.trials.folder(key) / "out" / "events.jsonl").read_text()
            assert text.count('"run_begin"') == 1
        last = add(other, step_s=0.1)
        until(other, last, "running")
        console.close()
        assert until(other, last, "finished", "interrupted")["status"] == "finished"
        assert other.store.leads()
    finally:
        other.close()


def test_what_another_process_changes_is_seen(console):
    key = add(console)
    until(console, key, "finished")
    other = Console(console.folder)
    try:
        seen = console.trials.changes
        other.trials.change(key, {"name": "renamed elsewhere"})
        end = time.monotonic() + 10
        while console.trials.changes == seen and time.monotonic() < end:
            time.sleep(0.02)
        assert console.trials.changes > seen
    finally:
        other.close()


def test_an_index_is_brought_up_to_date_by_one_of_two_processes(tmp_path):
    Console(tmp_path).close()
    db = sqlite3.connect(tmp_path / ".nnl" / "console.db", isolation_level=None)
    tables = "SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name"
    wanted = db.execute(tables).fetchall()
    (tmp_path / "old" / ".nnl").mkdir(parents=True)
    old = sqlite3.connect(tmp_path / "old" / ".nnl" / "console.db", isolation_level=None)
    old.executescript(f"BEGIN; {MIGRATIONS[0]} PRAGMA user_version = 1; COMMIT;")
    with ThreadPoolExecutor(8) as pool:
        for store in pool.map(lambda _: Store(tmp_path / "old"), range(8)):
            store.close()
    assert old.execute(tables).fetchall() == wanted
    assert old.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    db.close()
    old.close()


def test_an_end_that_the_server_before_has_read_counts(console):
    key = add(console)
    until(console, key, "finished")
    # it had read everything, and ended before the child did
    console.store.update("trial", key, {"status": "running", "pid": 2**22 + 1, "pid_start": 1})
    console.trials.tick()
    assert console.trials.one(key)["status"] == "finished"


def test_trials_are_listed_compared_and_exported(browser_of, console):
    browser = browser_of(console)
    first, second = add(console, "one"), add(console, "two")
    third = console.trials.add(
        console.project, config={"optimizer": {"type": "Sgd", "properties": {"lr": 0.5}}}
    )["id"]
    for key in (first, second, third):
        until(console, key, "finished")
    browser.send("PATCH", f"/trials/{first}", {"pinned": True, "tags": ["a", "b"], "note": "why"})
    browser.send("PATCH", f"/trials/{second}", {"locked": True, "name": "other"})
    found = browser.get(f"/trials?project={console.project}&sparkline=valid_error")
    assert [t["id"] for t in found["trials"]] == [first, third, second] and found["total"] == 3
    assert found["trials"][0]["sparkline"] == [1 / 2, 1 / 3, 1 / 4]
    assert found["trials"][0]["pareto"]
    assert browser.get("/trials?tag=a")["total"] == 1 == browser.get("/trials?q=WHY")["total"]
    assert browser.get("/trials?q=B")["total"] == 1 and browser.get("/trials?q=%5B")["total"] == 0
    assert browser.get("/trials?q=%25")["total"] == 0
    assert browser.get("/trials?sort=secret", 422)["where"] == "sort"
    compared = browser.get(f"/compare?trials={first},{second},{third}")
    assert compared["config"]["optimizer.type"] == ["Adam", "Adam", "Sgd"]
    assert compared["metrics"]["valid_error"]["best"] == [0.25] * 3
    assert compared["network"][1]["nodes"]["changed"] == []
    assert browser.send("DELETE", f"/trials/{second}", status=403)["code"] == "locked"
    browser.send("DELETE", f"/trials/{third}")
    assert browser.get("/trials")["total"] == 2
    table = browser.client.get("/api/v1/trials/export.csv").text
    rows = list(csv.DictReader(io.StringIO(table)))
    assert [r["name"] for r in rows] == ["one", "other"] and rows[0]["tags"] == "a b"
    assert rows[0]["optimizer.type"] == "Adam" and rows[0]["best valid_error"] == "0.25"
    assert json.loads(browser.client.get("/api/v1/trials/export.json").text)[0]["id"] == first


def test_metrics_that_a_full_disk_kept_out_of_the_index_come_later(console, monkeypatch):
    write, failed = console.trials._write, []

    def full(*args):
        failed.append(args)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(console.trials, "_write", full)
    monkeypatch.setattr(console.trials._end, "wait", lambda s: time.sleep(0.05) or False)
    key = add(console)
    while not failed:
        time.sleep(0.02)
    monkeypatch.setattr(console.trials, "_write", write)
    assert until(console, key, "finished")["last"] == {"train_loss": 1 / 3, "valid_error": 0.25}
    rows = console.store.rows("SELECT * FROM metric WHERE trial = ? AND name = 'train_loss'", key)
    assert len(rows) == 3


def test_a_training_that_has_filled_the_disk_is_resumed_when_there_is_space(console):
    key = add(console, fails_at=7, code="disk_full")
    entry = until(console, key, "failed", "interrupted")
    assert entry["status"] == "interrupted" and entry["error"]["code"] == "disk_full"
    path = console.trials.folder(key) / "document.json"
    path.write_text(path.read_text().replace('"fails_at": 7', '"fails_at": 0'))
    console.trials.resume(key)
    assert until(console, key, "finished", "failed")["epoch"] == 3


def test_the_stream_is_the_file_and_ends_with_the_trial(browser_of, console):
    browser = browser_of(console)
    key = add(console, step_s=0.01)
    text = browser.client.get(f"/api/v1/trials/{key}/events").text
    blocks = [dict(x.split(": ", 1) for x in b.split("\n")) for b in text.split("\n\n") if b]
    events = [b for b in blocks if "id" in b]
    path = console.trials.folder(key) / "out" / "events.jsonl"
    lines = path.read_text().splitlines()
    assert all(lines[int(b["id"]) - 1] == b["data"] for b in events)
    ends = [json.loads(b["data"])["epoch"] for b in events if b["event"] == "epoch_end"]
    assert ends == [1, 2, 3]
    assert json.loads(blocks[-1]["data"])["status"] == "finished"
    headers = {"Last-Event-ID": events[-2]["id"]}
    rest = browser.client.get(f"/api/v1/trials/{key}/events", headers=headers).text
    assert rest.count("id: ") == 1
    found = browser.get(f"/trials/{key}/metrics")
    assert found["series"]["loss"]["y"] == [1 / i for i in range(1, 16)]
    assert found["series"]["valid_error"]["epoch"] == [1, 2, 3] and found["line"] == len(lines)
    assert browser.get(f"/trials/{key}/metrics?names=lr")["series"].keys() == {"lr"}


def test_artifacts_and_exports_of_a_trial(browser_of, console, tmp_path):
    browser = browser_of(console)
    key = add(console)
    until(console, key, "finished")
    names = [a["name"] for a in browser.get(f"/trials/{key}/artifacts")["artifacts"]]
    assert names == ["events.jsonl", "results.nnp"]
    answer = browser.client.get(f"/api/v1/trials/{key}/artifacts/results.nnp")
    assert answer.headers["content-disposition"].startswith("attachment")
    for name in ("..%2fnetwork.nnp", "%2fetc%2fpasswd", "..%2f..%2f..%2fconsole.db"):
        assert browser.client.get(f"/api/v1/trials/{key}/artifacts/{name}").status_code == 404
    again = browser.post(f"/trials/{key}/open", {"with_weights": True})
    assert again["document"]["weights_from"] == {"trial": key}
    assert again["document"]["networks"] == console.trials.document(key).to_json()["networks"]
    retrained = browser.post(f"/trials/{key}/retrain", status=201)
    assert retrained["number"] == 2 and retrained["version"] == console.trials.one(key)["version"]
    exported = tmp_path / "again.nnp"
    exported.write_bytes(browser.client.get(f"/api/v1/trials/{key}/export?format=nnp").content)
    kept = {p.name: p.value for p in read_files(str(exported), "", "test").stored}
    for p in console.trials.weights({"trial": key}):
        assert (kept[p.name] == p.value).all()
    assert "PF.affine" in browser.client.get(f"/api/v1/trials/{key}/export?format=python").text


def test_what_cannot_be_trained_is_refused_before_it_begins(browser_of, console):
    browser = browser_of(console)
    given = {"project": console.project}
    for config, message in (
        ({"dataset": {"train": None}}, "there is no data set to train with"),
        ({"optimizer": {"type": "Adams"}}, "there is no optimizer 'Adams': did you mean Adam?"),
        ({"batch_size": 0}, "it is 0, wanted a whole number >= 1"),
        ({"dataset": {"train": "gone"}}, "there is no data set 'gone'"),
    ):
        answer = browser.client.post(
            "/api/v1/trials", json={**given, "config": config}, headers={"X-NNL": "1"}
        )
        assert answer.status_code in (404, 422) and message in answer.json()["message"], answer.text
    broken = chain(("Input", "x", {"shape": None}), ("PF.affine", "fc", {"n_outmaps": [-1]}))
    project = console.store.add_project("broken", broken)["id"]
    config = {"dataset": console.trials.store.rows("SELECT id AS train FROM dataset")[0]}
    answer = browser.post("/trials", {"project": project, "config": config}, 422)
    assert answer["message"].startswith("fc: ")
    assert browser.get("/trials")["total"] == 0
    assert not list(console.trials.root.iterdir())


def test_thinning_keeps_the_ends_of_the_scale_and_fronts_are_not_beaten():
    points = [(i, float(i == 500), 0) for i in range(1000)]
    kept = thinned(points, 90)
    assert len(kept) <= 100 and (500, 1.0, 0) in kept and kept[-1] == points[-1]
    assert front([("a", 0.5, 10), ("b", 0.4, 20), ("c", 0.6, 15), ("d", 0.4, 30)]) == ["a", "b"]


def test_a_thousand_trials_are_listed_quickly(console):
    console.trials.close()
    now = time.time()
    with console.store.change():
        for i in range(1000):
            row = {"id": f"t{i}", "project": console.project, "number": i, "name": f"t{i}"}
            more = {"kind": "train", "status": "finished", "created": now + i, "best_value": i / 7}
            console.store.insert("trial", {**row, **more, "best_name": "e", "best_epoch": 1})
    from nnl.console.trials.comparing import listed

    begin = time.thread_time()  # other tests use the machine too
    assert listed(console.trials, limit=1000)["total"] == 1000
    assert time.thread_time() - begin < 0.3
