"""Every message that the page about troubleshooting lists is one that the code, or what it speaks with, can say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/help/troubleshooting.md"
_ROW = re.compile(r"^\| (`[^|]*`) \|", re.MULTILINE)
_GAP = re.compile(r"…+|\\")
ELSEWHERE = {"failed calling webhook"}
"""Words of the API server."""


def messages() -> list[str]:
    return [row.strip("`") for row in _ROW.findall(PAGE.read_text())]


@cache
def texts() -> str:
    """All that the programs' strings and the policies of deploy/ hold, one in a line; a gap where a value is put in."""
    found: list[str] = []
    for root in ("scheduler/session_scheduler", "plugins/fluence_plugins"):
        for path in sorted((ROOT / root).rglob("*.py")):
            found += strings(ast.parse(path.read_text()))
    found += [path.read_text() for path in sorted((ROOT / "deploy").glob("**/*.yaml"))]
    return "\n".join(found)


def strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages_are_found() -> None:
    assert len(messages()) > 50


@pytest.mark.parametrize("message", messages())
def test_each_part_of_a_message_is_in_the_code(message: str) -> None:
    if message in ELSEWHERE:
        return
    for part in _GAP.split(message):
        if len(part.strip()) > 3:
            assert part.strip(" ") in texts(), part
