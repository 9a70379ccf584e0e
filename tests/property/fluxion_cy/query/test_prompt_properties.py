"""Any input at the prompt gives an answer or an error of one line, and the session continues."""

import io
import json
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluxion_cy import Matcher
from fluxion_cy.query.answers import Session
from fluxion_cy.query.commands import COMMANDS
from fluxion_cy.query.shell import Shell

from ....tools.examples import examples

HOSTS = {"version": 1, "execution": {"R_lite": [{"rank": "0-1", "children": {"core": "0-1"}}], "nodelist": ["n[0-1]"]}}
SLOT = {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}
JOB = {"version": 1, "resources": [SLOT], "tasks": [], "attributes": {"system": {"duration": 5}}}
USUAL = ("match allocate job", "match allocate_orelse_reserve job", "find sched-now=allocated", "cancel 1", "list")
FILES = ("job", "R", "hosts", ".", "missing")
WORDS = (
    *("/cluster0", "/cluster0/n0", "0", "1", "2", "0-1", "up", "down", "true", "false", "a=b", "allocate", "reserve"),
    *("satisfiability", "jgf", "rv1exec", "stats", "status=up", "not", "(", "'", "#"),
)
WORD = st.sampled_from((*FILES, *WORDS)) | st.text(max_size=6)
COMMAND = st.sampled_from(sorted({*COMMANDS} - {"quit"}))
LINE = st.sampled_from(USUAL) | st.tuples(COMMAND, st.lists(WORD, max_size=6)).map(
    lambda made: " ".join((made[0], *made[1]))
)
FORM = st.sampled_from(["simple", "jgf", "rv1", "rlite"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("prompt")
    held = Matcher(HOSTS, load_format="rv1exec").allocate(JOB).R
    for name, document in (("job", JOB), ("R", held), ("hosts", HOSTS)):
        (made / name).write_text(json.dumps(document))
    return made


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(LINE, max_size=12), form=FORM, as_json=st.booleans())
def test_every_line_has_an_answer_or_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], form: str, as_json: bool
) -> None:
    monkeypatch.chdir(folder)
    out = io.StringIO()
    shell = Shell(Session(Matcher(HOSTS, load_format="rv1exec", match_format=form), form), out, out, as_json)
    for line in lines:
        before, errors, shell.failed = out.tell(), io.StringIO(), False  # codespell:ignore tell
        with redirect_stderr(errors):
            assert shell.line(line, "typed:1: ")
        printed = out.getvalue()[before:]
        if as_json:
            assert all(json.loads(line)["ok"] is not shell.failed for line in printed.splitlines())
        else:
            assert errors.getvalue().count("\n") == shell.failed
            assert not shell.failed or errors.getvalue().startswith("ERROR: typed:1: ")
