"""Generates `session_scheduler/cluster/api_fields.json`: the fields and types of the kinds that commands read.

    python -m tests.tools.api_fields

starts the API server of `make controlplane`, and writes the table from its OpenAPI document and from the
CustomResourceDefinitions of deploy/. Tests compare the file with both.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from session_scheduler.cluster.api_fields import FILE
from session_scheduler.cluster.manifests import READ_KINDS

from ..controlplane.harness import DEPLOY, ControlPlane

_DEFINITIONS: Final = ("queues/queues.yaml", "master-queue/crd.yaml")
"""The files with CustomResourceDefinitions, in deploy/kustomize/base."""
_OWN_ENCODING: Final = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int-or-string",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "time",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "any",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
}
"""Types that Go decodes by their own rules, while the OpenAPI document has only strings and objects."""
_PREFIX: Final = re.compile(r"io\.k8s\.(?:api|apimachinery\.pkg\.apis)\.")
_METADATA: Final = "meta.v1.ObjectMeta"
_COLLECTION: Final = re.compile(r"/apis?/(?:[^{}]+/)?v\w+/(?:namespaces/\{namespace\}/)?\w+")
Table = dict[str, Any]


def built_in(openapi: Mapping[str, Any]) -> Table:
    """The part of the table that an API server's OpenAPI document (version 2) describes."""
    definitions = openapi["definitions"]
    kinds: dict[str, dict[str, str]] = {}
    types: dict[str, dict[str, str]] = {}
    waiting: list[str] = []
    for path, operations in openapi["paths"].items():
        if "post" not in operations or not _COLLECTION.fullmatch(path):
            continue
        made = operations["post"]["x-kubernetes-group-version-kind"]
        api_version = f"{made['group']}/{made['version']}".lstrip("/")
        body = next(one["schema"]["$ref"] for one in operations["post"]["parameters"] if one["name"] == "body")
        is_read = (api_version, made["kind"]) in READ_KINDS
        kinds.setdefault(api_version, {})[made["kind"]] = _short(_name(body)) if is_read else ""
        waiting += [_name(body)] if is_read else []
    while waiting:
        name = waiting.pop()
        if _short(name) not in types and name not in _OWN_ENCODING:
            properties = definitions[name].get("properties", {})
            types[_short(name)] = {field: _built_in_type(schema) for field, schema in properties.items()}
            waiting += [_name(found) for schema in properties.values() for found in _references(schema)]
    return {"kinds": kinds, "types": types}


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _short(name: str) -> str:
    return _PREFIX.sub("", name)


def _references(schema: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        yield schema["$ref"]
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            yield from _references(schema[inner])


def _built_in_type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = _name(schema["$ref"])
        return _OWN_ENCODING.get(name) or _short(name)
    if schema["type"] == "array":
        return f"[]{_built_in_type(schema['items'])}"
    if schema["type"] == "object":
        return f"{{}}{_built_in_type(schema['additionalProperties'])}"
    return str(schema.get("format", schema["type"]))


def custom(definitions: Iterable[Mapping[str, Any]]) -> Table:
    """The part of the table that CustomResourceDefinitions describe."""
    kinds: dict[str, dict[str, str]] = {}
    types: dict[str, dict[str, str]] = {}
    for definition in definitions:
        kind = definition["spec"]["names"]["kind"]
        for version in definition["spec"]["versions"]:
            api_version = f"{definition['spec']['group']}/{version['name']}"
            kinds.setdefault(api_version, {})[kind] = kind
            _add(types, kind, version["schema"]["openAPIV3Schema"])
            types[kind] |= {"metadata": _METADATA}
    return {"kinds": kinds, "types": types}


def _add(types: dict[str, dict[str, str]], name: str, schema: Mapping[str, Any]) -> None:
    types[name] = {}
    for field, inner in schema["properties"].items():
        types[name][field] = _custom_type(types, f"{name}.{field}", inner)


def _custom_type(types: dict[str, dict[str, str]], name: str, schema: Mapping[str, Any]) -> str:
    """The type of a field; adds the type `name` if it has fields."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return "any"
    if schema.get("x-kubernetes-int-or-string"):
        return "int-or-string"
    if schema["type"] == "array":
        return f"[]{_custom_type(types, name, schema['items'])}"
    if "properties" in schema:
        _add(types, name, schema)
        return name
    if schema["type"] == "object":
        inner = schema.get("additionalProperties")
        return f"{{}}{_custom_type(types, name, inner)}" if inner else "{}any"
    return {"integer": "int64", "date-time": "time"}.get(
        schema.get("format", schema["type"]), schema.get("format", schema["type"])
    )


def shipped_definitions() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions of deploy/."""
    base = DEPLOY / "kustomize" / "base"
    found = [one for name in _DEFINITIONS for one in yaml.safe_load_all((base / name).read_text()) if one]
    return [one for one in found if one["kind"] == "CustomResourceDefinition"]


def text(version: str, *parts: Table) -> str:
    """The file: JSON with one line for each apiVersion and each type."""
    merged: dict[str, dict[str, Any]] = {"kinds": {}, "types": {}}
    for part in parts:
        merged["kinds"] |= part["kinds"]
        merged["types"] |= part["types"]
    for api_version, kind in READ_KINDS:  # also those of a custom resource of another project
        merged["kinds"].setdefault(api_version, {}).setdefault(kind, "")
    sections = [
        f'"{name}":{{\n' + ",\n".join(f"{json.dumps(key)}:{_line(merged[name][key])}" for key in sorted(merged[name]))
        + "\n}" for name in merged
    ]  # fmt: skip
    return f'{{"kubernetes":"{version}",\n' + ",\n".join(sections) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def generated(plane: ControlPlane) -> str:
    """The file as this control plane's API server describes it."""
    version = plane.request("GET", "/version")[1]["gitVersion"]
    return text(version, built_in(plane.request("GET", "/openapi/v2")[1]), custom(shipped_definitions()))


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder, ControlPlane(Path(folder)) as plane:
        FILE.write_text(generated(plane), encoding="utf-8")


if __name__ == "__main__":
    main()
