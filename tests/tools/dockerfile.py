"""Reads deploy/Dockerfile, and the files in the context of a build."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class Instruction:
    """One instruction: continued lines are joined, comments are left out."""

    name: str
    arguments: str


def instructions() -> list[Instruction]:
    """Every instruction of the Dockerfile."""
    text = "\n".join(line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#"))
    words = (line.partition(" ") for line in text.replace("\\\n", " ").splitlines() if line)
    return [Instruction(name, " ".join(arguments.split())) for name, _, arguments in words]


def stages() -> dict[str, list[Instruction]]:
    """By the stage's name: its instructions, FROM first. The last stage has no name; "arguments" precedes the first."""
    found: dict[str, list[Instruction]] = {"arguments": []}
    stage = found["arguments"]
    for each in instructions():
        if each.name == "FROM":
            stage = found.setdefault(each.arguments.partition(" AS ")[2], [])
        stage.append(each)
    return found


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """The text with variables in place of `$NAME` and `${NAME}`; an unset variable is empty."""
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], ""), text)


def context() -> Iterator[Path]:
    """The files in the build context: all that .dockerignore does not exclude. Knows only the patterns in use."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    kept = [line[1:] for line in lines if line.startswith("!")]
    dropped = [line for line in lines[1:] if not line.startswith("!")]
    assert lines[0] == "*"
    for name in kept:
        top = ROOT / name
        assert top.exists(), name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            parts = [str(path.relative_to(ROOT)), *(str(each) for each in path.relative_to(ROOT).parents)]
            if path.is_file() and not any(_matches(part, pattern) for part in parts for pattern in dropped):
                yield path


def _matches(path: str, pattern: str) -> bool:
    return fnmatch("/" + path, "/" + pattern.removeprefix("**/")) or fnmatch(path, pattern.replace("**/", "*/"))
