# SPDX-License-Identifier: Apache-2.0
"""What a page shows of a console that only shows, and of a configuration with errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nnl.console.documents.samples import project_of
from nnl.console.server.state import Console
from tests.browser.conftest import PATIENCE_MS, Server


def test_errors_of_the_configuration_stand_beside_what_is_typed(project: Any) -> None:
    from playwright.sync_api import expect

    page = project
    train = page.get_by_role("button", name="Train", exact=True)
    expect(train).to_be_enabled()
    page.get_by_role("link", name="Config").click()
    page.locator("label", has_text="Kind").locator("select").select_option("Adam")
    for label, typed, said in (
        ("Batch size", "0", "it is 0, wanted a whole number >= 1"),
        ("Batch size", "a", "A whole number is wanted."),
        ("beta1", "2", "Adam: beta1 is 2, wanted in [0, 1)"),
    ):
        field = page.get_by_label(label, exact=True)
        before = field.input_value()
        field.fill(typed)
        shown = page.get_by_text(said).or_(page.locator(f'[data-text="{said}"]'))
        expect(shown).to_be_visible()
        if label != "Batch size" or typed == "0":
            expect(page.get_by_role("link", name="Config ×")).to_be_visible()
        field.fill(before or "0.9")
        expect(shown).to_have_count(0)
    page.get_by_label("Epochs", exact=True).fill("0")
    expect(page.get_by_role("link", name="Config ×")).to_be_visible()
    page.get_by_role("link", name="Edit", exact=True).click()
    expect(train).to_be_disabled()
    assert "Config: it is 0" in (train.get_attribute("title") or "")


def test_a_console_that_only_shows_has_no_save_and_no_train(chromium: Any, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    console = Console(tmp_path)
    key = project_of(console, "digits")
    console.close()
    server = Server(tmp_path, "--read-only")
    try:
        context = chromium.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(server.link)
        expect(page.get_by_text("read only")).to_be_visible()
        for name in ("New project", "Import a file", "ResNet-152"):
            expect(page.get_by_role("button", name=name)).to_have_count(0)
        page.goto(f"{server.address}/p/{key}/edit")
        page.locator(".layer").first.wait_for()
        for name in ("Save", "Saved", "Train", "Profile"):
            expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
        for part in ("train", "search", "history"):
            page.goto(f"{server.address}/p/{key}/{part}")
            page.get_by_text("read only").wait_for()
            for name in ("Train the network", "Search", "Save as a version"):
                expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
        page.goto(f"{server.address}/data")
        page.get_by_role("heading", name="Data sets").wait_for()
        expect(page.get_by_text("Bring", exact=True)).to_be_hidden()
        context.close()
    finally:
        server.stop()
