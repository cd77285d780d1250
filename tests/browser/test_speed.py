# SPDX-License-Identifier: Apache-2.0
"""ResNet-152 on the canvas: it is usable soon, and dragging keeps up with the hand."""

from __future__ import annotations

import time
from typing import Any

from nnl.console.documents.samples import resnet_152
from tests.browser.drawing import settle

NODES = 517  # with the labels and the loss
STEPS = 40


def test_resnet_152_is_usable_soon_and_drags_smoothly(page: Any, api: Any) -> None:
    api("POST", "/projects", data={"name": "big", "document": resnet_152().to_json()})
    page.goto("/")
    page.get_by_role("heading", name="Projects").wait_for()
    begin = time.perf_counter()
    page.get_by_role("link", name="big", exact=True).first.click()
    page.locator(".layer").first.wait_for()
    settle(page)
    page.get_by_text(f"{NODES} layers").wait_for()
    ready_s = time.perf_counter() - begin

    box = page.locator(".layer .name").first.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    begin = time.perf_counter()
    for step in range(STEPS):
        page.mouse.move(box["x"] + 20 + 3 * step, box["y"] + 20 + 2 * step)
        page.evaluate("() => new Promise(requestAnimationFrame)")
    drag_ms = (time.perf_counter() - begin) / STEPS * 1000
    page.mouse.up()
    print(f"ready after {ready_s:.2f} s, {drag_ms:.1f} ms a step")
    assert ready_s <= 3
    assert drag_ms <= 50
