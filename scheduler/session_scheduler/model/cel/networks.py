"""CEL functions of IP addresses and networks.

Source: Kubernetes' CEL libraries (apiserver, pkg/cel/library, ip.go and cidr.go).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

from session_scheduler.model.cel.errors import EvaluationError
from session_scheduler.model.cel.values import CIDR, IP, Value, accepts, method_of, no_overload
from session_scheduler.model.cel.work import Work

_LONGEST: Final = 256
_BITS: Final = re.compile(r"0|[1-9]\d{0,2}", re.ASCII)
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")


def ip(work: Work, text: Value) -> IP:
    """`ip`: an address; for a network, the address in its text."""
    if isinstance(text, CIDR):
        return IP(text.interface.ip)
    return IP(_address(work, text))


def _address(work: Work, text: Value) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if not isinstance(text, str):
        raise no_overload()
    work.over(text)
    try:
        found = ipaddress.ip_address(text) if len(text) <= _LONGEST else None
    except ValueError:
        found = None
    if found is None:
        raise EvaluationError(f'IP Address "{text[:_LONGEST]}" parse error during conversion from string: unable to '
                              "parse IP")  # fmt: skip
    if "%" in text:
        raise EvaluationError(f'IP address "{text}" with zone value is not allowed')
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        raise EvaluationError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return found


def cidr(work: Work, text: Value) -> CIDR:
    """`cidr`: a network, with the address in its text."""
    if not isinstance(text, str):
        raise no_overload()
    address, slash, bits = text.partition("/")
    if not slash:
        raise _invalid_cidr(text, "no '/'")
    try:
        found = _address(work, address)
    except EvaluationError as error:
        raise _invalid_cidr(text, str(error)) from None
    if _BITS.fullmatch(bits) is None:
        raise _invalid_cidr(text, f'bad bits after slash: "{bits[:_LONGEST]}"')
    if int(bits) > found.max_prefixlen:
        raise _invalid_cidr(text, "prefix length out of range")
    return CIDR(ipaddress.ip_interface((found, int(bits))))


def _invalid_cidr(text: str, why: str) -> EvaluationError:
    twice = "network address parse error during conversion from string: " * 2  # as in kube-scheduler's message
    return EvaluationError(f'{twice}netip.ParsePrefix("{text[:_LONGEST]}"): {why}')


def _is_canonical(work: Work, text: Value) -> bool:
    return bool(str(_address(work, text)) == text)


def _is_global_unicast(value: IP) -> bool:
    address = value.address
    others = (address.is_unspecified, address.is_loopback, address.is_multicast, address.is_link_local)
    return bool(address != _BROADCAST) and not any(others)


def _is_link_local_multicast(value: IP) -> bool:
    first = value.address.packed
    return first[:3] == b"\xe0\0\0" if value.address.version == 4 else first[0] == 0xFF and first[1] & 0xF == 2


def _contains_ip(work: Work, value: Value, other: Value) -> bool:
    if isinstance(other, str):
        try:
            other = ip(work, other)
        except EvaluationError:
            raise no_overload() from None
    if not isinstance(value, CIDR) or not isinstance(other, IP):
        raise no_overload()
    return bool(other.address in value.interface.network)


def _contains_cidr(work: Work, value: Value, other: Value) -> bool:
    other = cidr(work, other) if isinstance(other, str) else other
    if not isinstance(value, CIDR) or not isinstance(other, CIDR):
        raise no_overload()
    outer, inner = value.interface.network, other.interface.network
    return inner.network_address in outer and outer.prefixlen <= inner.prefixlen


NETWORK_FUNCTIONS: Final[dict[tuple[str, int], Callable[..., Value]]] = {
    ("ip", 1): ip, ("isIP", 1): accepts(ip), ("ip.isCanonical", 1): _is_canonical, ("cidr", 1): cidr,
    ("isCIDR", 1): accepts(cidr),
}  # fmt: skip
NETWORK_METHODS: Final[dict[tuple[str, int], Callable[..., Value]]] = {
    ("family", 0): method_of(IP, lambda value: value.address.version),
    ("isUnspecified", 0): method_of(IP, lambda value: value.address.is_unspecified),
    ("isLoopback", 0): method_of(IP, lambda value: value.address.is_loopback),
    ("isLinkLocalUnicast", 0): method_of(IP, lambda value: value.address.is_link_local),
    ("isLinkLocalMulticast", 0): method_of(IP, _is_link_local_multicast),
    ("isGlobalUnicast", 0): method_of(IP, _is_global_unicast),
    ("ip", 0): method_of(CIDR, lambda value: IP(value.interface.ip)),
    ("prefixLength", 0): method_of(CIDR, lambda value: value.interface.network.prefixlen),
    ("masked", 0): method_of(
        CIDR, lambda value: CIDR(ipaddress.ip_interface(value.interface.network.with_prefixlen))),
    ("containsIP", 1): _contains_ip, ("containsCIDR", 1): _contains_cidr,
}  # fmt: skip
"""By name and number of arguments, without the receiver."""
