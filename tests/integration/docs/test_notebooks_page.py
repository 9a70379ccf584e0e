"""The Python of docs/how-to/notebooks.md prints what the page shows."""

from __future__ import annotations

import doctest
from contextlib import chdir
from pathlib import Path

from tests.tools.doc_commands import ROOT, blocks

PAGE = "docs/how-to/notebooks.md"


def test_the_python_of_the_page_prints_what_it_shows() -> None:
    shown = [block.lines for block in blocks((ROOT / PAGE).read_text()) if block.language == "pycon"]
    assert len(shown) >= 4
    text = "\n".join(line for lines in shown for line in [*lines, ""])
    example = doctest.DocTestParser().get_doctest(text, {}, PAGE, PAGE, 0)
    with chdir(Path(ROOT)):
        result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
    assert result.failed == 0
    assert result.attempted >= 12
