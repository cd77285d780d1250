# SPDX-License-Identifier: Apache-2.0
"""A model that `nnl serve` answers for, as a process of its own, and what it is asked."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnl.console.errors import Refused

PATIENCE_S = 300.0  # until a model is loaded
ANSWER_S = 600.0  # until a long prompt is read
ROUTES = {"chat": "chat/completions", "completions": "completions", "attention": "attention"}
CODES = {404: "not_found", 413: "too_large", 429: "busy"}
_READY = re.compile(rb"^http://127\.0\.0\.1:(\d+)/v1 serves ", re.MULTILINE)


class Served:
    """`nnl serve` of a model, on a free port of this machine, with a key that only we have.

    Attributes:
        facts: What its list of models says of it.
    Raises:
        Refused: It has not started.
    """

    def __init__(self, path: Path, command: Sequence[str]) -> None:
        self.path, self.key = path, secrets.token_urlsafe(24)
        self.log = tempfile.TemporaryFile()
        more = ["--until-eof", *([] if path.suffix.lower() == ".nnlp" else ["--batch", "2"])]
        self.process = subprocess.Popen(
            [*command, "serve", str(path), "--name", path.name, "--port", "0", *more],
            stdin=subprocess.PIPE, stdout=self.log, stderr=self.log,
            env={**os.environ, "NNL_API_KEY": self.key},
        )  # fmt: skip
        try:
            self.port = self._ready()
            answer = self._asked("GET", "/v1/models")
            self.facts: dict[str, Any] = json.loads(answer.read())["data"][0]
        except BaseException:
            self.end()
            raise

    def _ready(self) -> int:
        """Its port, when it listens."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = _READY.search(self._said())
            if found:
                return int(found[1])
            if not self.runs:
                name = self.path.name
                raise Refused(
                    "unreadable", f"{name} cannot be opened: {self.last_words()}", None, name
                )
            time.sleep(0.05)
        raise Refused("failed", f"{self.path.name} is not loaded after {PATIENCE_S:.0f} s")

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self.process.poll() is None

    def _said(self) -> bytes:
        return os.pread(self.log.fileno(), 1 << 20, 0)

    def last_words(self) -> str:
        """Why it has ended: the error that it has printed."""
        lines = self._said().decode("utf-8", "replace").strip().splitlines()
        errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
        return (errors or lines or [f"code {self.process.poll()}"])[-1]

    def ask(self, what: str, given: dict[str, Any]) -> http.client.HTTPResponse:
        """Its answer, whose body comes as it is written; closing it ends the writing.

        Raises:
            Refused: It has refused the request, or has ended.
        """
        given = {**given, "model": self.path.name}
        return self._asked("POST", f"/v1/{ROUTES[what]}", json.dumps(given))

    def _asked(self, method: str, path: str, body: str | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        headers = {"Authorization": f"Bearer {self.key}", "Connection": "close"}
        try:
            connection.request(method, path, body and body.encode(), headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            how = str(error) if self.runs else self.last_words()
            raise Refused("failed", f"{self.path.name} does not answer: {how}") from None
        if answer.status >= 400:
            with answer:
                said = json.loads(answer.read())["error"]
            code = CODES.get(answer.status, "invalid" if answer.status < 500 else "failed")
            raise Refused(code, said["message"], None, said["param"])
        return answer

    def end(self) -> None:
        """End the process."""
        self.process.kill()  # it keeps nothing that could be lost
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.log.close()
