"""What orders queues, groups and tasks, where plugins answered it."""

from __future__ import annotations

from typing import Any

from session_scheduler.framework.hooks import HookCall

Key = Any
"""What orders: anything that compares; smaller comes first."""


class OrderKey:
    """What an order callback answered: where it does not compare, its plugin is named."""

    __slots__ = ("_call", "value")

    def __init__(self, call: HookCall, value: Any) -> None:
        self._call = call
        self.value = value
        if call.guarded(_unequal, value, value):
            raise call.wrong(f"{value!r} is no key: it does not even equal itself")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderKey) and self._call.guarded(_equal, self.value, other.value)

    def __lt__(self, other: OrderKey) -> bool:
        return self._call.guarded(_less, self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right)


def _unequal(left: Any, right: Any) -> bool:
    return bool(left != right)


def _less(left: Any, right: Any) -> bool:
    return bool(left < right)
