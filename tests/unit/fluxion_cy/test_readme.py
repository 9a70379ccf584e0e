"""The package's README says what is there: signatures, errors, names, options, commands, and an example that runs."""

import errno
import inspect
import re
from pathlib import Path
from typing import Self

import fluxion_cy
from fluxion_cy import Matcher, errors
from fluxion_cy.formats.loaders import _LOADERS
from fluxion_cy.formats.writers import _WRITERS
from fluxion_cy.matcher import ReapiMatcher
from fluxion_cy.policy import NAMED
from fluxion_cy.query.commands import COMMANDS
from fluxion_cy.query.options import options

README = (Path(__file__).parents[3] / "fluxion_cy" / "README.md").read_text()
CODE = re.compile(r"`([^`]+)`")


def table(first: str) -> list[list[str]]:
    """The cells of the rows of the table whose header begins so."""
    lines = iter(README[README.index(f"| {first} |") :].splitlines())
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows[2:]


def names(cells: list[str]) -> list[str]:
    """What stands in backquotes in the first cell of each row."""
    return [name for cell in cells for name in CODE.findall(cell)]


def public(kind: type) -> dict[str, object]:
    """Its public names, those of its bases too."""
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


def written(annotation: object) -> str:
    if annotation is Self:
        return "Matcher"
    if isinstance(annotation, str):
        return annotation
    plain = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    return annotation.__name__ if plain else re.sub(r"typing\.|fluxion_cy\.wording\.", "", str(annotation))  # type: ignore[attr-defined]


def signature(function: object) -> tuple[str, str]:
    """Arguments without annotations, and the annotation of the answer."""
    found = inspect.signature(inspect.unwrap(function))  # type: ignore[arg-type]
    arguments = [a.replace(annotation=inspect.Parameter.empty) for a in found.parameters.values() if a.name != "self"]
    answer = "None" if found.return_annotation is None else written(found.return_annotation)
    return str(inspect.Signature(arguments)), answer


def test_the_example_runs() -> None:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    exec(compile(found[1], "README.md", "exec"), {})


def test_every_public_method_is_told_with_its_arguments_answer_and_errors() -> None:
    given = {names([row[0]])[0]: (names([row[1]])[0].replace("\\", ""), row) for row in table("method")}
    there = {}
    for name, value in public(Matcher).items():
        if isinstance(value, property):
            there[name] = "int"
        else:
            arguments, answer = signature(value)
            there[name + arguments] = answer
    assert {method: answer for method, (answer, _) in given.items()} == there
    assert all(row[3] for _, row in given.values())
    assert {error for _, row in given.values() for error in CODE.findall(row[2])} < set(fluxion_cy.__all__)


def test_the_engines_have_the_same_methods_with_the_same_arguments() -> None:
    own, others = public(ReapiMatcher), public(Matcher)
    assert own.keys() == others.keys()
    for name in own.keys() - {"next_jobid"}:
        assert signature(own[name])[0] == signature(others[name])[0]


def test_its_arguments_are_told_in_order() -> None:
    assert f"\n`Matcher{signature(Matcher.__init__)[0]}`\n" in README
    assert names([row[0] for row in table("argument")]) == list(inspect.signature(Matcher).parameters)


def test_every_error_is_told_with_its_errno() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FluxionError)]
    there = {kind.__name__: errno.errorcode[kind.errno] for kind in kinds if kind is not errors.FluxionError}
    given = {names([row[0]])[0]: row[1] for row in table("error")}
    assert given == {"FluxionError": "", **there}


def test_every_policy_and_form_is_told() -> None:
    assert sorted(names([row[0] for row in table("policy")])) == sorted(NAMED)
    assert names([row[0] for row in table("`load_format` | `graph`")]) == list(_LOADERS)
    assert sorted(names([row[0] for row in table("`match_format` | `R`")])) == sorted(_WRITERS)


def test_every_option_and_command_of_the_prompt_is_told() -> None:
    there = {name for action in options()._actions for name in action.option_strings} - {"-h", "--help"}
    assert set(names([row[0] for row in table("option")])) == there
    shown = {word for name, command in COMMANDS.items() for word in (name, command.short)}
    assert set(names([row[0] for row in table("command")])) == shown


def test_every_deviation_of_the_record_stands_in_its_table() -> None:
    folder = Path(__file__).parents[2] / "conformance" / "fluxion"
    rows = {word for row in table("row") for word in row[0].split(", ")}
    for name in ("deviations.txt", "deviations_formats.txt"):
        lines = [line for line in (folder / name).read_text().splitlines() if line and not line.startswith("#")]
        assert {word for line in lines for word in line.split("\t")[2].split(", ")} <= rows
    assert {str(number) for number in range(1, 16)} <= rows


def test_every_row_of_the_deviations_has_a_test_that_exists() -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "reference" / "matcher.md").read_text()
    rows = [line.split("|")[1:-1] for line in page[page.index("| row | test |") :].splitlines() if line.startswith("|")]
    rows = rows[2 : next(number for number, row in enumerate(rows) if "sessions" in row[0])]
    assert {word for row in rows for word in row[0].strip().split(", ")} == {
        word for row in table("row") for word in row[0].split(", ")
    }
    files = [*root.glob("tests/*/fluxion_cy/**/test_*.py"), *root.glob("tests/conformance/fluxion/test_*.py")]
    there = {path.name for path in files} | set(re.findall(r"def (test_\w+)", "".join(map(Path.read_text, files))))
    assert {name for row in rows for name in CODE.findall(row[1])} <= there
