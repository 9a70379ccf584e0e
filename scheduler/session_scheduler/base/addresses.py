"""Network addresses as text. Public, as `sdk.addresses`."""

from __future__ import annotations


def host_and_port(host: str, port: int | str) -> str:
    """`host:port`, with brackets around an IPv6 address. Source: RFC 3986, section 3.2.2."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
