"""The reference page and a scrape show the same metrics."""

import re
from pathlib import Path

from docs.generated import metric_rows, scheduler_metrics

from .test_latencies import UPSTREAM

PAGE = (Path(__file__).parents[4] / "docs/reference/metrics.md").read_text()
Row = tuple[str, str, frozenset[str]]
"""The name, type and labels of a metric."""


def rows_of_the_page() -> set[Row]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if "| `fluence_" in line]
    return {(name.strip("`"), kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in cells}


def test_every_metric_of_a_scrape_is_on_the_page_with_its_type_and_labels_and_no_other() -> None:
    page = rows_of_the_page()
    assert len(page) > 30
    assert {(name, kind, frozenset(labels)) for name, kind, labels, _ in metric_rows(scheduler_metrics())} == page


def test_the_page_lists_kube_scheduler_s_metrics_with_type_and_labels() -> None:
    found = re.findall(r"^\| `(scheduler_\w+)` \| (\w+) \| ([^|]*)\|", PAGE, re.MULTILINE)
    page = {name.removesuffix("_total"): (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in found}
    assert page == {name: (kind, set(labels)) for name, (kind, labels, _) in UPSTREAM.items()}


def test_the_page_lists_every_value_of_the_initial_labels() -> None:
    lines = {line.split("|")[1].strip(" `"): line for line in PAGE.splitlines() if "| `fluence_" in line}
    for family in scheduler_metrics():
        name = family.name + ("_total" if family.type == "counter" else "")
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label in ("result", "stage", "state", "code", "what", "outcome", "held"):
                    assert f"`{value}`" in lines[name], (name, label)
