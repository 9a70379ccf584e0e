"""The handler `quantum` as the Go version of Fluence had it, for workloads that depend on what its webhook added.

`--go-compatible` selects it. It adds to the split into producer and consumers:

- The producer gets the sidecar as an ordinary container, which opens the consumers' gates itself, with an account that
  the handler creates. It also gets the interceptor's package.
- The consumers get a priority class, and wait for the producer's job.
- The first pod of a group without an index is the producer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from fluence_plugins.env_injection import patches
from fluence_plugins.env_injection.handlers import AdmissionRequest, Decision, HandlerSettings, Operation, Refusal
from fluence_plugins.env_injection.quantum import GANG_GROUP_ENV, QuantumHandler, with_variables
from fluence_plugins.env_injection.sidecar import CONTAINER, OPTION, has_sidecar, sidecar_container
from fluence_plugins.resources import coordination as words
from fluence_plugins.resources.label_groups import (
    GROUP_LABEL,
    GROUP_SIZE_ANNOTATION,
    MADE_BY,
    MADE_LABEL,
    parsed_size,
)
from session_scheduler.errors import FluenceError, InputError
from session_scheduler.sdk.dynamic_client import AlreadyExists, ClusterError, Forbidden, KubeApi, NotFound

ACCOUNT: Final = "fluence-sidecar"
"""The name of the sidecar's ServiceAccount, Role and RoleBinding in the namespace of its pod."""
PRIORITY_CLASS: Final = "fluence-quantum-classical"
STAGE: Final = "fluence-stage"
"""The init container that copies the interceptor's Python package."""
MANIFEST: Final = "deploy/options/go-compatible.yaml"
_VOLUME: Final = "fluence-pkg"
_FOLDER: Final = "/opt/fluence-staged"
_COMMAND: Final = f"python3 -m fluence.stage {_FOLDER} || echo '[fluence] staging skipped (interceptor unavailable)'"
_INTERCEPTOR: Final[Mapping[str, Any]] = {
    "PYTHONPATH": {"name": "PYTHONPATH", "value": _FOLDER},
    "FLUENCE_POD_UID": patches.variable("FLUENCE_POD_UID", "metadata.uid"),
}
"""The variables with which Python imports the interceptor."""
_SCHEDULING: Final = "/apis/scheduling.k8s.io"
_POD_GROUP_VERSIONS: Final = ("v1beta1", "v1alpha2")
_RULES: Final = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch", "update"]},
    {"apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"], "verbs": ["get", "list"]},
]
"""What the sidecar may do; the admission policy of the manifest allows no other rules."""
_ASSIGNED: Final = {"op": "add", "path": "/spec/serviceAccountName", "value": ACCOUNT}
_WHERE: Final = f"{words.COORDINATION}: {words.SHARED}"
_RESERVED: Final = timedelta(minutes=1)
"""How long a producer's PodGroup may have no owner: the scheduler sets it once the pod exists."""
_AT_ONCE: Final = 16
"""How many reviews write to the API server at the same time."""


class ReservedError(FluenceError):
    """The PodGroup of a producer exists, but not the producer."""


class GoQuantumHandler(QuantumHandler):
    """Splits pods as `QuantumHandler` does, and adds what the Go version added."""

    def __init__(self, settings: HandlerSettings) -> None:
        """Raises InputError without a sidecar image, or without an API server to write to."""
        super().__init__(settings)
        if settings.sidecar_image is None:
            raise InputError(f"--go-compatible: needs {OPTION}, the image of the sidecar and of the interceptor")
        self._sidecar_image = settings.sidecar_image
        if settings.api is None:
            raise InputError(
                "--go-compatible: needs an API server, which the webhook does not use with --tls-cert; "
                "omit --tls-cert, and the webhook creates its certificate"
            )
        self._connect: Callable[[], Awaitable[KubeApi]] = settings.api
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def mutate(self, pod: Mapping[str, Any], request: AdmissionRequest) -> Decision:
        """Like `QuantumHandler.mutate`, after the writes to the API server that the pod needs."""
        group = self._needs_index(pod) if request.kind == "Pod" else ""
        decision = self._decision(_with_index(pod, words.PRODUCER_INDEX) if group else pod, request)
        if isinstance(decision, Refusal) or not (group or _ASSIGNED in decision):
            return decision
        try:
            async with self._slots:
                if group:
                    decision = self._decision(_with_index(pod, await self._index(group, request)), request)
                if not isinstance(decision, Refusal) and _ASSIGNED in decision:
                    if request.dry_run:  # the API server would miss the account, which is not created
                        return [each for each in decision if each != _ASSIGNED]
                    await self._create_account(request.namespace)
        except Forbidden as error:
            return Refusal(f"--go-compatible: {error}; apply {MANIFEST}", 500)
        except ClusterError as error:
            return Refusal(f"--go-compatible: {error}; create the pod again", 503)
        except ReservedError as error:
            return Refusal(str(error))
        return decision

    # ------------------------------------------------------------------ roles

    def _needs_index(self, pod: Mapping[str, Any]) -> str:
        """The group of a pod whose role depends on which of the group comes first; empty for any other pod."""
        spec = patches.spec_of(pod)
        labels, annotations = patches.texts_of(pod, "labels"), patches.texts_of(pod, "annotations")
        if spec is None or not labels or not annotations or not patches.ours(spec, self._scheduler_names):
            return ""
        shared = annotations.get(words.COORDINATION) == words.SHARED and patches.requests_device(spec)
        many = (parsed_size(annotations.get(GROUP_SIZE_ANNOTATION)) or 0) > 1
        known = annotations.keys() & {words.ROLE, words.INDEX} or patches.controller_of(pod) != ("", "")
        return labels.get(GROUP_LABEL, "") if shared and many and not known else ""

    async def _index(self, group: str, request: AdmissionRequest) -> str:
        """The index of a pod without one: the producer's for the pod that creates the producer's PodGroup.

        Raises ReservedError if that PodGroup has had no pod for long.
        """
        api = await self._connect()
        served = {each["version"] for each in (await api.get(_SCHEDULING))["versions"]}
        version = next((each for each in _POD_GROUP_VERSIONS if each in served), _POD_GROUP_VERSIONS[-1])
        name = group + words.PRODUCER_SUFFIX
        path = f"{_SCHEDULING}/{version}/namespaces/{request.namespace}/podgroups"
        try:
            if request.dry_run:
                await api.get(f"{path}/{name}")
                return "1"
            await api.create(path, {
                "apiVersion": f"scheduling.k8s.io/{version}", "kind": "PodGroup",
                "metadata": {"name": name, "namespace": request.namespace, "labels": {MADE_LABEL: MADE_BY}},
                "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}},
            })  # fmt: skip
        except AlreadyExists:
            _check_used(await api.get(f"{path}/{name}"))
            return "1"
        except NotFound:
            if not request.dry_run:
                raise
        return words.PRODUCER_INDEX

    def _producer(
        self,
        pod: Mapping[str, Any],
        spec: Mapping[str, Any],
        labels: Mapping[str, str],
        group: str,
        variables: Mapping[str, Any] = _INTERCEPTOR,
    ) -> Decision:
        own = super()._producer(pod, spec, {**labels, words.OBSERVE_LABEL: "false"}, group, variables)
        if isinstance(own, Refusal):
            return own
        return [*own, *self._accompanied(spec, self._sidecar_image, {GANG_GROUP_ENV: group})]

    def _consumer(
        self, pod: Mapping[str, Any], spec: Mapping[str, Any], annotations: Mapping[str, str], group: str, size: int
    ) -> Sequence[Operation]:
        waits = {words.DEPENDS_KIND: words.SUBMITTED, **annotations}
        own = super()._consumer(pod, spec, waits, group, size)
        if spec.get("priorityClassName"):
            return own
        return [
            *own,
            {"op": "add", "path": "/spec/priorityClassName", "value": PRIORITY_CLASS},
            {"op": "add", "path": "/spec/priority", "value": None},  # the API server sets it from the class
        ]

    def _sidecar(self, spec: Mapping[str, Any], image: str, variables: Mapping[str, str]) -> list[Operation]:
        sidecar = self._accompanied(spec, image, {"FLUENCE_OBSERVE": "true", **variables})
        return [*with_variables(spec, _INTERCEPTOR), *sidecar] if sidecar else []

    # ------------------------------------------------------------------ what a pod with a device gets

    def _accompanied(self, spec: Mapping[str, Any], image: str, variables: Mapping[str, str]) -> list[Operation]:
        """The operations that add sidecar and interceptor."""
        if has_sidecar(spec):
            return []
        container = sidecar_container(spec, image, variables, as_root=self._as_root)
        stage = {key: container[key] for key in ("image", "imagePullPolicy", "resources", "securityContext")}
        account = spec.get("serviceAccountName")
        return [
            *_intercepted(spec, stage),
            *patches.add_all("/spec/containers", spec.get("containers"), [container]),
            *([_ASSIGNED] if account in (None, "", "default") else []),
        ]  # fmt: skip

    async def _create_account(self, namespace: str) -> None:
        """Create the sidecar's account with its permissions, unless they exist. Raises ClusterError."""
        api = await self._connect()
        rbac = "rbac.authorization.k8s.io"
        metadata = {"name": ACCOUNT, "namespace": namespace, "labels": {"app": ACCOUNT, MADE_LABEL: MADE_BY}}
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
        role = {"apiGroup": rbac, "kind": "Role", "name": ACCOUNT}
        for path, manifest in (
            ("/api/v1", {"apiVersion": "v1", "kind": "ServiceAccount"}),
            (f"/apis/{rbac}/v1", {"apiVersion": f"{rbac}/v1", "kind": "Role", "rules": _RULES}),
            (
                f"/apis/{rbac}/v1",
                {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "subjects": [subject], "roleRef": role},
            ),
        ):
            kind = str(manifest["kind"]).lower() + "s"
            try:
                await api.create(f"{path}/namespaces/{namespace}/{kind}", manifest | {"metadata": metadata})
            except AlreadyExists:
                continue


def quantum_handler(settings: HandlerSettings) -> QuantumHandler:
    """The handler `quantum` of these settings. Raises InputError."""
    return GoQuantumHandler(settings) if settings.go_compatible else QuantumHandler(settings)


def _with_index(pod: Mapping[str, Any], index: str) -> dict[str, Any]:
    """The pod with a completion index, which decides its role."""
    metadata = pod["metadata"]
    return {**pod, "metadata": {**metadata, "annotations": {**metadata["annotations"], words.INDEX: index}}}


def _check_used(claim: Mapping[str, Any]) -> None:
    """Raises ReservedError if a producer's PodGroup has no owner for longer than its pod takes to be created."""
    metadata = claim["metadata"]
    made = datetime.fromisoformat(metadata["creationTimestamp"])
    if not metadata.get("ownerReferences") and datetime.now(UTC) - made > _RESERVED:
        raise ReservedError(
            f"{_WHERE}: PodGroup {metadata['namespace']}/{metadata['name']} is reserved for a producer, but no pod "
            "owns it; delete the PodGroup if the producer does not exist, and create the pods again"
        )


def _intercepted(spec: Mapping[str, Any], container: Mapping[str, Any]) -> list[Operation]:
    """The operations that mount the interceptor's package, which tags submissions, into each container.

    `container`: image and limits of the init container that copies the package.
    """
    stage = {
        **container, "name": STAGE, "command": ["sh", "-c", _COMMAND],
        "volumeMounts": [{"name": _VOLUME, "mountPath": _FOLDER}],
    }  # fmt: skip
    mount = {"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True}
    operations = [
        *patches.add_all("/spec/volumes", spec.get("volumes"), [{"name": _VOLUME, "emptyDir": {}}]),
        *patches.add_all("/spec/initContainers", spec.get("initContainers"), [stage]),
    ]
    for index, container in enumerate(patches.objects_of(spec.get("containers"))):
        if container.get("name") != CONTAINER:
            path = f"/spec/containers/{index}"
            operations += patches.add_all(f"{path}/volumeMounts", container.get("volumeMounts"), [mount])
    return operations
