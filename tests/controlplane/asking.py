"""Requests to a server's own HTTP endpoints."""

from __future__ import annotations

import http.client
from collections.abc import Mapping


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


def scraped(text: str) -> dict[str, float]:
    """Return /metrics as {"name{label=\"value\"}": number}."""
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}
