# SPDX-License-Identifier: Apache-2.0
"""A console in a folder of its own, and a browser that has opened its address."""

import pytest


class Browser:
    """Asks routes as the page does."""

    def __init__(self, client):
        self.client = client

    def get(self, path, status=200, **more):
        return self._checked(self.client.get(f"/api/v1{path}", **more), status)

    def send(self, method, path, given=None, status=200, **headers):
        headers = {"X-NNL": "1", **{k.replace("_", "-"): v for k, v in headers.items()}}
        answer = self.client.request(method, f"/api/v1{path}", json=given, headers=headers)
        return self._checked(answer, status)

    def post(self, path, given=None, status=200, **headers):
        return self.send("POST", path, {} if given is None else given, status, **headers)

    def upload(self, path, content, status=201):
        headers = {"X-NNL": "1", "Content-Type": "application/octet-stream"}
        answer = self.client.post(f"/api/v1{path}", content=content, headers=headers)
        return self._checked(answer, status)

    def _checked(self, answer, status):
        assert answer.status_code == status, answer.text
        kind = answer.headers.get("content-type", "")
        return answer.json() if kind.startswith("application/json") else answer


@pytest.fixture
def console(tmp_path):
    from nnl.console.server.state import Console

    made = Console(tmp_path / "folder")
    yield made
    made.close()


@pytest.fixture
def guard(console):
    pytest.importorskip("fastapi")
    from nnl.console.server.server import guarded

    return guarded(console, "127.0.0.1", 8000)


@pytest.fixture
def client(guard):
    """A client without a session."""
    return client_of(guard)


def client_of(guard):
    pytest.importorskip("httpx2")
    from starlette.testclient import TestClient

    return TestClient(guard, "http://127.0.0.1:8000", follow_redirects=False)


@pytest.fixture
def browser(client, guard):
    assert client.get(f"/?token={guard.token}").status_code == 303
    return Browser(client)


@pytest.fixture
def browser_of():
    """A browser that has opened the address of a given console."""

    def opened(console):
        pytest.importorskip("fastapi")
        from nnl.console.server.server import guarded

        guard = guarded(console, "127.0.0.1", 8000)
        client = client_of(guard)
        assert client.get(f"/?token={guard.token}").status_code == 303
        return Browser(client)

    return opened
