"""The reference page, the command and a scrape say the same."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, enable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from fluence_plugins.env_injection.fluxion import FluxionHandler
from fluence_plugins.env_injection.handlers import AdmissionRequest, HandlerSettings, Refusal
from fluence_plugins.env_injection.metrics import OPENMETRICS, TEXT, WebhookMetrics
from session_scheduler.cli import main

PAGE = (Path(__file__).parents[4] / "docs/reference/webhook.md").read_text()


def shown() -> WebhookMetrics:
    metrics = WebhookMetrics("0.1.0")
    FluxionHandler(HandlerSettings(frozenset({"fluence"}), None, metrics.registry))
    metrics.show_handler("fluxion")
    return metrics


def rows_of(families: Iterable[Metric]) -> set[tuple[str, str, frozenset[str]]]:
    rows = set()
    for family in families:
        labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
        rows.add((family.name + ("_total" if family.type == "counter" else ""), family.type, labels))
    return rows


def lines_of_the_page() -> list[list[str]]:
    return [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if "| `fluence_webhook" in line
    ]


def test_every_metric_of_a_scrape_is_on_the_page_with_its_type_and_labels_and_no_other() -> None:
    page = {
        (name.strip("`"), kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, _ in lines_of_the_page()
    }
    assert rows_of(text_string_to_metric_families(shown().exposition()[0].decode())) == page


def test_every_result_is_on_the_page() -> None:
    meanings = {name.strip("`"): meaning for name, _, _, meaning in lines_of_the_page()}
    for family in text_string_to_metric_families(shown().exposition()[0].decode()):
        for sample in family.samples:
            if "result" in sample.labels:
                assert f"`{sample.labels['result']}`" in meanings[sample.name]


def test_a_scrape_may_ask_for_openmetrics() -> None:
    body, content_type = shown().exposition("application/openmetrics-text;version=1.0.0,*/*;q=0.1")
    assert content_type == OPENMETRICS
    assert any(family.name == "fluence_webhook_requests" for family in openmetrics(body.decode()))
    assert shown().exposition("*/*")[1] == TEXT


def test_no_series_has_a_creation_time() -> None:
    enable_created_metrics()
    assert b"_created" not in shown().exposition()[0]


def test_the_page_names_every_option_of_the_command_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["webhook", "--help"]) == 0
    options = set(re.findall(r"--[a-z]+(?:-[a-z]+)*", capsys.readouterr().out)) - {"--help"}
    table = PAGE.partition("## Options")[2].partition("## Limits")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `--")]
    assert {option for row in rows for option in re.findall(r"--[a-z-]+", row)} == options


def test_the_pages_handler_does_what_the_page_says() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module: dict[str, Any] = {"Refusal": Refusal}
    exec(compile(code, "labels.py", "exec"), module)
    labels = module["Labels"](HandlerSettings(frozenset({"fluence"}), None, CollectorRegistry()))
    request = AdmissionRequest(uid="1", operation="CREATE", namespace="default", name="", dry_run=False)
    assert labels.mutate({}, request)[0]["value"] == {"seen": "yes"}
    assert labels.mutate({"metadata": {"labels": {"seen": "yes"}}}, request) == []
    frozen = AdmissionRequest(uid="1", operation="CREATE", namespace="frozen", name="", dry_run=False)
    assert labels.mutate({}, frozen).code == 403
