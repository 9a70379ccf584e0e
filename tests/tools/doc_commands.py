"""The commands in the documents: read from their console blocks, run in this process, compared with the shown output.

A block begins with ```console. A line `$ COMMAND` is a command, which continues in the next line after a backslash. The
lines up to the next command are its output, of both streams and in full. `...` stands for varying text: as a line of
its own for any number of lines, within a line for any text. A block of another language whose first line is
`# NAME.EXT` is saved under that name, in the directory in which the page's commands run.

    python -m tests.tools.doc_commands [PAGE]...

writes the commands' output into the pages where they show something else.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Final, Self
from unittest import mock

import structlog

from session_scheduler.cli import main

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "deploy/*.md", "docs/*.md", "docs/*/*.md", "examples/*/README.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md" and path.parent.name != "adr"
)
CONSOLE: Final = "console"
OUTSIDE: Final[Mapping[str, str]] = {
    "helm": "a cluster",
    "kubectl": "a cluster",
    "curl": "a server",
    "nats": "a NATS server",
    "scancel": "Slurm",
    "scontrol": "Slurm",
    "squeue": "Slurm",
    "docker": "a container engine",
    "kind": "a container engine",
    "pip": "a package index",
    "python": "an installation of its own",
    ".": "a shell",
}
"""The programs that no test runs, with their requirements."""
BUILDS: Final = frozenset({"test", "test-all", "setup", "lint", "format", "bench-live", "bench-gpus"})
"""The targets of make that no test runs: they build, or take minutes."""
LISTED: Final[Mapping[str, str]] = {
    "fluence dashboard --kubeconfig ~/.kube/config --config scheduler.yaml": "a cluster",
    "fluence dashboard --simulate examples/01-quickstart": "a browser",
    "fluence dashboard now.json": "a browser",
    "fluence dashboard result.json": "a browser",
    "fluence graph cluster.yaml --resources resources.yaml > graph.json": "a cluster's objects",
    "fluence pool list": "a cluster",
    "fluence pool publish --subject interlink.resources --pool podman-florence --quota cpu=8 --quota memory=32Gi"
    " --quota pods=10 --every 10": "a NATS server",
    "fluence simulate cluster.yaml --resources resources.yaml": "a cluster's objects",
    "fluence simulate --kubeconfig ~/.kube/config --config config.yaml --resources resources.yaml"
    " --without-plugin at-most -o diff": "a cluster",
}
"""The commands of Fluence that no test runs as shown, with their requirements."""
SERVERS: Final = frozenset({"run", "dashboard", "webhook", "device-plugin", "master-queue", "pool", "backend"})
"""The commands that write to a cluster, or run until they are stopped."""
_SHELL: Final = frozenset({"cat", "cp", "diff", "grep", "head", "ls", "mkdir", "sed", "sort", "tail"})
"""The programs that every system has; they run as shown."""
_OWN: Final = frozenset({"cd", "echo", "export", "fluence", "make"})
PROGRAMS: Final = frozenset({*OUTSIDE, *_SHELL, *_OWN})
_FENCE: Final = re.compile(r"(?P<indent> *)(?P<fence>```+|~~~+) *(?P<language>[\w-]*)")
_NAMED: Final = re.compile(r"# (\S+\.\w+)")
_TIMES: Final = re.compile(r"^time: .*", re.MULTILINE)
"""The plugins' times are the only part of `explain` that differs between runs."""


# ------------------------------------------------------------------ pages


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    language: str
    """Empty if it has none, and for an indented block."""
    start: int
    """The index of its first line in the page, after the fence."""
    lines: tuple[str, ...]
    """The lines without their indentation."""
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a page, with the output that the page shows."""

    text: str
    """The command in one line."""
    start: int
    """The index in the page of the line after it."""
    shown: tuple[str, ...]
    indent: int


def blocks(text: str) -> Iterator[Block]:
    """The code blocks of a page, fenced or indented."""
    lines = text.splitlines()
    number, blank = 0, True
    while number < len(lines):
        line = lines[number]
        if fence := _FENCE.match(line):
            end = number + 1
            while end < len(lines) and lines[end].strip() != fence["fence"]:
                end += 1
            indent = len(fence["indent"])
            yield Block(fence["language"], number + 1, _without(lines[number + 1 : end], indent), indent)
            number, blank = end + 1, True
        elif blank and line.startswith("    ") and not re.match(r" *([-*+]|\d+\.) ", line):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield Block("", number, _without(lines[number:end], 4), 4)
            number, blank = end, True
        else:
            number, blank = number + 1, not line.strip()


def _without(lines: Sequence[str], indent: int) -> tuple[str, ...]:
    return tuple(line[indent:] if not line[:indent].strip() else line for line in lines)


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block. Raises ValueError if output precedes the first."""
    number, lines = 0, block.lines
    while number < len(lines):
        if not lines[number].startswith("$ "):
            raise ValueError(f"line {block.start + number + 1}: expected `$ COMMAND`, got {lines[number]!r}")
        text = lines[number][2:]
        number += 1
        while text.endswith("\\"):
            text = f"{text[:-1].rstrip()} {lines[number].strip()}"
            number += 1
        end = number
        while end < len(lines) and not lines[end].startswith("$ "):
            end += 1
        yield Command(text, block.start + number, lines[number:end], block.indent)
        number = end


def words(text: str) -> list[str]:
    """The words of a command, without its comment."""
    return shlex.split(text, comments=True)


def program(text: str) -> str:
    """The program of a command."""
    return next((Path(word).name or word for word in words(text) if not re.match(r"\w+=", word)), "")


def why_not_run(text: str) -> str | None:
    """The requirement of a command that no test meets; None if the command runs."""
    called, given = program(text), words(text)
    if called == "make" and given[1] in BUILDS:
        return "time"
    if _installs(given):
        return None
    return OUTSIDE.get(called) or LISTED.get(text.partition("  #")[0].rstrip())


def _installs(given: Sequence[str]) -> str | None:
    """The folder that pip installs."""
    pip = given[:2] == ["pip", "install"] or given[:4] == ["python", "-m", "pip", "install"]
    return next((word for word in given if word == "." or "/" in word), None) if pip else None


# ------------------------------------------------------------------ running


@dataclass
class Shell:
    """The state of one page's commands: a directory with the repository's examples, variables, the last status."""

    root: Path
    directory: Path = field(init=False)
    status: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    _path: list[str] = field(default_factory=list)
    _modules: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.directory = self.root
        for name in ("examples", "deploy"):
            shutil.copytree(ROOT / name, self.root / name)
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root / name)

    def save(self, name: str, lines: Sequence[str]) -> None:
        """Write a file that a page shows."""
        file = self.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines))

    def run(self, text: str) -> list[str]:
        """The lines that a command prints. Raises ValueError for a command that cannot run."""
        printed = StringIO()
        with self._environment():
            for part in re.split(r"\s+&&\s+", text.partition("  #")[0]):
                self._run(part, printed)
        return _trimmed(_TIMES.sub("time: ...", printed.getvalue()).splitlines())

    def _run(self, text: str, printed: StringIO) -> None:
        text, _, target = text.partition(" > ")
        text, _, filters = text.partition(" | ")
        given = [os.path.expandvars(word) for word in words(text)]
        output = StringIO() if target or filters else printed
        if given[0] == "cd":
            self.directory = (self.directory / given[1]).resolve()
        elif given[0] == "export":
            for each in given[1:]:
                name, _, value = each.partition("=")
                self.environment[name] = value
        elif text == "echo $?":
            output.write(f"{self.status}\n")
        elif folder := _installs(given):
            self._install(self.directory / folder)
        elif given[0] == "fluence" and given[1] in SERVERS:
            raise ValueError(f"{text}: it needs a cluster or a server: list it in LISTED")
        elif given[0] == "fluence":
            self._fluence(given[1:], output, printed)
        elif given[0] == "make":
            recipe = self._process(f"make --no-print-directory -n -o .venv/.installed {given[1]}")
            called = re.search(r"bin/fluence ([^|;]+)", recipe)
            if called is None:
                raise ValueError(f"{text}: its recipe calls no fluence: list it in BUILDS")
            self._fluence(words(called[1]), output, printed)
        elif given[0] in _SHELL:
            output.write(self._process(text))
        else:
            raise ValueError(f"{text}: no test runs {given[0]}: list what it needs in OUTSIDE")
        if filters:
            printed.write(self._process(filters, output.getvalue()))
        elif target:
            (self.directory / target.strip()).write_text(output.getvalue())

    def _fluence(self, arguments: Sequence[str], output: StringIO, errors: StringIO) -> None:
        with chdir(self.directory), redirect_stdout(output), redirect_stderr(errors):
            self.status = main(arguments)
        self._forget_modules()
        structlog.reset_defaults()  # it logs to the redirected standard error

    def _install(self, folder: Path) -> None:
        """Make a distribution of plugins available in this process, as pip would: its path and its entry points."""
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        info = self.root / "installed" / f"{project['name']}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        lines = [line for group, offers in project["entry-points"].items()
                 for line in (f"[{group}]", *(f"{name} = {value}" for name, value in offers.items()))]  # fmt: skip
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        sys.path[:0] = [str(info.parent), str(folder / "src")]
        importlib.invalidate_caches()

    def __enter__(self) -> Self:
        self._path, self._modules = [*sys.path], {*sys.modules}
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the installed distributions."""
        sys.path[:] = self._path

    def _forget_modules(self) -> None:
        """Let the next command import the installed plugins again, as a new process would."""
        for name in {*sys.modules} - self._modules:
            if str(self.root) in (getattr(sys.modules[name], "__file__", None) or ""):
                del sys.modules[name]

    def _process(self, text: str, given: str = "") -> str:
        done = subprocess.run(["/bin/sh", "-c", text], cwd=self.directory, input=given, text=True, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # fmt: skip
        self.status = done.returncode
        return done.stdout

    @contextmanager
    def _environment(self) -> Iterator[None]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLUENCE_", "KUBECONFIG"))}
        with mock.patch.dict(os.environ, {**kept, **self.environment}, clear=True):
            yield


def _trimmed(lines: Sequence[str]) -> list[str]:
    """The lines without trailing blanks, and without empty lines at the end."""
    return "\n".join(line.rstrip() for line in lines).rstrip("\n").splitlines()


def same(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether the shown lines match the printed ones; `...` stands for anything."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else ".*?".join(map(re.escape, line.split("..."))) + r"\n"
        for line in _trimmed(shown)
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def different(page: str, shell: Shell) -> Iterator[tuple[Command, list[str]]]:
    """The commands of a page whose output differs from the shown one, in order, each with its output."""
    for block in blocks((ROOT / page).read_text()):
        name = _NAMED.fullmatch(block.lines[0]) if block.lines else None
        if block.language not in ("", CONSOLE) and name:
            shell.save(name[1], block.lines)
        for command in commands(block) if block.language == CONSOLE else ():
            if why_not_run(command.text) is None:
                printed = shell.run(command.text)
                if not same(command.shown, printed):
                    yield command, printed


def write(page: str, shell: Shell) -> int:
    """Write the commands' output into a page. Returns the number of changed outputs."""
    path = ROOT / page
    found = list(different(page, shell))
    lines = path.read_text().splitlines()
    for command, printed in reversed(found):
        shown = [f"{' ' * command.indent}{line}".rstrip() for line in printed]
        lines[command.start : command.start + len(command.shown)] = shown
    if found:
        path.write_text("\n".join(lines) + "\n")
    return len(found)


def _written(pages: Sequence[str]) -> None:
    for page in pages:
        with tempfile.TemporaryDirectory() as folder, Shell(Path(folder).resolve()) as shell:
            count = write(page, shell)
        if count:
            print(f"{page}: {count} outputs written")


if __name__ == "__main__":
    _written(sys.argv[1:] or PAGES)
