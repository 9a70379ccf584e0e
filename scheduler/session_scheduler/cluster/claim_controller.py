"""What the resourceclaim controller does for pods that are loaded into memory: claims from templates.

A claim is named `<pod>-<entry>`, where the controller would add some letters by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from session_scheduler.model.devices import POD_CLAIM_NAME, ResourceClaim, ResourceClaimTemplate
from session_scheduler.model.meta import ObjectMeta, OwnerReference
from session_scheduler.model.objects import ClaimStatus, Pod


class ClaimMaker:
    """Makes the claims of pods that have none yet; `made` are they."""

    def __init__(self, templates: Mapping[str, ResourceClaimTemplate], known: Iterable[ResourceClaim]) -> None:
        self.made: list[ResourceClaim] = []
        self._templates = templates
        self._names = {claim.key for claim in known}

    def with_claims(self, pod: Pod) -> Pod:
        """The pod, whose status names the claims that were made for it."""
        named = {status.name for status in pod.status.resource_claim_statuses}
        statuses = [
            ClaimStatus(name=name, resource_claim_name=claim)
            for entry in pod.spec.resource_claims
            if (name := str(entry.get("name", ""))) not in named
            and (claim := self._claim(pod, name, entry.get("resourceClaimTemplateName"))) is not None
        ]
        if not statuses:
            return pod
        every = (*pod.status.resource_claim_statuses, *statuses)
        return replace(pod, status=replace(pod.status, resource_claim_statuses=every))

    def _claim(self, pod: Pod, entry: str, wanted: object) -> str | None:
        """The name of the claim for an entry; None where there is no such template, and the pod has to wait."""
        template = self._templates.get(f"{pod.metadata.namespace}/{wanted}") if wanted is not None else None
        name = f"{pod.metadata.name}-{entry}"
        if template is None or f"{pod.metadata.namespace}/{name}" in self._names:
            return None
        owner = OwnerReference(
            api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid, controller=True
        )
        given = template.spec.metadata
        metadata = ObjectMeta(
            name=name, namespace=pod.metadata.namespace, owner_references=(owner,), labels=given.labels,
            annotations={**given.annotations, POD_CLAIM_NAME: entry},
        )  # fmt: skip
        self._names.add(f"{pod.metadata.namespace}/{name}")
        self.made.append(ResourceClaim(metadata=metadata, spec=template.spec.spec))
        return name
