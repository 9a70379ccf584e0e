"""Queues of the configuration: conversion to the queue tree's settings, and validation at startup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from session_scheduler.config.settings import DeviceResourceConfig, QueueConfig
from session_scheduler.errors import InputError
from session_scheduler.model.device_amounts import amount_name, device_class_of
from session_scheduler.model.device_resources import DeviceResource, counts_devices
from session_scheduler.model.gpu_shares import GPU_FRACTION
from session_scheduler.model.queues import QueueSpec, QueueTree, queue_spec, with_known_devices


def of_config(queue: QueueConfig) -> QueueSpec:
    """The settings of a configured queue."""
    return queue_spec(queue.name, queue.parent, {"deserved": queue.deserved, "limit": queue.limit},
                 queue.over_quota_weight, queue.priority)  # fmt: skip


def devices_of_config(one: DeviceResourceConfig) -> DeviceResource:
    """A configured device resource."""
    return DeviceResource(one.name, one.resources, one.node_selector, one.device_attributes, one.capacity or "")


def check_configured(
    queues: Iterable[QueueConfig], source: str, device_resources: Iterable[DeviceResourceConfig] = ()
) -> None:
    """Raises InputError with a line for each invalid queue or device resource: its path in the file, and the error."""
    listed, devices = list(queues), list(device_resources)
    known = {devices_of_config(one).name for one in devices}
    tree = QueueTree(with_known_devices(of_config(queue), known) for queue in listed)
    wrong = [f"{source}: deviceResources[{index}].{problem}"
             for index, one in enumerate(devices) for problem in _wrong_resources(one)]  # fmt: skip
    for index, queue in enumerate(listed):
        problem = tree.problem(queue.name)
        if problem is not None and problem.reason != "ParentNotReady":
            message = problem.message.removeprefix(f"{problem.at}: ")
            at = f".{problem.at}" if problem.at else ""
            wrong.append(f"{source}: queues[{index}]{at}: {message}")
    if wrong:
        raise InputError(*wrong)


def _wrong_resources(one: DeviceResourceConfig) -> Iterator[str]:
    selects = devices_of_config(one).selects_devices
    if not one.resources and not selects:
        yield "resources: list at least one resource, or set deviceAttributes or capacity"
    if one.resources and one.capacity is not None:
        yield "capacity: its unit differs from that of resources; remove one of the two"
    if one.node_selector and (one.resources or selects) and all(map(device_class_of, one.resources)):
        yield "nodeSelector: has no effect, because devices of claims are counted on all nodes; remove it"
    for place, name in enumerate(one.resources):
        if selects and device_class_of(name) is not None:
            by = "deviceAttributes" if one.device_attributes else "capacity"
            yield (f"resources[{place}]: {name!r} counts devices of claims, which {by} already counts; remove this "
                   "resource")  # fmt: skip
        if not counts_devices(name):
            remedy = f"use an extended resource such as nvidia.com/gpu, {GPU_FRACTION}, or {amount_name('CLASS')}"
            yield f"resources[{place}]: {name!r} does not count devices; {remedy}"
        elif name in one.resources[:place]:
            first = f"resources[{one.resources.index(name)}]"
            yield f"resources[{place}]: {name!r} duplicates {first}; remove one of the two"
