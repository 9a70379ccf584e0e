"""What every server of the command leaves out of its metrics. Public."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric


def without_created(families: Iterable[Metric]) -> list[Metric]:
    """The families without the times at which their series began: the library adds them, as families of their own."""
    kept = list(families)
    for family in kept:
        family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return kept
