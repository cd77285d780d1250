# SPDX-License-Identifier: Apache-2.0
"""Who may ask the server, and what it answers."""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from urllib.parse import urlparse
from urllib.request import urlopen

import pytest

from nnl.console.documents.samples import digits, project_of
from nnl.console.server.state import Console
from tests.console.networks import lenet


def refused(answer, status, code):
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"code", "message", "hint", "where"}
    assert answer.json()["code"] == code


def test_the_token_becomes_a_cookie_in_any_browser_again_and_again(client, guard):
    token = guard.token
    answer = client.get("/api/v1/projects")
    refused(answer, 401, "unauthorized")
    assert "nnl console --url prints it again" in answer.json()["hint"]
    refused(client.get("/api/v1/session?token=" + token), 401, "unauthorized")
    assert client.get("/?token=wrong").status_code == 401
    assert "nnl console --url prints it again" in client.get("/").text
    for _ in range(3):  # another browser, a private window, the first one after a restart
        client.cookies.clear()
        assert client.get("/api/v1/projects").status_code == 401
        answer = client.get(f"/?token={token}")
        assert answer.status_code == 303 and answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and token not in cookie
        assert client.get("/api/v1/projects").status_code == 200
    answer = client.get(f"/?token={token}")  # the link once more in the same browser
    assert answer.status_code == 303 and client.get("/api/v1/projects").status_code == 200


def test_a_token_of_one_time_works_once(client, guard):
    token, guard.one_time = guard.token, True
    assert client.get(f"/?token={token}").status_code == 303
    assert client.get(f"/?token={token}").status_code == 303  # this browser is in
    client.cookies.clear()
    answer = client.get(f"/?token={token}")
    assert answer.status_code == 401 and "It works once, in one browser" in answer.text
    assert "as --one-time says" in client.get("/api/v1/projects").json()["hint"]


def test_the_address_leads_to_the_project_of_a_sample(client, guard, console):
    key = project_of(console, "empty")
    assert project_of(console, "empty") == key
    assert [p["name"] for p in console.store.projects()] == ["Empty"]
    guard.start = f"/p/{key}/edit"
    answer = client.get(f"/?token={guard.token}")
    assert answer.status_code == 303 and answer.headers["location"] == f"/p/{key}/edit"
    with pytest.raises(ValueError, match="there is no sample 'digit': did you mean digits"):
        project_of(console, "digit")
    console.read_only = True
    with pytest.raises(ValueError, match="no project 'ResNet-152', and --read-only makes none"):
        project_of(console, "resnet152")


def test_requests_of_other_hosts_and_pages_are_refused(browser):
    client = browser.client
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example:8000", "127.0.0.1:a"):
        refused(client.get("/api/v1/health", headers={"Host": host}), 403, "host")
    for origin in ("http://evil.example", "null", "https://127.0.0.1:8000"):
        headers = {"Origin": origin, "X-NNL": "1"}
        refused(client.get("/api/v1/projects", headers=headers), 403, "origin")
    tunnel = {"Host": "localhost:9999"}  # of ssh -L 9999:localhost:8000
    assert client.get("/api/v1/health", headers=tunnel).status_code == 200
    for origin in ("http://localhost:8000", "http://127.0.0.1:9999"):  # other pages of this machine
        headers = {**tunnel, "Origin": origin, "X-NNL": "1"}
        refused(client.post("/api/v1/projects", json={"name": "a"}, headers=headers), 403, "origin")
    own = {"Origin": "http://127.0.0.1:8000", "X-NNL": "1"}
    assert client.post("/api/v1/projects", json={"name": "a"}, headers=own).status_code == 201


def test_changes_need_the_header_and_a_content_type(browser):
    client = browser.client
    refused(client.post("/api/v1/projects", json={"name": "a"}), 403, "csrf")
    form = {"X-NNL": "1", "Content-Type": "application/x-www-form-urlencoded"}
    refused(client.post("/api/v1/projects", content="name=a", headers=form), 415, "media_type")
    assert browser.get("/projects")["projects"] == []


def test_answers_forbid_scripts_of_elsewhere_and_frames(browser):
    for path in ("/", "/api/v1/session", "/api/v1/nothing", "/assets/no.js"):
        headers = browser.client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


def test_no_path_leads_out_of_the_page_s_files(browser, monkeypatch, tmp_path):
    from nnl.console.server import server

    (tmp_path / "static" / "assets").mkdir(parents=True)
    (tmp_path / "static" / "index.html").write_text("<!doctype html>page")
    (tmp_path / "static" / "assets" / "index.js").write_text("1")
    (tmp_path / "secret").write_text("hidden")
    (tmp_path / "static" / "assets" / "link").symlink_to(tmp_path / "secret")
    monkeypatch.setattr(server, "STATIC", tmp_path / "static")
    assert browser.client.get("/assets/index.js").text == "1"
    for path in ("..%2f..%2fsecret", "%2e%2e/%2e%2e/secret", "link", "%00", "/etc/passwd"):
        answer = browser.client.get(f"/assets/{path}")
        assert "hidden" not in answer.text and "root:" not in answer.text
    assert browser.client.get("/p/1/edit").text.endswith("page")


def test_too_long_requests_are_refused(browser, monkeypatch):
    from nnl.console.server import security

    monkeypatch.setattr(security, "JSON_BYTES", 1000)
    long = {"name": "a" * 2000}
    refused_by_length = browser.post("/projects", long, 413)
    assert refused_by_length["code"] == "too_large"

    def chunks():
        yield b'{"name": "' + b"a" * 2000 + b'"}'

    headers = {"X-NNL": "1", "Content-Type": "application/json"}
    answer = browser.client.post("/api/v1/projects", content=chunks(), headers=headers)
    assert answer.status_code == 413


def test_a_console_that_only_shows_changes_nothing(browser, guard):
    project = browser.post("/projects", {"name": "a", "document": lenet().to_json()}, 201)
    guard.read_only = True
    assert browser.post("/projects", {"name": "b"}, 403)["code"] == "read_only"
    document = browser.get(f"/projects/{project['id']}/document")
    assert browser.post("/analyze", {"document": document})["trainable"]


READ_ONLY = """
import sys
from pathlib import Path
from nnl.console.errors import Refused
from nnl.console.server.state import Console
from tests.console.conftest import Browser, client_of

console = Console(Path(sys.argv[1]))
from nnl.console.server.server import guarded
guard = guarded(console, "127.0.0.1", 8000)
browser = Browser(client_of(guard))
browser.client.get(f"/?token={guard.token}")
assert browser.get("/session")["read_only"] and console.read_only
console.begin()
(project,) = browser.get("/projects")["projects"]
document = browser.get(f"/projects/{project['id']}/document")
assert browser.post("/analyze", {"document": document})["trainable"]
assert browser.post("/export?format=nntxt", {"document": document}).content
for path, given in (("/trials", {"project": project["id"]}), ("/projects", {"name": "b"})):
    answer = browser.post(path, given, 403)
    assert answer["code"] == "read_only", answer
    assert f"its folder {console.folder} cannot be written" in answer["message"]
try:
    console.store.rename_project(project["id"], "b")
except Refused as refused:
    assert "cannot be written: nothing can be changed" in refused.message
else:
    raise AssertionError("renamed")
console.close()
try:
    Console(Path(sys.argv[1]) / "empty")
except PermissionError as error:
    assert "cannot be written, and has nothing to show" in str(error)
else:
    raise AssertionError("opened")
"""


def test_a_folder_that_cannot_be_written_is_shown(tmp_path):
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx2")
    folder = tmp_path / "folder"
    console = Console(folder)
    project_of(console, "empty")
    project = console.store.projects()[0]
    console.store.save(project["id"], project["head"], lenet())
    (folder / "empty").mkdir()
    shutil.copytree(folder, tmp_path / "crashed")  # with what SQLite has not yet written back
    console.close()
    for place in (folder, tmp_path / "crashed"):
        paths = [place, *place.rglob("*")]
        before = {p: p.stat().st_mtime_ns for p in paths}
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        script = READ_ONLY
        if os.geteuid() == 0:  # whom no mode stops: the folder is on a disk that is read only
            script = "import os\nos.access = lambda path, mode: False\n" + script
        done = subprocess.run(
            [sys.executable, "-c", script, str(place)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert {p: p.stat().st_mtime_ns for p in [place, *place.rglob("*")]} == before
        for path in paths:
            path.chmod(0o755)


def test_what_is_wrong_with_a_configuration_is_told_as_it_is_typed(browser):
    document = lenet().to_json()

    def told(**config):
        given = {**document, "config": {**document["config"], **config}}
        found = browser.post("/analyze", {"document": given})["config"]
        return {p["where"].removeprefix("config."): p["message"] for p in found
                if p["severity"] == "error"}  # fmt: skip

    optimizer = document["config"]["optimizer"]
    assert told() == {}
    assert told(batch_size=0, max_epoch=1.5, seed=-1) == {
        "batch_size": "it is 0, wanted a whole number >= 1",
        "max_epoch": "it is 1.5, wanted a whole number >= 1",
        "seed": "it is -1, wanted a whole number >= 0",
    }
    wrong = {**optimizer, "type": "Adam", "properties": {"beta1": 2.0}}
    assert told(optimizer=wrong) == {
        "optimizer.properties.beta1": "Adam: beta1 is 2.0, wanted in [0, 1)"
    }
    wrong = {**optimizer, "type": "Adamm", "weight_decay": "a"}
    assert told(optimizer=wrong) == {
        "optimizer.type": "there is no optimizer 'Adamm': did you mean Adam?",
        "optimizer.weight_decay": "it is 'a', wanted a number",
    }
    wrong = {**optimizer, "schedule": {"type": "step", "epochs": [0]}}
    assert told(optimizer=wrong) == {"optimizer.schedule.epochs": "epochs is [0], wanted epochs"}
    wrong = {**optimizer, "schedule": {"type": "exponential", "gamma": "a"}}
    assert told(optimizer=wrong) == {"optimizer.schedule.gamma": "it is 'a', wanted a number"}
    assert list(told(context="cudnnn")) == ["context"]
    assert list(told(dataset={"train": "gone", "valid": "lost"})) == [
        "dataset.train", "dataset.valid",
    ]  # fmt: skip
    assert list(told(early_stop={"epochs": -1})) == ["early_stop.epochs"]


def test_an_editor_s_session(browser):
    assert browser.get("/samples")["samples"][0]["id"] == "digits"
    first = digits().to_json()
    project = browser.post("/projects", {"name": "first", "document": first}, 201)
    path = f"/projects/{project['id']}"
    answer = browser.client.get(f"/api/v1{path}/document")
    tag, document = answer.headers["etag"], answer.json()
    assert tag == f'"{project["head"]}"'
    found = browser.post("/analyze", {"document": document, "revision": 7})
    assert found["revision"] == 7 and found["trainable"]
    changed = lenet().to_json()
    saved = browser.post(f"{path}/versions", {"document": changed}, 201, If_Match=tag)
    assert saved["parent"] == project["head"]
    assert browser.post(f"{path}/versions", {"document": document}, 412, If_Match=tag)["code"] == (
        "conflict"
    )
    browser.post(f"{path}/versions", {"document": document}, 428)
    back = browser.post(f"{path}/revert", {"version": project["head"]}, 201, If_Match=saved["id"])
    assert browser.get(f"{path}/document") == document
    difference = browser.get(f"{path}/diff?a={saved['id']}&b={back['id']}")
    assert {c["name"] for c in difference["nodes"]["changed"]} == {"x"}
    assert len(browser.get(f"{path}/versions")["versions"]) == 3
    copy = browser.post(f"{path}/copy", {"name": "second"}, 201)
    assert browser.get(f"/projects/{copy['id']}/document") == document
    browser.send("DELETE", path)
    assert [p["name"] for p in browser.get("/projects")["projects"]] == ["second"]
    positions = browser.post("/arrange", {"document": changed})["positions"]
    assert set(positions) == {n["id"] for n in changed["networks"][0]["nodes"]}
    assert browser.post("/code", {"document": changed})["text"].startswith("import nnl as nn")


def test_bad_requests_are_told_what_is_wrong(browser):
    assert browser.post("/analyze", {}, 422)["message"] == "the request has no 'document'"
    answer = browser.post("/analyze", {"document": {"networks": 1}}, 422)
    assert answer["message"] == "networks: it is 1, wanted a list" and answer["where"] == "networks"
    headers = {"X-NNL": "1", "Content-Type": "application/json"}
    for text in (b"{", b"[1]", b'{"a": NaN}', b"[" * 100_000, b"\xff", b"9" * 10_000):
        answer = browser.client.post("/api/v1/analyze", content=text, headers=headers)
        refused(answer, 422, "invalid")
    refused(browser.client.get("/api/v1/projects/none"), 404, "not_found")
    refused(browser.client.get("/api/v1/none"), 404, "not_found")
    assert browser.post("/projects", {"name": " "}, 422)["code"] == "invalid"
    assert browser.get(f"/trials?offset={10**30}", 422)["code"] == "invalid"
    assert browser.post("/trials", {"project": "a", "version": [1]}, 422)["code"] == "invalid"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("networks", 0, "nodes", 0, "x"), 10**400, "nodes[0].x: it is int, wanted a number"),
        (("networks", 0, "nodes", 1, "properties", "outmaps"), 10**400, "too large a number"),
        (("networks", 0, "nodes", 1, "properties", "pad"), [[[[]]] * 9] * 9, ""),
        (("config", "optimizer"), [], "config.optimizer: it is [], wanted an object"),
        (("config", "dataset"), True, "config.dataset: it is True, wanted an object"),
        (("config", "optimizer", "schedule"), 1, "schedule: it is 1, wanted an object"),
        (("networks", 0, "nodes", 4, "properties", "n_outmaps"), [2**40], "takes"),
    ],
)
def test_documents_with_impossible_values_are_told_of_and_hold_nobody_up(
    browser, path, value, message
):
    document = lenet().to_json()
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    for route in ("/analyze", "/code", "/arrange", "/export?format=html", "/export?format=nnp"):
        headers = {"X-NNL": "1"}
        given = {"document": document}
        answer = browser.client.post(f"/api/v1{route}", json=given, headers=headers)
        assert answer.status_code in (200, 413, 422), answer.text
    assert message in answer.json()["message"]


def test_no_text_of_a_document_becomes_code(browser):
    document = lenet().to_json()
    evil = "x\nimport os; os.abort()\n#"
    node = document["networks"][0]["nodes"][1]
    node.update(type="Unknown", name=evil, properties={"function": evil, evil: evil})
    document["networks"][0]["name"] = evil
    document["config"]["optimizer"] = {"type": f"Sgd(){evil}", "properties": {evil: evil}}
    document["config"]["dataset"] = {"train": evil}
    code = browser.post("/code", {"document": document})["text"]
    compiled = ast.parse(code)
    imported = [n.names[0].name for n in ast.walk(compiled) if isinstance(n, ast.Import)]
    assert "os" not in imported and "import os" not in re.sub(r"'[^'\n]*'", "", code)


def test_errors_of_the_server_have_a_code_and_a_hint(browser, console, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(console.store, "add_project", full)
    answer = browser.post("/projects", {"name": "a"}, 507)
    assert answer["code"] == "disk_full" and "nothing that was saved" in answer["hint"]


def test_other_machines_are_let_in_only_if_that_is_said(tmp_path, console):
    pytest.importorskip("fastapi")
    from nnl.console.server.server import serve

    with pytest.raises(ValueError, match="Give --allow-remote as well"):
        serve(tmp_path, "0.0.0.0")


def test_the_command_prints_one_address_and_ends_when_interrupted(tmp_path):
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "nnl.cli.main", "console", str(tmp_path), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            parts = urlparse(address)
            assert parts.hostname == "127.0.0.1" and parts.query.startswith("token=")
            with urlopen(f"http://{parts.netloc}/api/v1/health", timeout=20) as answer:
                assert answer.read() == b'{"ok":true}'
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
            assert process.wait(20) in (0, 130) and rest == ""
        finally:
            process.kill()
