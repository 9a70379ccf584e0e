"""`fluence pool list` writes its result alone to standard output, also where the API server had to be asked twice."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import structlog

from session_scheduler.cli import main


class BusyAtFirst(BaseHTTPRequestHandler):
    """An API server without objects that refuses its first request."""

    asked = 0

    def do_GET(self) -> None:
        """See BaseHTTPRequestHandler."""
        type(self).asked += 1
        data = json.dumps({"metadata": {}, "items": []}).encode()
        self.send_response(HTTPStatus.SERVICE_UNAVAILABLE if self.asked == 1 else HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing of it is shown."""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """Of such a server."""
    BusyAtFirst.asked = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), BusyAtFirst) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        named = {"name": "one"}
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps({
            "clusters": [{**named, "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{**named, "user": {}}],
            "contexts": [{**named, "context": {"cluster": "one", "user": "one"}}],
            "current-context": "one",
        }))  # fmt: skip
        yield file
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def logging_as_it_comes() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    structlog.reset_defaults()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_retries_of_a_request_do_not_appear_in_the_output(kubeconfig: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["pool", "list", "--kubeconfig", str(kubeconfig), "-o", "json"]) == 0
    assert BusyAtFirst.asked == 3
    assert json.loads(capfd.readouterr().out) == {"masterQueues": []}
