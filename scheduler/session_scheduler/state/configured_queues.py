"""Queues of the configuration: conversion to the queue tree's settings, and validation at the start."""

from __future__ import annotations

from collections.abc import Iterable

from session_scheduler.config.settings import DeviceResourceConfig, QueueConfig
from session_scheduler.errors import InputError
from session_scheduler.model.device_resources import DeviceResource
from session_scheduler.model.queues import QueueSpec, QueueTree, queue_spec, with_known_devices


def of_config(queue: QueueConfig) -> QueueSpec:
    """The settings of a configured queue."""
    return queue_spec(queue.name, queue.parent, {"deserved": queue.deserved, "limit": queue.limit},
                 queue.over_quota_weight, queue.priority)  # fmt: skip


def devices_of_config(one: DeviceResourceConfig) -> DeviceResource:
    """A configured device resource."""
    return DeviceResource(one.name, one.resources, one.node_selector)


def check_configured(
    queues: Iterable[QueueConfig], source: str, device_resources: Iterable[DeviceResourceConfig] = ()
) -> None:
    """Raises InputError with a line for each invalid queue: its path in the file, and the error."""
    listed, known = list(queues), {devices_of_config(one).name for one in device_resources}
    tree = QueueTree(with_known_devices(of_config(queue), known) for queue in listed)
    wrong = []
    for index, queue in enumerate(listed):
        problem = tree.problem(queue.name)
        if problem is not None and problem.reason != "ParentNotReady":
            message = problem.message.removeprefix(f"{problem.at}: ")
            at = f".{problem.at}" if problem.at else ""
            wrong.append(f"{source}: queues[{index}]{at}: {message}")
    if wrong:
        raise InputError(*wrong)
