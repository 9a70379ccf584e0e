"""The import graph of a package, read from the source. Imports under TYPE_CHECKING count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "session_scheduler": ROOT / "scheduler",
    "fluence_plugins": ROOT / "plugins",
    "fluxion_cy": ROOT / "fluxion_cy" / "src",
}
"""Each package with its folder."""

Graph = Mapping[str, frozenset[str]]
"""By module (dotted; a package by its own name): the modules of the same package that it imports."""


def import_graph(package: str, folder: Path) -> Graph:
    """The imports between the modules of a package below a folder."""
    files = {_module(path.relative_to(folder)): path for path in sorted((folder / package).rglob("*.py"))}
    return {module: frozenset(_imported(module, path, files.keys())) - {module} for module, path in files.items()}


def module_of(path: Path) -> str | None:
    """The module of a file in one of the `PACKAGES`; None for any other file."""
    for package, folder in PACKAGES.items():
        if path.is_relative_to(folder / package):
            return _module(path.relative_to(folder))
    return None


def above(graph: Graph) -> dict[str, frozenset[str]]:
    """By module: the modules that import it, directly or through others."""
    importers: dict[str, set[str]] = {module: set() for module in graph}
    for module, imported in graph.items():
        for one in imported:
            importers[one].add(module)
    found: dict[str, frozenset[str]] = {}
    for module in graph:
        reached, left = set(), [module]
        while left:
            for one in importers[left.pop()] - reached:
                reached.add(one)
                left.append(one)
        found[module] = frozenset(reached)
    return found


def cycles(graph: Graph) -> list[list[str]]:
    """The import cycles: sets of modules that import each other, each in alphabetical order."""
    over = above(graph)
    together = {
        frozenset(one for one in over[module] if module in over[one]) for module in graph if module in over[module]
    }
    return sorted(sorted(members) for members in together)


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(module: str, path: Path, known: object) -> Iterator[str]:
    assert hasattr(known, "__contains__")
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name for alias in node.names if (name := _longest(alias.name, known)))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                start = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{start}.{base}".rstrip(".")
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                if whole in known:
                    yield whole
                elif base in known:
                    yield base


def _longest(name: str, known: object) -> str:
    """The module that `import name` needs; empty for a module of another package."""
    assert hasattr(known, "__contains__")
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name
