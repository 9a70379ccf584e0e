import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from session_scheduler.builtin import BUILTIN
from session_scheduler.config.extenders import ExtenderConfig
from session_scheduler.config.partition import PartitionConfig
from session_scheduler.config.settings import (
    Backoff,
    ConsolidationConfig,
    DeviceResourceConfig,
    LeaderElection,
    PluginConfig,
    Profile,
    QueueConfig,
    SchedulerConfig,
    Serving,
    parse_config,
)

PAGE = Path(__file__).parents[4] / "docs/reference/configuration.md"


def _fields(model: type[BaseModel], prefix: str = "") -> set[str]:
    return {prefix + str(field.alias) for field in model.model_fields.values()}


@pytest.mark.parametrize(
    ("model", "prefix"),
    [
        (SchedulerConfig, ""),
        (Profile, ""),
        (PluginConfig, ""),
        (QueueConfig, ""),
        (DeviceResourceConfig, ""),
        (Backoff, "backoff."),
        (ConsolidationConfig, "consolidation."),
        (LeaderElection, "leaderElection."),
        (Serving, "serving."),
        (ExtenderConfig, ""),
        (PartitionConfig, "partition."),
    ],
)
def test_the_reference_has_a_row_for_every_field(model, prefix):
    cells = {cell.strip("` ") for line in PAGE.read_text().splitlines() for cell in line.split("|")[1:2]}
    cells |= {name.strip("` ") for cell in cells for name in cell.split(",")}
    assert _fields(model, prefix) - {"backoff", "consolidation", "leaderElection", "partition", "serving"} <= cells


ARGUMENTS = {name: found for name, plugin in BUILTIN.items() if (found := getattr(plugin, "Arguments", None))}


@pytest.mark.parametrize("plugin", ARGUMENTS)
def test_the_reference_has_a_row_for_every_argument_of_a_built_in_plugin(plugin):
    section = PAGE.read_text().partition(f"The arguments of `{plugin}`")[2].partition("The arguments of ")[0]
    rows = set(re.findall(r"^\| `(\w+)(?:\.\w+)?` \|", section, re.MULTILINE))
    assert rows == _fields(ARGUMENTS[plugin])


def test_the_reference_s_example_is_a_valid_configuration():
    example = PAGE.read_text().split("```yaml\n")[1].split("```")[0]
    assert parse_config(example, "example").profiles[0].plugins[1].weight == 2
