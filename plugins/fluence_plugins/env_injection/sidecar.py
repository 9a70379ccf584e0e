"""The container that watches a device's queue beside the workload, where a pod asks for it by the label `observe`.

It is a sidecar of Kubernetes' own kind (an init container that is always restarted): it ends with the workload, and no
Job waits for it. It may do nothing that the workload may not; what it is to say it writes, with the workload's account.
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
    """The image, where it always names the same. Raises InputError."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if not _IMAGE.fullmatch(image):
        raise InputError(f"{OPTION}: {shown(image)} is no image: give registry/name:tag or registry/name@sha256:…")
    if not digest and tag in ("", "latest"):
        raise InputError(
            f"{OPTION}: {shown(image)} is another image every day: give a tag other than latest, or a digest"
        )
    return image


def has_sidecar(spec: Mapping[str, Any]) -> bool:
    """Whether a pod has the container by now, or another of its name."""
    return any(container.get("name") == CONTAINER for _, container in patches.each_container(spec))


def with_sidecar(spec: Mapping[str, Any], image: str, variables: Mapping[str, str]) -> list[Operation]:
    """The operations that add it, unless it is there. `variables` are further ones.

    What the first container reads of Secrets and ConfigMaps it reads, too: credentials for the device's queue.
    """
    if has_sidecar(spec):
        return []
    env = [
        patches.variable("FLUENCE_POD_UID", "metadata.uid"),
        patches.variable("FLUENCE_POD_NAME", "metadata.name"),
        patches.variable("FLUENCE_NAMESPACE", "metadata.namespace"),
        patches.variable("FLUENCE_GROUP", f"metadata.labels['{GROUP_LABEL}']"),
        {"name": "FLUENCE_OBSERVE", "value": "true"},
        *({"name": name, "value": value} for name, value in variables.items()),
    ]
    taken = {each["name"] for each in env}
    env += [each for each in _read_elsewhere(spec) if each.get("name") not in taken]
    container = {
        "name": CONTAINER, "image": image, "imagePullPolicy": "IfNotPresent", "restartPolicy": "Always", "env": env,
        "resources": _MEMORY,
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsNonRoot": True,
                            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}},
    }  # fmt: skip
    return patches.add_all("/spec/initContainers", spec.get("initContainers"), [container])


def _read_elsewhere(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    containers = patches.objects_of(spec.get("containers"))
    env = patches.objects_of(containers[0].get("env")) if containers else []
    return [
        each for each in env
        if isinstance(source := each.get("valueFrom"), dict) and source.keys() & {"secretKeyRef", "configMapKeyRef"}
    ]  # fmt: skip
