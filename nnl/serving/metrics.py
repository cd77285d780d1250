# SPDX-License-Identifier: Apache-2.0
"""What a server counts, in the form that Prometheus reads."""

from __future__ import annotations

from typing import Any

FIRST = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)  # seconds


class Metrics:
    """Counters of one server, of the package prometheus_client."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = r = CollectorRegistry()
        self.requests = Counter(
            "nnl_requests", "Requests by route and status.", ["route", "status"], registry=r
        )
        self.tokens = Counter("nnl_tokens", "Tokens read and written.", ["kind"], registry=r)
        self.first = Histogram(
            "nnl_first_token_seconds",
            "From a request to the first token.",
            buckets=FIRST,
            registry=r,
        )
        self.running = Gauge("nnl_texts_running", "Texts that are being written.", registry=r)
        self.waiting = Gauge("nnl_texts_waiting", "Texts in the queue.", registry=r)

    def count(self, event: str, number: float) -> None:
        """An event of the scheduler."""
        if event == "first":
            self.first.observe(number)
        else:
            self.tokens.labels(kind=event).inc(number)

    def text(self, load: tuple[int, int]) -> tuple[bytes, str]:
        """All values, and their content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        self.running.set(load[0])
        self.waiting.set(load[1])
        found: Any = generate_latest(self.registry)
        return bytes(found), CONTENT_TYPE_LATEST
