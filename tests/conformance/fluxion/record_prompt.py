"""Asks resource-query what it prints in the sessions of `prompt_cases` and writes `prompt.txt`.

    RESOURCE_QUERY=…/resource-query python -m tests.conformance.fluxion.record_prompt

Of the errors it is only kept that there was one: their words are not ours.
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
#: Printed between the answers: they have no other end.
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
    told, with_errors = (_printed(case, folder, errors) for errors in (subprocess.DEVNULL, subprocess.STDOUT))
    rows = zip_longest(case.commands, told, with_errors, fillvalue=["(no answer)"])
    return [block(str(command), lines, lines != mixed) for command, lines, mixed in rows]


def recorded() -> str:
    """All sessions as text."""
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder))
        texts = [f"== {case.name}\n" + "".join(answers(case, Path(folder))) for case in cases()]
    return "".join(texts)


def main() -> None:
    """Writes the file."""
    if not os.environ.get(VARIABLE):
        sys.exit(f"{VARIABLE}: set it to the path of resource-query")
    (HERE / "prompt.txt").write_text(recorded())


if __name__ == "__main__":
    main()
