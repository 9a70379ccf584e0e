"""The walk is C++ from end to end, and the stubs say what is there."""

import ast
import html
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from Cython.Compiler.Main import compile as cython_compile
from Cython.Compiler.Options import CompilationOptions

import fluxion_cy
from fluxion_cy import _columns, _hosts, _index, _pick, _plans, _scan, _select, _store

MODULES = [_columns, _store, _plans, _pick, _hosts, _index, _select, _scan]

SOURCE = Path(__file__).parents[3] / "fluxion_cy" / "src" / "fluxion_cy"
LINE = re.compile(
    r'<pre class="cython line score-\d+"[^>]*>.?<span class="">(\d+)</span>.*?</pre>\s*'
    r"<pre class='cython code score-\d+ ?'>(.*?)</pre>",
    re.DOTALL,
)
CALL = re.compile(r"class='(?:py|pyx)_(?:c|macro)_api'>([^<]*)<")
#: What stands in the handler of a failed allocation of memory, the only way from there to Python.
HANDLER = {"__Pyx_PyGILState_Ensure", "__Pyx_PyGILState_Release", "__Pyx_WriteUnraisable"}
NOGIL = re.compile(r"^    cdef .*noexcept nogil:$")


def annotated(module: str, folder: Path) -> dict[int, set[str]]:
    """Per line of a module's source, what of Python's C API it calls (`cython -a`)."""
    options = CompilationOptions(
        cplus=True,
        annotate=True,
        language_level=3,
        include_path=[str(SOURCE.parent)],
        output_file=str(folder / f"{module}.cpp"),
    )
    result = cython_compile(str(SOURCE / f"{module}.pyx"), options, full_module_name=f"fluxion_cy.{module}")
    assert not result.num_errors
    page = (folder / f"{module}.html").read_text()
    return {int(number): set(CALL.findall(html.unescape(code))) for number, code in LINE.findall(page)}


def nogil_lines(module: str) -> dict[str, range]:
    """The bodies of the functions that run without the GIL."""
    lines = (SOURCE / f"{module}.pyx").read_text().splitlines()
    found, start = {}, None
    for number, line in enumerate([*lines, "x"], start=1):
        if start is not None and line.strip() and not line.startswith("     "):
            found[lines[start - 1].strip()] = range(start, number)
            start = None
        if NOGIL.match(line):
            start = number
    return found


@pytest.mark.parametrize(
    ("module", "at_least"), [("_select", 15), ("_index", 1), ("_hosts", 3), ("_pick", 12), ("_plans", 9)]
)
def test_no_line_of_the_walk_calls_python(module: str, at_least: int, tmp_path: Path) -> None:
    calls = annotated(module, tmp_path)
    bodies = nogil_lines(module)
    assert len(bodies) >= at_least
    assert any(found - HANDLER for found in calls.values())
    for name, lines in bodies.items():
        touching = {number: calls[number] - HANDLER for number in lines if calls.get(number, set()) - HANDLER}
        assert not touching, name


def named(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


@pytest.mark.parametrize("module", MODULES)
def test_the_stub_names_every_function_with_its_arguments_and_nothing_else(module: ModuleType) -> None:
    stub = ast.parse((SOURCE / f"{module.__name__.rpartition('.')[2]}.pyi").read_text())
    scopes = [
        (module, stub.body),
        *((getattr(module, c.name), c.body) for c in stub.body if isinstance(c, ast.ClassDef)),
    ]
    for scope, body in scopes:
        told = {item.name: named(item) for item in body if isinstance(item, ast.FunctionDef)}
        there = {name: value for name, value in vars(scope).items() if "cyfunction" in repr(value) and name[0] != "_"}
        assert told == {name: list(inspect.signature(value).parameters) for name, value in there.items()}


def test_every_compiled_module_is_checked() -> None:
    assert {module.__name__ for module in MODULES} == {f"fluxion_cy.{path.stem}" for path in SOURCE.glob("*.pyx")}


def test_the_package_exports_what_it_says() -> None:
    assert all(hasattr(fluxion_cy, name) for name in fluxion_cy.__all__)
    assert (Path(fluxion_cy.__file__).parent / "py.typed").exists()
