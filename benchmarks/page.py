# SPDX-License-Identifier: Apache-2.0
"""What somebody waits for on the page of the console, in headless Chromium.

    python -m benchmarks.page [--rounds 5] [--onnx FILE ...] [--json FILE]

Seconds, medians of the rounds: until the first page is ready in a new browser, until ResNet-152 as
a project and each ONNX file are on the canvas with all their numbers, until the curve of a training
begins after Train was clicked; milliseconds of a step of dragging a layer of ResNet-152, and of a
list of 1,000 trials; and seconds of `nnl --help`. Needs what make test-console needs.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from nnl.console.documents.samples import resnet_152
from nnl.console.machine.store import new_id
from tests.browser.conftest import BUILT, CHROMIUM, FLAGS, SIZE, Server
from tests.browser.drawing import settle

STEPS = 40


def timed(act):
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def first_load():
    """Bytes of what the first page fetches, compressed."""
    index = BUILT.read_text()
    names = [n for n in os.listdir(BUILT.parent / "assets") if f"/assets/{n}" in index]
    files = [BUILT, *(BUILT.parent / "assets" / n for n in names)]
    return sum(len(gzip.compress(f.read_bytes())) for f in files)


def usable(page):
    page.locator(".layer").first.wait_for()
    settle(page)


def imported(page, address, path):
    page.goto(address)
    page.get_by_role("heading", name="Projects").wait_for()
    page.wait_for_timeout(2000)
    with page.expect_file_chooser() as dialog:
        page.get_by_role("button", name="Import a file").click()
    return timed(lambda: (dialog.value.set_files(path), usable(page)))


def opened_and_dragged(page, address):
    page.goto(address)
    link = page.get_by_role("link", name="big", exact=True).first
    link.wait_for()
    opened = timed(lambda: (link.click(), usable(page)))
    box = page.locator(".layer .name").first.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    begin = time.perf_counter()
    for step in range(STEPS):
        page.mouse.move(box["x"] + 20 + 3 * step, box["y"] + 20 + 2 * step)
        page.evaluate("() => new Promise(requestAnimationFrame)")
    dragged = (time.perf_counter() - begin) / STEPS
    page.mouse.up()
    page.keyboard.press("Control+z")
    return opened, dragged


def curve(page, project):
    page.goto(f"{project}/edit")
    usable(page)
    page.wait_for_timeout(2000)
    click = page.get_by_role("button", name="Train", exact=True).click
    begins = timed(lambda: (click(), page.get_by_role("figure", name="Loss").wait_for()))
    page.locator(".status.finished").first.wait_for()
    return begins


def help_of_nnl():
    subprocess.run([Path(sys.executable).parent / "nnl", "--help"], stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--onnx", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    found = {}

    def note(name, value):
        found.setdefault(name, []).append(value)

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server(Path(folder))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            first = browser.new_context(viewport=SIZE)
            page = first.new_page()
            page.goto(server.once)
            cookies = first.cookies()

            def post(path, data):
                answer = page.request.post(
                    f"{server.address}/api/v1{path}", data=data, headers={"X-NNL": "1"}
                )
                assert answer.ok, answer.text()
                return answer.json()["id"]

            post("/projects", {"name": "big", "document": resnet_152().to_json()})
            digits = post("/projects", {"name": "digits", "sample": "digits"})
            for _ in range(args.rounds):
                context = browser.new_context(viewport=SIZE)
                context.add_cookies(cookies)
                new = context.new_page()
                ready = new.get_by_role("heading", name="Projects").wait_for
                note(
                    "ready_s",
                    timed(lambda new=new, ready=ready: (new.goto(server.address), ready())),
                )
                context.close()
                opened, dragged = opened_and_dragged(page, server.address)
                note("resnet152_opened_s", opened)
                note("drag_step_ms", dragged * 1e3)
                for path in args.onnx:
                    size = f"{path.stat().st_size / 1e6:.0f}_mb"
                    note(f"{path.stem}_{size}_imported_s", imported(page, server.address, path))
                note("curve_begins_s", curve(page, f"{server.address}/p/{digits}"))
                note("help_s", timed(help_of_nnl))
            many(Path(folder), digits)
            url = f"{server.address}/api/v1/trials?limit=1000&sparkline=valid_error"
            for _ in range(args.rounds):
                note("trials_1000_ms", timed(lambda: page.request.get(url).body()) * 1e3)
        finally:
            browser.close()
            server.stop()
    result = {name: statistics.median(values) for name, values in found.items()}
    result |= {"first_load_gzip_bytes": first_load(), "cpus": os.cpu_count(), "rounds": args.rounds}
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def many(folder, project):
    """Write 1,000 trials with 10 epochs each into the index of a console."""
    from nnl.console.machine.store import Store

    store = Store(folder)
    with store.change() as db:
        [row] = store.rows("SELECT * FROM trial ORDER BY created DESC LIMIT 1")
        for i in range(1000):
            store.insert("trial", {**row, "id": new_id(), "number": 100 + i})
        keys = [r["id"] for r in store.rows("SELECT id FROM trial")]
        points = [(k, "valid_error", e, 0.1, e) for k in keys for e in range(1, 11)]
        db.executemany("INSERT OR REPLACE INTO metric VALUES (?, ?, ?, ?, ?)", points)
    store.close()


if __name__ == "__main__":
    main()
