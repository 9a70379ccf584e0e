"""What commands have in common: the session, answers, and the files and numbers that they are given."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxion_cy.errors import FluxionError, InvalidGraph, InvalidJobspec
from fluxion_cy.matcher import Matcher

RULE = "============================="


@dataclass(slots=True)
class Answer:
    """`values` for JSON, `text` for people; `aside`: not for the file of `--test-output`; `error`: how it ended."""

    values: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    aside: bool = False
    error: FluxionError | None = None


@dataclass(slots=True)
class Origin:
    """Where a job came from: its file, how long its match took, and whether `update` put it into the future."""

    file: str
    overhead: float
    reserved: bool = False


@dataclass(slots=True)
class Session:
    """A matcher, the form in which it answers, and what the prompt knows of its jobs."""

    matcher: Matcher
    match_format: str = "simple"
    elapse: bool = False
    jobs: dict[int, Origin] = field(default_factory=dict)


Handler = Callable[[Session, list[str]], Answer]


@dataclass(frozen=True, slots=True)
class Command:
    """How many words may follow (`most` None: any number), and what it says of itself."""

    handler: Handler
    short: str
    usage: str
    about: str
    least: int
    most: int | None


class Malformed(FluxionError):  # noqa: N818 - it names a state like its neighbours
    """A line that is not a valid command."""


def informed(*lines: str) -> str:
    """Lines as resource-query prints them."""
    return "".join(f"INFO: {line}\n" for line in lines)


def written(value: Any) -> str:
    """R as it is printed: text forms as they stand, the others on one line."""
    return value if isinstance(value, str) else json.dumps(value) + "\n"


def read(name: str) -> str:
    """A file's text; Malformed names the file."""
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Malformed(f"can't open {name}: is not text in UTF-8") from None
    except (OSError, ValueError) as error:
        raise Malformed(f"can't open {name}: {getattr(error, 'strerror', None) or error}") from None


@contextmanager
def named(name: str) -> Iterator[None]:
    """Puts the file's name before what is wrong in it."""
    try:
        yield
    except (InvalidJobspec, InvalidGraph) as error:
        raise type(error)(f"{name}: {error}", error.errno) from None


def number(word: str, what: str) -> int:
    """A whole number; Malformed names what it was to be."""
    if not (word.isascii() and word.isdigit() and len(word) < 21):
        raise Malformed(f"{what}: {word[:40]!r} is not a number")
    return int(word)
