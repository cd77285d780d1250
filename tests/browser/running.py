# SPDX-License-Identifier: Apache-2.0
"""Trainings that tests start, and what a page says of them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from tests.browser.conftest import Server

SECONDS = 120


def finished(api: Any, path: str, given: dict[str, Any]) -> Any:
    """Start a trial without the page; it, when it is done."""
    trial = api("POST", path, data=given)
    end = time.monotonic() + SECONDS
    while trial["status"] != "finished":
        assert trial["status"] in ("queued", "running"), trial["error"]
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)
        trial = api("GET", f"/trials/{trial['id']}")
    return trial


def configure(page: Any, epochs: int) -> None:
    page.get_by_role("link", name="Config").click()
    page.get_by_label("Epochs", exact=True).fill(str(epochs))
    page.get_by_role("link", name="Edit", exact=True).click()


def train(page: Any) -> str:
    """Start a training from the editor; its id."""
    page.get_by_role("button", name="Train", exact=True).click()
    page.wait_for_url(re.compile(r"/train/\w+"))
    return page.url.rpartition("/")[2].partition("?")[0]


def events_of(server: Server, trial: str) -> list[dict[str, Any]]:
    [path] = Path(server.folder).rglob(f"{trial}/**/events.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(page: Any, name: str, index: int = 0) -> list[list[str]]:
    """The rows of a table as texts, without its head."""
    rows = page.get_by_role("table", name=name).nth(index).locator("tbody tr")
    rows.first.wait_for()
    cells = "rows => rows.map(row => [...row.children].map(cell => cell.innerText.trim()))"
    return rows.evaluate_all(cells)
