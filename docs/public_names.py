"""Writes docs/reference/public-names.md: every name that plugins may use, with the first line of its docstring.

    python docs/public_names.py [--check]

With `--check` it writes nothing and fails where the page is not what the code says.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

PAGE = Path(__file__).parent / "reference" / "public-names.md"
CORE = Path(__file__).parents[1] / "scheduler"

MODULES = (
    "session_scheduler",
    "session_scheduler.hookspecs",
    "session_scheduler.errors",
    "session_scheduler.config.parsing",
    "session_scheduler.config.settings",
    "session_scheduler.config.yaml_text",
    "session_scheduler.model.cel.errors",
    "session_scheduler.model.cel.program",
    "session_scheduler.model.classes",
    "session_scheduler.model.cluster_view",
    "session_scheduler.model.columns",
    "session_scheduler.model.device_variable",
    "session_scheduler.model.devices",
    "session_scheduler.model.durations",
    "session_scheduler.model.gpu_reservations",
    "session_scheduler.model.gpu_shares",
    "session_scheduler.model.group_api",
    "session_scheduler.model.groups",
    "session_scheduler.model.meta",
    "session_scheduler.model.objects",
    "session_scheduler.model.quantity",
    "session_scheduler.model.related",
    "session_scheduler.model.requests",
    "session_scheduler.model.times",
    "session_scheduler.model.workload_objects",
    "session_scheduler.sdk.access_reviews",
    "session_scheduler.sdk.addresses",
    "session_scheduler.sdk.backoff",
    "session_scheduler.sdk.bindings",
    "session_scheduler.sdk.cluster",
    "session_scheduler.sdk.command_options",
    "session_scheduler.sdk.commands",
    "session_scheduler.sdk.dynamic_client",
    "session_scheduler.sdk.dynamic_informer",
    "session_scheduler.sdk.event_loop",
    "session_scheduler.sdk.extras",
    "session_scheduler.sdk.http_authorization",
    "session_scheduler.sdk.http_client",
    "session_scheduler.sdk.http_server",
    "session_scheduler.sdk.interruption",
    "session_scheduler.sdk.leader",
    "session_scheduler.sdk.logs",
    "session_scheduler.sdk.rate_limits",
    "session_scheduler.sdk.service_account",
    "session_scheduler.sdk.signals",
    "session_scheduler.sdk.small_http_server",
    "session_scheduler.sdk.sockets",
    "session_scheduler.sdk.tasks",
    "session_scheduler.testing",
    "session_scheduler.observation.experiment",
    "session_scheduler.observation.files",
    "session_scheduler.observation.live",
    "session_scheduler.observation.observer",
    "session_scheduler.observation.values",
)
"""Every public module; its names are those in `__all__`, without one everything that it defines and that does not begin
with _."""

HEAD = """# Public names

A plugin imports only these modules and names; everything else is internal and may change without notice. The docstrings
are the contract: `python -m pydoc session_scheduler.sdk.bindings`, for example, prints those of one module.
`python docs/public_names.py` writes this page.
"""


def public_names(module: str) -> list[str]:
    """The names of a module, hooks in the manual's order, everything else sorted."""
    names = getattr(import_module(module), "__all__", None) or _defined(module)
    return list(names) if module.endswith(".hookspecs") else sorted(names, key=str.lower)


def summary(module: str, name: str) -> str:
    """The first line of a name's docstring, wherever the name is defined; empty if it has none."""
    body = _body(module)
    for number, node in enumerate(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return summary(node.module, alias.name)
        if name in assigned(node):
            after = ast.get_docstring(ast.Module(body[number + 1 : number + 2], type_ignores=[]))
            return (after or "").partition("\n")[0]
    raise LookupError(f"{module} has no {name}")


def _defined(module: str) -> list[str]:
    """The names that a module defines; what it imports is another's."""
    names = [name for node in _body(module) for name in (getattr(node, "name", ""), *assigned(node))]
    return [name for name in names if name and not name.startswith("_")]


def assigned(node: ast.stmt) -> list[str]:
    """The names to which a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@cache
def _body(module: str) -> list[ast.stmt]:
    """A module's statements, with those under `if TYPE_CHECKING`."""
    path = CORE / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found: list[ast.stmt] = []
    for node in ast.parse(source.read_text()).body:
        found += node.body if isinstance(node, ast.If) else [node]
    return found


def page() -> str:
    """The page's text."""
    parts = [HEAD]
    for module in MODULES:
        rows = [f"| `{name}` | {_cell(summary(module, name))} |" for name in public_names(module)]
        parts.append("\n".join([f"## `{module}`\n", "| name | |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the page, or check it. Returns the exit status."""
    if "--check" not in arguments:
        PAGE.write_text(page())
        return 0
    if PAGE.read_text() == page():
        return 0
    print(f"{PAGE.name} is not what the code says: run `python docs/public_names.py`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
