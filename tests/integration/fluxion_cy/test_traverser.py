"""The walk is compiled C++ throughout, as `cython -a` shows."""

import html
import re
from pathlib import Path

import pytest
from Cython.Compiler.Main import compile as cython_compile
from Cython.Compiler.Options import CompilationOptions

SOURCE = Path(__file__).parents[3] / "fluxion_cy" / "src" / "fluxion_cy" / "engine"
LINE = re.compile(
    r'<pre class="cython line score-\d+"[^>]*>.?<span class="">(\d+)</span>.*?</pre>\s*'
    r"<pre class='cython code score-\d+ ?'>(.*?)</pre>",
    re.DOTALL,
)
CALL = re.compile(r"class='(?:py|pyx)_(?:c|macro)_api'>([^<]*)<")
#: The code in the handler of a failed memory allocation, the only path from there to Python.
HANDLER = {"__Pyx_PyGILState_Ensure", "__Pyx_PyGILState_Release", "__Pyx_WriteUnraisable"}
NOGIL = re.compile(r"^    cdef .*noexcept nogil:$")


def annotated(module: str, folder: Path) -> dict[int, set[str]]:
    """The calls of Python's C API in each line of a module's source (`cython -a`)."""
    options = CompilationOptions(
        cplus=True,
        annotate=True,
        language_level=3,
        include_path=[str(SOURCE.parents[1])],
        output_file=str(folder / f"{module}.cpp"),
    )
    result = cython_compile(str(SOURCE / f"{module}.pyx"), options, full_module_name=f"fluxion_cy.engine.{module}")
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
    ("module", "at_least"),
    [
        ("traverser", 15),
        ("admit", 8),
        ("engine", 4),
        ("property_index", 1),
        ("rlite", 3),
        ("pick", 12),
        ("caps", 12),
        ("planner", 9),
    ],
)
def test_no_line_of_the_walk_calls_python(module: str, at_least: int, tmp_path: Path) -> None:
    calls = annotated(module, tmp_path)
    bodies = nogil_lines(module)
    assert len(bodies) >= at_least
    assert any(found - HANDLER for found in calls.values())
    for name, lines in bodies.items():
        touching = {number: calls[number] - HANDLER for number in lines if calls.get(number, set()) - HANDLER}
        assert not touching, name
