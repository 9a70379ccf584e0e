"""The evaluation of CEL device selectors, with caches: compiles each expression once, evaluates it once per content.

`search` uses it to match devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from session_scheduler.builtin.devices.errors import AllocationError
from session_scheduler.model.cel.errors import CompileError, EvaluationError
from session_scheduler.model.cel.program import Program
from session_scheduler.model.device_variable import FIELDS, device_variable
from session_scheduler.model.devices import Device, DeviceSelector

_MOST_PROGRAMS, _MOST_ANSWERS = 1000, 200_000
_encoder: Final = msgspec.json.Encoder(order="sorted")


class OutOfWorkError(Exception):
    """An attempt used up its search steps, or a session its CEL cost. The cached results help the next attempt."""


class Matching:
    """The answers by expression and device content, cached over sessions."""

    def __init__(self) -> None:
        self._programs: dict[str, Program | CompileError] = {}
        self._answers: dict[tuple[str, int], bool | EvaluationError] = {}
        self._contents: dict[tuple[str, bytes], int] = {}
        self._ids: dict[int, tuple[Device, str, int]] = {}
        self.left = 0
        """The remaining CEL cost in this session."""

    def matches(self, device: Device, driver: str, selectors: Iterable[DeviceSelector], owner: str, claim: int) -> bool:
        """Whether a device matches all of the selectors; `owner` names their owner in errors.

        Raises AllocationError if an expression fails, or OutOfWorkError.
        """
        for number, selector in enumerate(selectors):
            text = selector.cel.expression if selector.cel is not None else ""
            answer = self._answer(text, device, driver)
            if isinstance(answer, CompileError):
                raise AllocationError(f"{owner}: selector #{number}: CEL compile error: {answer}", claim)
            if isinstance(answer, EvaluationError):
                raise AllocationError(f"{owner}: selector #{number}: CEL runtime error: {answer}", claim)
            if not answer:
                return False
        return True

    def _answer(self, text: str, device: Device, driver: str) -> bool | CompileError | EvaluationError:
        key = (text, self._content(device, driver))
        answer = self._answers.get(key)
        if answer is None:
            program = self._program(text)
            if isinstance(program, CompileError):
                return program
            if self.left <= 0:
                raise OutOfWorkError
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            answer, cost = _evaluate(program, device, driver)
            self.left -= cost
            self._answers[key] = answer
        return answer

    def _program(self, text: str) -> Program | CompileError:
        found = self._programs.get(text)
        if found is None:
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs.clear()
            try:
                found = Program(text, ("device",), FIELDS)
            except CompileError as error:
                found = error
            self._programs[text] = found
        return found

    def _content(self, device: Device, driver: str) -> int:
        """A number for the parts of a device that selectors can read."""
        known = self._ids.get(id(device))
        if known is not None and known[0] is device and known[1] == driver:
            return known[2]
        read = (device.attributes, device.capacity, device.allow_multiple_allocations)
        if len(self._ids) >= _MOST_ANSWERS or len(self._contents) >= _MOST_ANSWERS:
            self._ids.clear()
            self._contents.clear()
            self._answers.clear()  # their keys contain the numbers
        number = self._contents.setdefault((driver, _encoder.encode(read)), len(self._contents))
        self._ids[id(device)] = (device, driver, number)
        return number


def _evaluate(program: Program, device: Device, driver: str) -> tuple[bool | EvaluationError, int]:
    try:
        names = {"device": device_variable(device, driver)}
    except EvaluationError as error:
        return error, 1
    return program.evaluate(names)
