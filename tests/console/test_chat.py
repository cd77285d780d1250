# SPDX-License-Identifier: Apache-2.0
"""Language models of the console's folder: opened, asked, stopped, and what they refuse."""

import json
import os
import time

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("prometheus_client")


@pytest.fixture
def models(console, tmp_path):
    """The folder of models with a small one, which lies elsewhere."""
    from tests.models.texts import CHAT, write_folder

    (tmp_path / "small").mkdir()
    write_folder(tmp_path / "small")
    (tmp_path / "small" / "chat_template.jinja").write_text(CHAT)
    folder = console.folder / "models"
    folder.mkdir()
    (folder / "small").symlink_to(tmp_path / "small")
    return folder


def test_a_model_of_the_folder_writes_and_shows_where_it_looks(console, browser, models):
    (listed,) = browser.get("/models")["models"]
    assert (listed["id"], listed["kind"], listed["open"]) == ("small", "folder", False)
    assert browser.post("/models/small/chat", {}, 409)["message"] == "small is not open"
    facts = browser.post("/models/small/open")
    assert facts["completions"] and facts["chat"] and facts["attention"]
    assert browser.get("/models")["models"][0]["open"]
    given = {"prompt": "the cat", "max_tokens": 4, "temperature": 0, "stream": True}
    said = browser.post("/models/small/completions", given)
    assert said.headers["content-type"].startswith("text/event-stream")
    *events, done = said.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    choices = [json.loads(e.removeprefix("data: "))["choices"][0] for e in events]
    assert choices[-1]["finish_reason"] in ("stop", "length")
    talk = {"messages": [{"role": "user", "content": "the cat sat"}]}
    found = browser.post("/models/small/attention", {**talk, "layer": 1, "head": 3})
    assert "".join(found["tokens"]).endswith("<user>the cat sat</s>\n")
    assert (found["layers"], found["heads"]) == (2, 4)
    for i, row in enumerate(found["weights"]):
        assert sum(row) == pytest.approx(1, abs=1e-2) and not any(row[i + 1 :])
    assert (
        "layer is 2, wanted 0 to 1"
        in (browser.post("/models/small/attention", {**talk, "layer": 2}, 422)["message"])
    )
    error = browser.post("/models/small/chat", {**talk, "temperature": -1}, 422)
    assert error["message"] == "temperature is -1, wanted at least 0"
    process = console.models.opened("small").process
    process.kill()
    process.wait()
    assert "has ended" in browser.post("/models/small/chat", talk, 409)["message"]
    assert browser.post("/models/small/open")["chat"]


def test_what_answers_ends_with_the_console_however_that_ends(console, browser, models):
    browser.post("/models/small/open")
    process = console.models.opened("small").process
    process.stdin.close()  # what the system does for a console that is killed
    process.wait(60)
    assert "has ended" in browser.post("/models/small/chat", {}, 409)["message"]


def test_what_cannot_be_opened_says_why(browser, models):
    assert browser.post("/models/other/open", None, 404)["code"] == "not_found"
    (models / "odd").mkdir()
    (models / "odd" / "config.json").write_text('{"model_type": "perceptron"}')
    error = browser.post("/models/odd/open", None, 422)
    assert "config.json has the model_type 'perceptron', known are bert" in error["message"]
    assert error["message"].startswith("odd cannot be opened: ")
    assert browser.upload("/models?name=cut.nnlp", b"\x20\0\0\0")["id"] == "cut.nnlp"
    assert "cut.nnlp" in browser.post("/models/cut.nnlp/open", None, 422)["message"]
    assert browser.upload("/models?name=cut.nnlp", b"", 409)["code"] == "conflict"
    assert browser.upload("/models?name=model.bin", b"", 422)["code"] == "unsupported"


def test_an_answer_that_nobody_reads_ends(console, browser, models):
    browser.post("/models/small/open")
    served = console.models.opened("small")
    given = {"prompt": "the", "max_tokens": 100, "temperature": 1, "top_k": 0, "stream": True}
    with served.ask("completions", given) as answer:
        answer.read1()
    end = time.monotonic() + 20
    while json.loads(served._asked("GET", "/health").read())["running"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    process = served.process
    console.close()
    assert process.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
