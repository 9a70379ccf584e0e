"""Loader of manifests: typed objects, as the API server would admit them.

The steps: `documents` reads the files, this module decodes and checks them, `workloads` creates the pods of workloads,
`admission` adds priorities, uids and creation times. Generated values are the same in every run.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, BinaryIO, TextIO

import msgspec
import structlog

from session_scheduler.cluster import workload_types as workloads_
from session_scheduler.cluster.admission import Admission, Stamps, with_defaults
from session_scheduler.cluster.api_fields import api_fields
from session_scheduler.cluster.claim_controller import ClaimMaker
from session_scheduler.cluster.documents import SNAPSHOT, Document, read_documents
from session_scheduler.cluster.errors import ManifestError, one_line
from session_scheduler.cluster.field_validation import FieldValidation
from session_scheduler.cluster.group_templates import GroupWorkload, check_group_workload, check_template
from session_scheduler.cluster.object_checks import check_node, check_pod_group, check_pod_spec
from session_scheduler.cluster.saved_state import saved_object
from session_scheduler.cluster.volume_reconciler import reconciled
from session_scheduler.cluster.workload_checks import check_workload
from session_scheduler.cluster.workload_types import Workload
from session_scheduler.cluster.workloads import Expansion, as_owner
from session_scheduler.config.settings import CONFIG_API_VERSION
from session_scheduler.errors import InputError
from session_scheduler.model.devices import DEVICE_KINDS, DeviceObject, ResourceClaim, ResourceClaimTemplate
from session_scheduler.model.field_checks import FieldError, check_labels, check_metadata, check_name
from session_scheduler.model.group_api import V1BETA1, GroupVersion, WirePodGroup
from session_scheduler.model.meta import ClusterScoped
from session_scheduler.model.node_topology import NodeResourceTopology
from session_scheduler.model.objects import KubeObject, Node, ObjectMeta, Pod, PodGroup, PortObject, PriorityClass
from session_scheduler.model.policy import PodDisruptionBudget
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.related import Namespace, Service
from session_scheduler.model.storage import STORAGE_KINDS, PersistentVolumeClaim, StorageClass, StorageObject
from session_scheduler.model.volumes import made_claims

_Any = KubeObject | Workload | GroupWorkload | ResourceClaimTemplate
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SavedConfiguration:
    """The unchecked configuration of a snapshot, and the snapshot's file."""

    file: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoadedManifests:
    """The objects in the files, in their order. The pods of a workload are at the workload's position."""

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    pod_groups: tuple[PodGroup, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    related: tuple[KubeObject, ...] = ()
    """Namespaces, services, and controllers: default topology spreading uses their selectors."""
    devices: tuple[DeviceObject, ...] = ()
    """Device classes, slices and claims, including the claims that were created for pods."""
    storage: tuple[StorageObject, ...] = ()
    """Claims (also those that were created for pods), volumes and what provides them."""
    budgets: tuple[PodDisruptionBudget, ...] = ()
    queues: tuple[Queue, ...] = ()
    topologies: tuple[NodeResourceTopology, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    """The number of objects of each kind that no scheduler reads, for example {"Service": 2}."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """The part of `ignored` that may create pods: custom and unknown kinds."""
    saved: tuple[PortObject, ...] = ()
    """The objects of a snapshot."""
    configuration: SavedConfiguration | None = None
    """The configuration of a snapshot."""

    @property
    def objects(self) -> tuple[KubeObject, ...]:
        """All objects except those of the snapshot."""
        return (*self.nodes, *self.priority_classes, *self.related, *self.storage, *self.devices, *self.budgets,
                *self.queues, *self.topologies, *self.pod_groups, *self.pods)  # fmt: skip


def load_manifests(
    paths: Sequence[str],
    stdin: BinaryIO | None = None,
    there: Sequence[PortObject] = (),
    validate: FieldValidation = FieldValidation.STRICT,
) -> LoadedManifests:
    """Like `read_manifests`; log a warning for ignored kinds that may create pods."""
    loaded = read_manifests(paths, stdin, there, validate=validate)
    if loaded.left_out:
        kinds = ", ".join(f"{count} {kind}" for kind, count in loaded.left_out.items())
        _log.warning(f"ignoring {one_line(kinds)}: the scheduler does not read these kinds")
    return loaded


def read_manifests(
    paths: Sequence[str],
    stdin: BinaryIO | None = None,
    there: Sequence[PortObject] = (),
    refused: Mapping[str, str] = MappingProxyType({}),
    validate: FieldValidation = FieldValidation.STRICT,
) -> LoadedManifests:
    """Read the objects in files, directories and `-` (see `documents.read_documents`), and create pods for workloads.

    `stdin` is read for `-`; it defaults to the process's standard input. `there` are the objects of an existing
    cluster. Those of a snapshot among the files count as existing, too. The names of existing objects are taken, and
    new pods can use their nodes and priority classes. `refused` maps each kind that is not allowed here to an error
    message. `validate` applies to objects that a person wrote: not to those of a snapshot or of an API server.

    Raises ManifestError: one line with file, object, field and remedy. With several invalid fields it raises
    InputError, with a line for each.
    """
    loader = _Loader(there, refused)
    errors: list[ManifestError] = []
    complete = True  # after another error, the rest is only validated
    try:
        for document in read_documents(paths, stdin or _standard_input()):
            found = _invalid_fields(document, validate)
            if not found and complete:
                found = loader.errors_of(document)
                complete = not found
            errors += found
    except ManifestError as error:  # the rest of the files cannot be read
        errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else InputError(*map(str, errors))
    return loader.finish()


def _standard_input() -> BinaryIO | None:
    """Return the standard input; None if it was closed before the process began, despite the type of sys.stdin."""
    stream: TextIO | None = sys.stdin
    return stream.buffer if stream is not None else None


# ------------------------------------------------------------------ kinds


@dataclass(frozen=True, slots=True)
class _Kind:
    """How to read a kind. `version` is the supported or the usual version of its API group."""

    version: str
    type: type[_Any]
    check: Callable[[Any], None]
    """Checks an object of the type."""
    others: tuple[GroupVersion, ...] = ()
    """Further supported versions. PodGroups of these versions are translated."""

    def read(self, document: Document) -> _Any:
        """Decode the document. Raises ManifestError."""
        for version in self.others:
            if document.api_version == version.api_version and self.type is PodGroup:
                try:
                    return version.read(document.typed(WirePodGroup))
                except msgspec.ValidationError as error:
                    raise document.error("spec", f"{error}; see the reference of {version.api_version}") from None
        return document.typed(self.type)


def _check_pod(pod: Pod) -> None:
    check_metadata(pod.metadata)
    check_pod_spec(pod.spec)


def _check_priority_class(priority_class: PriorityClass) -> None:
    check_metadata(priority_class.metadata)
    name, value = priority_class.metadata.name, priority_class.value
    if value > 1_000_000_000 and not name.startswith("system-"):
        raise FieldError("value", f"{value} is too large: the maximum allowed value of a user defined priority is "
                         "1000000000")  # fmt: skip


def _check_service(service: Service) -> None:
    check_metadata(service.metadata)
    check_labels(service.spec.selector or {}, "spec.selector")


def _check_metadata(obj: _Any) -> None:
    check_metadata(obj.metadata)


def _entries(
    check: Callable[[Any], None], *types: type[KubeObject | ResourceClaimTemplate]
) -> dict[tuple[str, str], _Kind]:
    """Return entries for types of the model, each with the API version of the type."""
    entries = {}
    for type_ in types:
        group, _, version = type_().api_version.rpartition("/")
        entries[group, type_.__name__] = _Kind(version, type_, check)
    return entries


def _workload(type_: type[Workload], version: str = "v1") -> _Kind:
    return _Kind(version, type_, check_workload)


_KINDS: Mapping[tuple[str, str], _Kind] = {
    **_entries(_check_pod, Pod),
    **_entries(check_node, Node),
    **_entries(_check_service, Service),
    **_entries(_check_priority_class, PriorityClass),
    **_entries(
        _check_metadata,
        Namespace,
        *STORAGE_KINDS,
        *DEVICE_KINDS,
        ResourceClaimTemplate,
        PodDisruptionBudget,
        Queue,
        NodeResourceTopology,
    ),
    ("scheduling.k8s.io", "PodGroup"): _Kind("v1alpha2", PodGroup, check_pod_group, others=(V1BETA1,)),
    ("scheduling.k8s.io", "Workload"): _Kind("v1alpha2", GroupWorkload, check_group_workload, others=(V1BETA1,)),
    ("scheduling.x-k8s.io", "PodGroup"): _Kind("v1alpha1", PodGroup, check_pod_group),
    ("apps", "Deployment"): _workload(workloads_.Deployment),
    ("apps", "ReplicaSet"): _workload(workloads_.ReplicaSet),
    ("", "ReplicationController"): _workload(workloads_.ReplicationController),
    ("apps", "StatefulSet"): _workload(workloads_.StatefulSet),
    ("apps", "DaemonSet"): _workload(workloads_.DaemonSet),
    ("batch", "Job"): _workload(workloads_.Job),
    ("batch", "CronJob"): _workload(workloads_.CronJob),
    ("jobset.x-k8s.io", "JobSet"): _workload(workloads_.JobSet, "v1alpha2"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _workload(workloads_.LeaderWorkerSet),
}
_GROUPS: Mapping[str, tuple[str, ...]] = {
    kind: tuple(f"{group}/{entry.version}".lstrip("/") for (group, k), entry in _KINDS.items() if k == kind)
    for _, kind in _KINDS
}
READ_KINDS: frozenset[tuple[str, str]] = frozenset(
    (f"{group}/{entry.version}".lstrip("/"), kind) for (group, kind), entry in _KINDS.items()
)
"""The (apiVersion, kind) of the objects that commands read."""


_WITHOUT_PODS_NAMES = """
APIService Binding CertificateSigningRequest ClusterRole ClusterRoleBinding
ClusterTrustBundle ComponentStatus ConfigMap ControllerRevision CustomResourceDefinition
EndpointSlice Endpoints Event FlowSchema HorizontalPodAutoscaler IPAddress Ingress IngressClass Lease LeaseCandidate
LimitRange MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration NetworkPolicy
NodeMetrics PodMetrics PodTemplate
PriorityLevelConfiguration ResourceQuota Role RoleBinding
RuntimeClass Secret ServiceAccount ServiceCIDR StorageVersion ValidatingAdmissionPolicy
ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration VolumeAttributesClass
"""
_WITHOUT_PODS = frozenset(_WITHOUT_PODS_NAMES.split())
"""Built-in kinds that do not create pods."""


def _is_builtin(document: Document) -> bool:
    """Whether the API group belongs to Kubernetes."""
    return "." not in document.group or document.group.endswith(".k8s.io")


def _kind_of(document: Document) -> _Kind | None:
    """Return how to read the document; None for a kind that no scheduler reads. May raise ManifestError."""
    entry = _KINDS.get((document.group, document.kind))
    if entry is not None and document.api_version.rpartition("/")[2] == entry.version:
        return entry
    if entry is not None and any(document.api_version == other.api_version for other in entry.others):
        return entry
    if entry is not None or (_is_builtin(document) and document.kind in _GROUPS):
        wanted = " or ".join(_GROUPS[document.kind])
        raise document.error("apiVersion", f"{document.api_version!r} has no {document.kind}; use {wanted}")
    return None


def _invalid_fields(document: Document, validate: FieldValidation) -> list[ManifestError]:
    """Return the errors of a document's fields (see `api_fields`); only log them if they are to be warnings."""
    if validate is FieldValidation.IGNORE or document.saved or document.from_server:
        return []
    near = api_fields().nearest_kind(document.api_version, document.kind)
    content = document.content
    if not near and isinstance(content, bytes) and api_fields().is_valid(document.api_version, document.kind, content):
        return []
    if near:
        found = [document.error("kind", f"{document.api_version} has no {document.kind}; did you mean {near}?")]
    else:
        problems = api_fields().problems(document.api_version, document.kind, document.tree())
        found = [document.error(field, problem) for field, problem in problems]
    if validate is FieldValidation.STRICT:
        return found
    for error in found:
        _log.warning(str(error))
    return []


# ------------------------------------------------------------------ loading


class _Loader:
    """Collects the objects of the documents."""

    def __init__(self, there: Sequence[PortObject], refused: Mapping[str, str]) -> None:
        self._refused = refused
        self._there = list(there)
        self._saved: list[PortObject] = []
        self._configuration: SavedConfiguration | None = None
        self._read: list[tuple[Document, _Any]] = []
        self._files: dict[tuple[str, str, str], str] = {}
        self._uids: dict[tuple[str, str], Document | None] = {}
        """The document with each uid, by API group and kind; None for an object in the cluster."""
        self._ignored: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        for obj in there:
            self._register(obj, None)

    def errors_of(self, document: Document) -> list[ManifestError]:
        """Add a document, or return its first error."""
        try:
            if document.kind in self._refused and not document.saved:
                raise document.error("", self._refused[document.kind])
            self._add(document)
        except ManifestError as error:
            return [error]
        return []

    def _add(self, document: Document) -> None:
        """Decode the document, check it, and reserve its name."""
        if document.saved:
            saved = saved_object(document)
            self._register(saved, document)
            self._saved.append(saved)
            return
        if document.kind == SNAPSHOT and document.api_version == CONFIG_API_VERSION:
            self._start_snapshot(document)
            return
        kind = _kind_of(document)
        if kind is None:
            self._ignored[document.kind] += 1
            if not (_is_builtin(document) and document.kind in _WITHOUT_PODS):
                self._left_out[document.kind] += 1
            return
        value = _placed(kind.read(document))
        metadata = value.metadata
        if not metadata.name and not (isinstance(value, Pod) and metadata.generate_name):
            raise document.error("metadata.name", "is missing; name the object")
        try:
            kind.check(value)
        except FieldError as error:
            raise document.error(error.field, error.problem) from None
        if metadata.name:
            self._claim(document, f"{document.group}/{document.kind}", metadata, "metadata.name")
        if metadata.uid:
            self._claim_uid(document, metadata.uid, f"{document.group}/{document.kind}")
        self._read.append((document, value))

    def _start_snapshot(self, document: Document) -> None:
        """Begin a snapshot. Only one is allowed, and none together with a live cluster."""
        other = self._configuration.file if self._configuration is not None else "the live cluster"
        if self._configuration is not None or self._there:
            raise document.error("", f"the initial state already comes from {other}; use one of the two")
        self._configuration = SavedConfiguration(document.file, document.tree())

    def _register(self, obj: PortObject, document: Document | None) -> None:
        """Reserve the name and uid of an existing object. Raises ManifestError if a snapshot repeats one."""
        metadata, kind = obj.metadata, type(obj).__name__
        group = obj.api_version.rpartition("/")[0]
        if document is not None:
            self._claim(document, f"{group}/{kind}", metadata, "metadata.name")
            self._claim_uid(document, metadata.uid, f"{group}/{kind}")
            return
        self._files[f"{group}/{kind}", metadata.namespace, metadata.name] = "the cluster"
        self._uids[f"{group}/{kind}", metadata.uid] = None

    def _claim_uid(self, document: Document, uid: str, kind: str) -> None:
        """Reserve the uid. Other parts identify objects by uid, so a copy would replace the original."""
        other = self._uids.setdefault((kind, uid), document)
        if other is not document:
            owner = f"{other.name} in {other.file}" if other is not None else "an object in the cluster"
            raise document.error(
                "metadata.uid", f"{uid!r} is also the uid of {owner}; remove metadata.uid from one of them"
            )

    def _claim(self, document: Document, kind: str, metadata: ObjectMeta, where: str) -> None:
        """Reserve the name. Raises ManifestError if another object has it."""
        key = (kind, metadata.namespace, metadata.name)
        if key in self._files:
            raise document.error(where, f"{metadata.name!r} already exists in {self._files[key]}; rename or remove one")
        self._files[key] = document.file

    def finish(self) -> LoadedManifests:
        """Return all objects, completed as the API server and the controllers do."""
        there = [*self._there, *self._saved]
        values = [value for _, value in self._read]
        classes = [v for v in values if isinstance(v, PriorityClass)]
        known_classes = [*classes, *(obj for obj in there if isinstance(obj, PriorityClass))]
        stamps = Stamps(v.metadata for v in (*values, *there))
        nodes = tuple(stamps.on(with_defaults(v)) for v in values if isinstance(v, Node))
        related = [v for v in values if isinstance(v, Namespace | Service)] + [
            owner for v in values if isinstance(v, Workload) and (owner := as_owner(v)) is not None
        ]
        admitted, groups, set_claims = self._admitted(Admission(known_classes), self._named_pods(), nodes, there)
        templates = {v.key: v for v in values if isinstance(v, ResourceClaimTemplate)}
        devices: list[DeviceObject] = [v for v in values if isinstance(v, DEVICE_KINDS)]
        stamped = [stamps.on(pod) for pod in admitted]  # before the groups: pods come in the order of their stamps
        pod_groups = tuple(stamps.on(group) for group in groups)
        known_groups = (*pod_groups, *(obj for obj in there if isinstance(obj, PodGroup)))
        claims = ClaimMaker(templates, [v for v in (*devices, *there) if isinstance(v, ResourceClaim)], known_groups)
        pods = tuple(map(claims.with_claims, stamped))
        storage = [_with_mode(v) for v in values if isinstance(v, STORAGE_KINDS)]
        known = {v.key for v in (*storage, *there) if isinstance(v, PersistentVolumeClaim)}
        made = {claim.key: claim for claim in (*set_claims, *(claim for pod in pods for claim in made_claims(pod)))}
        new = [claim for key, claim in made.items() if key not in known]
        return LoadedManifests(
            nodes=nodes,
            pods=pods,
            storage=tuple(reconciled([*storage, *new], (v for v in there if isinstance(v, StorageClass)), stamps)),
            devices=tuple(stamps.on(v) for v in (*devices, *claims.made)),
            budgets=tuple(stamps.on(v) for v in values if isinstance(v, PodDisruptionBudget)),
            queues=tuple(stamps.on(v) for v in values if isinstance(v, Queue)),
            topologies=tuple(stamps.on(v) for v in values if isinstance(v, NodeResourceTopology)),
            pod_groups=pod_groups,
            priority_classes=tuple(stamps.on(c) for c in classes),
            related=tuple(stamps.on(v) for v in related),
            ignored=dict(sorted(self._ignored.items())),
            left_out=dict(sorted(self._left_out.items())),
            saved=tuple(self._saved),
            configuration=self._configuration,
        )

    def _named_pods(self) -> list[tuple[Document, _Any]]:
        """Return the documents and objects, with generated names for pods that have only a generateName."""
        counts: dict[tuple[str, str], int] = {}
        named = []
        for document, value in self._read:
            if isinstance(value, Pod) and not value.metadata.name:
                metadata = self._generated(document, value.metadata, counts)
                value = msgspec.structs.replace(value, metadata=metadata)
            named.append((document, value))
        return named

    def _generated(self, document: Document, metadata: ObjectMeta, counts: dict[tuple[str, str], int]) -> ObjectMeta:
        prefix = metadata.generate_name
        number = counts.get((metadata.namespace, prefix), 0)
        while ("/Pod", metadata.namespace, f"{prefix}{number}") in self._files:
            number += 1
        counts[metadata.namespace, prefix] = number + 1
        named = msgspec.structs.replace(metadata, name=f"{prefix}{number}")
        try:
            check_name(named.name, "metadata.generateName")
        except FieldError as error:
            raise document.error(error.field, error.problem) from None
        self._claim(document, "/Pod", named, "metadata.generateName")
        return named

    def _admitted(
        self,
        admission: Admission,
        read: Iterable[tuple[Document, _Any]],
        nodes: Sequence[Node],
        there: Sequence[PortObject],
    ) -> tuple[list[Pod], list[PodGroup], list[PersistentVolumeClaim]]:
        """Return the pods (with those of workloads) and groups in order, with their priorities; and created claims."""
        read = list(read)
        workloads = [v for _, v in read if isinstance(v, Workload)]
        pod_groups = [v for _, v in read if isinstance(v, PodGroup)]
        pods_there = [v for v in (*(v for _, v in read), *there) if isinstance(v, Pod)]
        groups_there = [v for v in there if isinstance(v, PodGroup)]
        nodes_there = [v for v in there if isinstance(v, Node)]
        expansion = Expansion([*nodes_there, *nodes], pods_there, workloads, [*groups_there, *pod_groups])
        templates = [v for _, v in read if isinstance(v, GroupWorkload)]
        pods: list[Pod] = []
        groups: list[PodGroup] = []
        for document, value in read:
            try:
                if isinstance(value, Pod):
                    pods.append(admission.pod(value))
                elif isinstance(value, PodGroup):
                    check_template(value, templates)
                    groups.append(admission.pod_group(value))
                elif isinstance(value, Workload):
                    pods.extend(self._made(document, map(admission.pod, expansion.pods_of(value))))
            except FieldError as error:
                raise document.error(error.field, error.problem) from None
        return pods, groups, expansion.claims

    def _made(self, document: Document, pods: Iterable[Pod]) -> Iterable[Pod]:
        for pod in pods:
            try:
                check_name(pod.metadata.name, "metadata.name")
            except FieldError as error:
                raise FieldError(
                    error.field, f"{error.problem}, because the names of the object's pods start with it"
                ) from None
            self._claim(document, "/Pod", pod.metadata, "metadata.name")
            yield pod


def _with_mode(value: StorageObject) -> StorageObject:
    """Return a StorageClass with the API server's default for its volumeBindingMode."""
    if not isinstance(value, StorageClass) or value.volume_binding_mode is not None:
        return value
    return msgspec.structs.replace(value, volume_binding_mode="Immediate")


def _placed(value: _Any) -> _Any:
    """Return the object with its namespace: `default` if it names none; empty for cluster-scoped kinds."""
    namespace = "" if isinstance(value, ClusterScoped) else value.metadata.namespace or "default"
    if namespace == value.metadata.namespace:
        return value
    metadata = msgspec.structs.replace(value.metadata, namespace=namespace)
    return msgspec.structs.replace(value, metadata=metadata)
