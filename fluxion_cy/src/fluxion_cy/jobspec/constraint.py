"""Constraints (RFC 31): parsed and validated once, compiled for the tables of a graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxion_cy.base.ranges import MAX_HOSTS, Limit, hostlist, idset
from fluxion_cy.errors import InvalidJobspec, shown

_MAX_DEPTH = 64
_MAX_RULES = 10_000
_FORBIDDEN = frozenset("!&'\"^`|()")
_KINDS = {"properties": 1, "hostlist": 2, "ranks": 3, "and": 4, "or": 5, "not": 6}


@dataclass(slots=True)
class Rule:
    """One operation: the `words` of a leaf (properties, hosts), the `spans` of ranks, or the `rules` that it joins."""

    operation: str
    words: list[str] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    rules: list["Rule"] = field(default_factory=list)

    def weight(self) -> int:
        """The memory of the rule in bytes, estimated."""
        words = sum(map(len, self.words)) + 60 * len(self.words)
        return 300 + words + 130 * len(self.spans) + sum(rule.weight() for rule in self.rules)


@dataclass(slots=True)
class Program:
    """A constraint as flat tables: rules (kind, first, count), links to rules, and the operands of leaves.

    `chosen`: the constraint can hold only with one of these property sets; None where it can hold with others.
    """

    rules: list[tuple[int, int, int]] = field(default_factory=list)
    links: list[int] = field(default_factory=list)
    prop_ok: bytearray = field(default_factory=bytearray)
    hosts: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    chosen: list[int] | None = None


def parse_constraint(value: Any) -> Rule:
    """The rule of a constraint mapping. Raises InvalidJobspec, which names the operation."""
    return _parse(value, 0, _Limits())


@dataclass(slots=True)
class _Limits:
    """How much one constraint may still hold."""

    rules: int = _MAX_RULES
    hosts: Limit = field(default_factory=Limit)


def _parse(value: Any, depth: int, limits: _Limits) -> Rule:
    limits.rules -= 1
    if not isinstance(value, Mapping):
        raise InvalidJobspec("attributes.system.constraints: a constraint must be a mapping")
    if depth > _MAX_DEPTH or limits.rules < 0:
        raise InvalidJobspec(
            f"attributes.system.constraints: more than {_MAX_DEPTH} levels deep, or more than {_MAX_RULES} operations"
        )
    if not value:
        return Rule("and")
    if len(value) > 1:
        raise InvalidJobspec("attributes.system.constraints: a constraint must contain exactly one operation")
    operation, operands = next(iter(value.items()))
    if not isinstance(operation, str) or operation not in _KINDS:
        raise InvalidJobspec(f"attributes.system.constraints: unknown operation {shown(operation)}")
    if isinstance(operands, str) or not isinstance(operands, Sequence):
        raise InvalidJobspec(f"attributes.system.constraints.{operation}: the operands must be a list")
    return _leaf_or_branch(operation, operands, depth, limits)


def _leaf_or_branch(operation: str, operands: Sequence[Any], depth: int, limits: _Limits) -> Rule:
    if operation == "properties":
        return Rule(operation, words=[_property(word) for word in operands])
    if operation == "hostlist":
        return Rule(operation, words=[host for word in operands for host in _hosts(word, limits.hosts)])
    if operation == "ranks":
        return Rule(operation, spans=[span for word in operands for span in _ranks(word)])
    return Rule(operation, rules=[_parse(operand, depth + 1, limits) for operand in operands])


def _property(word: Any) -> str:
    if not isinstance(word, str):
        raise InvalidJobspec(f"attributes.system.constraints.properties: expected a string, got {shown(word)}")
    if _FORBIDDEN.intersection(word.removeprefix("^")):
        raise InvalidJobspec(
            f"attributes.system.constraints.properties: {word[:40]!r} has a character that is not allowed"
        )
    return word


def _hosts(word: Any, limit: Limit) -> list[str]:
    try:
        return hostlist(word if isinstance(word, str) else shown(word), limit)
    except ValueError:
        raise InvalidJobspec(
            f"attributes.system.constraints.hostlist: expected a hostlist of at most {MAX_HOSTS:,} hosts in total, "
            f"got {shown(word)}"
        ) from None


def _ranks(word: Any) -> list[tuple[int, int]]:
    try:
        return idset(word if isinstance(word, str) else shown(word))
    except ValueError:
        raise InvalidJobspec(f"attributes.system.constraints.ranks: expected an idset, got {shown(word)}") from None


def holds(rule: Rule, name: str, rank: int, properties: Mapping[str, str]) -> bool:
    """Whether the rule holds for a vertex. The engine evaluates the same on its tables."""
    if rule.operation == "properties":
        return all(
            (word[1:] not in properties) if word.startswith("^") else (word in properties) for word in rule.words
        )
    if rule.operation == "hostlist":
        return name in rule.words
    if rule.operation == "ranks":
        return any(low <= rank <= high for low, high in rule.spans)
    found = (holds(below, name, rank, properties) for below in rule.rules)
    if rule.operation == "or":
        return any(found)
    return all(found) == (rule.operation == "and")


def compile_rule(rule: Rule, symbols: Mapping[str, int], property_sets: Sequence[Mapping[str, str]]) -> Program:
    """The tables for one graph: `symbols` are its interned names, `property_sets` its distinct property sets."""
    program = Program()
    _emit(rule, program, symbols, property_sets)
    chosen = _chosen(rule, property_sets)
    program.chosen = None if chosen is None else sorted(chosen)
    return program


def _chosen(rule: Rule, property_sets: Sequence[Mapping[str, str]]) -> set[int] | None:
    """The property sets with which the rule can hold; None where it can hold without any property."""
    if rule.operation == "properties":
        found = {i for i, properties in enumerate(property_sets) if holds(rule, "", -1, properties)}
        return None if 0 in found else found
    below = [_chosen(child, property_sets) for child in rule.rules]
    known = [sets for sets in below if sets is not None]
    if rule.operation == "and" and known:
        return min(known, key=len)
    if rule.operation == "or" and len(known) == len(below):
        return set().union(*known)
    return None


def _emit(rule: Rule, program: Program, symbols: Mapping[str, int], property_sets: Sequence[Mapping[str, str]]) -> int:
    place = len(program.rules)
    program.rules.append((0, 0, 0))
    if rule.operation == "properties":
        first, table = len(program.prop_ok), program.prop_ok
        table.extend(holds(rule, "", -1, properties) for properties in property_sets)
        count = len(table) - first
    elif rule.operation == "hostlist":
        first = len(program.hosts)
        program.hosts.extend(sorted({symbols[word] for word in rule.words if word in symbols}))
        count = len(program.hosts) - first
    elif rule.operation == "ranks":
        first, count = len(program.spans), len(rule.spans)
        program.spans.extend(rule.spans)
    else:
        below = [_emit(child, program, symbols, property_sets) for child in rule.rules]
        first, count = len(program.links), len(below)
        program.links.extend(below)
    program.rules[place] = (_KINDS[rule.operation], first, count)
    return place
