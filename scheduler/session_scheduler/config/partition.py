"""The configuration of a partition: which part of the cluster one of several schedulers serves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from session_scheduler.config.label_names import is_label_key, is_label_value
from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.strict import Strict

_POOL: Final = re.compile(r"[^/\s]+/\S+")


def _valid_labels(labels: Mapping[str, str | None]) -> Mapping[str, str | None]:
    for key, value in labels.items():
        if not is_label_key(key):
            problem = f"{key!r} is not a valid label key; use one of your nodes' labels, such as example.com/pool"
            raise wrong_value(problem)
        if value is not None and not is_label_value(value):
            problem = f"{value!r} is not a valid label value; use up to 63 letters, digits, '-', '_' and '.'"
            raise wrong_value(problem, at=(key,))
    return labels


def _valid_pool(pool: str) -> str:
    if not _POOL.fullmatch(pool):
        raise wrong_value(f"is {pool!r}; use DRIVER/POOL, as in the spec of the pool's ResourceSlices")
    return pool


class PartitionConfig(Strict):
    """The part of a cluster that one of several schedulers serves.

    node_selector: the labels of its nodes and Queue objects; None: the label is missing. At least one label must have
    different values in any two partitions. device_pools: the pools of DRA devices, as DRIVER/POOL, that are not on one
    node and that this scheduler allocates.
    """

    node_selector: Annotated[Mapping[str, str | None], Field(min_length=1), AfterValidator(_valid_labels)]
    device_pools: tuple[Annotated[str, AfterValidator(_valid_pool)], ...] = ()
