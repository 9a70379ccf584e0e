"""The sidecar `fluence-sidecar`, which watches a device's queue for a pod with the label `observe`.

It is a sidecar container of Kubernetes (an init container that always restarts): it ends with the workload, and a Job
does not wait for it. It has no more permissions than the workload, and reports with the workload's account.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from fluence_plugins.env_injection import patches
from fluence_plugins.env_injection.handlers import Operation
from fluence_plugins.resources.label_groups import GROUP_LABEL
from session_scheduler.errors import InputError, shown

CONTAINER: Final = "fluence-sidecar"
OPTION: Final = "--sidecar-image"
_IMAGE: Final = re.compile(
    r"(?=.{1,512}\Z)[a-z0-9][a-zA-Z0-9._:-]*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_MEMORY: Final = {"requests": {"memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def checked_image(image: str) -> str:
    """Validate an image, which must be pinned by a tag or digest. Raises InputError."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if not _IMAGE.fullmatch(image):
        raise InputError(
            f"{OPTION}: {shown(image)} is not a valid image; use registry/name:tag or registry/name@sha256:…"
        )
    if not digest and tag in ("", "latest"):
        raise InputError(f"{OPTION}: {shown(image)} is not pinned; use a tag other than latest, or a digest")
    return image


def has_sidecar(spec: Mapping[str, Any]) -> bool:
    """Whether a pod already has the container, or another one with its name."""
    return any(container.get("name") == CONTAINER for _, container in patches.each_container(spec))


def with_sidecar(
    spec: Mapping[str, Any], image: str, variables: Mapping[str, str], *, as_root: bool = False
) -> list[Operation]:
    """The operations that add the sidecar, unless the pod has it. See `sidecar_container`."""
    if has_sidecar(spec):
        return []
    container = sidecar_container(spec, image, variables, as_root=as_root) | {"restartPolicy": "Always"}
    return patches.add_all("/spec/initContainers", spec.get("initContainers"), [container])


def sidecar_container(
    spec: Mapping[str, Any], image: str, variables: Mapping[str, str], *, as_root: bool = False
) -> dict[str, Any]:
    """The container. `variables` are additional environment variables; `as_root`: the image may run as root.

    It also gets the first container's variables from Secrets and ConfigMaps: the credentials for the device's queue.
    """
    env = [
        patches.variable("FLUENCE_POD_UID", "metadata.uid"),
        patches.variable("FLUENCE_POD_NAME", "metadata.name"),
        patches.variable("FLUENCE_NAMESPACE", "metadata.namespace"),
        patches.variable("FLUENCE_GROUP", f"metadata.labels['{GROUP_LABEL}']"),
        *({"name": name, "value": value} for name, value in variables.items()),
    ]
    reserved = {each["name"] for each in env}
    env += [each for each in _referenced(spec) if each.get("name") not in reserved]
    return {
        "name": CONTAINER, "image": image, "imagePullPolicy": "IfNotPresent", "env": env, "resources": _MEMORY,
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                            "runAsNonRoot": not as_root, "capabilities": {"drop": ["ALL"]},
                            "seccompProfile": {"type": "RuntimeDefault"}},
    }  # fmt: skip


def _referenced(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    containers = patches.objects_of(spec.get("containers"))
    env = patches.objects_of(containers[0].get("env")) if containers else []
    return [
        each for each in env
        if isinstance(source := each.get("valueFrom"), dict) and source.keys() & {"secretKeyRef", "configMapKeyRef"}
    ]  # fmt: skip
