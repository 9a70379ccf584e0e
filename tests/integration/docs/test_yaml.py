"""The configurations and manifests in the documents are valid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.manifests import read_manifests
from session_scheduler.config.settings import CONFIG_API_VERSION, KIND, SchedulerConfig, parse_config
from session_scheduler.registry.registry import Registry

from ...tools.doc_commands import PAGES, ROOT, blocks

FIELDS = {str(field.alias) for field in SchedulerConfig.model_fields.values()}
OF_PAGES = {"at-most", "rack-label"}
"""Plugins that pages show how to write; other tests run them."""


def documents() -> Iterator[tuple[str, str, list[Any]]]:
    """Each YAML block of a page: a name for it, its text, its documents."""
    for page in PAGES:
        for block in blocks((ROOT / page).read_text()):
            if block.language == "yaml":
                text = "\n".join(block.lines) + "\n"
                yield f"{page}:{block.start + 1}", text, list(yaml.safe_load_all(text))


FOUND = list(documents())
CONFIGURATIONS = [
    (name, text if "kind" in value else f"apiVersion: {CONFIG_API_VERSION}\nkind: {KIND}\n{text}")
    for name, text, (value, *_) in FOUND
    if isinstance(value, dict) and (value.get("kind") == KIND or ("kind" not in value and {*value} <= FIELDS))
]
MANIFESTS = [
    (name, text)
    for name, text, values in FOUND
    if all(isinstance(value, dict) and "kind" in value and value["kind"] != KIND for value in values)
]


@pytest.mark.parametrize(("name", "text"), CONFIGURATIONS, ids=[name for name, _ in CONFIGURATIONS])
def test_a_configuration_can_be_loaded(name: str, text: str) -> None:
    config = parse_config(text, name)
    named = {plugin.name for profile in config.profiles for plugin in profile.plugins}
    if not named & OF_PAGES and "engine: reapi" not in text:  # it needs Fluxion's library
        Registry(BUILTIN).load_calls(config)


@pytest.mark.parametrize(("name", "text"), MANIFESTS, ids=[name for name, _ in MANIFESTS])
def test_manifests_can_be_read(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "manifests.yaml"
    file.write_text(text)
    read_manifests([str(file)])


def test_the_pages_have_configurations_and_manifests() -> None:
    assert len(CONFIGURATIONS) > 5
    assert len(MANIFESTS) > 5
