# SPDX-License-Identifier: Apache-2.0
"""Structure search from the page: the front grows, candidates open, limits and stops hold."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.drawing import layer, settle, total
from tests.browser.running import configure, table

pytest.importorskip("optuna")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect
LIMIT = 120_000


@pytest.fixture
def searching(project: Any) -> Any:
    """The page of searches of a project with data."""
    pytest.importorskip("sklearn")
    configure(project, 2)
    project.get_by_role("link", name="Search", exact=True).click()
    return project


def begin(page: Any, settings: dict[str, int]) -> None:
    for name, value in settings.items():
        page.get_by_label(name).fill(str(value))
    page.get_by_role("button", name="Search", exact=True).click()
    page.wait_for_url(re.compile(r"/search/\w+"))


def status(page: Any) -> Any:
    return page.locator(".centre .status").first


def test_the_front_grows_and_a_candidate_opens_in_the_editor(searching: Any, api: Any) -> None:
    begin(searching, {"Attempts": 6, "Trainings at once": 2, "Multiply-adds up to": LIMIT})
    seen: set[int] = set()
    for _ in range(2000):
        if status(searching).inner_text() == "finished":
            break
        done = [row for row in table(searching, "Candidates") if row[1].startswith("finished")]
        seen.add(len(done))
        searching.wait_for_timeout(50)
    assert len(seen) >= 3, seen  # it was watched while it grew
    expect(searching.get_by_role("img", name="Front of the search")).to_be_visible()
    expect(searching.locator(".centre")).to_contain_text("6 of 6 attempts")
    expect(searching.get_by_role("complementary", name="Searches")).to_contain_text("6 tried")

    search = searching.url.rpartition("/")[2]
    front = api("GET", f"/searches/{search}/front")
    trained = [c for c in front["candidates"] if c["status"] != "rejected"]
    assert len(trained) == 6 and all(c["multiply_adds"] <= LIMIT for c in trained)
    rows = table(searching, "Candidates")
    assert {int(row[0]) for row in rows if "front" in row[1]} == set(front["front"])

    chosen = next(c for c in trained if c["edits"] and c["status"] == "finished")
    searching.get_by_role("button", name=str(chosen["number"]), exact=True).click()
    card = searching.get_by_role("complementary", name="Candidate")
    expect(card).to_contain_text(chosen["edits"][0]["text"])
    card.get_by_role("button", name="Open in Edit").click()
    searching.wait_for_url(re.compile(r"/edit"))
    settle(searching)
    assert total(searching, "multiply_adds") == chosen["multiply_adds"]
    assert total(searching, "parameters") == chosen["parameters"]
    expect(searching.get_by_role("region", name="Run")).to_contain_text("weights of a trial")
    searching.keyboard.press("Control+z")
    expect(layer(searching, "conv2")).to_contain_text("outmaps=32")


def test_what_costs_more_than_wanted_is_left_out_of_the_drawing(searching: Any) -> None:
    begin(searching, {"Attempts": 3, "Trainings at once": 2})
    expect(status(searching)).to_have_text("finished", timeout=60_000)
    before = table(searching, "Candidates")
    limit = searching.get_by_label("Highest number of multiply-adds")
    limit.focus()
    searching.keyboard.press("Home")
    costs = {row[3] for row in table(searching, "Candidates")}
    assert len(costs) == 1 and len(table(searching, "Candidates")) < len(before)
    searching.keyboard.press("End")
    assert table(searching, "Candidates") == before


def test_a_search_can_be_stopped(searching: Any, api: Any) -> None:
    begin(searching, {"Attempts": 50})
    expect(searching.get_by_role("table", name="Candidates")).to_contain_text("running")
    searching.get_by_role("button", name="Stop").click()
    expect(status(searching)).to_have_text("cancelled")
    search = searching.url.rpartition("/")[2]
    for _ in range(100):
        trials = api("GET", f"/trials?search={search}")["trials"]
        if all(trial["status"] == "interrupted" for trial in trials):
            break
        searching.wait_for_timeout(100)
    assert [trial["status"] for trial in trials] == ["interrupted"]
    expect(searching.get_by_role("button", name="Stop")).to_have_count(0)


def test_a_search_that_cannot_begin_says_why(searching: Any, faults: Any) -> None:
    searching.get_by_role("link", name="Config").click()
    searching.get_by_label("Validation set").select_option("")
    searching.get_by_role("link", name="Search", exact=True).click()
    searching.get_by_role("button", name="Search", exact=True).click()
    said = searching.get_by_role("status").filter(has_text="no validation set")
    expect(said).to_contain_text("invalid")
    faults.expect(422)
