# SPDX-License-Identifier: Apache-2.0
"""Drawing networks: what the page shows of them is what nnl says of the same networks."""

from __future__ import annotations

import re
from typing import Any

import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from tests.browser.drawing import (
    append,
    drop,
    layer,
    names,
    new_project,
    pointer,
    settle,
    total,
    wire,
)

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect


@pytest.fixture
def chain(page: Any) -> Any:
    """Input, convolution and ReLU, each below the other and connected."""
    new_project(page, "Empty")
    for layer_type in ("Input", "PF.convolution", "F.relu"):
        append(page, layer_type)
    layer(page, "x").click()
    page.get_by_label("shape", exact=True).fill("1, 28, 28")
    layer(page, "relu").get_by_text("16 × 26 × 26").wait_for()
    return page


def test_a_drawn_network_costs_what_its_code_costs(page: Any) -> None:
    new_project(page, "Empty")
    drop(page, "Input", 300, 60)
    drop(page, "PF.convolution", 300, 190)
    drop(page, "F.relu", 300, 320)
    drop(page, "PF.affine", 300, 450)
    wire(page, "x: output y", "convolution: input inp")
    wire(page, "convolution: output y", "relu: input x")
    wire(page, "relu: output y", "affine: input inp")
    layer(page, "x").click()
    page.get_by_label("shape", exact=True).fill("1, 28, 28")
    layer(page, "convolution").click()
    page.get_by_label("outmaps").fill("8")
    page.get_by_label("kernel", exact=True).fill("5, 5")
    page.get_by_label("pad", exact=True).fill("")
    layer(page, "affine").click()
    page.get_by_label("n_outmaps").fill("10")
    layer(page, "convolution").get_by_text("8 × 24 × 24").wait_for()
    layer(page, "affine").get_by_text("10", exact=True).wait_for()

    with nn.parameter_scope("drawn"), nn.auto_forward(False):
        PF.affine(F.relu(PF.convolution(nn.Variable((1, 1, 28, 28)), 8, (5, 5))), 10)
        sizes = [parameter.size for parameter in nn.get_parameters().values()]
    assert total(page, "parameters") == sum(sizes)
    assert total(page, "multiply_adds") == 8 * 24 * 24 * 25 + 8 * 24 * 24 * 10


def test_an_impossible_kernel_is_an_error_that_one_click_repairs(chain: Any) -> None:
    layer(chain, "convolution").click()
    chain.get_by_label("kernel", exact=True).fill("40, 40")
    wrong = chain.locator(".layer.wrong")
    expect(wrong).to_have_count(1)
    expect(wrong.locator(".error")).to_contain_text("kernel")
    expect(layer(chain, "relu")).to_have_class(re.compile("upstream"))
    wrong.get_by_role("button").click()
    expect(chain.locator(".layer.wrong")).to_have_count(0)
    expect(chain.get_by_role("region", name="Problems")).not_to_contain_text("error")


def test_wrong_connections_are_refused_with_the_reason(chain: Any) -> None:
    status = chain.get_by_role("status")
    wire(chain, "relu: output y", "convolution: input inp")
    expect(status).to_contain_text("circle")
    append(chain, "Input")
    wire(chain, "y: output y", "relu: input x")
    expect(status).to_contain_text("has a source already")
    assert chain.locator(".react-flow__edge").count() == 2


def test_everything_can_be_undone_and_done_again(chain: Any) -> None:
    def state() -> str:
        return chain.evaluate(
            """() => JSON.stringify([...document.querySelectorAll('.react-flow__node')].map(e =>
                [e.style.transform, e.querySelector('.layer').innerText]).sort())
                + document.querySelectorAll('.react-flow__edge').length"""
        )

    def settled() -> str:
        settle(chain)
        return state()

    layer(chain, "relu").click()
    states = [settled()]
    pointer(chain, "relu", [(5, 5), (80, 30)])
    states.append(settled())
    layer(chain, "convolution").click()
    chain.get_by_label("outmaps").fill("32")
    states.append(settled())
    chain.locator(".react-flow__pane").click(position={"x": 20, "y": 300})
    chain.keyboard.press("Control+a")
    chain.keyboard.press("Control+d")  # three layers and their edges are one step
    states.append(settled())
    chain.keyboard.press("Delete")
    assert names(chain) == ["convolution", "relu", "x"]
    chain.keyboard.press("Control+a")
    chain.keyboard.press("Delete")
    assert names(chain) == []
    chain.keyboard.press("Control+z")
    chain.keyboard.press("Control+z")
    for wanted in reversed(states):
        assert settled() == wanted
        chain.keyboard.press("Control+z")
    chain.keyboard.press("Control+Shift+z")
    for wanted in states[1:]:
        chain.keyboard.press("Control+Shift+z")
        assert settled() == wanted


def test_a_late_answer_for_an_undone_state_is_not_shown(chain: Any) -> None:
    layer(chain, "convolution").click()
    chain.get_by_label("kernel", exact=True).fill("40, 40")
    layer(chain, "convolution").get_by_text("kernel").first.wait_for()
    settle(chain)
    chain.locator(".react-flow__pane").click(position={"x": 20, "y": 300})
    chain.keyboard.press("Control+z")
    layer(chain, "relu").get_by_text("16 × 26 × 26").wait_for()
    settle(chain)

    late: list[Any] = []
    chain.route("**/analyze", lambda route: late.append(route))
    with chain.expect_request("**/analyze"):
        chain.keyboard.press("Control+Shift+z")
    chain.keyboard.press("Control+z")
    with chain.expect_response("**/analyze"):
        late[0].continue_()
    chain.wait_for_timeout(200)
    assert len(late) == 1, "the state that is shown was asked about again"
    expect(layer(chain, "relu")).to_contain_text("16 × 26 × 26")


def test_layers_travel_by_the_clipboard(chain: Any, context: Any) -> None:
    chain.locator(".react-flow__pane").click(position={"x": 20, "y": 300})
    chain.keyboard.press("Control+a")
    chain.keyboard.press("Control+c")
    chain.keyboard.press("Control+v")
    assert names(chain) == ["convolution", "convolution_2", "relu", "relu_2", "x", "x_2"]
    assert chain.locator(".react-flow__edge").count() == 4
    other = context.new_page()
    new_project(other, "Empty")
    other.locator(".react-flow__pane").click()
    other.keyboard.press("Control+v")
    assert names(other) == ["convolution", "relu", "x"]
    expect(layer(other, "relu")).to_contain_text("16 × 26 × 26")


def test_a_network_can_be_built_without_a_pointer(page: Any) -> None:
    new_project(page, "Empty")
    for text in ("Input", "PF.convolution", "F.relu"):
        page.get_by_label("Find a layer").focus()
        page.keyboard.press("Control+a")
        page.keyboard.type(text)
        page.keyboard.press("Enter")
    assert names(page) == ["convolution", "relu", "x"]
    assert page.locator(".react-flow__edge").count() == 2
    page.locator(".react-flow__node", has_text="relu").focus()
    page.keyboard.press("Enter")
    before = layer(page, "relu").bounding_box()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert layer(page, "relu").bounding_box()["x"] > before["x"]
    page.get_by_role("button", name="Disconnect convolution from x").focus()
    page.keyboard.press("Enter")
    assert page.locator(".react-flow__edge").count() == 1
    page.get_by_label("x", exact=True).select_option(label="convolution")
    assert page.locator(".react-flow__edge").count() == 2


def test_enter_appends_the_layer_that_is_called_as_was_typed(page: Any) -> None:
    new_project(page, "Empty")
    for text in ("input", "relu", "F.tanh", "max poo"):
        page.get_by_label("Find a layer").fill(text)
        page.keyboard.press("Enter")
        settle(page)
    assert names(page) == ["max_pooling", "relu", "tanh", "x"]
    canvas, first = page.locator(".canvas").bounding_box(), layer(page, "x").bounding_box()
    assert first["x"] > canvas["x"] + 100, "the first layer stands in the corner"


def test_a_unit_is_made_entered_and_unpacked(chain: Any) -> None:
    before = total(chain, "parameters")
    layer(chain, "convolution").click()
    layer(chain, "relu").click(modifiers=["Shift"])
    chain.keyboard.press("Control+g")
    assert names(chain) == ["unit", "x"]
    expect(layer(chain, "unit")).to_contain_text("16 × 26 × 26")
    assert total(chain, "parameters") == before
    layer(chain, "unit").dblclick()
    chain.wait_for_url("**/edit/unit")
    assert names(chain) == ["convolution", "in", "relu"]
    chain.get_by_role("tab", name="main").click()
    layer(chain, "unit").click()
    chain.keyboard.press("Control+Shift+g")
    assert names(chain) == ["convolution", "relu", "x"]
    expect(layer(chain, "relu")).to_contain_text("16 × 26 × 26")
    assert total(chain, "parameters") == before


def test_python_code_gives_the_same_network(chain: Any) -> None:
    chain.get_by_role("tab", name="Python").click()
    code = chain.locator(".code")
    expect(code).to_contain_text("PF.convolution")
    layer(chain, "convolution").click()
    expect(code.locator(".current")).to_contain_text("convolution")
    layer(chain, "convolution").click()
    chain.get_by_label("outmaps").fill("24")
    expect(code).to_contain_text("24")


def test_a_layer_is_found_by_its_address(project: Any) -> None:
    layer(project, "conv2").click()
    expect(project).to_have_url(re.compile(r"\?node=n\d+$"))
    project.reload()
    expect(project.get_by_label("Name", exact=True)).to_have_value("conv2")


def test_saving_keeps_and_a_second_tab_sees_the_conflict(
    project: Any, context: Any, faults: Any
) -> None:
    other = context.new_page()
    other.goto(project.url)
    for tab, outmaps in ((project, "20"), (other, "24")):
        layer(tab, "conv1").click()
        tab.get_by_label("outmaps").fill(outmaps)
    project.keyboard.press("Control+s")
    expect(project.get_by_role("button", name="Saved")).to_be_visible()
    project.reload()
    expect(layer(project, "conv1")).to_contain_text("outmaps=20")

    other.keyboard.press("Control+s")
    dialog = other.get_by_role("dialog")
    expect(dialog).to_contain_text("Saved elsewhere meanwhile")
    dialog.get_by_role("button", name="Take theirs").click()
    expect(layer(other, "conv1")).to_contain_text("outmaps=20")
    other.keyboard.press("Control+z")
    expect(layer(other, "conv1")).to_contain_text("outmaps=24")
    other.keyboard.press("Control+s")
    expect(other.get_by_role("button", name="Saved")).to_be_visible()


def test_long_names_fit_into_the_palette_beside_a_scroll_bar(project: Any) -> None:
    widths = project.locator(".palette .scroll").evaluate(
        "list => { list.style.width = '220px'; return [list.clientWidth, list.scrollWidth] }"
    )
    assert widths[1] <= widths[0]


def test_the_view_stays_where_a_layer_at_its_edge_is_clicked(chain: Any) -> None:
    settle(chain)
    canvas = chain.locator(".canvas").bounding_box()
    box = layer(chain, "convolution").bounding_box()
    up = canvas["y"] + 30 - box["y"] - box["height"]
    chain.mouse.move(canvas["x"] + 20, 600)
    chain.mouse.down()
    chain.mouse.move(canvas["x"] + 20, 600 + up, steps=3)
    chain.mouse.up()
    before = layer(chain, "convolution").bounding_box()
    assert before["y"] < canvas["y"] < before["y"] + before["height"]
    chain.wait_for_timeout(100)  # a click that follows a drag at once is part of it
    chain.mouse.click(before["x"] + 60, canvas["y"] + 10)
    expect(chain.get_by_label("Name", exact=True)).to_have_value("convolution")
    assert layer(chain, "convolution").bounding_box() == before


def test_a_repair_on_a_layer_selects_what_it_has_added(page: Any) -> None:
    new_project(page, "Empty")
    for layer_type in ("Input", "F.softmax_cross_entropy"):
        append(page, layer_type)
    layer(page, "softmax_cross_entropy").locator(".fix").click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("y")
    page.keyboard.press("Delete")
    expect(layer(page, "softmax_cross_entropy")).to_be_visible()


def test_layers_of_given_parameters_have_names_of_their_own(project: Any) -> None:
    titles = project.locator(".palette .scroll > div").evaluate_all(
        "all => all.map(one => [...one.querySelectorAll('button')].map(b => b.textContent.trim()))"
    )
    for category in titles:
        assert len(set(category)) == len(category)
