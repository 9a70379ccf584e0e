"""CEL compiler: a tree to a function that runs for each device. `false && error` is false, as in the language."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from session_scheduler.model.cel.errors import CompileError, EvaluationError, FinalError, located
from session_scheduler.model.cel.library import FUNCTIONS, METHODS, TYPES, Function, contains, item
from session_scheduler.model.cel.macros import MACROS, Names, Step, decided, truth
from session_scheduler.model.cel.parser import Places, Tree, parse
from session_scheduler.model.cel.values import OptionalValue, Semver, Value, from_key, map_key, no_overload, type_name
from session_scheduler.model.cel.work import LIMIT, Work

_LIST_COST, _MAP_COST = 10, 30
_NAMING_TYPES = frozenset((
    "isGreaterThan", "isLessThan", "compareTo", "major", "minor", "patch", "lowerAscii", "int", "string", "quantity",
    "semver", "size",
))  # fmt: skip
_NO_BOOL = {"string": "unsupported native conversion from string to 'bool'",
            "kubernetes.Semver": "type conversion error from 'Semver' to 'bool'"}  # fmt: skip


class Program:
    """A compiled expression with a boolean result, such as a selector of devices."""

    def __init__(self, text: str, variables: Iterable[str], fields: Collection[str]) -> None:
        """`fields`: the fields of the variable `device`. Raises CompileError."""
        self.text = text
        try:
            tree, places = parse(text)
            if tree[0] == "const" and not isinstance(tree[1], bool):
                raise CompileError(f"must evaluate to bool or the unknown type, not {type_name(tree[1])}")
            self._run = _Compiler(text, places, fields).step(tree, frozenset(variables))
        except RecursionError:
            raise CompileError("compilation failed: the expression is nested too deeply") from None

    def evaluate(self, names: Names, limit: int = LIMIT) -> tuple[bool | EvaluationError, int]:
        """The result, or an error; and the cost."""
        work = Work(limit)
        try:
            answer = self._run(names, work)
        except EvaluationError as error:
            return error, limit - work.left
        except RecursionError:
            return EvaluationError("the expression is nested too deeply"), limit - work.left
        if not isinstance(answer, bool):
            kind = type_name(answer)
            why = _NO_BOOL.get(kind, f"unsupported type conversion from '{kind}' to bool")
            answer = EvaluationError(f"CEL result of type {kind} could not be converted to bool: {why}")
        return answer, limit - work.left


class _Compiler:
    def __init__(self, text: str, places: Places, fields: Collection[str]) -> None:
        self._text = text
        self._places = places
        self._fields = fields

    def step(self, tree: Tree, known: frozenset[str]) -> Step:
        """The function for a tree; `known` are the variables in scope."""
        makers: dict[str, Callable[[Tree, frozenset[str]], Step]] = {
            "const": self._const, "ident": self._ident, "select": self._select, "index": self._index,
            "call": self._call, "list": self._list, "map": self._map, "and": self._logic, "or": self._logic,
            "not": self._not, "if": self._if,
        }  # fmt: skip
        return makers[tree[0]](tree, known)

    def _const(self, tree: Tree, _: frozenset[str]) -> Step:
        value = tree[1]
        return lambda _names, _work: value

    def _ident(self, tree: Tree, known: frozenset[str]) -> Step:
        name = tree[1]
        if name not in known:
            if name in TYPES:
                value = TYPES[name]
                return lambda _names, _work: value
            raise self._wrong(tree, _undeclared(name))

        def run(names: Names, work: Work) -> Value:
            work.spend(1)
            return names[name]

        return run

    def _select(self, tree: Tree, known: frozenset[str]) -> Step:
        _, inner, name, optional = tree
        constant = TYPES.get(_dotted(tree, known))
        if constant is not None:
            return lambda _names, _work: constant
        self._check_field(tree, inner, name, known)
        of = self.step(inner, known)
        return lambda names, work: item(of(names, work), name, work, optional=optional, field=True)

    def _check_field(self, tree: Tree, inner: Tree, name: str, known: frozenset[str]) -> None:
        if inner[0] == "ident" and inner[1] == "device" and "device" in known and name not in self._fields:
            raise self._wrong(tree, f"undefined field '{name}'")

    def _wrong(self, tree: Tree, message: str) -> CompileError:
        return located(self._text, self._places.get(id(tree), 0), message)

    def _index(self, tree: Tree, known: frozenset[str]) -> Step:
        _, inner, index, optional = tree
        of, at = self.step(inner, known), self.step(index, known)
        return lambda names, work: item(of(names, work), at(names, work), work, optional=optional)

    # ------------------------------------------------------------------ collections

    def _list(self, tree: Tree, known: frozenset[str]) -> Step:
        parts = [(self.step(one[1] if one[0] == "optional" else one, known), one[0] == "optional") for one in tree[1]]

        def run(names: Names, work: Work) -> Value:
            work.spend(_LIST_COST)
            found: list[Value] = []
            for part, optional in parts:
                found.extend(_present(part(names, work)) if optional else (part(names, work),))
            return found

        return run

    def _map(self, tree: Tree, known: frozenset[str]) -> Step:
        pairs = [
            (self.step(key, known), self.step(value[1] if value[0] == "optional" else value, known),
             value[0] == "optional")
            for key, value in tree[1]
        ]  # fmt: skip

        def run(names: Names, work: Work) -> Value:
            work.spend(_MAP_COST)
            found: dict[Any, Value] = {}
            for key, value, optional in pairs:
                at = map_key(key(names, work))
                if at in found:
                    raise EvaluationError(f"Failed with repeated key: {from_key(at)}")
                for one in _present(value(names, work)) if optional else (value(names, work),):
                    found[at] = one
            return found

        return run

    # ------------------------------------------------------------------ logic

    def _logic(self, tree: Tree, known: frozenset[str]) -> Step:
        decides = tree[0] == "or"
        left, right = self.step(tree[1], known), self.step(tree[2], known)

        def run(names: Names, work: Work) -> Value:
            return decided(decides, ((part, names) for part in (left, right)), work)

        return run

    def _not(self, tree: Tree, known: frozenset[str]) -> Step:
        of = self.step(tree[1], known)

        def run(names: Names, work: Work) -> Value:
            work.spend(1)
            return not truth(of(names, work))

        return run

    def _if(self, tree: Tree, known: frozenset[str]) -> Step:
        condition, then, other = (self.step(part, known) for part in tree[1:])
        return lambda names, work: (then if truth(condition(names, work)) else other)(names, work)

    # ------------------------------------------------------------------ calls

    def _call(self, tree: Tree, known: frozenset[str]) -> Step:
        _, name, target, arguments = tree
        if target is None and name == "has":
            return self._has(tree, known)
        if name == "bind" and target == ("ident", "cel") and len(arguments) == 3:
            return self._bind(tree, known)
        if target is not None and (name, len(arguments)) in MACROS:
            return self._macro(tree, known)
        if target is not None and name in ("optMap", "optFlatMap") and len(arguments) == 2:
            return self._opt_map(tree, known)
        if target is not None and target[0] == "ident" and target[1] not in known:
            qualified = f"{target[1]}.{name}"
            if (qualified, len(arguments)) in FUNCTIONS:
                return self._plain(tree, qualified, None, known)
        return self._plain(tree, name, target, known)

    def _plain(self, tree: Tree, name: str, target: Tree | None, known: frozenset[str]) -> Step:
        arguments = tree[3]
        table = FUNCTIONS if target is None else METHODS
        function = table.get((name, len(arguments)))
        if function is None:
            raise self._wrong(tree, _undeclared(name))
        if name in _NAMING_TYPES:
            function = _naming_types(name, function)
        if name == "_in_" and _is_set(arguments[1]):
            function = _in_set
        parts = [self.step(one, known) for one in ((target,) if target is not None else ()) + arguments]
        if len(parts) == 2:
            left, right = parts

            def two(names: Names, work: Work) -> Value:
                work.spend(1)
                return function(work, left(names, work), right(names, work))

            return two

        def run(names: Names, work: Work) -> Value:
            work.spend(1)
            return function(work, *[part(names, work) for part in parts])

        return run

    def _has(self, tree: Tree, known: frozenset[str]) -> Step:
        arguments = tree[3]
        if len(arguments) != 1 or arguments[0][0] != "select":
            raise self._wrong(arguments[0] if arguments else tree, "invalid argument to has() macro")
        _, inner, name, _ = arguments[0]
        self._check_field(tree, inner, name, known)
        of = self.step(inner, known)

        def run(names: Names, work: Work) -> Value:
            work.spend(1)
            value = of(names, work)
            if isinstance(value, OptionalValue):
                value = value.value if value.present else {}
            return contains(work, name, value, of_maps=True)

        return run

    def _bind(self, tree: Tree, known: frozenset[str]) -> Step:
        arguments = tree[3]
        if arguments[0][0] != "ident":
            raise self._wrong(arguments[0], "cel.bind() variable names must be simple identifiers")
        name = arguments[0][1]
        value, body = self.step(arguments[1], known), self.step(arguments[2], known | {name})
        return lambda names, work: body({**names, name: value(names, work)}, work)

    def _opt_map(self, tree: Tree, known: frozenset[str]) -> Step:
        _, name, target, arguments = tree
        if arguments[0][0] != "ident":
            raise self._wrong(arguments[0], f"{name}() variable name must be a simple identifier")
        variable, flat = arguments[0][1], name == "optFlatMap"
        of, body = self.step(target, known), self.step(arguments[1], known | {variable})

        def run(names: Names, work: Work) -> Value:
            value = of(names, work)
            if not isinstance(value, OptionalValue):
                raise no_overload()
            if not value.present:
                return value
            answer = body({**names, variable: value.value}, work)
            return answer if flat else OptionalValue(answer, present=True)

        return run

    def _macro(self, tree: Tree, known: frozenset[str]) -> Step:
        _, name, target, arguments = tree
        macro = MACROS[name, len(arguments)]
        named = arguments[: macro.variables]
        for one in named:
            if one[0] != "ident":
                simple = name not in ("map", "filter", "sortBy")
                raise self._wrong(one, f"argument {'must be a simple name' if simple else 'is not an identifier'}")
        variables = [one[1] for one in named]
        if len(set(variables)) < macro.variables:
            raise self._wrong(named[1], f"duplicate variable name: {variables[0]}")
        of = self.step(target, known)
        bodies = [self.step(body, known | set(variables)) for body in arguments[macro.variables :]]

        def each(names: Names, work: Work) -> Iterable[tuple[Value, Names]]:
            value = of(names, work)
            if not isinstance(value, list | dict):
                raise EvaluationError(f"got '{_implementation(value)}', expected iterable type")
            keys = range(len(value)) if isinstance(value, list) else list(value)
            for key in keys:
                work.spend(2)
                at, one = from_key(key), value[key]
                if macro.variables == 1:
                    at = one if isinstance(value, list) else at
                    yield at, {**names, variables[0]: at}
                else:
                    yield at, {**names, variables[0]: at, variables[1]: one}

        return macro.make(each, bodies)


def _implementation(value: Value) -> str:
    """The value's type, as cel-go's messages name it."""
    name = type_name(value)
    return f"cel.{name.rpartition('.')[2]}" if "." in name else f"types.{name.removesuffix('_type').capitalize()}"


def _dotted(tree: Tree, known: frozenset[str]) -> str:
    """The dotted name of a chain of selections from an unknown name; empty for other trees."""
    if tree[0] == "ident":
        return "" if tree[1] in known else str(tree[1])
    of = _dotted(tree[1], known) if tree[0] == "select" and not tree[3] else ""
    return f"{of}.{tree[2]}" if of else ""


def _is_set(tree: Tree) -> bool:
    """Whether the tree is a list of constants that cel-go compiles to a set."""
    return tree[0] == "list" and bool(tree[1]) and all(
        one[0] == "const" and one[1] is not None and not isinstance(one[1], bytes) for one in tree[1])  # fmt: skip


def _in_set(work: Work, needle: Value, values: Value) -> bool:
    """`in` for such a list: versions and bytes have no hash, so kube-scheduler's evaluation fails."""
    if isinstance(needle, Semver | bytes):
        kind = "cel.Semver" if isinstance(needle, Semver) else "types.Bytes"
        raise FinalError(f"internal error: runtime error: hash of unhashable type {kind}")
    return contains(work, needle, values)


def _naming_types(name: str, function: Function) -> Function:
    """The function, with the argument types added to its overload errors."""

    def run(work: Work, *arguments: Value) -> Value:
        try:
            return function(work, *arguments)
        except EvaluationError as error:
            if str(error) != str(no_overload()):
                raise
            types = "" if name == "size" else f"({', '.join(map(type_name, arguments))})"
            raise EvaluationError(f"{error}: {name}{types}") from None

    return run


def _present(value: Value) -> tuple[Value, ...]:
    if not isinstance(value, OptionalValue):
        raise no_overload()
    return (value.value,) if value.present else ()


def _undeclared(name: str) -> str:
    return f"undeclared reference to '{name}' (in container '')"
