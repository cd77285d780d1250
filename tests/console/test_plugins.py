# SPDX-License-Identifier: Apache-2.0
"""Plugins: forms, who may run them, and what the shipped ones compute on cases solved by hand."""

import hashlib
import json
import resource
import time
from importlib import import_module
from itertools import combinations, product
from math import factorial

import numpy as np
import pytest

from nnl.console.documents.training import Data, write_training
from nnl.console.palette.forms import argument, read_form
from nnl.console.plugins.fairness import fairness
from nnl.console.plugins.grad_cam import grad_cam
from nnl.console.plugins.lime import lime
from nnl.console.plugins.sgd_influence import orders, sgd_influence
from nnl.console.plugins.shap import shap
from nnl.console.plugins.smooth_grad import smooth_grad
from nnl.console.plugins.tracin import tracin
from nnl.console.server.state import Console
from nnl.console.trials import plugin_runs
from nnl.console.trials.explaining import Explained
from nnl.console.trials.inferring import infer
from nnl.converters.nnp.parameter_files import Stored
from tests.console.networks import chain


def saved(path, document, **weights):
    stored = [Stored(k, np.asarray(v, np.float32), True) for k, v in weights.items()]
    x = tuple(document.main.nodes["n1"].properties["shape"])
    write_training(document, path, Data("t.csv", {"x": x, "y": (1,)}, 4), None, stored)
    return path


def linear(path, w, b=0.0, loss="F.squared_error"):
    """y = x w + b, trained with a squared error."""
    w = np.asarray(w, np.float32)
    document = chain(
        ("Input", "x", {"shape": [w.shape[0]]}),
        ("PF.affine", "fc", {"n_outmaps": [w.shape[1]]}),
        loss=loss,
    )
    bias = np.full(w.shape[1], b)
    return saved(path, document, **{"fc/affine/W": w, "fc/affine/b": bias})


# ---- explanations ----


def test_grad_cam_of_a_network_that_ends_in_means_is_its_class_activation_map(tmp_path):
    rng = np.random.default_rng(0)
    w, v = rng.normal(size=(3, 1, 3, 3)), rng.normal(size=(3, 2))
    document = chain(
        ("Input", "x", {"shape": [1, 6, 6]}),
        ("PF.convolution", "conv", {"outmaps": 3, "kernel": [3, 3], "with_bias": False}),
        ("F.global_average_pooling", "mean"),
        ("PF.affine", "fc", {"n_outmaps": [2]}),
        loss="F.softmax_cross_entropy",
    )
    weights = {"conv/conv/W": w, "fc/affine/W": v, "fc/affine/b": [0, 0]}
    network = Explained(saved(tmp_path / "a.nnp", document, **weights))
    x = rng.random((1, 1, 6, 6)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x[0, 0], (3, 3))
    maps = np.einsum("hwij,kij->khw", windows, w[:, 0])
    for number in (0, 1):
        weights = v[:, number] - v.mean(1)  # all that a softmax sees
        wanted = np.maximum(np.einsum("khw,k->hw", maps, weights) / 16, 0)
        assert np.allclose(grad_cam(network, x, number), wanted, atol=1e-5)


def test_smooth_grad_of_a_linear_score_is_its_weights(tmp_path):
    w = np.array([[1.0, 2], [-3, 4], [0, 5]])
    network = Explained(linear(tmp_path / "a.nnp", w))
    x = np.ones((1, 3), np.float32)
    assert np.allclose(smooth_grad(network, x, 1, count=5), w[:, 1], atol=1e-5)


def test_lime_and_shap_of_a_sum_are_its_summands():
    x = np.array([[1.0, 2, 3, 4, 5, 6, 7]], np.float32)
    w = np.array([1, -1, 2, 0, 3, -2, 0.5])
    parts = np.arange(7)

    def predict(samples):
        return samples @ w

    assert np.allclose(lime(predict, x, parts), x[0] * w, atol=1e-4)
    assert np.allclose(shap(predict, x, parts, orders=4), x[0] * w, atol=1e-4)
    shifted = shap(predict, x, parts, orders=2, baseline=1.0)
    assert np.allclose(shifted, (x[0] - 1) * w, atol=1e-4)


def test_shap_shares_what_parts_do_together():
    def product(samples):
        return samples[:, 0] * samples[:, 1] + samples[:, 2]

    found = shap(product, np.array([[2.0, 3, 4]], np.float32), np.arange(3))
    assert np.allclose(found, [3, 3, 4])


def test_shap_is_what_all_subsets_of_parts_say():
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(6, 4)), rng.normal(size=(1, 6))

    def predict(samples):
        return np.tanh(samples @ w).prod(1) + np.abs(samples).max(1)

    def value(present):
        return predict(np.where([i in present for i in range(6)], x, 0.3).astype(np.float32))[0]

    for n in (5, 6):  # exact, and a mean over orders
        parts = np.minimum(np.arange(6), n - 1)
        members = [np.flatnonzero(parts == i).tolist() for i in range(n)]
        wanted = np.zeros(n)
        for i in range(n):
            others = [j for j in range(n) if j != i]
            for k in range(n):
                for chosen in combinations(others, k):
                    kept = [p for j in chosen for p in members[j]]
                    weight = factorial(k) * factorial(n - k - 1) / factorial(n)
                    wanted[i] += weight * (value([*kept, *members[i]]) - value(kept))
        found = shap(predict, x.astype(np.float32), parts, orders=4000, baseline=0.3)
        assert np.allclose(found, wanted, atol=1e-5 if n == 5 else 0.02)
        assert found.sum() == pytest.approx(value(range(6)) - value([]), abs=1e-5)


def test_lime_is_the_weighted_regression_of_all_masks():
    x, parts = np.array([[1.0, -2, 3]], np.float32), np.arange(3)

    def predict(samples):
        return samples[:, 0] * samples[:, 1] + np.maximum(samples[:, 2], samples[:, 0])

    masks = np.array(list(product((0, 1), repeat=3)), float)
    weights = np.exp(-(((1 - masks.mean(1)) / 0.5) ** 2))
    design = np.concatenate([masks, np.ones((8, 1))], 1)
    normal = design.T @ (weights[:, None] * design)
    wanted = np.linalg.solve(normal, design.T @ (weights * predict(masks * x)))[:3]
    assert np.allclose(lime(predict, x, parts, count=60_000, width=0.5), wanted, atol=0.03)


def test_smooth_grad_of_a_square_is_the_gradient_in_the_middle(tmp_path):
    document = chain(
        ("Input", "x", {"shape": [3]}), ("F.pow_scalar", "square", {"val": 2.0}),
        ("F.sum", "sum", {"axis": [1], "keepdims": True}), loss="F.squared_error",
    )  # fmt: skip
    network = Explained(saved(tmp_path / "a.nnp", document))
    x = np.array([[1.0, -2, 0.5]], np.float32)
    found = smooth_grad(network, x, 0, count=400, noise=0.1)
    assert np.allclose(found, 2 * x[0], atol=4 * 2 * 0.3 / np.sqrt(400))
    with pytest.raises(ValueError, match="is fixed at 64, wanted 1"):  # nothing says where it is
        Explained(tmp_path / "a.nnp", 1, exactly=True)
    (said,) = infer(str(tmp_path / "a.nnp"), {"x": x[0].tolist()})["outputs"]
    assert said["shape"] == [1] and said["values"] == [5.25]


def test_tracin_is_the_product_of_gradients(tmp_path):
    w = np.array([[1.0], [-2.0]])
    path = linear(tmp_path / "a.nnp", w, 0.5)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 2)).astype(np.float32), rng.normal(size=(5, 1)).astype(np.float32)

    def gradient(x, y):  # of (x w + b - y)^2
        return 2 * (x @ w + 0.5 - y) * np.append(x, 1)

    wanted = [gradient(x[i], y[i]) @ gradient(x[0], y[0]) for i in range(5)]
    found = tracin([path], {"x": x, "y": y}, {"x": x[:1], "y": y[:1]}, rate=1.0)
    assert np.allclose(found, wanted, rtol=1e-4)


def test_sgd_influence_is_what_training_without_a_sample_changes(tmp_path):
    rng = np.random.default_rng(1)
    w0 = rng.normal(size=(3, 1)) * 0.1
    path = linear(tmp_path / "a.nnp", w0)
    x = rng.normal(size=(12, 3)).astype(np.float32)
    y = (x @ [[1.0], [2], [3]] + rng.normal(size=(12, 1)) * 0.3).astype(np.float32)
    tested_x, tested_y = rng.normal(size=(4, 3)), rng.normal(size=(4, 1))
    rate, size, epochs = 0.002, 4, 2  # small: the method is of first order in it

    def trained(without):
        w, b = w0.astype(np.float32).astype(float), 0.0
        for chosen in orders(12, size, epochs, 0):
            kept = [j for j in chosen if j != without]
            error = x[kept] @ w + b - y[kept]
            gw, gb = 2 * x[kept].T @ error / size, 2 * error.sum() / size
            w, b = w - rate * gw, b - rate * gb
        return ((tested_x @ w + b - tested_y) ** 2).mean()

    whole = trained(None)
    wanted = np.array([trained(j) - whole for j in range(12)])
    training = {"x": x, "y": y}
    tested = {"x": tested_x.astype(np.float32), "y": tested_y.astype(np.float32)}
    found = sgd_influence(path, training, tested, rate, size, epochs)
    assert np.allclose(found, wanted, rtol=0.02, atol=0.05 * np.abs(wanted).max())
    assert np.corrcoef(found, wanted)[0, 1] > 0.999


def test_sgd_influence_goes_through_hidden_layers(tmp_path):
    rng = np.random.default_rng(3)
    v0 = rng.normal(size=(3, 4)).astype(np.float32)
    w0 = rng.normal(size=(4, 1)).astype(np.float32)
    document = chain(
        ("Input", "x", {"shape": [3]}),
        ("PF.affine", "one", {"n_outmaps": [4], "with_bias": False}),
        ("F.tanh", "tanh"),
        ("PF.affine", "two", {"n_outmaps": [1], "with_bias": False}),
        loss="F.squared_error",
    )
    path = saved(tmp_path / "a.nnp", document, **{"one/affine/W": v0, "two/affine/W": w0})
    x, y = rng.normal(size=(8, 3)).astype(np.float32), rng.normal(size=(8, 1)).astype(np.float32)
    tested_x, tested_y = x[:3] + 0.5, y[:3] - 0.5
    rate, size, epochs = 0.005, 4, 3

    def trained(without):  # and its gradients by hand
        v, w = v0.astype(float), w0.astype(float)
        for chosen in orders(8, size, epochs, 0):
            kept = [j for j in chosen if j != without]
            h = np.tanh(x[kept] @ v)
            error = 2 * (h @ w - y[kept]) / size
            v, w = v - rate * x[kept].T @ (error @ w.T * (1 - h * h)), w - rate * h.T @ error
        return ((np.tanh(tested_x @ v) @ w - tested_y) ** 2).mean()

    wanted = np.array([trained(j) - trained(None) for j in range(8)])
    training, tested = {"x": x, "y": y}, {"x": tested_x, "y": tested_y}
    found = sgd_influence(path, training, tested, rate, size, epochs)
    assert np.allclose(found, wanted, atol=0.05 * np.abs(wanted).max())


def test_fairness_is_counted():
    predicted = [1, 1, 0, 0, 1, 0, 0, 0]
    labels = [1, 0, 1, 0, 1, 1, 0, 0]
    group = [1, 1, 1, 1, 0, 0, 0, 0]
    found = fairness(predicted, labels, group)
    assert found == {
        "demographic_parity": 0.25,
        "disparate_impact": 2.0,
        "equal_opportunity": 0.0,
        "equalised_odds": 0.25,
    }


# ---- forms ----

SCRIPT = """
import argparse
def main():
    parser = argparse.ArgumentParser(description="Darker\\n" "pictures")
    parser.add_argument("-i", "--input", help="input image (image) default=x.png", required=True)
    parser.add_argument("-v", "--value", help="factor (float) default=0.5", type=float)
    parser.add_argument("-n", "--new-size", help="pixels(int), default=28")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("-k", "--kind", choices=["a", "b"], default="a")
    parser.add_argument("-o", "--output", help="picture (image) default=out.png")
    args = parser.parse_args()
    open(args.output.replace("png", "txt"), "w").write(str(args.value))
    print("done")
main()
"""


def test_forms_are_read_from_the_help_texts_without_running_anything():
    form = read_form("raise SystemExit\n" + SCRIPT)
    assert form.doc == "Darker\npictures"
    kinds = {f.name: (f.kind, f.default, f.required) for f in form.fields}
    assert kinds == {
        "input": ("image", "x.png", True),
        "value": ("float", 0.5, False),
        "new_size": ("int", 28, False),
        "quiet": ("bool", None, False),
        "kind": ("choice", "a", False),
        "output": ("image", "out.png", False),
    }
    by_name = {f.name: f for f in form.fields}
    assert argument(by_name["value"], 2) == ["--value=2"]
    assert argument(by_name["quiet"], True) == ["--quiet"]
    for name, value in (("value", "2"), ("new_size", True), ("kind", "c"), ("output", "a\0b")):
        with pytest.raises(ValueError, match=name):
            argument(by_name[name], value)
    for source in ("def (", "import os", "\0"):
        with pytest.raises(ValueError, match="it (is no Python|has no arguments)"):
            read_form(source)


WAITS = """import argparse
import os
import time


def main():
    parser = argparse.ArgumentParser(description="Waits for a file.")
    parser.add_argument("-f", "--file", help="its name (text) default=go", default="go")
    while not os.path.exists(parser.parse_args().file):
        time.sleep(0.05)


if __name__ == "__main__":
    main()
"""


def ended(browser, run):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found = browser.get(f"/runs/{run['id']}")
        if found["status"] != "running":
            return found
        time.sleep(0.05)
    raise AssertionError("still running")


def test_a_dropped_in_plugin_runs_when_it_was_allowed_and_again_when_it_changes(browser, console):
    console.plugins.folder.mkdir()
    path = console.plugins.folder / "darker.py"
    path.write_text(SCRIPT.replace("required=True", "required=False"))
    entry = next(p for p in browser.get("/plugins")["plugins"] if p["id"] == "darker")
    assert not entry["trusted"] and not entry["shipped"]
    fields = browser.get("/plugins/darker/schema")["fields"]
    assert [f["name"] for f in fields][:2] == ["input", "value"]
    run = {"args": {"value": 0.25}}
    assert browser.post("/plugins/darker/run", run, 403)["code"] == "untrusted"
    browser.post("/plugins/darker/trust", {"sha256": "0" * 64}, 409)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert browser.post("/plugins/darker/trust", {"sha256": digest})["trusted"]
    found = ended(browser, browser.post("/plugins/darker/run", run, 201))
    assert found["status"] == "finished" and found["log"] == "done\n", found
    assert [a["name"] for a in found["artifacts"]] == ["out.txt"]
    artifact = browser.client.get(f"/api/v1/runs/{found['id']}/artifacts/out.txt")
    assert artifact.text == "0.25"
    assert artifact.headers["content-disposition"].startswith("attachment")
    (console.plugins.root / found["id"] / "out" / "link.png").symlink_to("/etc/hostname")
    assert browser.client.get(f"/api/v1/runs/{found['id']}/artifacts/link.png").status_code == 404
    for name in ("..%2flog.txt", "%2fetc%2fpasswd"):
        assert browser.client.get(f"/api/v1/runs/{found['id']}/artifacts/{name}").status_code == 404
    for args, where in (
        ({"output": "../out.png"}, "output"),
        ({"output": "/tmp/out.png"}, "output"),
        ({"value": "1; ls"}, "value"),
    ):
        assert browser.post("/plugins/darker/run", {"args": args}, 422)["where"] == where
    browser.post("/plugins/darker/run", {"args": {"input": "/etc/passwd"}}, 404)
    path.write_text(path.read_text() + "\n")
    assert browser.post("/plugins/darker/run", run, 403)["code"] == "untrusted"


def test_a_run_is_judged_by_the_process_that_started_it(console):
    folder = console.folder / "plugins"
    folder.mkdir()
    path = folder / "waits.py"
    path.write_text(WAITS)
    console.plugins.trust("waits", hashlib.sha256(path.read_bytes()).hexdigest())
    run = console.plugins.run("waits", {})["id"]
    other = Console(console.folder)
    try:
        assert other.plugins.result(run)["status"] == "running"
        (console.plugins.root / run / "out" / "go").touch()
        end = time.monotonic() + 60
        while console.plugins.result(run)["status"] == "running" and time.monotonic() < end:
            time.sleep(0.05)
        assert other.plugins.result(run)["status"] == "finished"
        # of a server that is gone, nobody knows how it has ended
        console.store.update("plugin_run", run, {"status": "running", "server": 2**22 + 1})
        console.plugins._running.clear()
        failed = other.plugins.result(run)
        assert failed["status"] == "failed" and "started again" in failed["error"]["message"]
    finally:
        other.close()


@pytest.mark.parametrize("scores", [1, 2])
def test_every_shipped_plugin_runs_as_a_command(tmp_path, monkeypatch, console, scores):
    rng = np.random.default_rng(0)
    rows = {"x": rng.random((6, 1, 6, 6)), "y": np.arange(6) % 2, "z": np.arange(6) // 3}
    csv = str(console.datasets.path(console.datasets.write("small", rows)["id"]))
    document = chain(
        ("Input", "x", {"shape": [1, 6, 6]}),
        ("PF.convolution", "conv", {"outmaps": 3, "kernel": [3, 3]}),
        ("F.relu", "relu"),
        ("PF.affine", "fc", {"n_outmaps": [scores]}),
        loss="F.softmax_cross_entropy" if scores > 1 else "F.sigmoid_cross_entropy",
    )
    model = str(saved(tmp_path / "a.nnp", document))
    monkeypatch.chdir(tmp_path)
    for name, *words in (
        ("grad_cam", "-r", "2"), ("smooth_grad", "-r", "2"), ("lime", "-r", "2", "-n", "40"),
        ("shap", "-r", "2", "-n", "4"), ("tracin", "-r", "2", "-t", csv),
        ("sgd_influence", "-t", csv), ("fairness", "-g", "z"),
    ):  # fmt: skip
        monkeypatch.setattr("sys.argv", [name, "-m", model, "-d", csv, *words])
        import_module(f"nnl.console.plugins.{name}").main()
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} == {
        "a.nnp", "grad_cam.png", "smooth_grad.png", "lime.png", "shap.png", "tracin.csv",
        "sgd_influence.csv", "fairness.json",
    }  # fmt: skip
    found = json.loads((tmp_path / "fairness.json").read_text())
    assert -1 <= found["demographic_parity"] <= 1
    assert (tmp_path / "lime.png").read_bytes()[:4] == b"\x89PNG"


def test_shipped_plugins_have_forms_and_one_runs_on_a_row_of_a_trial(browser, console, tmp_path):
    shipped = [p for p in browser.get("/plugins")["plugins"] if p["shipped"]]
    assert {p["id"] for p in shipped} == {
        "fairness", "grad_cam", "lime", "sgd_influence", "shap", "smooth_grad", "tracin",
    }  # fmt: skip
    assert all(p["trusted"] and p["doc"] and not p["error"] for p in shipped)
    data = console.datasets.write(
        "small", {"x": np.random.default_rng(0).random((4, 1, 6, 6)), "y": np.arange(4) % 2}
    )
    document = chain(
        ("Input", "x", {"shape": [1, 6, 6]}),
        ("PF.convolution", "conv", {"outmaps": 3, "kernel": [3, 3]}),
        ("PF.affine", "fc", {"n_outmaps": [2]}),
        loss="F.softmax_cross_entropy",
    )
    document.config["dataset"].update(train=data["id"], valid=data["id"])
    project = console.store.add_project("small", document)["id"]
    trial = console.trials.add(project)["id"]
    folder = console.trials.folder(trial)
    (folder / "network.nnp").rename(folder / "out" / "results.nnp")
    found = ended(browser, browser.post("/plugins/grad_cam/run", {"trial": trial, "row": 2}, 201))
    assert found["status"] == "finished", found["log"]
    picture = browser.client.get(f"/api/v1/runs/{found['id']}/artifacts/grad_cam.png")
    assert picture.headers["content-type"] == "image/png" and picture.content[:4] == b"\x89PNG"
    failed = ended(browser, browser.post("/plugins/grad_cam/run", {"trial": trial, "row": 9}, 201))
    assert failed["status"] == "failed" and "4 rows" in failed["error"]["message"]


def test_a_plugin_that_asks_for_a_row_is_offered_beside_rows():
    # As people write them: the row has a default, and is not required.
    source = """
import argparse
parser = argparse.ArgumentParser(description="Edges\\nof a sample.")
parser.add_argument("-i", "--input", help="data set (csv)", required=True)
parser.add_argument("-n", "--index", help="sample (row) default=0", type=int)
"""
    assert read_form(source).scope == "row"
    assert read_form(source.replace("(row)", "(int)")).scope == "dataset"


ILL = {
    "stays": "import time; print('here', flush=True); time.sleep(600)",
    "crashes": "import os; print('well', flush=True); os.abort()",
    "chatters": "while True: print('x' * 100_000)",
}


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="files are limited on Linux only")
def test_plugins_that_behave_badly_are_ended_and_say_how(browser, console, monkeypatch):
    monkeypatch.setattr(plugin_runs, "MAX_FILE", 2**20)
    console.plugins.folder.mkdir()
    began = {}
    for name, body in ILL.items():
        path = console.plugins.folder / f"{name}.py"
        arguments = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n')\n"
        path.write_text(arguments + body)
        console.plugins.trust(name, hashlib.sha256(path.read_bytes()).hexdigest())
        began[name] = browser.post(f"/plugins/{name}/run", {"args": {}}, 201)
    for name, said in (("crashes", "signal SIGABRT"), ("chatters", "printed more than 1 MiB")):
        found = ended(browser, began[name])
        assert found["status"] == "failed" and said in found["error"]["message"], found["error"]
    assert (console.plugins.root / began["chatters"]["id"] / "log.txt").stat().st_size <= 2**20
    end = time.monotonic() + 60
    while "here" not in browser.get(f"/runs/{began['stays']['id']}")["log"]:
        assert time.monotonic() < end
    browser.post(f"/runs/{began['stays']['id']}/cancel")
    found = ended(browser, began["stays"])
    assert found["status"] == "failed" and found["error"]["message"] == "it was stopped"


def test_pictures_that_no_page_could_show_are_files(console):
    console.plugins.folder.mkdir()
    path = console.plugins.folder / "large.py"
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
    path.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n')\n"
        f"head = {head!r}\n"
        "for n in (20, 20_000):\n    open(f'{n}.png', 'wb').write(head + n.to_bytes(4) * 2)\n"
        "open('none.png', 'wb')\n"
    )
    console.plugins.trust("large", hashlib.sha256(path.read_bytes()).hexdigest())
    run = console.plugins.run("large", {})["id"]
    end = time.monotonic() + 60
    while console.plugins.result(run)["status"] == "running" and time.monotonic() < end:
        time.sleep(0.05)
    kinds = {a["name"]: a["kind"] for a in console.plugins.result(run)["artifacts"]}
    assert kinds == {"20.png": "image", "20000.png": "file", "none.png": "file"}
