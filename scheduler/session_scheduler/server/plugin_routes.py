"""HTTP endpoints of plugins: GET /plugins/PLUGIN/PATH, registered with `session.add_http_handler`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import structlog

from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError

_log = structlog.get_logger(__name__)

LARGEST: Final = 2**20
"""Bytes: the limit of a response."""
Answer = tuple[int, bytes, str]
"""Status, body and content type."""
_TEXT: Final = "text/plain; charset=utf-8"


class PluginRoutes:
    """The paths of all profiles' plugins; the first profile that has the path answers."""

    def __init__(self, profiles: Iterable[HookCalls]) -> None:
        self._profiles = tuple(profiles)

    def __call__(self, plugin: str, path: str, query: Mapping[str, str]) -> Answer:
        """The plugin's response; 404 if it has no such path, 500 with its name if it fails."""
        found = (calls.http_handlers.get(plugin, {}).get(path) for calls in self._profiles)
        call = next((call for call in found if call is not None), None)
        if call is None:
            return 404, b"no plugin serves this path\n", _TEXT
        try:
            return _answer(call, call(query))
        except PluginError as error:
            _log.error("a plugin's http handler failed", plugin=error.plugin, path=path, error=str(error))
            return 500, f"plugin {plugin} failed; see the logs\n".encode(), _TEXT


def _answer(call: HookCall, answer: object) -> Answer:
    """The response: text unchanged, any other value as JSON. Raises PluginError."""
    body = call.guarded(str.encode if isinstance(answer, str) else msgspec.json.encode, answer)
    if len(body) > LARGEST:
        raise call.wrong(
            f"expected a response of at most {LARGEST} bytes, got {len(body)}; paginate it with query parameters"
        )
    return 200, body, _TEXT if isinstance(answer, str) else "application/json"
