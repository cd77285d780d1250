# SPDX-License-Identifier: Apache-2.0
"""What a network gets wrong: the numbers are scikit-learn's, a cell leads to its samples."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.running import finished, table
from tests.console.networks import chain, named

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
expect = sync_api.expect


@pytest.fixture(scope="module")
def trial(api: Any) -> Any:
    """A network of digits after an epoch, which still mistakes some."""
    project = api("POST", "/projects", data={"name": "digits", "sample": "digits"})["id"]
    return finished(api, "/trials", {"project": project, "config": {"max_epoch": 1}})


@pytest.fixture(scope="module")
def evaluation(api: Any, trial: Any) -> Any:
    return finished(api, f"/trials/{trial['id']}/evaluate", {})


@pytest.fixture
def evaluated(page: Any, evaluation: Any) -> Any:
    page.goto(f"/p/{evaluation['project']}/eval/{evaluation['id']}")
    page.get_by_role("table", name="Confusion matrix").wait_for()
    return page


def download(page: Any, label: str) -> Path:
    page.locator("summary", has_text="Download").click()
    with page.expect_download() as found:
        page.get_by_role("menuitem", name=label).click()
    name = found.value.suggested_filename
    path = Path(found.value.path())
    return path.rename(path.with_name(f"{path.name}-{name}"))


def answers(page: Any) -> tuple[Any, Any]:
    """Labels, and likelihoods of every class, from the table that `nnl forward` has written."""
    with open(download(page, "These results (.csv)"), newline="") as file:
        header, *rows = csv.reader(file)
    label = next(i for i, name in enumerate(header) if name.split(":")[0] == "y")
    said = [i for i, name in enumerate(header) if name.startswith("y'")]
    labels = np.array([int(float(row[label])) for row in rows])
    return labels, np.array([[float(row[i]) for i in said] for row in rows])


def test_matrix_and_measures_are_those_of_scikit_learn(evaluated: Any) -> None:
    labels, likelihoods = answers(evaluated)
    predicted = likelihoods.argmax(1)
    shown = [row[1:] for row in table(evaluated, "Confusion matrix")]
    counts = metrics.confusion_matrix(labels, predicted)
    assert [[int(cell or 0) for cell in row] for row in shown] == counts.tolist()
    accuracy = evaluated.locator(".headline dd").first.inner_text()
    assert accuracy == f"{metrics.accuracy_score(labels, predicted):.2%}".replace("%", " %")

    *classes, macro, weighted = table(evaluated, "Classes")
    measured = metrics.precision_recall_fscore_support
    each = np.transpose(measured(labels, predicted))
    for row, wanted in zip(classes, each, strict=True):
        assert [float(cell.rstrip(" %")) for cell in row[1:]] == pytest.approx(
            [*wanted[:3] * 100, wanted[3]], abs=0.006
        )
    for row, average in ((macro, "macro"), (weighted, "weighted")):
        wanted = np.array(measured(labels, predicted, average=average)[:3]) * 100
        assert [float(cell.rstrip(" %")) for cell in row[1:4]] == pytest.approx(wanted, abs=0.006)


def rows_shown(page: Any) -> list[int]:
    return page.locator("tr[data-row]").evaluate_all("rows => rows.map(r => +r.dataset.row)")


def test_a_cell_shows_its_samples_and_the_worst_come_first(evaluated: Any) -> None:
    labels, likelihoods = answers(evaluated)
    predicted = likelihoods.argmax(1)
    losses = -np.log(likelihoods[np.arange(len(labels)), labels])
    wrong = metrics.confusion_matrix(labels, predicted)
    np.fill_diagonal(wrong, 0)
    label, taken = np.unravel_index(wrong.argmax(), wrong.shape)
    members = np.flatnonzero((labels == label) & (predicted == taken)).tolist()
    assert members
    evaluated.goto(f"{evaluated.url}?from=50")  # the cell has no such page
    cell = evaluated.get_by_role("button", name=f"{label} taken for {taken}: {len(members)}")
    cell.click()
    expect(cell).to_have_attribute("aria-pressed", "true")
    expect(evaluated.get_by_text(f"1 to {len(members)} of {len(members)}")).to_be_visible()
    assert rows_shown(evaluated) == members
    evaluated.get_by_role("button", name=f"{label} taken for {taken} ×").click()
    expect(evaluated.get_by_text(f"of {len(labels)}", exact=False)).to_be_visible()

    evaluated.get_by_label("Order").select_option("Worst first")
    worst = np.argsort(-losses, kind="stable")
    expect(evaluated.locator("tr[data-row]").first).to_have_attribute("data-row", str(worst[0]))
    assert losses[rows_shown(evaluated)] == pytest.approx(losses[worst[:50]])


def test_a_sample_is_shown_with_all_that_was_said_of_it(evaluated: Any) -> None:
    _, likelihoods = answers(evaluated)
    evaluated.get_by_role("button", name="Row 3", exact=True).click()
    bars = evaluated.locator(".closer").get_by_role("img", name=re.compile("^0: "))
    said = [float(part.split(": ")[1]) for part in bars.get_attribute("aria-label").split(", ")]
    assert said == pytest.approx(likelihoods[3], rel=1e-3, abs=1e-6)
    picture = evaluated.locator(".closer img.large")
    expect(picture).to_be_visible()
    assert picture.evaluate("async p => { await p.decode(); return p.naturalWidth }") == 256
    evaluated.get_by_label("In percent of the row").check()
    shown = [[int(c or 0) for c in row[1:]] for row in table(evaluated, "Confusion matrix")]
    assert all(95 <= sum(row) <= 105 for row in shown)


def test_a_trained_network_is_downloaded_in_every_format(evaluated: Any) -> None:
    onnx = pytest.importorskip("onnx")
    onnx.checker.check_model(onnx.load(download(evaluated, "Download: ONNX")))
    begins = {
        "NNabla with weights (.nnp)": b"PK",
        "NNabla text (.nntxt)": b"",
        "nnl program (.nnlp)": b"",
        "NNB for microcontrollers": b"\x02\0\0\0",
        "TensorFlow Lite": b"",
        "Page (HTML)": b"<!doctype html>",
        "last weights (.nnp)": b"PK",
    }
    for label, begin in begins.items():
        content = download(evaluated, f"Download: {label}").read_bytes()
        assert len(content) > 300 and content.startswith(begin), (label, content[:20])
    code = download(evaluated, "Download: Python code")
    assert code.suffix == ".py"
    compile(code.read_text(), code.name, "exec")


def test_another_data_set_is_chosen_for_an_evaluation(page: Any, api: Any, trial: Any) -> None:
    page.goto(f"/p/{trial['project']}/eval")
    training = api("GET", f"/trials/{trial['id']}")["config"]["dataset"]["train"]
    rows = next(d["rows"] for d in api("GET", "/datasets")["datasets"] if d["id"] == training)
    page.get_by_label("Data set").select_option(training)
    page.get_by_label("Weights").select_option("the last")
    page.get_by_role("button", name=re.compile("^Evaluate trial")).click()
    page.get_by_text(f"1 to 50 of {rows:,}").wait_for(timeout=60_000)
    key = page.url.rpartition("/")[2]
    assert api("GET", f"/trials/{key}")["weights_from"] == {"trial": trial["id"], "weights": "last"}


def test_matrices_of_compared_trials_are_beside_each_other(page: Any, api: Any, trial: Any) -> None:
    evaluation = finished(api, f"/trials/{trial['id']}/evaluate", {})  # the latest ones are shown
    given = {"project": trial["project"], "config": {"max_epoch": 1, "seed": 1}}
    other = finished(api, "/trials", given)
    page.goto(f"/p/{trial['project']}/train/{other['id']}")
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_role("table", name="Confusion matrix").wait_for(timeout=60_000)
    evaluations = [evaluation["id"], page.url.rpartition("/")[2]]
    page.goto(f"/p/{trial['project']}/compare?trials={trial['id']},{other['id']}")
    matrices = page.get_by_role("table", name="Confusion matrix")
    expect(matrices).to_have_count(2)
    valid = trial["config"]["dataset"]["valid"]
    name = next(d["name"] for d in api("GET", "/datasets")["datasets"] if d["id"] == valid)
    expect(page.get_by_role("heading", name=f"On {name}")).to_be_visible()
    for index, key in enumerate(evaluations):
        counts = api("GET", f"/trials/{key}/confusion")["counts"]
        shown = [[int(c or 0) for c in row[1:]] for row in table(page, "Confusion matrix", index)]
        assert shown == counts
    assert "seed" in json.dumps(table(page, "What differs"))


def test_a_regression_shows_what_was_said_and_how_wrong_it_was(page: Any, api: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3))
    rows = ["x__0,x__1,x__2,y__0,y__1"]
    rows += [",".join(map(repr, (*a.tolist(), a[0].item(), -a[1].item()))) for a in x]
    headers = {"Content-Type": "application/octet-stream"}
    data = "\n".join(rows).encode()
    dataset = api("POST", "/datasets?name=r.csv", data=data, headers=headers)["id"]
    document = chain(
        ("Input", "x", {"shape": [3]}),
        ("PF.affine", "fc", {"n_outmaps": [2]}),
        loss="F.squared_error",
    )
    named(document.main, "y").properties["shape"] = [2]
    document.config["dataset"].update(train=dataset, valid=dataset)
    document.config.update(max_epoch=1, batch_size=16)
    given = {"name": "regression", "document": document.to_json()}
    project = api("POST", "/projects", data=given)["id"]
    trial = finished(api, "/trials", {"project": project})
    evaluation = finished(api, f"/trials/{trial['id']}/evaluate", {})
    page.goto(f"/p/{project}/eval/{evaluation['id']}")
    shown = table(page, "Results")
    with open(download(page, "These results (.csv)"), newline="") as file:
        _, *cells = csv.reader(file)
    values = np.array(cells, float)
    errors = ((values[:, 5:7] - values[:, 3:5]) ** 2).mean(1)
    assert [float(row[-1]) for row in shown[:5]] == pytest.approx(errors[:5], rel=1e-3)
    said = [[float(value) for value in row[-2].split(", ")] for row in shown[:5]]
    assert np.allclose(said, values[:5, 5:7], rtol=1e-3)
    page.get_by_text("No confusion matrix").wait_for()
    mean = page.locator(".headline dd").inner_text()
    assert float(mean) == pytest.approx(errors.mean(), rel=1e-3)

    row = next(i for i in range(50) if values[i, 5] < 0 < values[i, 6])
    page.get_by_role("button", name=f"Row {row}", exact=True).click()
    bars = [bar.bounding_box() for bar in page.locator(".closer .bar").all()]
    assert all(bar["height"] >= 1 for bar in bars)
    # One hangs below the line that the other one stands on.
    assert bars[0]["y"] == pytest.approx(bars[1]["y"] + bars[1]["height"], abs=1)
