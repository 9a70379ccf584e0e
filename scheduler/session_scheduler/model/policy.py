"""Typed PodDisruptionBudget, with the fields that preemption reads. `state.budgets` applies it.

Source: the Kubernetes API reference (policy/v1).
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from session_scheduler.model.meta import ApiStruct, LabelSelector, Namespaced


class PodDisruptionBudgetSpec(ApiStruct, frozen=True):
    """spec of a PodDisruptionBudget: only its selector."""

    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(ApiStruct, frozen=True):
    """status of a PodDisruptionBudget; the disruption controller writes it."""

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, Any] = field(default_factory=dict)
    """By name: pods whose eviction the API server has granted, but the controller has not observed yet."""


class PodDisruptionBudget(Namespaced, frozen=True, tag_field="kind", tag="PodDisruptionBudget"):
    """policy/v1 PodDisruptionBudget."""

    api_version: str = "policy/v1"
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
