# SPDX-License-Identifier: Apache-2.0
"""Training from the page: the curves are those of the events, the buttons do what they say."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Server
from tests.browser.drawing import layer
from tests.browser.running import configure, events_of, table, train

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect


def wait_for(page: Any, status: str, seconds: float = 60) -> None:
    shown = page.get_by_role("complementary", name="Trial", exact=True).locator(".status")
    expect(shown).to_have_text(status, timeout=seconds * 1000)


def shown_at(page: Any, title: str, share: float) -> dict[str, float]:
    """What the legend of a drawing says where the pointer is, a share of its width."""
    figure = page.get_by_role("figure", name=title)
    figure.scroll_into_view_if_needed()
    legend = """rows => rows.map(row => [row.querySelector("th").innerText,
        row.querySelector("td").innerText])"""
    for attempt in range(50):  # a drawing that is made anew does not know where the pointer is
        box = figure.locator(".u-over").bounding_box()
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2 + attempt % 2)
        texts = figure.locator(".u-series").evaluate_all(legend)
        if texts[0][1].strip("-– "):
            break
        page.wait_for_timeout(100)
    return {
        name.strip(": "): float(value.replace(",", ""))
        for name, value in texts
        if value.strip("-– ")
    }


@pytest.fixture
def trained(project: Any) -> Any:
    configure(project, 2)
    train(project)
    wait_for(project, "finished")
    return project


def test_points_arrive_one_by_one_and_are_those_of_the_events(project: Any, server: Server) -> None:
    configure(project, 40)
    trial = train(project)
    expect(project.get_by_role("figure", name="Loss")).to_be_visible(timeout=30_000)
    seen = [shown_at(project, "Loss", 0.999)["iteration"]]
    status = project.get_by_role("complementary", name="Trial", exact=True).locator(".status")
    while status.inner_text() != "finished":
        seen.append(shown_at(project, "Loss", 0.999)["iteration"])
        time.sleep(0.05)
    assert len(set(seen)) >= 4, seen

    wait_for(project, "finished")
    project.wait_for_timeout(300)  # all points are asked for once more
    events = events_of(server, trial)
    losses = {e["iteration"]: e["loss"] for e in events if e["event"] == "step_after"}
    epochs = {e["iteration"]: e["metrics"] for e in events if e["event"] == "epoch_end"}
    for share in (0.0, 0.31, 0.64, 0.999):
        point = shown_at(project, "Loss", share)
        assert point["loss"] == pytest.approx(losses[int(point["iteration"])], rel=1e-3)
    last = shown_at(project, "Validation", 0.999)
    assert last["valid_error"] == pytest.approx(
        epochs[int(last["iteration"])]["valid_error"], rel=1e-3, abs=1e-6
    )


def test_a_training_can_be_suspended_continued_and_stopped(project: Any) -> None:
    configure(project, 400)
    train(project)
    wait_for(project, "running")
    expect(project.get_by_role("figure", name="Loss")).to_be_visible(timeout=30_000)
    project.get_by_role("button", name="Suspend").click()
    wait_for(project, "suspended")
    before = shown_at(project, "Loss", 0.999)["iteration"]
    project.wait_for_timeout(700)
    assert shown_at(project, "Loss", 0.999)["iteration"] == before
    project.get_by_role("button", name="Resume").click()
    wait_for(project, "running")
    project.get_by_role("button", name="Stop").click()
    wait_for(project, "interrupted")


def test_smoothing_leaves_a_band_and_the_scale_is_chosen(trained: Any) -> None:
    losses = shown_at(trained, "Loss", 0.5)["loss"]
    trained.get_by_label("Smoothing").fill("0.9")
    expect(trained).to_have_url(re.compile("smooth=0.9"))
    smooth = shown_at(trained, "Loss", 0.5)
    assert smooth["loss (lower)"] <= min(losses, smooth["loss"])
    assert max(losses, smooth["loss"]) <= smooth["loss (upper)"]
    legend = trained.get_by_role("figure", name="Loss").locator(".u-series", has_text="upper")
    expect(legend.first).to_be_hidden()
    trained.get_by_label("Logarithmic").check()
    expect(trained).to_have_url(re.compile("scale=log"))
    assert shown_at(trained, "Loss", 0.5)["loss"] == smooth["loss"]


def test_the_log_has_room_below_the_curves(trained: Any) -> None:
    log = trained.get_by_label("Log", exact=True)
    expect(log).to_contain_text("best_epoch")
    assert trained.locator("figure.curves").count() > 1
    assert log.bounding_box()["height"] > 200


def test_a_training_without_a_number_says_so_and_long_numbers_are_not_cut(project: Any) -> None:
    project.get_by_role("link", name="Config").click()
    project.get_by_label("alpha").fill("1e30")
    project.get_by_role("link", name="Edit", exact=True).click()
    train(project)
    wait_for(project, "failed")
    expect(project.locator(".failure")).to_contain_text("a smaller learning rate")
    figure = project.get_by_role("figure", name="Learning rate")
    left = figure.locator(".u-over").bounding_box()["x"] - figure.bounding_box()["x"]
    assert left > 7 * len("1.00e+30") + 8, "what is left of the drawing is for its numbers"


def test_a_profile_says_which_part_of_a_step_takes_how_long(project: Any, server: Server) -> None:
    project.get_by_role("button", name="Profile").click()
    project.get_by_role("table", name="Times").wait_for(timeout=60_000)
    rows = table(project, "Times")
    key = project.url.rpartition("/")[2]
    [path] = Path(server.folder).rglob(f"{key}/**/profile.csv")
    written = dict(line.rsplit(",", 1) for line in path.read_text().splitlines()[1:])
    assert {row[0] for row in rows} == set(written)
    times = [float(row[1]) for row in rows]
    assert times == pytest.approx([float(written[row[0]]) for row in rows], rel=1e-3)
    assert times == sorted(times, reverse=True)
    assert any("conv1" in row[0] for row in rows)


def test_a_network_comes_back_into_the_editor(trained: Any) -> None:
    trained.get_by_role("link", name="Edit", exact=True).click()
    layer(trained, "conv1").click()
    trained.get_by_label("outmaps").fill("8")
    expect(layer(trained, "conv1")).to_contain_text("outmaps=8")
    trained.get_by_role("link", name="Training").click()
    trained.locator(".trial-name").first.click()
    trained.get_by_role("button", name="Open in Edit").click()
    expect(layer(trained, "conv1")).to_contain_text("outmaps=16")
    trained.keyboard.press("Control+z")
    expect(layer(trained, "conv1")).to_contain_text("outmaps=8")


def test_a_network_opened_with_weights_trains_on_from_the_same_loss(
    project: Any, server: Server, api: Any
) -> None:
    """Steps that see all samples in one order: the loss of each depends on nothing else."""
    rows = max(d["rows"] for d in api("GET", "/datasets")["datasets"] if "digits" in d["name"])
    project.get_by_role("link", name="Config").click()
    project.get_by_label("Batch size").fill(str(rows))
    project.get_by_label("Shuffle").uncheck()
    project.get_by_label("Keep the best weights").uncheck()

    def losses(epochs: int) -> list[float]:
        configure(project, epochs)
        trial = train(project)
        wait_for(project, "finished")
        return [e["loss"] for e in events_of(server, trial) if e["event"] == "step_after"]

    whole, begun = losses(4), losses(3)
    assert begun == whole[:3] and len(whole) == 4
    project.get_by_role("button", name="… with weights").click()
    expect(project.get_by_text("Starts with the weights of a trial")).to_be_visible()
    assert losses(1) == pytest.approx(whole[3:], rel=1e-5)
    project.get_by_role("link", name="Edit", exact=True).click()
    project.get_by_role("button", name="forget them").click()
    assert losses(1) == whole[:1]


def test_trials_are_found_named_and_locked(trained: Any) -> None:
    trained.get_by_label("Name", exact=True).fill("the good one")
    trained.get_by_label("Tags").fill("keep, small")
    trained.get_by_role("button", name="Lock").click()
    card = trained.locator(".trial").first
    expect(card).to_contain_text("the good one")
    expect(card).to_contain_text("small")
    expect(card).to_contain_text("locked")
    trained.get_by_label("Find a trial").fill("nothing like it")
    trained.get_by_text("No trial fits").wait_for()
    trained.get_by_label("Find a trial").fill("good one")
    expect(card).to_contain_text("the good one")


def test_a_deleted_trial_leaves_the_lists_of_all_pages(trained: Any, context: Any) -> None:
    other = context.new_page()
    other.goto(trained.url)
    expect(other.locator(".trial")).to_have_count(1)
    details = trained.get_by_role("complementary", name="Trial", exact=True)
    details.locator("summary").click()
    menu, side = details.locator(".menu > div").bounding_box(), details.bounding_box()
    assert menu["x"] >= side["x"], "the menu is cut off"
    details.get_by_text("Move to the trash").click()
    expect(trained.locator(".trial")).to_have_count(0)
    expect(other.locator(".trial")).to_have_count(0)


def test_a_narrow_window_does_not_scroll_sideways(trained: Any) -> None:
    trained.set_viewport_size({"width": 900, "height": 700})
    for name in ("Training", "Edit"):
        trained.get_by_role("link", name=name, exact=True).click()
        assert trained.evaluate("document.documentElement.scrollWidth") == 900
        bar = trained.locator(".topbar").bounding_box()
        assert all(
            tab.bounding_box()["height"] < bar["height"]
            for tab in trained.locator(".topbar .tab").all()
        )


def test_two_trials_are_compared_by_what_differs(trained: Any) -> None:
    trained.get_by_role("link", name="Config").click()
    trained.get_by_label("alpha").fill("0.01")
    trained.get_by_role("link", name="Edit", exact=True).click()
    layer(trained, "conv1").click()
    trained.get_by_label("outmaps").fill("8")
    train(trained)
    wait_for(trained, "finished")
    for box in trained.get_by_role("checkbox", name=re.compile("Compare trial")).all():
        box.check()
    trained.get_by_role("link", name="Compare 2").click()
    rows = {row[0]: row[1:] for row in table(trained, "What differs")}
    assert rows["optimizer.properties.alpha"] == ["0.01", "not set"]
    assert rows["parameters"] == ["7,546", "9,930"]
    assert not {"batch_size", "max_epoch", "seed", "optimizer.properties"} & rows.keys()
    expect(trained.get_by_role("region", name="Network")).to_contain_text("conv1 outmaps")
    names = trained.get_by_role("figure", name="Validation").locator(".u-series th")
    assert len([name for name in names.all_inner_texts() if "valid_error" in name]) == 2


def test_a_page_says_that_its_server_has_ended_and_goes_on_with_the_next(
    chromium: Any, tmp_path: Path
) -> None:
    first = Server(tmp_path)
    context = chromium.new_context()
    page = context.new_page()
    page.goto(first.link)
    page.get_by_role("button", name="Handwritten digits").click()
    configure(page, 200)
    train(page)
    expect(page.get_by_role("figure", name="Loss")).to_be_visible(timeout=30_000)
    first.process.kill()
    first.process.wait()
    expect(page.get_by_role("status")).to_contain_text("The server does not answer")
    port = first.address.rpartition(":")[2]
    expect(page.get_by_role("status")).to_contain_text(f"--port {port}")
    second = Server(tmp_path, "--port", port)
    try:
        page.wait_for_timeout(4000)  # it is refused until the new address is opened
        context.new_page().goto(second.link)
        expect(page.get_by_role("status")).not_to_contain_text("does not answer")
        wait_for(page, "finished", 120)
        assert shown_at(page, "Loss", 0.999)["iteration"] == 200 * (1438 // 32)
    finally:
        context.close()
        second.stop()


def test_trials_fit_into_their_list(trained: Any) -> None:
    trained.locator(".trial .sparkline").wait_for()
    widths = trained.locator(".trial-list ul").evaluate(
        """list => {
            for (const one of list.querySelectorAll(".number")) one.textContent = "0.005682 @3142";
            return [list.clientWidth, list.scrollWidth]
        }"""
    )
    assert widths[1] <= widths[0]


def test_a_console_that_was_killed_shows_the_whole_curve(
    chromium: Any, faults: Any, tmp_path: Path
) -> None:
    first = Server(tmp_path)
    page = chromium.new_page()
    faults.watch(page)
    page.goto(first.link)
    page.get_by_role("button", name="Handwritten digits").click()
    layer(page, "conv1").wait_for()
    configure(page, 60)
    trial = train(page)
    expect(page.get_by_role("figure", name="Loss")).to_be_visible(timeout=30_000)
    path = page.url.removeprefix(first.address)
    page.goto("about:blank")
    first.process.kill()
    first.process.wait()
    second = Server(tmp_path)
    try:
        page.goto(second.link)
        page.goto(second.address + path)
        wait_for(page, "finished", 120)
        page.wait_for_timeout(300)
        steps = [e for e in events_of(second, trial) if e["event"] == "step_after"]
        assert [e["iteration"] for e in steps] == list(range(1, len(steps) + 1))
        assert shown_at(page, "Loss", 0.999)["iteration"] == len(steps)
    finally:
        page.close()
        second.stop()
