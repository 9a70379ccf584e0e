"""Criteria of `find`: `status=up and (sched-now=free or names=node[0-3])`, read from left to right."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fluxion_cy.errors import InvalidJobspec, NotSupported
from fluxion_cy.ranges import hostlist

_MAX_DEPTH = 64
_VALUES = {"status": ("up", "down"), "sched-now": ("allocated", "free"), "sched-future": ("reserved", "free")}
_JOBS = ("jobid-alloc", "jobid-reserved", "jobid-span", "jobid-tag")


@dataclass(slots=True)
class Facts:
    """What criteria can ask about one vertex; job ids by the kind of hold."""

    name: str
    properties: Mapping[str, str]
    down: bool = False
    allocated: bool = False
    reserved: bool = False
    jobs: dict[str, set[int]] = field(default_factory=dict)


Test = Callable[[Facts], bool]


def read_criteria(text: str) -> Test:
    """A test for vertices; InvalidJobspec names the word that is wrong."""
    if not isinstance(text, str):
        raise InvalidJobspec(f"criteria: must be a string, not {type(text).__name__}")
    words = text.replace("(", " ( ").replace(")", " ) ").split()
    test, rest = _expression(words, 0, 0)
    if rest != len(words):
        raise InvalidJobspec(f"criteria: {words[rest][:60]!r} is out of place")
    return test


def _expression(words: list[str], at: int, depth: int) -> tuple[Test, int]:
    test, at = _term(words, at, depth)
    while at < len(words) and words[at] != ")":
        operation = words[at] if words[at] in ("and", "or") else "and"
        right, at = _term(words, at + (words[at] == operation), depth)
        test = _both(test, right) if operation == "and" else _either(test, right)
    return test, at


def _both(left: Test, right: Test) -> Test:
    return lambda facts: left(facts) and right(facts)


def _either(left: Test, right: Test) -> Test:
    return lambda facts: left(facts) or right(facts)


def _term(words: list[str], at: int, depth: int) -> tuple[Test, int]:
    if at >= len(words):
        raise InvalidJobspec("criteria: something is missing at the end")
    if depth > _MAX_DEPTH:
        raise InvalidJobspec(f"criteria: nested more than {_MAX_DEPTH} levels deep")
    word = words[at]
    if word == "not":
        test, rest = _term(words, at + 1, depth + 1)
        return lambda facts: not test(facts), rest
    if word == "(":
        test, rest = _expression(words, at + 1, depth + 1)
        if rest >= len(words):
            raise InvalidJobspec("criteria: a closing parenthesis is missing")
        return test, rest + 1
    return _predicate(word), at + 1


def _predicate(word: str) -> Test:
    key, equals, value = word.partition("=")
    low = value.lower()
    if not equals:
        raise InvalidJobspec(f"criteria: {word[:60]!r} is not of the form key=value")
    if key in _VALUES and low in _VALUES[key]:
        return _state(key, low)
    if key in _JOBS:
        job = _jobid(value, word)
        return lambda facts: job in facts.jobs.get(key, ())
    if key == "names":
        return _names(low, word)
    if key == "property" and low:
        return lambda facts: low in facts.properties
    if key == "agfilter":
        raise NotSupported("criteria: agfilter is not supported by this engine; ask stat() for the totals")
    raise InvalidJobspec(f"criteria: {word[:60]!r} is unknown")


def _state(key: str, value: str) -> Test:
    if key == "status":
        return lambda facts: facts.down == (value == "down")
    if key == "sched-now":
        return lambda facts: facts.allocated == (value == "allocated")
    return lambda facts: facts.reserved == (value == "reserved")


def _jobid(value: str, word: str) -> int:
    try:
        job = int(value, 16 if value.lower().startswith("0x") else 10)
    except ValueError:
        job = -1
    if not 0 <= job < 2**64:
        raise InvalidJobspec(f"criteria: {word[:60]!r} names no job id")
    return job


def _names(value: str, word: str) -> Test:
    try:
        names = frozenset(hostlist(value))
    except ValueError:
        raise InvalidJobspec(f"criteria: {word[:60]!r} is no hostlist") from None
    return lambda facts: facts.name in names
