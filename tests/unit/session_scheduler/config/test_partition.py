"""The configuration of a partition: each mistake is one line with field and remedy."""

import pytest

from session_scheduler.config.settings import config_from, parse_config, written
from session_scheduler.errors import InputError

_HEAD = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n"


def test_null_selects_nodes_without_a_label_and_survives_a_snapshot():
    config = parse_config(_HEAD + "partition: {nodeSelector: {pool: a, example.com/zone: null}}", "f.yaml")
    assert config.partition is not None
    assert config.partition.node_selector == {"pool": "a", "example.com/zone": None}
    assert config_from(written(config), "snapshot").partition == config.partition


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", ".nodeSelector: is missing; add it"),
        ("{nodeSelector: {}}", ".nodeSelector: is {}; list 1 or more entries"),
        ("{nodeSelector: {a b: x}}", ".nodeSelector: 'a b' is not a valid label key; use one of your nodes' labels, "
         "such as example.com/pool"),
        ("{nodeSelector: {A.com/b: x}}", ".nodeSelector: 'A.com/b' is not a valid label key; use one of your nodes' "
         "labels, such as example.com/pool"),
        ("{nodeSelector: {pool: x y}}", ".nodeSelector.pool: 'x y' is not a valid label value; use up to 63 letters, "
         "digits, '-', '_' and '.'"),
        ("{nodeSelector: {pool: 3}}", ".nodeSelector.pool: is 3; use a string (in quotes)"),
        ("{nodeSelector: {pool: a}, devicePools: [fabric]}", ".devicePools[0]: is 'fabric'; use DRIVER/POOL, as in the "
         "spec of the pool's ResourceSlices"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_line(text: str, problem: str):
    with pytest.raises(InputError) as refused:
        parse_config(f"{_HEAD}partition: {text}", "f.yaml")
    assert refused.value.messages == (f"f.yaml: partition{problem}",)


def test_a_partition_needs_a_lease():
    with pytest.raises(InputError) as refused:
        parse_config(_HEAD + "partition: {nodeSelector: {pool: a}}\nleaderElection: {enabled: false}", "f.yaml")
    assert refused.value.messages == (
        "f.yaml: partition: needs leaderElection.enabled: the Lease shows the partition to the other schedulers",
    )
