"""HTTP/1.1 connections for a plugin's own requests, such as to another scheduler's REST API."""

from session_scheduler.base.http_connection import (
    BadResponseError,
    Endpoint,
    HttpConnection,
    NotConnectedError,
    Response,
    TooLongError,
    request_head,
)
from session_scheduler.base.http_pool import HttpPool

__all__ = [
    "BadResponseError",
    "Endpoint",
    "HttpConnection",
    "HttpPool",
    "NotConnectedError",
    "Response",
    "TooLongError",
    "request_head",
]
