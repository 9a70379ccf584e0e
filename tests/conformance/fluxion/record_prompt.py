"""Records the output of resource-query in the sessions of `prompt_cases` in `prompt.txt`.

    RESOURCE_QUERY=…/resource-query python -m tests.conformance.fluxion.record_prompt

The record keeps only that an error occurred, not its text, because the texts of this prompt differ.
"""

import os
import subprocess
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path

from .prompt_cases import Case, block, cases, lay_out, plain

HERE = Path(__file__).parent
VARIABLE = "RESOURCE_QUERY"
#: Separates the answers, which have no end mark of their own.
_MARK, _MARKED = "help quit", "INFO: quit (q) -- "


def _printed(case: Case, folder: Path, errors: int) -> list[list[str]]:
    """Lines by command."""
    lines = [line for command in case.commands for line in (command, _MARK)]
    run = subprocess.run(
        [os.environ[VARIABLE], *case.options, "-d"],
        input="\n".join([*lines, "quit", ""]),
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        cwd=folder,
        timeout=30,
    )
    found: list[list[str]] = [[]]
    for line in plain(run.stdout):
        if line.startswith(_MARKED):
            found.append([])
        else:
            found[-1].append(line)
    return found[: len(case.commands)]


def answers(case: Case, folder: Path) -> list[str]:
    """A block for each command."""
    printed, with_errors = (_printed(case, folder, errors) for errors in (subprocess.DEVNULL, subprocess.STDOUT))
    rows = zip_longest(case.commands, printed, with_errors, fillvalue=["(no answer)"])
    return [block(str(command), lines, lines != mixed) for command, lines, mixed in rows]


def recorded() -> str:
    """All sessions as text."""
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder))
        texts = [f"== {case.name}\n" + "".join(answers(case, Path(folder))) for case in cases()]
    return "".join(texts)


def main() -> None:
    """Write the file."""
    if not os.environ.get(VARIABLE):
        sys.exit(f"{VARIABLE}: set it to the path of resource-query")
    (HERE / "prompt.txt").write_text(recorded())


if __name__ == "__main__":
    main()
