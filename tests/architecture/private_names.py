"""Finds the private names of other distributions that a file imports, overrides in subclasses or reads from objects.

A name is private if it begins with one underscore. Types are inferred in simple cases: from annotations, and from
calls of classes and of functions with an annotated result. A name is not found if the type of its object is unknown.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.architecture.import_graph import PACKAGES

Class = type[Any]
Imports = list[ast.Import | ast.ImportFrom]
Function = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_COMPILED_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\s+(.+)|c?import\s+([\w.]+))", re.M)


class Use(NamedTuple):
    """A private name on a line of a file; `name` is its qualified name in the other distribution."""

    line: int
    name: str


def private_uses(path: Path, module: str | None = None) -> list[Use]:
    """The private names of other distributions in a file; `module` is the file's name for importing its definitions."""
    text = path.read_text()
    if path.suffix == ".pyx":
        return sorted(set(_compiled(text)))
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sorted({*_imported(imports), *_Reader(tree, _namespace(imports, module)).uses()})


def is_private(name: str) -> bool:
    """Whether a name is private: the distribution may change it at any time."""
    return name.startswith("_") and name != "_" and not (name.startswith("__") and name.endswith("__"))


def is_foreign(module: str) -> bool:
    """Whether a module belongs to another distribution, and not to the standard library."""
    top = module.partition(".")[0]
    return bool(top) and top not in PACKAGES and top not in sys.stdlib_module_names and top != "tests"


# ---------------------------------------------------------------------- imports


def _compiled(text: str) -> Iterator[Use]:
    for found in _COMPILED_IMPORT.finditer(text):
        module = found[1] or found[3]
        names = [name.split()[0] for name in (found[2] or "").strip("()").split(",") if name.strip()]
        parts = [*module.split("."), *names]
        if is_foreign(module) and any(map(is_private, parts)):
            yield Use(text.count("\n", 0, found.start()) + 1, ".".join(parts))


def _imported(imports: Imports) -> Iterator[Use]:
    for node in imports:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (
            Use(node.lineno, name) for name in names if is_foreign(name) and any(map(is_private, name.split(".")))
        )


def _namespace(imports: Imports, module: str | None) -> dict[str, Any]:
    """The names of a module, with the names that its functions and types import from other distributions."""
    found: dict[str, Any] = dict(vars(importlib.import_module(module))) if module else {}
    for node in imports:
        if isinstance(node, ast.Import):
            for alias in node.names:
                with suppress(ImportError):
                    if is_foreign(alias.name):
                        whole = importlib.import_module(alias.name)
                        top = sys.modules[alias.name.partition(".")[0]]
                        found.setdefault(alias.asname or top.__name__, whole if alias.asname else top)
        elif not node.level and is_foreign(node.module or ""):
            source = importlib.import_module(node.module or "")
            for alias in node.names:
                with suppress(ImportError):  # the module does not define this name
                    value = getattr(source, alias.name, None) or importlib.import_module(f"{node.module}.{alias.name}")
                    found.setdefault(alias.asname or alias.name, value)
    return found


# ---------------------------------------------------------------------- classes of other distributions


def _foreign(found: object) -> frozenset[Class]:
    """The classes of other distributions in a type, such as `Class | None`."""
    origin = typing.get_origin(found)
    if origin in (typing.Union, types.UnionType, typing.Annotated, typing.Final, typing.ClassVar):
        return frozenset[Class]().union(*map(_foreign, typing.get_args(found)))
    found = origin or found
    return frozenset({found}) if isinstance(found, type) and is_foreign(found.__module__) else frozenset()


@cache
def _own_names(kind: Class) -> frozenset[str]:
    """The names that a class itself defines, with slots, annotations and what its methods assign to `self`."""
    slots = vars(kind).get("__slots__", ())
    names = {*vars(kind), *vars(kind).get("__annotations__", {}), *([slots] if isinstance(slots, str) else slots)}
    try:
        source = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):  # compiled, or created without a source file
        return frozenset(names)
    stored = (node for node in ast.walk(source) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return frozenset({*names, *(node.attr for node in stored if _is_name(node.value, "self"))})


def _definer(kinds: frozenset[Class], name: str) -> Class | None:
    """The class of another distribution among the ancestors that defines the name."""
    for kind in kinds:
        for ancestor in kind.__mro__:
            if is_foreign(ancestor.__module__) and name in _own_names(ancestor):
                return ancestor
    return None


def _result(function: object) -> frozenset[Class]:
    """The classes that a call may return, according to its annotation."""
    if isinstance(function, type):
        return _foreign(function)
    try:
        return _foreign(typing.get_type_hints(function).get("return"))
    except Exception:  # noqa: BLE001 (no function, or its annotations cannot be evaluated: it is unknown)
        return frozenset()


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


# ---------------------------------------------------------------------- one file

Types = Mapping[str, frozenset[Class]]
"""By variable, or `self.attribute`: the classes of its possible values."""


class _Reader:
    def __init__(self, tree: ast.Module, names: Mapping[str, Any]) -> None:
        self._tree = tree
        self._names = names
        self._inside = cache(_inside)

    def uses(self) -> Iterator[Use]:
        """All uses except imports."""
        yield from self._scope(self._tree, {})

    def _scope(self, scope: ast.AST, outer: Types) -> Iterator[Use]:
        """The uses in a module, a class or a function."""
        known = {**outer, **self._typed(scope, outer)}
        if isinstance(scope, ast.ClassDef):
            yield from self._subclass(scope)
        for node in self._inside(scope):
            if isinstance(node, ast.ClassDef | Function):
                yield from self._scope(node, known)
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                for kind in self._kinds(node.value, known):
                    definer = _definer(frozenset({kind}), node.attr) or kind
                    yield Use(node.lineno, f"{definer.__module__}.{definer.__qualname__}.{node.attr}")
                value = self._value(node.value)
                if isinstance(value, types.ModuleType | type) and is_foreign(_path(value)):
                    yield Use(node.lineno, f"{_path(value)}.{node.attr}")

    def _subclass(self, node: ast.ClassDef) -> Iterator[Use]:
        """The names that a subclass overrides, and the names of its ancestors that it uses."""
        bases = frozenset(value for base in node.bases if isinstance(value := self._value(base), type))
        used: list[tuple[int, str]] = []
        for member in node.body:
            if isinstance(member, Function):
                used.append((member.lineno, member.name))
                itself = member.args.args[0].arg if member.args.args else ""
                used += [
                    (one.lineno, one.attr)
                    for one in ast.walk(member)
                    if isinstance(one, ast.Attribute) and (_is_name(one.value, itself) or _is_super(one.value))
                ]
            elif isinstance(member, ast.Assign | ast.AnnAssign):
                targets = member.targets if isinstance(member, ast.Assign) else [member.target]
                used += [(member.lineno, target.id) for target in targets if isinstance(target, ast.Name)]
        for line, name in used:
            if is_private(name) and (definer := _definer(bases, name)) is not None:
                yield Use(line, f"{definer.__module__}.{definer.__qualname__}.{name}")

    def _typed(self, scope: ast.AST, outer: Types) -> Types:
        """The types of a scope's variables; for a class, those of `self`, from all its methods."""
        known: dict[str, frozenset[Class]] = {}
        if isinstance(scope, Function):
            arguments = scope.args
            for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                known[one.arg] = self._annotated(one.annotation)
        if isinstance(scope, ast.ClassDef):
            for method in (member for member in scope.body if isinstance(member, Function)):
                within = {**outer, **self._typed(method, outer)}
                known |= {name: kinds for name, kinds in within.items() if name.startswith("self.") and kinds}
            for member in scope.body:
                if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    known[f"self.{member.target.id}"] = self._annotated(member.annotation)
            return known
        for node in self._inside(scope):
            pairs: list[tuple[ast.expr | None, frozenset[Class]]] = []
            if isinstance(node, ast.AnnAssign):
                pairs = [(node.target, self._annotated(node.annotation))]
            elif isinstance(node, ast.Assign):
                kinds = self._kinds(node.value, {**outer, **known})
                pairs = [(target, kinds) for target in node.targets]
            elif isinstance(node, ast.NamedExpr):
                pairs = [(node.target, self._kinds(node.value, {**outer, **known}))]
            elif isinstance(node, ast.With | ast.AsyncWith):
                pairs = [
                    (item.optional_vars, self._kinds(item.context_expr, {**outer, **known})) for item in node.items
                ]
            for target, kinds in pairs:
                if target is not None and (name := _variable(target)):
                    known[name] = known.get(name, frozenset()) | kinds
        return known

    def _annotated(self, annotation: ast.expr | None) -> frozenset[Class]:
        if annotation is None:
            return frozenset()
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        if isinstance(annotation, ast.BinOp):
            return self._annotated(annotation.left) | self._annotated(annotation.right)
        if isinstance(annotation, ast.Subscript):
            outside = self._value(annotation.value)
            inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
            if outside in (typing.Optional, typing.Union, typing.Annotated, typing.Final, typing.ClassVar):
                return frozenset[Class]().union(*map(self._annotated, inner))
            return _foreign(outside)
        return _foreign(self._value(annotation))

    def _kinds(self, node: ast.expr, known: Types) -> frozenset[Class]:
        """The classes of other distributions that an expression's value may have."""
        if isinstance(node, ast.Await):
            return self._kinds(node.value, known)
        if isinstance(node, ast.Name | ast.Attribute) and (name := _variable(node)) in known:
            return known[name]
        if isinstance(node, ast.Call):
            function = self._value(node.func)
            if function is not None:
                return _result(function)
            if isinstance(node.func, ast.Attribute):
                method = node.func.attr
                owners = self._kinds(node.func.value, known)
                return frozenset[Class]().union(*(_result(getattr(owner, method, None)) for owner in owners))
        return frozenset()

    def _value(self, node: ast.expr) -> Any:
        """The object that a dotted name means in the module; None if it is unknown."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, getattr(builtins, node.id, None))
        if isinstance(node, ast.Attribute):
            return getattr(self._value(node.value), node.attr, None)
        if isinstance(node, ast.Subscript):  # a generic class
            return self._value(node.value)
        return None


def _inside(scope: ast.AST) -> list[ast.AST]:
    """The nodes of a scope, including its classes and functions but not their bodies."""
    found: list[ast.AST] = []
    left = list(ast.iter_child_nodes(scope))[::-1]
    while left:
        node = left.pop()
        found.append(node)
        if not isinstance(node, _SCOPES):
            left += list(ast.iter_child_nodes(node))[::-1]
    return found


def _variable(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and _is_name(node.value, "self"):
        return f"self.{node.attr}"
    return ""


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _is_name(node.func, "super")


def _path(value: types.ModuleType | Class) -> str:
    return value.__name__ if isinstance(value, types.ModuleType) else f"{value.__module__}.{value.__qualname__}"
