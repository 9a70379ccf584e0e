"""The dashboard's HTTP responses: pages from templates, JSON, redirects and static files, with their headers.

Everything that a page loads comes from this server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web
from jinja2 import Environment, PackageLoader

from fluence_lab import render

__all__ = ["HEADERS", "Responses", "json_response", "see_other"]

SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing from another host, and no inline scripts. BokehJS sets styles of its elements inline."""
HEADERS: Final = {
    "Content-Security-Policy": SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "fluence",
}
STATIC: Final = Path(__file__).parent / "static"
TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class _File(NamedTuple):
    name: str
    body: bytes
    version: str


class Responses:
    """Pages and the static files that they load."""

    def __init__(self) -> None:
        self._files = _static_files()
        self._templates = Environment(
            loader=PackageLoader("fluence_lab.dashboard"), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )

    def html(self, template: str, status: int = 200, *, headers: Mapping[str, str] = {}, **values: Any) -> web.Response:
        """A page."""
        files = {name: f"static/{file.version}/{name}" for name, file in self._files.items()}
        text = self._templates.get_template(template).render(files=files, **values)
        return web.Response(text=text, status=status, content_type="text/html", headers={**HEADERS, **headers})

    async def static(self, request: web.Request) -> web.StreamResponse:
        """A static file, which browsers cache by its version."""
        file = self._files.get(request.match_info["name"])
        if file is None or request.match_info["version"] != file.version:
            raise web.HTTPNotFound
        headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
        answer = web.Response(
            body=file.body, content_type=TYPES[Path(file.name).suffix], charset="utf-8", headers=headers
        )
        answer.enable_compression()
        return answer


def _static_files() -> dict[str, _File]:
    """By name: the dashboard's own files, and BokehJS from Bokeh's wheel."""
    bodies = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in TYPES}
    bodies["bokeh.min.js"] = render.bokeh_script().encode()
    bodies["figures.js"] = render.FIGURE_SCRIPT.encode()
    return {name: _File(name, body, hashlib.sha256(body).hexdigest()[:16]) for name, body in bodies.items()}


def see_other(page: str) -> web.Response:
    """A redirect to a page."""
    return web.Response(status=303, headers={**HEADERS, "Location": page})


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] = {}) -> web.Response:
    """A value as JSON."""
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json", headers={**HEADERS, **headers})
