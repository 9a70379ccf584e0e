"""The webhook's logger: every line starts with the webhook's name, for which administrators can search."""

import logging
from collections.abc import MutableMapping
from typing import Any, Final

PREFIX: Final = "[fluence-webhook]"


class _Prefixed(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{PREFIX} {msg}", kwargs


log: Final = _Prefixed(logging.getLogger(__package__))
SILENT: Final = logging.Logger("fluence-webhook-http", logging.CRITICAL)
"""Drops the HTTP server's logs of malformed requests: each has a traceback, so any client could fill the logs."""
