# SPDX-License-Identifier: Apache-2.0
"""The chat page: a small model that has learned nothing is talked to, stopped, and looked into."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Server

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("tokenizers")
expect = sync_api.expect


@pytest.fixture(scope="session")
def small(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a folder of Hugging Face's libraries, linked into that of the console."""
    import nnl as nn
    from tests.models.texts import CHAT, write_folder

    folder = tmp_path_factory.mktemp("models") / "small model"
    folder.mkdir()
    with nn.parameter_scope("small model"):
        write_folder(folder, max_position_embeddings=4096, eos_token_id=None)
    (folder / "chat_template.jinja").write_text(CHAT)
    models = Path(server.folder) / "models"
    models.mkdir(exist_ok=True)
    (models / folder.name).symlink_to(folder)
    return folder.name


@pytest.fixture
def opened(page: Any, small: str) -> Any:
    page.goto("/chat")
    page.get_by_role("link", name=small).click()
    page.get_by_label("Your text").wait_for()
    return page


def said(page: Any) -> Any:
    return page.get_by_role("log", name="Conversation").locator(".message")


def test_an_answer_appears_and_its_tokens_look_back(opened: Any) -> None:
    opened.get_by_label("Temperature").fill("0")
    opened.get_by_label("Max tokens").fill("12")
    opened.get_by_label("Your text").fill("the cat sat")
    opened.get_by_label("Your text").press("Enter")
    expect(opened.get_by_text(re.compile(r"\d+ tokens, .* per second"))).to_be_visible()
    expect(said(opened)).to_have_count(2)
    first = said(opened).nth(1).inner_text()
    assert first
    opened.get_by_role("button", name="New conversation").click()
    expect(said(opened)).to_have_count(0)
    opened.get_by_label("Your text").fill("the cat sat")
    opened.get_by_role("button", name="Send").click()
    expect(said(opened).nth(1)).to_have_text(first)  # the most probable tokens again

    attention = opened.get_by_role("region", name="Attention")
    attention.get_by_role("button", name="Show it").click()
    tokens = attention.get_by_role("group", name="Tokens").get_by_role("button")
    tokens.first.wait_for()
    assert "the cat sat" in "".join(tokens.all_inner_texts())
    tokens.nth(2).click()
    expect(tokens.nth(2)).to_have_attribute("aria-pressed", "true")
    weights = tokens.evaluate_all("all => all.map(one => +one.title.split(' ').pop())")
    assert sum(weights[:3]) == pytest.approx(1, abs=1e-3) and not any(weights[3:])
    with opened.expect_response(re.compile("/attention")) as answer:
        attention.get_by_label("Head").select_option("4")
    assert answer.value.json()["head"] == 3
    expect(attention.get_by_label("Layer").locator("option")).to_have_count(2)


def test_writing_stops_when_one_says_so(opened: Any) -> None:
    opened.get_by_label("Temperature").fill("1")
    opened.get_by_label("Max tokens").fill("4000")
    opened.get_by_label("Your text").fill("the dog")
    opened.get_by_label("Your text").press("Enter")
    stop = opened.get_by_role("button", name="Stop")
    expect(said(opened).nth(1)).to_have_text(re.compile(r"\S{3}"))  # while it is being written
    expect(stop).to_be_enabled()
    stop.click()
    expect(stop).to_be_disabled()
    length = len(said(opened).nth(1).inner_text())
    opened.wait_for_timeout(300)
    assert len(said(opened).nth(1).inner_text()) == length
    opened.get_by_label("Max tokens").fill("5")
    opened.get_by_label("Your text").fill("and on")
    opened.get_by_role("button", name="Send").click()
    expect(said(opened)).to_have_count(4)


def test_what_is_wrong_is_said_in_words(opened: Any, server: Server, faults: Any) -> None:
    opened.get_by_label("Top-p").fill("2")
    opened.get_by_label("Your text").fill("the dog")
    opened.get_by_role("button", name="Send").click()
    expect(opened.get_by_role("alert")).to_contain_text("top_p is 2, wanted more than 0")
    faults.expect(422)
    opened.get_by_label("Top-p").fill("")
    opened.get_by_label("Your text").fill("again")
    expect(opened.get_by_role("button", name="Send")).to_be_disabled()
    odd = Path(server.folder) / "models" / "odd"
    odd.mkdir()
    (odd / "config.json").write_text('{"model_type": "perceptron"}')
    opened.goto("/chat/odd")
    expect(opened.get_by_role("alert")).to_contain_text("odd cannot be opened")
    expect(opened.get_by_role("alert")).to_contain_text("'perceptron', known are")
    faults.expect(422)
