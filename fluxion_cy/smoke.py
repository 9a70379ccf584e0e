"""The test of an installed wheel: the README's example, the prompt, stubs for the compiled modules, and its size.

cibuildwheel runs it on every wheel, and the tests on the wheel that they build.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import import_module, metadata
from pathlib import Path

import fluxion_cy

HERE = Path(__file__).parent
PACKAGE = Path(fluxion_cy.__file__).parent
MOST_BYTES = 12_000_000
"""The limit for all installed files. The modules have 5 MB, with debug information 50 MB; musllinux adds 3 MB."""


def example() -> dict[str, object]:
    """Runs the README's example and returns its names."""
    found = re.search(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)
    assert found is not None, "README.md has no example"
    names: dict[str, object] = {}
    exec(compile(found[1], "README.md", "exec"), names)  # noqa: S102
    return names


def prompt(names: dict[str, object]) -> None:
    """Runs `python -m fluxion_cy` on the example's graph and jobspec, with a command file."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("hosts", "job"):
            Path(folder, name).write_text(json.dumps(names[name]))
        Path(folder, "commands").write_text("match allocate job\nmatch allocate_orelse_reserve job\nlist\nquit\n")
        command = [sys.executable, "-m", "fluxion_cy", "-L", "hosts", "-f", "rv1exec", "-c", "commands", "--json"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert [answer.get("mode") for answer in answers] == ["ALLOCATED", "RESERVED", None], run.stdout
    assert [job["at"] for job in answers[2]["jobs"]] == [0, 60], run.stdout


def types() -> None:
    """Every module of the engine is compiled and has a stub, and the package is typed."""
    assert (PACKAGE / "py.typed").exists(), "py.typed is missing"
    sources = [*PACKAGE.glob("engine/*.pyx")]
    assert sources, "the sources of the engine are missing"
    for source in sources:
        module = import_module(f"fluxion_cy.engine.{source.stem}")
        assert str(module.__file__).endswith(".so"), f"{source.stem} is not compiled"
        ast.parse(source.with_suffix(".pyi").read_text())
    assert not [*PACKAGE.rglob("*.cpp")], "generated code is in the wheel"


def size(most: int = MOST_BYTES) -> None:
    """The installed files are small: they have no debug information."""
    files = metadata.files("fluxion-cy")
    assert files, "fluxion-cy has no list of installed files"
    total = sum(os.path.getsize(file.locate()) for file in files if file.suffix != ".pyc")
    assert total <= most, f"fluxion-cy has {total:,} bytes, more than {most:,}: build it without debug information"


if __name__ == "__main__":
    prompt(example())
    types()
    size()
    print(f"fluxion_cy in {PACKAGE}: ok")
