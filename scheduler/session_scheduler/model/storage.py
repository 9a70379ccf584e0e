"""Typed storage objects: claims, volumes, storage classes and CSI drivers, with the fields that volume plugins read.

Source: the Kubernetes API reference (core/v1 PersistentVolume and PersistentVolumeClaim, storage.k8s.io/v1).
"""

from __future__ import annotations

from msgspec import field

from session_scheduler.model.meta import ApiStruct, ClusterScoped, LabelSelector, Namespaced, NodeSelector, Quantity

CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
"""Names the StorageClass of a claim or volume; it takes precedence over the field."""
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""On a claim: the node for which the provisioner creates its volume."""
MIGRATED_PLUGINS = "storage.alpha.kubernetes.io/migrated-plugins"
"""On a CSINode: the in-tree plugins whose volumes a CSI driver serves on the node, comma-separated."""
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
"""The provisioner of classes whose volumes an administrator creates."""
READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class ObjectReference(ApiStruct, frozen=True):
    """Reference to an object, as in a volume's claimRef."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class StorageRequests(ApiStruct, frozen=True):
    """spec.resources of a claim."""

    requests: dict[str, Quantity] = field(default_factory=dict)


class PersistentVolumeClaimSpec(ApiStruct, frozen=True):
    """spec of a claim."""

    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: StorageRequests = StorageRequests()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimStatus(ApiStruct, frozen=True):
    """status of a claim: Pending, Bound or Lost."""

    phase: str = ""


class PersistentVolumeClaim(Namespaced, frozen=True, tag_field="kind", tag="PersistentVolumeClaim"):
    """core/v1 PersistentVolumeClaim."""

    api_version: str = "v1"
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()

    @property
    def storage_class(self) -> str:
        """The name of the StorageClass; empty if the object names none."""
        return self.metadata.annotations.get(CLASS_ANNOTATION, self.spec.storage_class_name or "")

    @property
    def bound(self) -> bool:
        """Whether the volume controller has completed its binding."""
        return bool(self.spec.volume_name) and BIND_COMPLETED in self.metadata.annotations

    @property
    def request(self) -> Quantity:
        """The requested storage; 0 if it requests none."""
        return self.spec.resources.requests.get("storage", 0)


class CSIVolumeSource(ApiStruct, frozen=True):
    """A volume of a CSI driver."""

    driver: str = ""
    volume_handle: str = ""


class GCEPersistentDisk(ApiStruct, frozen=True):
    """An in-tree Google disk."""

    pd_name: str = ""


class AWSElasticBlockStore(ApiStruct, frozen=True):
    """An in-tree Amazon disk."""

    volume_id: str = field(default="", name="volumeID")


class AzureDisk(ApiStruct, frozen=True):
    """An in-tree Azure disk."""

    disk_uri: str = field(default="", name="diskURI")
    kind: str | None = None


class VolumeById(ApiStruct, frozen=True):
    """An in-tree volume with only an id: cinder, portworxVolume."""

    volume_id: str = field(default="", name="volumeID")


class VolumeNodeAffinity(ApiStruct, frozen=True):
    """The nodes that can access a volume."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(ApiStruct, frozen=True):
    """spec of a volume."""

    capacity: dict[str, Quantity] = field(default_factory=dict)
    access_modes: tuple[str, ...] = ()
    claim_ref: ObjectReference | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    volume_attributes_class_name: str | None = None
    csi: CSIVolumeSource | None = None
    gce_persistent_disk: GCEPersistentDisk | None = None
    aws_elastic_block_store: AWSElasticBlockStore | None = None
    azure_disk: AzureDisk | None = None
    cinder: VolumeById | None = None
    portworx_volume: VolumeById | None = None


class PersistentVolumeStatus(ApiStruct, frozen=True):
    """status of a volume: Pending, Available, Bound, Released or Failed."""

    phase: str = ""


class PersistentVolume(ClusterScoped, frozen=True, tag_field="kind", tag="PersistentVolume"):
    """core/v1 PersistentVolume."""

    api_version: str = "v1"
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()

    @property
    def storage_class(self) -> str:
        """The name of the StorageClass; empty if the object names none."""
        return self.metadata.annotations.get(CLASS_ANNOTATION, self.spec.storage_class_name)

    @property
    def required(self) -> NodeSelector | None:
        """The nodes that can access it; None for all."""
        return self.spec.node_affinity.required if self.spec.node_affinity is not None else None

    def is_for(self, claim: PersistentVolumeClaim) -> bool:
        """Whether the volume's claimRef names this claim, with the claim's uid or none."""
        ref = self.spec.claim_ref
        return (
            ref is not None
            and (ref.namespace, ref.name) == (claim.metadata.namespace, claim.metadata.name)
            and ref.uid in ("", claim.metadata.uid)
        )


class TopologyLabel(ApiStruct, frozen=True):
    """A label and the values that a node may have."""

    key: str = ""
    values: tuple[str, ...] = ()


class TopologyTerm(ApiStruct, frozen=True):
    """allowedTopologies[]: a node must match all labels."""

    match_label_expressions: tuple[TopologyLabel, ...] = ()


class StorageClass(ClusterScoped, frozen=True, tag_field="kind", tag="StorageClass"):
    """storage.k8s.io/v1 StorageClass."""

    api_version: str = "storage.k8s.io/v1"
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[TopologyTerm, ...] = ()


class DriverLimits(ApiStruct, frozen=True):
    """How many volumes of a driver a node can attach; None for no limit."""

    count: int | None = None


class NodeDriver(ApiStruct, frozen=True):
    """spec.drivers[] of a CSINode."""

    name: str = ""
    allocatable: DriverLimits | None = None


class CSINodeSpec(ApiStruct, frozen=True):
    """spec of a CSINode; `drivers` is null if the node has none."""

    drivers: tuple[NodeDriver, ...] | None = None


class CSINode(ClusterScoped, frozen=True, tag_field="kind", tag="CSINode"):
    """storage.k8s.io/v1 CSINode: the CSI drivers on the node of the same name."""

    api_version: str = "storage.k8s.io/v1"
    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(ApiStruct, frozen=True):
    """spec of a CSIDriver."""

    storage_capacity: bool | None = None


class CSIDriver(ClusterScoped, frozen=True, tag_field="kind", tag="CSIDriver"):
    """storage.k8s.io/v1 CSIDriver."""

    api_version: str = "storage.k8s.io/v1"
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Namespaced, frozen=True, tag_field="kind", tag="CSIStorageCapacity"):
    """storage.k8s.io/v1 CSIStorageCapacity: the capacity that a driver has left for some nodes."""

    api_version: str = "storage.k8s.io/v1"
    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None


class AttachedSource(ApiStruct, frozen=True):
    """spec.source of a VolumeAttachment."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(ApiStruct, frozen=True):
    """spec of a VolumeAttachment; `attacher` is the CSI driver."""

    attacher: str = ""
    node_name: str = ""
    source: AttachedSource = AttachedSource()


class VolumeAttachment(ClusterScoped, frozen=True, tag_field="kind", tag="VolumeAttachment"):
    """storage.k8s.io/v1 VolumeAttachment."""

    api_version: str = "storage.k8s.io/v1"
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


StorageObject = (
    PersistentVolumeClaim
    | PersistentVolume
    | StorageClass
    | CSINode
    | CSIDriver
    | CSIStorageCapacity
    | VolumeAttachment
)
STORAGE_KINDS: tuple[type[StorageObject], ...] = (
    StorageClass, CSIDriver, CSINode, CSIStorageCapacity, PersistentVolume, PersistentVolumeClaim, VolumeAttachment,
)  # fmt: skip
"""In the order in which the scheduler lists them."""
