# SPDX-License-Identifier: Apache-2.0
"""What a user does on the canvas, with the mouse, and what is to be seen there."""

from __future__ import annotations

from typing import Any


def new_project(page: Any, sample: str) -> None:
    page.goto("/")
    page.get_by_role("button", name=sample, exact=True).click()
    page.locator(".canvas").wait_for()
    page.locator(".palette li").first.wait_for()


def drop(page: Any, layer_type: str, x: int, y: int) -> None:
    """Drag a layer from the palette to a place on the canvas."""
    page.get_by_label("Find a layer").fill(layer_type)
    item = page.locator(f'.palette [data-layer="{layer_type}"]')
    item.drag_to(page.locator(".react-flow__pane"), target_position={"x": x, "y": y})


def append(page: Any, layer_type: str) -> None:
    """Double-click a layer of the palette: below the selected one, connected to it."""
    page.get_by_label("Find a layer").fill(layer_type)
    page.locator(f'.palette [data-layer="{layer_type}"]').dblclick()


def settle(page: Any) -> None:
    """Wait until the page shows what nnl says of the last edit."""
    page.locator('.canvas[aria-busy="false"]').wait_for()


def wire(page: Any, source: str, target: str) -> None:
    """Drag from an output to an input; both by the names that their points have."""
    settle(page)
    ends = [page.get_by_label(name, exact=True).bounding_box() for name in (source, target)]
    (x, y), (to_x, to_y) = [(box["x"] + 5, box["y"] + 5) for box in ends]
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move((x + to_x) / 2, (y + to_y) / 2)
    page.mouse.move(to_x, to_y)
    page.mouse.up()


def layer(page: Any, name: str) -> Any:
    return page.locator(".layer", has=page.locator(".name", has_text=name).and_(
        page.get_by_text(name, exact=True)
    ))  # fmt: skip


def names(page: Any) -> list[str]:
    return sorted(page.locator(".layer .name").all_inner_texts())


def total(page: Any, what: str) -> int:
    """A total as a whole number."""
    cell = page.locator(f'[data-total="{what}"] td.number').first
    return int(cell.get_attribute("title").replace(",", ""))


def pointer(page: Any, name: str, steps: list[tuple[int, int]]) -> None:
    """Drag a layer by its name over these places, relative to where it is."""
    box = layer(page, name).locator(".name").bounding_box()
    x, y = box["x"] + 5, box["y"] + 5
    page.mouse.move(x, y)
    page.mouse.down()
    for dx, dy in steps:
        page.mouse.move(x + dx, y + dy)
    page.mouse.up()
