"""Common parts of commands: the session, answers, and readers of files and numbers."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fluxion_cy.errors import FluxionError, InvalidGraph, InvalidJobspec
from fluxion_cy.matcher import Matcher

RULE = "============================="
_LONGEST = 2**30
"""The maximum number of characters of a file."""


@dataclass(slots=True)
class Answer:
    """The result of a command: `values` for JSON, `text` for people. `aside`: not for the file of `--test-output`."""

    values: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    aside: bool = False
    error: FluxionError | None = None


@dataclass(slots=True)
class Origin:
    """The origin of a job: its file, the time of its match, and whether `update` reserved it."""

    file: str
    overhead: float
    reserved: bool = False


@dataclass(slots=True)
class Session:
    """A matcher, its match format, and the prompt's records of jobs."""

    matcher: Matcher
    match_format: str = "simple"
    elapse: bool = False
    jobs: dict[int, Origin] = field(default_factory=dict)


Handler = Callable[[Session, list[str]], Answer]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its short form, its arguments (`most` None: any number) and its help."""

    handler: Handler
    short: str
    usage: str
    about: str
    least: int
    most: int | None


class Malformed(FluxionError):  # noqa: N818 - it names a state like its neighbours
    """A malformed command."""


def informed(*lines: str) -> str:
    """Lines in resource-query's form of information."""
    return "".join(f"INFO: {line}\n" for line in lines)


def written(value: Any) -> str:
    """R for printing: text forms unchanged, the others as JSON on one line."""
    return value if isinstance(value, str) else json.dumps(value) + "\n"


def read(name: str) -> str:
    """The text of a file. Raises Malformed, which names the file."""
    try:
        with open(name, encoding="utf-8-sig") as file:
            text = file.read(_LONGEST + 1)
    except UnicodeDecodeError:
        raise Malformed(f"can't open {name}: it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise Malformed(f"can't open {name}: {getattr(error, 'strerror', None) or error}") from None
    if len(text) > _LONGEST:
        raise Malformed(f"can't open {name}: it is longer than {_LONGEST} characters")
    return text


@contextmanager
def named(name: str) -> Iterator[None]:
    """Puts the file's name before an error's message."""
    try:
        yield
    except (InvalidJobspec, InvalidGraph) as error:
        raise type(error)(f"{name}: {error}", error.errno) from None


def number(word: str, what: str) -> int:
    """A whole number. Raises Malformed, which names `what`."""
    if not (word.isascii() and word.isdigit() and len(word) < 21):
        raise Malformed(f"{what}: {word[:40]!r} is not a number")
    return int(word)
