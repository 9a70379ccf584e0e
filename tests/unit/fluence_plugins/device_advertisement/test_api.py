"""The messages are those of the kubelet's API."""

from fluence_plugins.device_advertisement import api_pb2

FIELDS = {
    "DevicePluginOptions": {"pre_start_required": 1, "get_preferred_allocation_available": 2},
    "RegisterRequest": {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4},
    "ListAndWatchResponse": {"devices": 1},
    "Device": {"ID": 1, "health": 2, "topology": 3},
    "AllocateRequest": {"container_requests": 1},
    "ContainerAllocateRequest": {"devices_ids": 1},
    "AllocateResponse": {"container_responses": 1},
    "ContainerAllocateResponse": {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5},
    "PreferredAllocationRequest": {"container_requests": 1},
    "ContainerPreferredAllocationRequest": {
        "available_deviceIDs": 1, "must_include_deviceIDs": 2, "allocation_size": 3,
    },
    "PreferredAllocationResponse": {"container_responses": 1},
    "ContainerPreferredAllocationResponse": {"deviceIDs": 1},
    "PreStartContainerRequest": {"devices_ids": 1},
}  # fmt: skip


def test_fields_have_the_numbers_that_the_kubelet_knows() -> None:
    messages = api_pb2.DESCRIPTOR.message_types_by_name
    found = {name: {field.name: field.number for field in messages[name].fields} for name in FIELDS}
    assert found == FIELDS


def test_methods_have_the_paths_that_the_kubelet_calls() -> None:
    services = api_pb2.DESCRIPTOR.services_by_name
    paths = {f"{service.full_name}/{method.name}" for service in services.values() for method in service.methods}
    assert paths == {
        "v1beta1.Registration/Register",
        "v1beta1.DevicePlugin/GetDevicePluginOptions",
        "v1beta1.DevicePlugin/ListAndWatch",
        "v1beta1.DevicePlugin/GetPreferredAllocation",
        "v1beta1.DevicePlugin/Allocate",
        "v1beta1.DevicePlugin/PreStartContainer",
    }
