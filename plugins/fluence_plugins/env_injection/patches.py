"""Builds JSON patches (RFC 6902), and reads untrusted objects safely. For handlers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

from fluence_plugins.env_injection.handlers import Operation
from fluence_plugins.resources.names import requested_type

Object = dict[str, Any]
LISTS: Final = ("initContainers", "containers")
_AMOUNTS: Final = ("requests", "limits")


def are_objects(listed: Any) -> TypeGuard[list[Object]]:
    """Whether a value is a list of JSON objects."""
    return isinstance(listed, list) and all(isinstance(each, dict) for each in listed)


def objects_of(listed: Any) -> list[Object]:
    """The list if it contains only JSON objects; else an empty list."""
    return listed if are_objects(listed) else []


def spec_of(template: Mapping[str, Any]) -> Object | None:
    """The spec of a pod or template; None if its containers are malformed."""
    spec = template.get("spec")
    if not isinstance(spec, dict) or not all(are_objects(spec.get(field) or []) for field in LISTS):
        return None
    return spec


def texts_of(owner: Mapping[str, Any], field: str) -> dict[str, str] | None:
    """`metadata.labels` or `metadata.annotations`; empty if missing, None if malformed."""
    metadata = owner.get("metadata", {})
    found = metadata.get(field) if isinstance(metadata, dict) else metadata
    if found is None and metadata is not None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        return None
    return dict(found)


def controller_of(pod: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and name of the pod's controller; empty if there is none."""
    metadata = pod.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    for owner in objects_of(owners):
        kind, name = owner.get("kind"), owner.get("name")
        if owner.get("controller") is True and isinstance(kind, str) and isinstance(name, str):
            return kind, name
    return "", ""


def escaped(key: str) -> str:
    """The key as a segment of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def written(owner: Mapping[str, Any], path: str, field: str, texts: Mapping[str, str]) -> list[Operation]:
    """The operations that add these strings to `metadata.<field>` of the object at `path`."""
    known = texts_of(owner, field)
    missing = {key: text for key, text in texts.items() if known is None or known.get(key) != text}
    if not missing:
        return []
    if not isinstance(owner.get("metadata"), dict):
        return [{"op": "add", "path": f"{path}/metadata", "value": {field: missing}}]
    if not isinstance(owner["metadata"].get(field), dict):
        return [{"op": "add", "path": f"{path}/metadata/{field}", "value": missing}]
    return [
        {"op": "add", "path": f"{path}/metadata/{field}/{escaped(key)}", "value": text}
        for key, text in missing.items()
    ]  # fmt: skip


def variable(name: str, path: str) -> Object:
    """A variable that reads a field of the pod. It has the API server's defaults, so a later comparison finds no
    difference.
    """
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def annotation_variable(name: str, annotation: str) -> Object:
    """A variable that reads an annotation."""
    return variable(name, f"metadata.annotations['{annotation}']")


def with_variables(container: Object, path: str, variables: Mapping[str, Object]) -> list[Operation]:
    """The operations for one container's env, at `path`.

    Our variables go before the user's own, so that those can use $(FLUXION_BACKEND): only earlier variables are
    expanded.
    """
    env = container.get("env")
    if env is None:
        return [{"op": "add", "path": path, "value": list(variables.values())}]
    existing = {name for each in env if isinstance(name := each.get("name"), str)}
    missing = [value for name, value in variables.items() if name not in existing]
    return [{"op": "add", "path": f"{path}/{position}", "value": value} for position, value in enumerate(missing)]


def each_container(spec: Mapping[str, Any]) -> Iterator[tuple[str, Object]]:
    """The path and value of each init container and container in a pod's spec."""
    for field in LISTS:
        for index, container in enumerate(spec.get(field) or []):
            yield f"/spec/{field}/{index}", container


def devices_of(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The devices that the container requests: `requests` or `limits`, and the resource's name."""
    resources = container.get("resources")
    for field in _AMOUNTS:
        amounts = resources.get(field) if isinstance(resources, dict) else None
        if isinstance(amounts, dict):
            yield from ((field, name) for name in amounts if requested_type(name) is not None)


def requests_device(spec: Mapping[str, Any]) -> bool:
    """Whether a container of the spec requests a device."""
    return any(True for _, container in each_container(spec) for _ in devices_of(container))


def without_devices(spec: Mapping[str, Any]) -> list[Operation]:
    """The operations that remove all device requests."""
    return [
        {"op": "remove", "path": f"{path}/resources/{field}/{escaped(name)}"}
        for path, container in each_container(spec) for field, name in devices_of(container)
    ]  # fmt: skip


def ours(spec: Mapping[str, Any], names: frozenset[str]) -> bool:
    """Whether a spec names one of these schedulers."""
    name = spec.get("schedulerName")
    return isinstance(name, str) and name in names


def add_all(path: str, existing: Any, values: Sequence[Any]) -> list[Operation]:
    """The operations that append values to the list at `path`, which may not exist yet."""
    if not existing:
        return [{"op": "add", "path": path, "value": list(values)}]
    return [{"op": "add", "path": f"{path}/-", "value": value} for value in values]
