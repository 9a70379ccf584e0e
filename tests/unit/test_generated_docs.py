"""What docs/generated.py writes for the site: nothing of the code is left out, and nothing lacks its description."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from docs import diagrams, generated

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.hookspecs import HOOKS

ADR = Path(__file__).parents[2] / "docs/adr"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return generated.pages()


def test_the_index_of_decisions_lists_each_with_its_title_and_what_was_decided(pages: dict[str, str]) -> None:
    rows = re.findall(r"^\| (\d+) \| \[(.+)\]\((.+)\) \| (.+\.) \|$", pages["adr/index.md"], re.MULTILINE)
    files = sorted(ADR.glob("[0-9]*.md"))
    assert [name for _, _, name, _ in rows] == [path.name for path in files]
    assert [f"# {number}. {title}" for number, title, _, _ in rows] == [
        path.read_text().split("\n")[0] for path in files
    ]


def test_a_superseded_decision_names_the_one_that_holds(pages: dict[str, str]) -> None:
    assert "| Superseded by 37. |" in pages["adr/index.md"]


@pytest.mark.parametrize(
    "command", ["", " simulate", " explain", " plugins new", " pool publish", " webhook", " backend"]
)
def test_each_command_is_listed_with_its_options(pages: dict[str, str], command: str) -> None:
    assert f"## `fluence{command}`\n" in pages["reference/options.md"]


def test_options_of_plugins_and_of_the_matcher_are_listed(pages: dict[str, str]) -> None:
    simulate = pages["reference/options.md"].partition("## `fluence simulate`")[2].partition("\n## ")[0]
    assert "`--resources FILE`" in simulate
    assert "--load-file FILE" in pages["reference/options.md"]


def test_every_field_of_the_configuration_is_listed_with_type_and_default(pages: dict[str, str]) -> None:
    for field in SchedulerConfig.model_fields.values():
        assert f"| `{field.alias}` | " in pages["reference/fields.md"]
    assert "| `bindingsInFlight` | integer, at least 1 | `64` | Concurrent binds. |\n" in pages["reference/fields.md"]


def test_every_link_in_the_tables_of_fields_leads_to_a_table(pages: dict[str, str]) -> None:
    text = pages["reference/fields.md"]
    headings = {heading.lower() for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= headings


def test_every_metric_of_every_program_has_a_help_text() -> None:
    for families in (generated.scheduler_metrics(), generated.webhook_metrics(), generated.device_plugin_metrics()):
        assert all(text.endswith(".") or text == "1; what runs." for *_, text in generated.metric_rows(families))


def test_every_name_on_objects_says_what_it_means() -> None:
    names = generated.names_on_objects()
    assert {name for name, text in names.items() if not text} == set()
    assert {"fluence.flux-framework.org/queue", "fluxion.flux-framework.org/", "quantum.braket/ready"} <= names.keys()


def test_the_api_names_every_hook_in_the_manual_s_order(pages: dict[str, str]) -> None:
    listed = re.findall(r"^        - (\w+)$", pages["reference/api/hookspecs.md"], re.MULTILINE)
    assert [name for name in listed if name in HOOKS] == list(HOOKS)


def of_this_machine(*paths: Path) -> list[str]:
    """The paths with two components or more: a text may name `/` or `/root` for other reasons."""
    return [str(path) for path in paths if len(path.parts) > 2]


def test_no_page_names_this_machine(pages: dict[str, str]) -> None:
    places = of_this_machine(generated.ROOT, Path.home())
    assert not [path for path, text in pages.items() if any(place in text for place in places)]


def test_a_root_directory_names_no_machine() -> None:
    assert of_this_machine(Path("/"), Path("/root"), Path("/home/me")) == ["/home/me"]


def test_an_interrupted_drawing_leaves_no_diagram_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = SimpleNamespace(svg=lambda: "<svg id='my-svg'/>")
    mermaid = SimpleNamespace(__version__="1", render=lambda *_, **__: drawn)
    monkeypatch.setitem(sys.modules, "mermaidx", mermaid)
    monkeypatch.setattr(diagrams, "KEPT", tmp_path / "kept")

    def interrupted(path: Path, text: str) -> None:
        path.write_bytes(text[:4].encode())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", interrupted)
        with pytest.raises(KeyboardInterrupt):
            diagrams.draw("flowchart TD")
    assert not list((tmp_path / "kept").glob("*.svg"))
    assert re.fullmatch(r"<svg id='d\w{12}'/>", diagrams.draw("flowchart TD"))
