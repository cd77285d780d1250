# SPDX-License-Identifier: Apache-2.0
"""A console that runs, and a page of it in Chromium on which nothing may fail unseen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("NNL_CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
# Without what a browser does for its maker; as root its sandbox does not work.
FLAGS = """--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync""".split()
BUILT = Path(__file__).parents[2] / "nnl/console/static/index.html"
SIZE = {"width": 1280, "height": 800}
PATIENCE_MS = 30_000
# What every control needs so that it can be found without being seen.
NAMELESS = """() => [...document.querySelectorAll(
        'button, a[href], input, select, textarea, summary')]
    .filter(e => e.getClientRects().length && !(e.getAttribute('aria-label') || e.title
        || [...e.labels ?? []].some(l => l.textContent.trim()) || /\\w/.test(e.textContent)))
    .map(e => e.outerHTML.slice(0, 120))"""


class Server:
    """`nnl console DIR` as a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "nnl.cli.main", "console", str(folder), "--no-browser"]
        command += options
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()  # with the token
        self.address = self.link.partition("/?")[0]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", type=Path, help="take those of docs/console.md into this folder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
    if config.getoption("pictures", default=None) is None:
        items[:] = [item for item in items if item.path != here / "test_pictures.py"]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium, or name one in NNL_CHROMIUM")
    if not BUILT.exists():
        pytest.skip("the page was not built: make test-console")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    sync_api.expect.set_options(timeout=PATIENCE_MS)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("console"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cookies(chromium: Any, server: Server) -> list[Any]:
    """What the link gives a browser."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(server.link)
    assert page.url == f"{server.address}/", "the token stayed in the address"
    page.get_by_role("heading", name="Projects").wait_for()
    found = context.cookies()
    context.close()
    return found


class Faults(list[str]):
    """What went wrong on a page without a test having looked there."""

    def watch(self, page: Any) -> None:
        page.on("pageerror", lambda error: self.append(f"error: {error}"))
        page.on("console", lambda message: self.add("console", message.type, message.text))
        page.on("requestfailed", self.failed)

    def add(self, kind: str, level: str, text: str) -> None:
        if level in ("error", "warning"):
            self.append(f"{kind}: {text}")

    def failed(self, request: Any) -> None:
        # A page that is left, and a newer question, end what is under way.
        if "ERR_ABORTED" not in (request.failure or ""):
            self.append(f"request failed: {request.url} {request.failure}")

    def expect(self, status: int) -> None:
        """Forget the browser's report of an answer that the test was after."""
        report = f"the server responded with a status of {status}"
        found = [fault for fault in self if report in fault]
        assert found, f"no answer {status} came: {self}"
        self.remove(found[0])


@pytest.fixture
def faults() -> Iterator[Faults]:
    faults = Faults()
    yield faults
    assert not faults


def context_of(chromium: Any, cookies: list[Any], server: Server) -> Any:
    context = chromium.new_context(
        viewport=SIZE, base_url=server.address, permissions=["clipboard-read", "clipboard-write"]
    )
    context.set_default_timeout(PATIENCE_MS)
    context.add_cookies(cookies)
    return context


@pytest.fixture
def context(chromium: Any, cookies: list[Any], server: Server) -> Iterator[Any]:
    context = context_of(chromium, cookies, server)
    yield context
    context.close()


@pytest.fixture
def page(context: Any, faults: Faults) -> Iterator[Any]:
    page = context.new_page()
    faults.watch(page)
    yield page
    # In whatever state a test has left it: a dialog, a result, an error.
    assert page.evaluate(NAMELESS) == []


@pytest.fixture(scope="session")
def api(chromium: Any, cookies: list[Any], server: Server) -> Iterator[Any]:
    """What a test wants of the server, beside the page."""
    context = context_of(chromium, cookies, server)

    def ask(method: str, path: str, **options: Any) -> Any:
        headers = {"X-NNL": "1", **options.pop("headers", {})}
        answer = context.request.fetch(
            f"/api/v1{path}", method=method, headers=headers, timeout=4 * PATIENCE_MS, **options
        )
        assert answer.ok, f"{method} {path}: {answer.status} {answer.text()}"
        return answer.json()

    yield ask
    context.close()


@pytest.fixture
def project(page: Any) -> Any:
    """A new project of the digits sample, open in the editor; the page."""
    page.goto("/")
    page.get_by_role("button", name="Handwritten digits").click()
    page.locator(".layer").first.wait_for()
    return page
