"""The criteria of `find`, such as `status=up and (sched-now=free or names=node[0-3])`, evaluated from left to right.

Blanks separate words; a parenthesis opens before a word and closes after one. `and` may be left out.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fluxion_cy.base.ranges import MAX_HOSTS, Limit, hostlist
from fluxion_cy.errors import InvalidJobspec

_MAX_DEPTH = 64
_BLANK = " \t"
_BLANKS = re.compile(r"[ \t]")
_BRACKET = re.compile(r"[()]")
_VALUES = {"status": ("up", "down"), "sched-now": ("allocated", "free"), "sched-future": ("reserved", "free")}
_JOBS = ("jobid-alloc", "jobid-reserved", "jobid-span", "jobid-tag")
_YES, _NO = ("true", "t"), ("false", "f")
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


@dataclass(slots=True)
class Facts:
    """The state of one vertex that criteria can test; `jobs`: job ids by the kind of hold."""

    name: str
    properties: Mapping[str, str]
    down: bool = False
    allocated: bool = False
    reserved: bool = False
    jobs: dict[str, set[int]] = field(default_factory=dict)


Test = Callable[[Facts], bool]


@dataclass(slots=True)
class Criteria:
    """`test` of vertices; `agfilter`: whether to show what is used below them, by `jobid` or by all jobs (None)."""

    test: Test
    agfilter: bool = False
    jobid: int | None = None
    limit: Limit = field(default_factory=Limit)
    """How many names the criteria may still expand to."""


def read_criteria(text: str) -> Criteria:
    """Parse criteria. Raises InvalidJobspec, which names the wrong word."""
    if not isinstance(text, str):
        raise InvalidJobspec(f"criteria: must be a string, not {type(text).__name__}")
    found = Criteria(_never)
    found.test = _expression(text, 0, found)
    return found


def _expression(text: str, depth: int, found: Criteria) -> Test:
    if depth > _MAX_DEPTH:
        raise InvalidJobspec(f"criteria: nested more than {_MAX_DEPTH} levels deep")
    test, rest = _operand(text, depth, found)
    while rest.strip(_BLANK):
        if rest[0] not in _BLANK:
            raise InvalidJobspec(f"criteria: expected a space before {rest[:60]!r}")
        word, after = _word(rest)
        right, rest = _operand(after if word in ("and", "or") else rest, depth, found)
        test = _either(test, right) if word == "or" else _both(test, right)
    return test


def _always(_: Facts) -> bool:
    return True


def _never(_: Facts) -> bool:
    return False


def _both(left: Test, right: Test) -> Test:
    return lambda facts: left(facts) and right(facts)


def _either(left: Test, right: Test) -> Test:
    return lambda facts: left(facts) or right(facts)


def _word(text: str) -> tuple[str, str]:
    """The first word, and the rest."""
    word, *rest = _BLANKS.split(text.lstrip(_BLANK), 1)
    return word, " " + rest[0] if rest else ""


def _operand(text: str, depth: int, found: Criteria) -> tuple[Test, str]:
    """The test of the first operand, and the rest."""
    text = text.lstrip(_BLANK)
    if not text:
        raise InvalidJobspec("criteria: expected a word at the end")
    if text[0] == "(":
        end = _closing(text)
        return _expression(text[1:end], depth + 1, found), text[end + 1 :]
    word, rest = _word(text)
    if word != "not":
        return _predicate(word, found), rest
    if depth >= _MAX_DEPTH:
        raise InvalidJobspec(f"criteria: nested more than {_MAX_DEPTH} levels deep")
    test, rest = _operand(rest, depth + 1, found)
    return lambda facts: not test(facts), rest


def _closing(text: str) -> int:
    """Where the parenthesis at the start of the text closes."""
    depth = 0
    for found in _BRACKET.finditer(text):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.start()
    raise InvalidJobspec("criteria: a closing parenthesis is missing")


def _predicate(word: str, found: Criteria) -> Test:
    key, equals, value = word.partition("=")
    low = value.lower()
    if not equals:
        raise InvalidJobspec(f"criteria: expected key=value, got {word[:60]!r}")
    if key in _VALUES and low in _VALUES[key]:
        return _state(key, low)
    if key in _JOBS:
        found.jobid = job = _jobid(value, word)
        return lambda facts: job in facts.jobs.get(key, ())
    if key == "names":
        return _names(low, word, found.limit)
    if key == "property" and low:
        return lambda facts: low in facts.properties
    if key == "agfilter" and low in _YES + _NO:
        found.agfilter = wanted = low in _YES
        return _always if wanted else _never
    raise InvalidJobspec(f"criteria: {word[:60]!r} is unknown")


def _state(key: str, value: str) -> Test:
    if key == "status":
        return lambda facts: facts.down == (value == "down")
    if key == "sched-now":
        return lambda facts: facts.allocated == (value == "allocated")
    return lambda facts: facts.reserved == (value == "reserved")


def _jobid(value: str, word: str) -> int:
    try:
        job = _number(value)
    except ValueError:
        job = -1
    if not 0 <= job < 2**64:
        raise InvalidJobspec(f"criteria: expected a job id in {word[:60]!r}")
    return job


def _number(value: str) -> int:
    """A job id in Flux's spellings: decimal, 0x…, 0000.0000.0000.0000 (also after `job.`), or F58 after `ƒ` or `f`."""
    if not value.isascii() and not value.startswith("ƒ"):
        raise ValueError
    if value[:1] in ("ƒ", "f"):
        number = 0
        for char in value[1:13]:
            number = number * 58 + _BASE58.index(char)
        return number if 1 < len(value) < 14 else -1
    quads = value.removeprefix("job.").split(".")
    if len(quads) == 4 and all(len(quad) == 4 for quad in quads):
        return int("".join(quads), 16)
    if "_" in value:
        raise ValueError
    value = value.removeprefix("job.")
    return int(value, 16 if value.startswith("0x") else 10)


def _names(value: str, word: str, limit: Limit) -> Test:
    try:
        names = frozenset(hostlist(value, limit))
    except ValueError:
        raise InvalidJobspec(
            f"criteria: expected a hostlist of at most {MAX_HOSTS:,} hosts in total, got {word[:60]!r}"
        ) from None
    return lambda facts: facts.name in names
