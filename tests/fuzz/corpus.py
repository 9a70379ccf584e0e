"""The stored inputs: a file per target, an input per line, as a JSON string."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = Path(__file__).parent / "corpus"
MOST = 40_000
"""The greatest total size of the inputs of one target, in bytes."""


def seeds(name: str) -> list[bytes]:
    """The inputs of a target, shortest first."""
    lines = (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line).encode("utf-8", "surrogateescape") for line in lines]


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """Write the inputs of a target."""
    lines = [json.dumps(data.decode("utf-8", "surrogateescape")) for data in sorted(set(inputs), key=_size)]
    (FOLDER / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _size(data: bytes) -> tuple[int, bytes]:
    return len(data), data


def minimised(inputs: Iterable[bytes], target: Callable[[bytes], Any], folder: str) -> list[bytes]:
    """The inputs that reach more than all shorter ones: a new step between lines of the sources, or a new answer."""
    seen: set[Any] = set()
    found: list[bytes] = []
    for data in sorted(set(inputs), key=_size):
        steps = _steps(data, target, folder)
        if not steps <= seen and sum(map(len, found)) + len(data) <= MOST:
            seen |= steps
            found.append(data)
    return found


def _steps(data: bytes, target: Callable[[bytes], Any], folder: str) -> set[Any]:
    found: set[Any] = set()

    def trace(frame: FrameType, _event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(folder):
            return None
        file, last = frame.f_code.co_filename, frame.f_lineno

        def inner(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "line":
                found.add((file, last, frame.f_lineno))
                last = frame.f_lineno
            return inner

        return inner

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        answers = target(data)
    finally:
        sys.settrace(before)
    return found | set(answers)
