# SPDX-License-Identifier: Apache-2.0
"""The page as a whole: how it is reached, what it weighs, that it can be read by all."""

from __future__ import annotations

import gzip
import re
import time
from typing import Any

import pytest

from tests.browser.conftest import BUILT, Server

PAGES = ("/", "/data", "/plugins", "/quick", "/reports", "/help")


def first_load() -> list[str]:
    """The files that the page loads before it shows anything."""
    return re.findall(r'(?:src|href)="/(assets/[^"]+)"', BUILT.read_text())


def test_first_load_is_small() -> None:
    files = [BUILT, *(BUILT.parent / name for name in first_load())]
    assert len(files) >= 3
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) <= 250_000


def test_nothing_is_loaded_from_elsewhere(page: Any, server: Server) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/")
    page.get_by_role("heading", name="Projects").wait_for()
    assert asked and all(url.startswith(server.address) for url in asked)


def test_the_page_is_ready_soon(page: Any) -> None:
    begin = time.perf_counter()
    page.goto("/")
    page.get_by_role("heading", name="Projects").wait_for()
    assert time.perf_counter() - begin <= 1.5


def test_an_unknown_address_says_so(page: Any) -> None:
    page.goto("/nowhere")
    page.get_by_text("There is no such page.").wait_for()
    page.get_by_role("link", name="To the projects").click()
    page.get_by_role("heading", name="Projects").wait_for()


def test_a_project_that_is_gone_says_so(page: Any, faults: Any) -> None:
    page.goto("/p/nothing/edit")
    page.get_by_role("alert").wait_for()
    for _ in range(2):  # of the project and of its document
        faults.expect(404)


# What every control needs so that it can be found without being seen.
NAMELESS = """() => [...document.querySelectorAll('button, a[href], input, select, textarea')]
    .filter(e => e.getClientRects().length && !(e.getAttribute('aria-label') || e.title
        || e.labels?.length || e.textContent.trim())).map(e => e.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("path", PAGES)
def test_every_control_has_a_name(page: Any, path: str) -> None:
    page.goto(path)
    page.locator("h1").wait_for()
    assert page.evaluate(NAMELESS) == []


def test_the_theme_stays(page: Any) -> None:
    page.goto("/")
    ground = "getComputedStyle(document.body).backgroundColor"
    page.get_by_role("button", name="Theme: auto").click()
    light = page.evaluate(ground)
    page.get_by_role("button", name="Theme: light").click()
    dark = page.evaluate(ground)
    assert light != dark
    page.reload()
    page.get_by_role("button", name="Theme: dark").wait_for()
    assert page.evaluate(ground) == dark
