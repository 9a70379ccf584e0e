"""CEL functions of URLs, which parse them like Go's net/url.

Source: Kubernetes' CEL library (apiserver, pkg/cel/library/urls.go).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, unquote, unquote_plus

from session_scheduler.model.cel.errors import EvaluationError
from session_scheduler.model.cel.values import URL, Value, no_overload
from session_scheduler.model.cel.work import Work

_SHOWN: Final = 256
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):", re.ASCII)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})")
_ESCAPED_HOST: Final = re.compile(r"%(?!25|[89a-fA-F][0-9a-fA-F])")
_HOST: Final = re.compile(r"""(?:[a-zA-Z0-9_.~!$&'()*+,;=:\[\]<>"%-]|[^\x00-\x7f])*""")
_USER: Final = re.compile(r"[a-zA-Z0-9_.:~!$&'()*+,;=%@-]*", re.ASCII)
_PORT: Final = re.compile(r"(?::\d*)?", re.ASCII)
_SAFE_IN_PATH: Final = "$&+,/:;=@"
_KEPT_IN_PATH: Final = re.compile(r"[a-zA-Z0-9_.~!$&'()*+,;=:@/\[\]%-]*", re.ASCII)


def url(work: Work, text: Value) -> URL:
    """`url`: an absolute URL, or an absolute path."""
    if not isinstance(text, str):
        raise no_overload()
    work.over(text)
    why = _fault(text, relative=True)
    if why:
        raise EvaluationError(f'URL parse error during conversion from string: parse "{text[:_SHOWN]}": {why}')
    return _parsed(text)


def _fault(text: str, *, relative: bool = False) -> str:
    """Why a string is not a valid URL of a request, in the words of net/url; empty if it is valid.

    `relative`: a string that begins with two slashes begins with a host, not with a path.
    """
    if _CONTROL.search(text):
        return "net/url: invalid control character in URL"
    if not text:
        return "empty url"
    if text.startswith(":"):
        return "missing protocol scheme"
    scheme = _SCHEME.match(text)
    rest = text[scheme.end() :] if scheme else text
    rest = rest.partition("?")[0]
    if not rest.startswith("/"):
        return "" if scheme or text == "*" else "invalid URI for request"
    path = rest
    if rest.startswith("//") and (scheme or (relative and not rest.startswith("///"))):
        authority, slash, path = rest[2:].partition("/")
        path = slash + path
        why = _fault_of_authority(authority)
        if why:
            return why
    return _fault_of_escape(path)


def _fault_of_authority(authority: str) -> str:
    user, at, host = authority.rpartition("@")
    if at and (_USER.fullmatch(user) is None or _BAD_ESCAPE.search(user)):
        return "net/url: invalid userinfo"
    if host.startswith("["):
        inner, bracket, port = host.rpartition("]")
        if not bracket:
            return "missing ']' in host"
        host = inner + "]"
    else:
        colon = host.rfind(":")
        port = host[colon:] if colon >= 0 else ""
    if _PORT.fullmatch(port) is None:
        return f'invalid port "{port[:_SHOWN]}" after host'
    match = _HOST.match(host)
    end = match.end() if match is not None else 0
    if end < len(host):
        return f'invalid character "{host[end]}" in host name'
    bad = _BAD_ESCAPE.search(host) or _ESCAPED_HOST.search(host)
    return f'invalid URL escape "{host[bad.start() : bad.start() + 3]}"' if bad else ""


def _fault_of_escape(text: str) -> str:
    bad = _BAD_ESCAPE.search(text)
    return f'invalid URL escape "{text[bad.start() : bad.start() + 3]}"' if bad else ""


def _parsed(text: str) -> URL:
    text = text.partition("#")[0]
    scheme = _SCHEME.match(text)
    rest = text[scheme.end() :] if scheme else text
    rest, _, query = rest.partition("?")
    host, path = "", rest
    if scheme and not rest.startswith("/"):
        path = ""
    elif rest.startswith("//") and (scheme or not rest.startswith("///")):
        authority, slash, path = rest[2:].partition("/")
        host, path = unquote(authority.rpartition("@")[2]), slash + path
    return URL(text, scheme[1].lower() if scheme else "", host, path, query)


# ------------------------------------------------------------------ parts of a URL


def _part(read: Callable[[URL], Value]) -> Callable[..., Value]:
    def method(work: Work, value: Value) -> Value:
        if not isinstance(value, URL):
            raise no_overload()
        work.over(value.text)
        return read(value)

    return method


def _host_and_port(value: URL) -> tuple[str, str]:
    """(host, port): an IPv6 address is without its brackets; the port is empty if there is none."""
    host, port = value.host, ""
    colon = host.rfind(":")
    if colon >= 0 and _PORT.fullmatch(host[colon:]):
        host, port = host[:colon], host[colon + 1 :]
    return (host[1:-1] if host.startswith("[") and host.endswith("]") else host), port


def _escaped_path(value: URL) -> str:
    if _KEPT_IN_PATH.fullmatch(value.path) or value.path == "*":
        return value.path
    return quote(unquote(value.path, errors="surrogateescape"), safe=_SAFE_IN_PATH, errors="surrogateescape")


def _query(value: URL) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pair in value.query.split("&"):
        name, _, one = pair.partition("=")
        if pair and ";" not in pair and not _BAD_ESCAPE.search(pair):
            found.setdefault(unquote_plus(name), []).append(unquote_plus(one))
    return found


def _is_url(work: Work, text: Value) -> bool:
    if not isinstance(text, str):
        raise no_overload()
    work.over(text)
    return not _fault(text)


URL_FUNCTIONS: Final[dict[tuple[str, int], Callable[..., Value]]] = {("url", 1): url, ("isURL", 1): _is_url}
URL_METHODS: Final[dict[tuple[str, int], Callable[..., Value]]] = {
    ("getScheme", 0): _part(lambda value: value.scheme), ("getHost", 0): _part(lambda value: value.host),
    ("getHostname", 0): _part(lambda value: _host_and_port(value)[0]),
    ("getPort", 0): _part(lambda value: _host_and_port(value)[1]),
    ("getEscapedPath", 0): _part(_escaped_path), ("getQuery", 0): _part(_query),
}  # fmt: skip
"""By name and number of arguments, without the URL itself."""
