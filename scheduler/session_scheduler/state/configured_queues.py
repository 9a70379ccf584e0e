"""Queues of the configuration: conversion to the queue tree's settings, and validation at the start."""

from __future__ import annotations

from collections.abc import Iterable

from session_scheduler.config.settings import QueueConfig
from session_scheduler.errors import InputError
from session_scheduler.model.queues import QueueSpec, QueueTree, queue_spec


def of_config(queue: QueueConfig) -> QueueSpec:
    """The settings of a configured queue."""
    return queue_spec(queue.name, queue.parent, {"deserved": queue.deserved, "limit": queue.limit},
                 queue.over_quota_weight, queue.priority)  # fmt: skip


def check_configured(queues: Iterable[QueueConfig], source: str) -> None:
    """Raises InputError with a line for each invalid queue: its path in the file, and the error."""
    listed = list(queues)
    tree = QueueTree(of_config(queue) for queue in listed)
    wrong = []
    for index, queue in enumerate(listed):
        problem = tree.problem(queue.name)
        if problem is not None and problem.reason != "ParentNotReady":
            message = problem.message.removeprefix(f"{problem.at}: ")
            at = f".{problem.at}" if problem.at else ""
            wrong.append(f"{source}: queues[{index}]{at}: {message}")
    if wrong:
        raise InputError(*wrong)
