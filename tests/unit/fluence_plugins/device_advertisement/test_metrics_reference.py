"""The reference page and what a scrape shows are the same; its table of options too."""

import inspect
import re
from pathlib import Path

import pytest
from prometheus_client import enable_created_metrics
from prometheus_client.parser import text_string_to_metric_families

from fluence_plugins.device_advertisement.commands import device_plugin
from fluence_plugins.device_advertisement.metrics import OPENMETRICS, Metrics, TypeState

PAGE = (Path(__file__).parents[4] / "docs/reference/device-plugin.md").read_text()
Row = tuple[str, str, frozenset[str]]
"""Name, type and labels."""


def page_rows() -> set[Row]:
    cells = [[each.strip() for each in line.split("|")[1:-1]] for line in PAGE.splitlines() if "| `fluence_" in line]
    return {(name.strip("`"), kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in cells}


def shown_rows(metrics: Metrics) -> set[Row]:
    rows = set()
    for family in text_string_to_metric_families(metrics.exposition()[0].decode()):
        assert family.samples, f"{family.name} is shown without a sample: its labels cannot be compared"
        suffix = "_total" if family.type == "counter" else ""
        labels = frozenset(label for sample in family.samples for label in sample.labels)
        rows.add((family.name + suffix, family.type, labels))
    return rows


def test_every_metric_of_a_scrape_is_on_the_page_with_its_type_and_labels_and_no_other() -> None:
    metrics = Metrics("0.1.0")
    metrics.follow(lambda: [TypeState("qpu", 1000, 1, None)])
    metrics.add_type("qpu")
    assert len(page_rows()) > 8
    assert shown_rows(metrics) == page_rows()


def test_every_option_is_on_the_page_and_no_other() -> None:
    table = set(re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE))
    assert table == {"--" + name.replace("_", "-") for name in inspect.signature(device_plugin).parameters}


def test_a_type_that_left_is_shown_no_more() -> None:
    metrics = Metrics("0.1.0")
    metrics.add_type("qpu")
    metrics.registered("qpu", "ok")
    assert 'registrations_total{result="ok",type="qpu"} 1.0' in metrics.exposition()[0].decode()
    metrics.remove_type("qpu")
    assert 'type="qpu"' not in metrics.exposition()[0].decode()


@pytest.mark.parametrize("version", ["1.0.0", "nonsense"])
def test_a_scrape_that_accepts_openmetrics_gets_it(version: str) -> None:
    body, content_type = Metrics("0.1.0").exposition(f"application/openmetrics-text; version={version}")
    assert content_type == OPENMETRICS
    assert body.endswith(b"# EOF\n")


def test_no_series_shows_when_it_began() -> None:
    enable_created_metrics()
    metrics = Metrics("0.1.0")
    metrics.add_type("qpu")
    assert b"_created" not in metrics.exposition()[0]
