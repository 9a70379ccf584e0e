"""Requests to a server's own HTTP endpoints."""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

PATIENCE: Final = 30.0


def ask(
    host: str, port: int, path: str, *, method: str = "GET", body: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, str]:  # fmt: skip
    """GET over plain HTTP; return status and text."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def scrape(host: str, port: int) -> dict[str, float]:
    """What Prometheus would get from a server; waits while it answers that it was asked too often."""
    until = time.monotonic() + PATIENCE
    while (answer := ask(host, port, "/metrics"))[0] == HTTPStatus.TOO_MANY_REQUESTS and time.monotonic() < until:
        time.sleep(0.2)
    assert answer[0] == HTTPStatus.OK, answer
    return scraped(answer[1])


def scraped(text: str) -> dict[str, float]:
    """Return /metrics as {"name{label=\"value\"}": number}."""
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}
