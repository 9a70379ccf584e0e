"""One type's devices and what the kubelet asks about them."""

import logging

import pytest

from fluence_plugins.device_advertisement import api_pb2 as api
from fluence_plugins.device_advertisement.devices import NO_DEVICES, BadRequestError, Devices
from fluence_plugins.device_advertisement.naming import MOST_DEVICES

QPUS = Devices("qpu", 12)


def allocate(*containers: list[str], devices: Devices = QPUS) -> list[dict[str, str]]:
    request = api.AllocateRequest(
        container_requests=[api.ContainerAllocateRequest(devices_ids=each) for each in containers]
    )
    return [dict(each.envs) for each in devices.allocate(request).container_responses]


def prefer(available: list[str], included: list[str], size: int) -> list[str]:
    wish = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=included, allocation_size=size
    )
    answer = QPUS.prefer(api.PreferredAllocationRequest(container_requests=[wish]))
    return list(answer.container_responses[0].deviceIDs)


def test_the_list_has_every_device_healthy() -> None:
    listed = api.ListAndWatchResponse.FromString(QPUS.list).devices
    assert [each.ID for each in listed] == [f"qpu-{number}" for number in range(12)]
    assert {each.health for each in listed} == {"Healthy"}
    assert len(api.ListAndWatchResponse.FromString(NO_DEVICES).devices) == 0


def test_the_longest_list_is_one_message_of_the_kubelet() -> None:
    assert 3 << 20 < len(Devices("t" * 63, MOST_DEVICES).list) < 4 << 20


def test_each_container_gets_its_own_devices_in_their_order_and_two_types_share_no_variable() -> None:
    assert allocate(["qpu-10", "qpu-2"], ["qpu-3"]) == [
        {"FLUENCE_DEVICE_TYPE_QPU": "qpu", "FLUENCE_DEVICES_QPU": "qpu-2,qpu-10"},
        {"FLUENCE_DEVICE_TYPE_QPU": "qpu", "FLUENCE_DEVICES_QPU": "qpu-3"},
    ]
    (other,) = allocate(["qpu_v2-0"], devices=Devices("qpu_v2", 1))
    assert other == {"FLUENCE_DEVICE_TYPE_QPUx5fV2": "qpu_v2", "FLUENCE_DEVICES_QPUx5fV2": "qpu_v2-0"}


def test_so_many_devices_that_no_variable_may_name_them_are_given_without_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    many = Devices("qpu", 20_000)
    with caplog.at_level(logging.WARNING):
        (env,) = allocate([f"qpu-{number}" for number in range(20_000)], devices=many)
    assert env == {"FLUENCE_DEVICE_TYPE_QPU": "qpu"}
    assert "qpu: one container has 20000 devices, too many to name in a variable" in caplog.text


@pytest.mark.parametrize(
    "device",
    ["qpu-12", "qpu-", "qpu", "", "qpu-01", "qpu--1", "qpu-+1", "qpu-1 ", "qubit-1", "1", "qpu-²", "qpu-" + "9" * 5000],
)
def test_what_is_no_device_of_the_type_is_refused(device: str) -> None:
    with pytest.raises(BadRequestError, match="is not a device of type qpu; use qpu-0 to qpu-11") as refused:
        allocate(["qpu-1", device])
    assert len(str(refused.value)) < 200


def test_what_must_be_included_is_preferred_then_the_lowest_numbers() -> None:
    assert prefer(["qpu-11", "qpu-9", "qpu-4"], ["qpu-11"], 2) == ["qpu-11", "qpu-4"]
    assert prefer(["qpu-11", "qpu-9"], [], 0) == []


@pytest.mark.parametrize(("size", "included"), [(3, ["qpu-1"]), (0, ["qpu-1"]), (-1, [])])
def test_preferences_that_cannot_be_met_are_refused(size: int, included: list[str]) -> None:
    with pytest.raises(BadRequestError, match="cannot prefer"):
        prefer(["qpu-1", "qpu-2"], included, size)
