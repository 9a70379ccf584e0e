"""What handlers make their patches of: looks at objects that anybody may have sent, and JSON operations (RFC 6902)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

from fluence_plugins.env_injection.handlers import Operation
from fluence_plugins.resources.names import requested_type

Object = dict[str, Any]
LISTS: Final = ("initContainers", "containers")
_AMOUNTS: Final = ("requests", "limits")


def are_objects(listed: Any) -> TypeGuard[list[Object]]:
    """Whether it is a list of JSON objects."""
    return isinstance(listed, list) and all(isinstance(each, dict) for each in listed)


def objects_of(listed: Any) -> list[Object]:
    """The list, where it is one of JSON objects; else an empty one."""
    return listed if are_objects(listed) else []


def spec_of(template: Mapping[str, Any]) -> Object | None:
    """The spec of a pod or of a template; None where its containers are not what containers can be."""
    spec = template.get("spec")
    if not isinstance(spec, dict) or not all(are_objects(spec.get(field) or []) for field in LISTS):
        return None
    return spec


def texts_of(owner: Mapping[str, Any], field: str) -> dict[str, str] | None:
    """`metadata.labels` or `metadata.annotations`, empty where there are none; None where they are something else."""
    metadata = owner.get("metadata", {})
    found = metadata.get(field) if isinstance(metadata, dict) else metadata
    if found is None and metadata is not None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        return None
    return dict(found)


def controller_of(pod: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and name of what made the pod; empty where nothing did."""
    metadata = pod.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    for owner in objects_of(owners):
        kind, name = owner.get("kind"), owner.get("name")
        if owner.get("controller") is True and isinstance(kind, str) and isinstance(name, str):
            return kind, name
    return "", ""


def escaped(key: str) -> str:
    """The key as a part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def written(owner: Mapping[str, Any], path: str, field: str, texts: Mapping[str, str]) -> list[Operation]:
    """The operations after which `metadata.<field>` of what lies at `path` says these texts, besides its own."""
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
    """A variable from a field of the pod, as the API server would complete it, so that nothing differs later."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def annotation_variable(name: str, annotation: str) -> Object:
    """A variable that reads an annotation."""
    return variable(name, f"metadata.annotations['{annotation}']")


def with_variables(container: Object, path: str, variables: Mapping[str, Object]) -> list[Operation]:
    """The operations for one container's env, at `path`.

    Ours go before the user's own, which can then say $(FLUXION_BACKEND): only earlier variables are expanded.
    """
    env = container.get("env")
    if env is None:
        return [{"op": "add", "path": path, "value": list(variables.values())}]
    theirs = {name for each in env if isinstance(name := each.get("name"), str)}
    missing = [value for name, value in variables.items() if name not in theirs]
    return [{"op": "add", "path": f"{path}/{position}", "value": value} for position, value in enumerate(missing)]


def each_container(spec: Mapping[str, Any]) -> Iterator[tuple[str, Object]]:
    """The path of each init container and container of a pod's spec, and what it is."""
    for field in LISTS:
        for index, container in enumerate(spec.get(field) or []):
            yield f"/spec/{field}/{index}", container


def devices_of(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each device that the container asks for: `requests` or `limits`, and the resource's name."""
    resources = container.get("resources")
    for field in _AMOUNTS:
        amounts = resources.get(field) if isinstance(resources, dict) else None
        if isinstance(amounts, dict):
            yield from ((field, name) for name in amounts if requested_type(name) is not None)


def asks_for_device(spec: Mapping[str, Any]) -> bool:
    """Whether some container of the spec asks for a device."""
    return any(True for _, container in each_container(spec) for _ in devices_of(container))


def without_devices(spec: Mapping[str, Any]) -> list[Operation]:
    """The operations after which no container asks for a device."""
    return [
        {"op": "remove", "path": f"{path}/resources/{field}/{escaped(name)}"}
        for path, container in each_container(spec) for field, name in devices_of(container)
    ]  # fmt: skip


def ours(spec: Mapping[str, Any], names: frozenset[str]) -> bool:
    """Whether a spec names one of these schedulers."""
    name = spec.get("schedulerName")
    return isinstance(name, str) and name in names


def add_all(path: str, existing: Any, values: Sequence[Any]) -> list[Operation]:
    """The operations that put values at the end of the list at `path`, which there may not be yet."""
    if not existing:
        return [{"op": "add", "path": path, "value": list(values)}]
    return [{"op": "add", "path": f"{path}/-", "value": value} for value in values]
