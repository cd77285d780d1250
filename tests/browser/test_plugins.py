# SPDX-License-Identifier: Apache-2.0
"""Plug-ins on the page: pictures that explain a row, and programs that nobody has trusted yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Server
from tests.browser.running import finished

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect

# As somebody would write it for Neural Network Console.
PLUGIN = '''"""Shows a sample with its pixels turned around."""
import argparse

from nnl.console.trials.explaining import sample, write_map

parser = argparse.ArgumentParser(description="Turned: a sample upside down.")
parser.add_argument("-d", "--dataset", required=True, help="data set (csv)")
parser.add_argument("-r", "--row", required=True, type=int, help="sample (row) default=0")
parser.add_argument("-s", "--strength", type=float, help="contrast (float) default=1.0")
parser.add_argument("-k", "--kind", choices=["rows", "both"], default="rows", help="what is turned")
parser.add_argument("-o", "--output", default="turned.png", help="picture (image)")
args = parser.parse_args()
x = sample(args.dataset, args.row)[0, 0] * (args.strength or 1.0)
write_map(args.output, x[::-1, ::-1] if args.kind == "both" else x[::-1])
print(f"row {args.row}, {args.kind}")
'''


@pytest.fixture(scope="module")
def evaluation(chromium: Any, cookies: list[Any], server: Server) -> str:
    """The address of an evaluation of the trained digits sample."""
    pytest.importorskip("sklearn")
    context = chromium.new_context(base_url=server.address)
    context.add_cookies(cookies)

    def api(method: str, path: str, **options: Any) -> Any:
        options["headers"] = {"X-NNL": "1"}
        answer = context.request.fetch(f"/api/v1{path}", method=method, **options)
        assert answer.ok, answer.text()
        return answer.json()

    project = api("POST", "/projects", data={"name": "explained", "sample": "digits"})["id"]
    given = {"project": project, "kind": "train", "config": {"max_epoch": 2}}
    trial = finished(api, "/trials", given)
    found = finished(api, f"/trials/{trial['id']}/evaluate", {"weights": "best"})
    context.close()
    return f"/p/{project}/eval/{found['id']}"


def shown(panel: Any, name: str) -> None:
    """Wait for a picture that the browser could draw."""
    picture = panel.get_by_role("img", name=name)
    expect(picture).to_be_visible(timeout=60_000)
    expect(picture).to_have_js_property("complete", True)
    assert picture.evaluate("e => e.naturalWidth") > 32


def test_grad_cam_of_a_row_is_a_picture(page: Any, evaluation: str) -> None:
    page.goto(evaluation)
    panel = page.get_by_role("region", name="Plug-ins")
    panel.get_by_label("Plug-in").select_option(label="Grad-CAM")
    expect(panel.get_by_role("button", name="Run")).to_be_disabled()
    page.get_by_role("button", name="Row 3", exact=True).click()
    expect(panel).to_contain_text("Explain row 3")
    panel.get_by_role("button", name="Run").click()
    shown(panel, "grad_cam.png")
    panel.get_by_text("What it printed").click()
    expect(panel).to_contain_text("class ")
    page.get_by_role("button", name="Row 4", exact=True).click()
    expect(panel).to_contain_text("Explain row 4")
    expect(panel.get_by_role("img")).to_have_count(0)  # it is not of this row
    page.get_by_role("button", name="Row 3", exact=True).click()
    shown(panel, "grad_cam.png")


def test_a_row_is_explained_by_its_context_menu(page: Any, evaluation: str) -> None:
    page.goto(evaluation)
    row = page.locator('tr[data-row="5"]')
    row.click(button="right")
    menu = page.get_by_role("menu", name="Explain")
    names = ["Grad-CAM", "LIME", "SHAP", "SmoothGrad", "TracIn"]
    expect(menu.get_by_role("menuitem")).to_have_text(names)
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    row.click(button="right")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    panel = page.get_by_role("region", name="Plug-ins")
    expect(panel).to_contain_text("Explain row 5")
    expect(panel).to_contain_text("LIME: which parts")
    panel.get_by_role("button", name="Run").click()
    shown(panel, "lime.png")


@pytest.mark.parametrize("plugin", ["lime", "shap", "smooth_grad"])
def test_other_explanations_of_a_row_are_pictures_too(
    page: Any, evaluation: str, plugin: str
) -> None:
    page.goto(f"{evaluation}?row=1&plugin={plugin}")
    panel = page.get_by_role("region", name="Plug-ins")
    panel.get_by_role("button", name="Run").click()
    shown(panel, f"{plugin}.png")


def test_a_plugin_of_the_folder_is_refused_until_it_is_trusted(
    page: Any, evaluation: str, server: Server, context: Any
) -> None:
    (server.folder / "plugins").mkdir(exist_ok=True)
    path = Path(server.folder) / "plugins" / "turned.py"
    path.write_text(PLUGIN)
    page.goto(f"{evaluation}?row=0")
    panel = page.get_by_role("region", name="Plug-ins")
    panel.get_by_label("Plug-in").select_option(label="Turned")
    expect(panel).to_contain_text("This plug-in is not trusted yet.")
    expect(panel.get_by_role("button", name="Run")).to_have_count(0)
    given = {"args": {}, "trial": evaluation.rpartition("/")[2], "row": 0}
    answer = context.request.post("/api/v1/plugins/turned/run", data=given, headers={"X-NNL": "1"})
    assert answer.status == 403 and answer.json()["code"] == "untrusted"

    panel.get_by_role("button", name="Trust this file").click()
    panel.get_by_label("kind").select_option("both")
    panel.get_by_label("strength").fill("0.5")
    panel.get_by_role("button", name="Run").click()
    shown(panel, "turned.png")
    panel.get_by_text("What it printed").click()
    expect(panel).to_contain_text("row 0, both")

    path.write_text(PLUGIN.replace("row {", "ROW {"))
    page.reload()
    expect(panel).to_contain_text("This plug-in is not trusted yet.")


def test_a_plugin_that_fails_says_why(page: Any, evaluation: str) -> None:
    page.goto(f"{evaluation}?row=0&plugin=grad_cam")
    panel = page.get_by_role("region", name="Plug-ins")
    panel.get_by_label("maps").fill("nowhere")
    panel.get_by_role("button", name="Run").click()
    expect(panel.get_by_role("alert")).to_contain_text(
        "the network has no variable 'nowhere'", timeout=60_000
    )


def test_a_plugin_runs_from_its_own_page(page: Any, evaluation: str, server: Server) -> None:
    (server.folder / "plugins").mkdir(exist_ok=True)
    (server.folder / "plugins" / "broken.py").write_text("def f(:")
    page.goto("/plugins")
    broken = page.get_by_role("listitem").filter(has_text="Broken")
    expect(broken).to_contain_text("broken")
    broken.get_by_role("link").click()
    expect(page.get_by_role("alert")).to_contain_text("it is no Python")
    page.get_by_role("link", name="Grad-CAM").click()
    form = page.get_by_role("region", name="Grad-CAM")
    form.get_by_label("model").select_option(index=1)
    form.get_by_label("dataset").select_option(label="digits valid")
    form.get_by_label("row").fill("5")
    form.get_by_role("button", name="Run").click()
    shown(form, "grad_cam.png")
