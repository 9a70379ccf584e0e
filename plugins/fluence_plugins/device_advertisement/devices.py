"""The devices of one type, and the responses to the kubelet's requests about them. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from fluence_plugins.device_advertisement import api_pb2 as api
from fluence_plugins.device_advertisement.naming import DEVICES_ENV, TYPE_ENV, device_prefix, env_suffix

HEALTHY: Final = "Healthy"
NO_DEVICES: Final = api.ListAndWatchResponse().SerializeToString()
"""The empty list of a type that is no longer offered."""
MOST_ENV_BYTES: Final = 64 << 10
"""The limit of a variable: the kernel starts no program with a variable of 128 KiB or more."""

log = logging.getLogger(__name__)


class BadRequestError(ValueError):
    """The kubelet requests devices that do not exist. The message names them."""


class Devices:
    """`capacity` equal devices of a type, numbered from 0."""

    def __init__(self, resource_type: str, capacity: int) -> None:
        self.type = resource_type
        self.capacity = capacity
        self._prefix = device_prefix(resource_type)
        self._suffix = env_suffix(resource_type)
        self.list: Final = self._list()
        """The encoded ListAndWatchResponse with all devices, which every stream sends."""

    def _list(self) -> bytes:
        ids = (f"{self._prefix}{number}" for number in range(self.capacity))
        return api.ListAndWatchResponse(
            devices=(api.Device(ID=each, health=HEALTHY) for each in ids)
        ).SerializeToString()

    def number(self, device: str) -> int:
        """The number of a device. Raises BadRequestError."""
        digits = device.removeprefix(self._prefix)
        if device.startswith(self._prefix) and digits.isascii() and digits.isdecimal() and len(digits) < 10:
            number = int(digits)
            if number < self.capacity and str(number) == digits:
                return number
        raise BadRequestError(
            f"{device[:80]!r} is not a device of type {self.type}; use {self._prefix}0 to "
            f"{self._prefix}{self.capacity - 1}"
        )

    def allocate(self, request: api.AllocateRequest) -> api.AllocateResponse:
        """The environment of each container: its devices and their type. Raises BadRequestError."""
        return api.AllocateResponse(
            container_responses=[
                api.ContainerAllocateResponse(envs=self._env(each.devices_ids)) for each in request.container_requests
            ]
        )

    def _env(self, devices: Sequence[str]) -> dict[str, str]:
        env = {TYPE_ENV + self._suffix: self.type}
        listed = ",".join(self._sorted(devices))
        if len(listed) <= MOST_ENV_BYTES:
            env[DEVICES_ENV + self._suffix] = listed
        else:
            log.warning("%s: one container has %d devices, too many to name in a variable", self.type, len(devices))
        return env

    def prefer(self, request: api.PreferredAllocationRequest) -> api.PreferredAllocationResponse:
        """Prefer the devices that must be included, then the lowest free numbers. Raises BadRequestError."""
        return api.PreferredAllocationResponse(
            container_responses=[
                api.ContainerPreferredAllocationResponse(deviceIDs=self._preferred(each))
                for each in request.container_requests
            ]
        )

    def _preferred(self, request: api.ContainerPreferredAllocationRequest) -> list[str]:
        included = self._sorted(request.must_include_deviceIDs)
        free = self._sorted(set(request.available_deviceIDs).difference(included))
        more = request.allocation_size - len(included)
        if not 0 <= more <= len(free):
            raise BadRequestError(
                f"cannot prefer {request.allocation_size} devices of type {self.type}: "
                f"{len(included)} must be included, and {len(free)} others are free"
            )
        return included + free[:more]

    def _sorted(self, devices: Iterable[str]) -> list[str]:
        return sorted(set(devices), key=self.number)
