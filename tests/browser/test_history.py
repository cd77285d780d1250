# SPDX-License-Identifier: Apache-2.0
"""Versions of a project: what changed, the way back, and undo across all of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.drawing import layer

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect


def set_outmaps(page: Any, value: str) -> None:
    layer(page, "conv1").click()
    page.get_by_label("outmaps").fill(value)
    expect(layer(page, "conv1")).to_contain_text(f"outmaps={value}")


def go(page: Any, to: str) -> None:
    page.get_by_role("link", name=to, exact=True).click()


@pytest.fixture
def versions(project: Any) -> Any:
    """A project of three versions: of 16, 20 and 24 maps; its list of them."""
    for value in ("20", "24"):
        set_outmaps(project, value)
        go(project, "Versions")
        project.get_by_label("Note").fill(f"with {value} maps")
        project.get_by_role("button", name="Save as a version").click()
        expect(project.get_by_role("listitem").first).to_contain_text(f"with {value} maps")
        go(project, "Edit")
    go(project, "Versions")
    return project


def test_versions_say_what_changed_since(versions: Any) -> None:
    rows = versions.get_by_role("listitem")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("newest")
    rows.nth(2).get_by_role("button", name="What changed since").click()
    expect(versions.locator(".diff")).to_have_text("~ conv1 outmaps 16 → 24")
    rows.nth(1).get_by_role("button", name="What changed since").click()
    expect(versions.locator(".diff")).to_have_text("~ conv1 outmaps 20 → 24")


def test_going_back_adds_a_version_and_can_be_undone(versions: Any) -> None:
    rows = versions.get_by_role("listitem")
    rows.nth(2).get_by_role("button", name="Go back to it").click()
    expect(rows).to_have_count(4)
    expect(versions.get_by_role("button", name="Saved")).to_be_visible()
    go(versions, "Edit")
    expect(layer(versions, "conv1")).to_contain_text("outmaps=16")
    for value in ("24", "20", "16"):
        versions.keyboard.press("Control+z")
        expect(layer(versions, "conv1")).to_contain_text(f"outmaps={value}")
    for value in ("20", "24", "16"):
        versions.keyboard.press("Control+Shift+z")
        expect(layer(versions, "conv1")).to_contain_text(f"outmaps={value}")
    versions.keyboard.press("Control+z")
    versions.keyboard.press("Control+s")
    expect(versions.get_by_role("button", name="Saved")).to_be_visible()
    versions.reload()
    expect(layer(versions, "conv1")).to_contain_text("outmaps=24")


def test_an_old_version_is_looked_at_without_keeping_it(versions: Any) -> None:
    rows = versions.get_by_role("listitem")
    rows.nth(1).get_by_role("button", name="Open").click()
    expect(versions.get_by_role("button", name="Save", exact=True)).to_be_visible()
    go(versions, "Edit")
    expect(layer(versions, "conv1")).to_contain_text("outmaps=20")
    versions.keyboard.press("Control+z")
    expect(layer(versions, "conv1")).to_contain_text("outmaps=24")


def test_going_back_over_what_another_tab_has_saved_is_refused(
    versions: Any, context: Any, faults: Any
) -> None:
    other = context.new_page()
    other.goto(versions.url.replace("/history", "/edit"))
    set_outmaps(other, "30")
    other.keyboard.press("Control+s")
    expect(other.get_by_role("button", name="Saved")).to_be_visible()
    rows = versions.get_by_role("listitem")
    rows.nth(2).get_by_role("button", name="Go back to it").click()
    said = versions.get_by_role("status").filter(has_text="conflict")
    expect(said).to_be_visible()
    faults.expect(412)
    go(versions, "Edit")
    expect(layer(versions, "conv1")).to_contain_text("outmaps=24")
