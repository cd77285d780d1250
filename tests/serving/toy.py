# SPDX-License-Identifier: Apache-2.0
"""A model whose next token is the last one plus 1, and a server of it on a free port."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import uvicorn

from nnl.serving.metrics import Metrics
from nnl.serving.openai import Limits, Server, application
from nnl.serving.scheduler import Scheduler

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # z ends a text


class Rows:
    """Scores that count on; notes what it was given."""

    def __init__(self, batch=2, capacity=64, chunk=4, pause=0.0):
        self.batch, self.capacity, self.chunk, self.pause = batch, capacity, chunk, pause
        self.texts = [[] for _ in range(batch)]
        self.fed = []
        self.broken = False

    def keep(self, row, length):
        del self.texts[row][length:]

    def feed(self, rows):
        time.sleep(self.pause)
        if self.broken:
            raise RuntimeError("broken")
        self.fed.append([list(r) for r in rows])
        scores = np.zeros((self.batch, len(LETTERS)), np.float32)
        for i, row in enumerate(rows):
            assert len(row) <= self.chunk
            self.texts[i] += row
            if row:
                scores[i, (row[-1] + 1) % len(LETTERS)] = 50
        return scores


class Text:
    """One token for each letter."""

    def encode(self, text, special=True):
        return [LETTERS.index(c) for c in text]

    def decode(self, tokens):
        return "".join(LETTERS[t] for t in tokens)

    def template(self):
        return "{{ messages }}"

    def pieces(self, tokens):
        return list(self.decode(tokens))

    def conversation(self, messages, answer=True):
        if messages[-1]["role"] != "user":
            raise ValueError("the last message is not the user's")
        return messages[-1]["content"]


class Model:
    """What a server asks of a model."""

    text = Text()

    class config:
        vocabulary = len(LETTERS)

    def vectors(self, tokens):
        return np.array([[len(t), t[0]] for t in tokens], np.float32)


def server(rows=None, waiting=4, limits=None):
    metrics = Metrics()
    scheduler = Scheduler(rows or Rows(), [LETTERS.index("z")], waiting, metrics.count)
    return Server("letters", Model(), scheduler, metrics, limits or Limits())


@contextlib.contextmanager
def running(made):
    """The address of a server that runs in a thread."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        config = uvicorn.Config(application(made), log_level="error")
        web = uvicorn.Server(config)
        thread = threading.Thread(target=web.run, kwargs={"sockets": [s]}, daemon=True)
        thread.start()
        while not web.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{s.getsockname()[1]}"
        finally:
            web.should_exit = True
            thread.join(10)
