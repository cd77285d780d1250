# SPDX-License-Identifier: Apache-2.0
"""The page as a whole: how it is reached, what it weighs, that it can be read by all."""

from __future__ import annotations

import gzip
import re
import time
from typing import Any

import pytest

from nnl.deep500.report import Report
from tests.browser.conftest import BUILT, NAMELESS, Server
from tests.browser.running import finished

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect


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
    page.wait_for_load_state("networkidle")  # the browser's reports come after the answers
    for _ in range(2):  # of the project and of its document
        faults.expect(404)


# Marks what has the focus as reached; says what that is and whether one sees that it has it.
FOCUSED = """() => {
    const e = document.activeElement;
    if (e === document.body || e.dataset.reached) return null;
    e.dataset.reached = "1";
    // Of what the canvas draws, a part of it shows the focus.
    const style = getComputedStyle(e.querySelector(".layer, .react-flow__edge-path") ?? e);
    const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0
        || e.matches(".react-flow__edge") && style.strokeWidth === "4px";
    return [e.outerHTML.slice(0, 120), seen];
}"""
# What the Tab key should reach. Of tabs it reaches the chosen one; arrows lead to the others.
UNREACHED = """() => [...document.querySelectorAll(
        "button, a[href], input, select, textarea, summary, [tabindex='0']")]
    .filter(e => e.checkVisibility({ visibilityProperty: true }) && !e.disabled && e.tabIndex >= 0
        && !e.dataset.reached && e.getAttribute("aria-disabled") !== "true")
    .map(e => e.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def places(api: Any, server: Server) -> list[str]:
    """Addresses of all pages, those of a project with a trial and its evaluation too."""
    rows = [{"backend": b, "phase": "inference", "median_s": 0.1} for b in ("nnl", "torch")]
    report, other = Report("network", rows), Report("network", rows[:1])
    (server.folder / "reports").mkdir(exist_ok=True)
    for one in (report, other):
        one.write(server.folder / "reports" / f"{one.id}.json")
    project = api("POST", "/projects", data={"name": "digits", "sample": "digits"})["id"]
    trained = finished(api, "/trials", {"project": project, "config": {"max_epoch": 2}})
    trial, data = trained["id"], trained["config"]["dataset"]["valid"]
    evaluation = finished(api, f"/trials/{trial}/evaluate", {})["id"]
    own = ("edit", "edit?node=n2", "config", "history", "search", "train", f"train/{trial}",
           "eval", f"eval/{evaluation}?row=1", f"compare?trials={trial},{trial}", "infer",
           f"infer/{trial}?data={data}&row=1")  # fmt: skip
    common = ("/", "/data", f"/data/{data}", f"/data/{data}?view=statistics", "/plugins", "/quick",
              "/plugins/grad_cam", "/reports", f"/reports/{report.id}",
              f"/reports/{report.id}?with={other.id}", "/help")  # fmt: skip
    return [*common, *(f"/p/{project}/{path}" for path in own)]


def visit(page: Any, path: str) -> None:
    page.goto(path)
    page.locator("main > *").first.wait_for()
    expect(page.locator(".loading")).to_have_count(0)


def test_every_control_has_a_name_and_is_reached_by_keyboard(page: Any, places: list[str]) -> None:
    for path in places:
        visit(page, path)
        assert page.evaluate(NAMELESS) == [], path
        hidden = []
        for _ in range(600):
            page.keyboard.press("Tab")
            focused = page.evaluate(FOCUSED)
            if focused is None:
                break
            hidden += [] if focused[1] else [focused[0]]
        assert hidden == [], f"{path}: one does not see that these have the focus"
        assert page.evaluate(UNREACHED) == [], path


# Texts whose contrast to what is behind them is less than WCAG 2.2 asks for (AA, 4.5 to 1), but
# for those of controls that cannot be used now.
FAINT = """() => {
    const paper = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = (color) => {
        paper.clearRect(0, 0, 1, 1);
        paper.fillStyle = color;
        paper.fillRect(0, 0, 1, 1);
        return [...paper.getImageData(0, 0, 1, 1).data].map((value) => value / 255);
    };
    const over = ([r, g, b, a], under) =>
        [r, g, b].map((value, i) => value * a + under[i] * (1 - a));
    const ground = (e) => {
        const own = rgba(getComputedStyle(e).backgroundColor);
        if (own[3] === 1 || !e.parentElement) return own.slice(0, 3);
        return over(own, ground(e.parentElement));
    };
    const opacity = (e) =>
        e ? Number(getComputedStyle(e).opacity) * opacity(e.parentElement) : 1;
    const luminance = (color) => color
        .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const faint = [];
    for (const e of document.querySelectorAll("body *")) {
        const text = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join("");
        if (!/\\w/.test(text) || !e.checkVisibility() || !e.getClientRects().length) continue;
        if (e.closest(":disabled, [aria-disabled='true'], svg, option")) continue;
        const behind = ground(e);
        const [r, g, b, a] = rgba(getComputedStyle(e).color);
        const both = [over([r, g, b, a * opacity(e)], behind), behind].map(luminance);
        const ratio = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
        if (ratio < 4.5) faint.push(`${text.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
    }
    return [...new Set(faint)];
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read(page: Any, places: list[str], theme: str) -> None:
    page.add_init_script(f"localStorage.setItem('nnl-theme', '{theme}')")
    for path in places:
        visit(page, path)
        assert page.evaluate(FAINT) == [], path


def test_a_sample_that_is_being_made_says_so(page: Any) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        if route.request.method == "POST":
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/v1/projects", hold)
    page.goto("/")
    sample = page.get_by_role("button", name="Handwritten digits")
    sample.click()
    page.get_by_text("Loading Handwritten digits").wait_for()
    assert sample.is_disabled()
    held[0].continue_()
    page.locator(".layer").first.wait_for()
    assert len(held) == 1


def test_drawings_follow_the_system_into_the_dark(page: Any, places: list[str]) -> None:
    page.goto(next(path for path in places if re.search(r"/train/\w+$", path)))
    canvas = page.get_by_role("figure", name="Validation").locator("canvas")
    canvas.wait_for()
    light = canvas.evaluate("canvas => canvas.toDataURL()")
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(500)
    assert canvas.evaluate("canvas => canvas.toDataURL()") != light


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
