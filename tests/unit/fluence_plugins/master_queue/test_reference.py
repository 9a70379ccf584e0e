"""The reference page names every field, condition, reason, limit and right that there is, and no other default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from fluence_plugins.master_queue import amounts, messages, patterns
from fluence_plugins.master_queue.api import kueue
from fluence_plugins.master_queue.arguments import MasterQueueArguments, MasterQueueConfiguration
from fluence_plugins.master_queue.controller import desired_state, local_queues, pools, reconciler
from fluence_plugins.master_queue.nats import connection
from fluence_plugins.master_queue.nats.settings import MOST_SERVERS, ConnectorSettings, Tls
from session_scheduler.config.parsing import validated
from session_scheduler.config.settings import parse_config

from ....tools.deploying import DEPLOY, manifests

PAGE = (Path(__file__).parents[4] / "docs/reference/master-queue.md").read_text()
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| ")]
NAMES = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}
"""What some table's first column names."""
Schema = dict[str, Any]


def schema(part: str) -> Schema:
    """The fields of the definition's spec or status."""
    (version,) = yaml.safe_load((DEPLOY / "kustomize/base/master-queue/crd.yaml").read_text())["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]["properties"][part]["properties"]
    return found


def names(fields: Schema, prefix: str = "") -> set[str]:
    """Fields as the page writes them: a list with [] behind."""
    return {prefix + name + ("[]" if field["type"] == "array" and name != "pools" else "")
            for name, field in fields.items()}  # fmt: skip


def spec_fields() -> dict[str, Schema]:
    """The fields of the spec by their prefix on the page; Kueue documents the fields of its own types."""
    spec = schema("spec")
    flavor: Schema = spec["flavors"]["items"]["properties"]
    return {"template.": spec["template"]["properties"], "flavors[].": flavor,
            "natsFlavor.": flavor["natsFlavor"]["properties"]}  # fmt: skip


def row(name: str) -> list[str]:
    """The row that begins with this name."""
    (found,) = [one for one in ROWS if f"`{name}`" in one[0]]
    return found


def test_the_page_lists_every_field_of_the_spec() -> None:
    wanted = {name for prefix, fields in spec_fields().items() for name in names(fields, prefix)}
    assert len(wanted) > 15
    assert {name.replace("flavors[].natsFlavor.", "natsFlavor.") for name in wanted} <= NAMES
    lending = spec_fields()["flavors[]."]["canLendTo"]["items"]["properties"]
    assert all(f"`{name}`" in row("flavors[].canLendTo[]")[2] for name in lending)


def test_defaults_are_those_of_the_definition() -> None:
    defaults = {prefix + name: field["default"] for prefix, fields in spec_fields().items()
                for name, field in fields.items() if "default" in field}  # fmt: skip
    assert "natsFlavor.poolTimeout" in defaults
    for name, default in defaults.items():
        assert row(name)[1] in (f"`{default}`", str(default)), name


def test_the_page_lists_every_field_of_the_status() -> None:
    status = schema("status")
    assert names(status) - {"pools"} <= NAMES
    assert all(f"`{name}`" in row("pools[]")[1] for name in status["pools"]["items"]["properties"])
    assert all(f"`{state}`" in PAGE for state in pools.PoolState)


def test_the_page_lists_every_condition_and_reason() -> None:
    reported = {one[2].strip("`") for one in ROWS if one[1] in ("True", "False", "Unknown")}
    source = Path(desired_state.__file__).read_text()
    assert set(re.findall(r'reason="(\w+)"', source)) < reported
    assert all(f'"{reason}"' in source for reason in reported)
    assert {desired_state.READY, desired_state.NATS_CONNECTED, desired_state.POOLS_ACTIVE} <= NAMES


@pytest.mark.parametrize("model", [MasterQueueArguments, MasterQueueConfiguration, ConnectorSettings, Tls])
def test_the_page_lists_every_field_of_the_configuration(model: type[BaseModel]) -> None:
    prefix = "tls." if model is Tls else ""
    assert {prefix + str(field.alias) for field in model.model_fields.values()} - {"tls"} <= NAMES


def test_the_pages_configurations_are_valid() -> None:
    connectors, scheduler, alone = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    parse_config(yaml.safe_dump(scheduler), "the page")
    found = validated(MasterQueueConfiguration, alone | connectors, "the page")
    assert list(found.connectors) == ["interlink"]
    (args,) = [one["args"] for profile in scheduler["profiles"] for one in profile["plugins"]]
    assert validated(MasterQueueArguments, args, "the page").status_seconds == 30


def test_the_pages_message_is_valid_in_full() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    found = messages.decoded(text.encode())
    assert found.problems == ()
    assert set(found.quotas) == set(amounts.RESOURCES)


@pytest.mark.parametrize(
    "limit",
    [
        f"{pools.MOST_POOLS} pools per MasterQueue",
        f"{messages.MOST_BYTES >> 10} KiB",
        f"only the first {messages.MOST_PARTS} `labels`, `taints` and unknown resources are read",
        f"| {messages.MOST_LABELS} |",
        f"| {messages.MOST_TAINTS} |",
        f"at most {kueue.MOST_FLAVORS} flavors",
        f"up to {patterns.LONGEST} characters",
        f"up to {local_queues.MOST} queues. Only",
        f"1 to {MOST_SERVERS} addresses",
        f"{connection.FIRST_SECONDS} s, and doubles",
        f"up to {connection.LONGEST_SECONDS:.0f} s",
        f"more than {connection.MOST_WAITING} messages or {connection.MOST_WAITING_BYTES >> 20} MiB",
        f"{reconciler.DROP_SECONDS:.0f} s or more",
        f"{local_queues.ANNOTATION}='gr1=group1, masterqueue'",
    ],
)
def test_the_pages_limits_are_those_of_the_code(limit: str) -> None:
    assert limit in PAGE


def test_the_rights_are_those_of_the_shipped_account() -> None:
    (role,) = [one for one in manifests("options/master-queue.yaml") if one["kind"] == "ClusterRole"]
    shipped = {(f"{resource}.{group}".rstrip("."), ", ".join(rule["verbs"]))
               for rule in role["rules"] for group in rule["apiGroups"] for resource in rule["resources"]}  # fmt: skip
    table = PAGE.partition("needs these permissions")[2].partition("| for |")[2].partition("\n\n")[0]
    reported = {(name, line.split("|")[2].strip()) for line in table.splitlines()[2:]
            for name in re.findall(r"`([^`]+)`", line.split("|")[1])}  # fmt: skip
    assert reported == shipped
