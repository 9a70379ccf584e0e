"""What the webhook logs: every line of it begins with its name, as administrators search for it."""

import logging
from collections.abc import MutableMapping
from typing import Any, Final

PREFIX: Final = "[fluence-webhook]"


class _Prefixed(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{PREFIX} {msg}", kwargs


log: Final = _Prefixed(logging.getLogger(__package__))
SILENT: Final = logging.Logger("fluence-webhook-http", logging.CRITICAL)
"""What an HTTP server would log of malformed requests, with a traceback each: anybody could fill the logs."""
