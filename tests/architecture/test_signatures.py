"""A function of the core takes at most five parameters, unless a comment beside it gives a reason.

`self` and `cls` do not count. Constructors are exempt, and so are the command line's functions, whose parameters are
options.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.architecture.import_graph import ROOT

CORE = ROOT / "scheduler" / "session_scheduler"
MOST = 5
_REASON = re.compile(r"# more than five parameters: \S")


def too_many(path: Path) -> Iterator[str]:
    """The functions of a file with too many parameters and no reason, as `line name: number`."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name == "__init__":
            continue
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        number = len([one for one in given if one is not None and one.arg not in ("self", "cls")])
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if number > MOST and not any(map(_REASON.search, lines[max(0, first - 2) : node.lineno])):
            yield f"{node.lineno} {node.name}: {number}"


def test_no_function_of_the_core_takes_more_than_five_parameters_without_a_reason() -> None:
    files = (path for path in sorted(CORE.rglob("*.py")) if path.parent != CORE / "cli")
    assert [f"{path.relative_to(ROOT)}:{one}" for path in files for one in too_many(path)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(a, b, c, d, e): ...", []),
        ("def f(a, b, c, d, e, *, g=1): ...", ["1 f: 6"]),
        ("async def f(a, b, c, d, *e, **g): ...", ["1 f: 6"]),
        ("class A:\n    def f(self, a, b, c, d, e): ...", []),
        ("class A:\n    def f(self, a, b, c, d, e, g): ...", ["2 f: 6"]),
        ("class A:\n    def __init__(self, a, b, c, d, e, g): ...", []),
        ("# more than five parameters: fields of one request\ndef f(a, b, c, d, e, g): ...", []),
        ("# more than five parameters: fields of one request\n@one\ndef f(a, b, c, d, e, g): ...", []),
        ("def f(a, b, c, d, e, g):  # more than five parameters: as asyncio has it\n    ...", []),
        ("# more than five parameters:\ndef f(a, b, c, d, e, g): ...", ["2 f: 6"]),
        ("def f(a, b, c, d, e, g):\n    # more than five parameters: too late\n    ...", ["1 f: 6"]),
    ],
)
def test_the_counted_parameters(tmp_path: Path, text: str, found: list[str]) -> None:
    file = tmp_path / "made.py"
    file.write_text(text)
    assert list(too_many(file)) == found
