"""Disruption budgets as typed values: how many of some pods may be taken away for now.

Source: the Kubernetes API reference (policy/v1).
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from session_scheduler.model.meta import ApiStruct, LabelSelector, Namespaced


class PodDisruptionBudgetSpec(ApiStruct, frozen=True):
    """spec of a PodDisruptionBudget, as far as it picks pods: a selector that is empty, or none, picks none here."""

    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(ApiStruct, frozen=True):
    """status of a PodDisruptionBudget, which the disruption controller writes."""

    disruptions_allowed: int = 0
    """How many of its pods may go now."""
    disrupted_pods: dict[str, Any] = field(default_factory=dict)
    """By name: pods that the API server let go and the controller has not seen go."""


class PodDisruptionBudget(Namespaced, frozen=True, tag_field="kind", tag="PodDisruptionBudget"):
    """policy/v1 PodDisruptionBudget."""

    api_version: str = "policy/v1"
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
