"""The prompt prints the recorded output of resource-query (`prompt.txt`), except for the deviations in README.md.

If RESOURCE_QUERY names the program, the record is compared with the program's output.
"""

import io
import os
from pathlib import Path

import pytest

from fluxion_cy.query.answers import Session
from fluxion_cy.query.options import options
from fluxion_cy.query.shell import Shell, load

from .prompt_cases import Case, block, cases, lay_out, plain
from .record_prompt import VARIABLE, recorded

HERE = Path(__file__).parent
CASES = {case.name: case for case in cases()}
#: Deviations, by the start of the command; `*` in place of a session means all sessions.
DEVIATIONS = {line.split(" | ")[0]: line for line in (HERE / "deviations_prompt.txt").read_text().splitlines()}


def blocks(text: str) -> list[str]:
    """A session's record, split at its commands."""
    return [f"> {part}" for part in ("\n" + text).split("\n> ")[1:]]


RECORD = {
    name: [part.rstrip("\n") + "\n" for part in blocks(text)]
    for name, _, text in (part.partition("\n") for part in (HERE / "prompt.txt").read_text().split("== ")[1:])
}


def answers(case: Case) -> list[str]:
    """The output of this prompt."""
    out = io.StringIO()
    given = options().parse_args([*case.options])
    shell = Shell(Session(load(given), given.match_format), out, out, as_json=False)
    found = []
    for command in case.commands:
        out.seek(0)
        out.truncate()
        shell.failed = False
        shell.line(command)
        found.append(block(command, plain(out.getvalue()), shell.failed))
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_prompt_prints_the_output_of_resource_query(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    here = answers(CASES[name])
    assert len(here) == len(RECORD[name])
    other = [
        f"{name}: {ours.splitlines()[0][2:]}" for ours, theirs in zip(here, RECORD[name], strict=True) if ours != theirs
    ]
    assert other == [key for key in DEVIATIONS if key.startswith(f"{name}: ")]


def test_the_readme_lists_the_reason_of_every_deviation() -> None:
    readme = (HERE.parents[2] / "fluxion_cy" / "README.md").read_text()
    for line in DEVIATIONS.values():
        case, reason = line.split(" | ")
        assert case.partition(": ")[0] in CASES
        assert f"| {reason} |" in readme


@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no resource-query")
def test_resource_query_prints_the_recorded_output() -> None:
    assert recorded() == (HERE / "prompt.txt").read_text()
