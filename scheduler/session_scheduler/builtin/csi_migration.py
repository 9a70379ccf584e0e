"""CSI migration: the CSI driver, volume handle and topology of in-tree volumes, for the volume plugins.

Source: csi-translation-lib 0.36, with the drivers that kube-scheduler 1.36 translates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from session_scheduler.model.meta import LabelSelectorRequirement, NodeSelector, NodeSelectorTerm
from session_scheduler.model.storage import PersistentVolume
from session_scheduler.model.volumes import VolumeKey

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
ZONES_SEPARATOR: Final = "__"
_EBS_ID = re.compile(r"vol-[^/]*")
_UNKNOWN = "UNSPECIFIED"
_GCE_ZONE_PARTS = 3


class Driver(msgspec.Struct, frozen=True):
    """A CSI driver, and the in-tree plugin that it replaces."""

    name: str
    plugin: str
    topology: str = ""
    """The driver's node label for the zone; empty if it has none."""


AWS = Driver("ebs.csi.aws.com", "kubernetes.io/aws-ebs", "topology.ebs.csi.aws.com/zone")
GCE = Driver("pd.csi.storage.gke.io", "kubernetes.io/gce-pd", "topology.gke.io/zone")
AZURE = Driver("disk.csi.azure.com", "kubernetes.io/azure-disk")
CINDER = Driver("cinder.csi.openstack.org", "kubernetes.io/cinder", "topology.cinder.csi.openstack.org/zone")
PORTWORX = Driver("pxd.portworx.com", "kubernetes.io/portworx-volume")
_BY_PLUGIN: Final = {driver.plugin: driver for driver in (AWS, GCE, AZURE, CINDER, PORTWORX)}
_NOT_SERVED: Final = frozenset({"kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"})
_INLINE: Final[Mapping[str, Driver]] = {
    "awsElasticBlockStore": AWS, "gcePersistentDisk": GCE, "azureDisk": AZURE, "cinder": CINDER,
    "portworxVolume": PORTWORX,
}  # fmt: skip

Attached = tuple[str, str]
"""A driver and the unique name of one of its volumes."""


def attached(driver: str, handle: str) -> Attached | None:
    """A driver's volume; None if one of the two is unknown."""
    return (driver, f"{driver}/{handle}") if driver and handle else None


def driver_of(volume: PersistentVolume) -> Driver | None:
    """The driver that serves an in-tree volume; None for any other."""
    spec = volume.spec
    sources = (
        (spec.aws_elastic_block_store, AWS), (spec.gce_persistent_disk, GCE), (spec.azure_disk, AZURE),
        (spec.cinder, CINDER), (spec.portworx_volume, PORTWORX),
    )  # fmt: skip
    return next((driver for source, driver in sources if source is not None), None)


def attached_volume(volume: PersistentVolume) -> Attached | None:
    """The CSI volume that a persistent volume counts as, after migration; None if it does not count."""
    spec = volume.spec
    if spec.csi is not None:
        return attached(spec.csi.driver, spec.csi.volume_handle)
    if spec.aws_elastic_block_store is not None:
        return attached(AWS.name, _ebs_id(spec.aws_elastic_block_store.volume_id))
    if spec.gce_persistent_disk is not None:
        return attached(GCE.name, _gce_handle(spec.gce_persistent_disk.pd_name, volume.metadata.labels))
    if spec.azure_disk is not None:
        return attached(AZURE.name, spec.azure_disk.disk_uri if _managed(spec.azure_disk.kind or "") else "")
    if spec.cinder is not None:
        return attached(CINDER.name, spec.cinder.volume_id)
    return attached(PORTWORX.name, spec.portworx_volume.volume_id) if spec.portworx_volume is not None else None


def attached_inline(key: VolumeKey) -> Attached | None:
    """The CSI volume that a disk in the pod's own spec counts as; None if it does not count."""
    driver = _INLINE.get(key[0])
    if driver is None:
        return None
    handle = key[1]
    if driver is AWS:
        handle = _ebs_id(handle)
    elif driver is GCE:
        handle = _gce_handle(handle, {})
    elif driver is AZURE and not _managed(key[2]):
        handle = ""
    return attached(driver.name, handle)


def provisioned_by(provisioner: str) -> str:
    """The CSI driver that provisions a class's volumes; empty if its volumes do not count."""
    driver = _BY_PLUGIN.get(provisioner)
    if driver is not None:
        return driver.name
    return "" if provisioner in _NOT_SERVED else provisioner


def _managed(kind: str) -> bool:
    return not kind or kind.lower() == "managed"


def _ebs_id(volume_id: str) -> str:
    """The id "vol-1" in "vol-1" or "aws://zone/vol-1"; empty for an invalid one."""
    if not volume_id.startswith("aws://"):
        return volume_id
    _, _, path = volume_id.removeprefix("aws://").partition("/")
    found = path.strip("/")
    return found if _EBS_ID.fullmatch(found) else ""


def _gce_handle(name: str, labels: Mapping[str, str]) -> str:
    zones = (labels.get(BETA_ZONE) or labels.get(ZONE, "")).split(ZONES_SEPARATOR)
    if len(zones) == 1:
        return f"projects/{_UNKNOWN}/zones/{zones[0] or _UNKNOWN}/disks/{name}"
    parts = [zone.split("-") for zone in zones]
    regions = {"-".join(part[:2]) for part in parts}
    if len(regions) != 1 or any(len(part) != _GCE_ZONE_PARTS for part in parts):
        return ""
    return f"projects/{_UNKNOWN}/regions/{regions.pop()}/disks/{name}"


# ------------------------------------------------------------------ topology


def migrated_affinity(volume: PersistentVolume, driver: Driver) -> NodeSelector | None:
    """A volume's node affinity, translated to its CSI driver's labels."""
    if not driver.topology:
        return volume.required
    zone, region = _labels_of(volume)
    required = volume.required
    keys = {r.key for term in _terms(required) for r in term.match_expressions if r.values}
    if zone in keys:
        required = _renamed(required, zone, driver.topology)
    elif zone in volume.metadata.labels:
        zones = {part.strip() for part in volume.metadata.labels[zone].split(ZONES_SEPARATOR)} - {""}
        required = _narrowed(required, driver.topology, tuple(sorted(zones))) if zones else required
    return _renamed(required, region, REGION) if region == BETA_REGION and region in keys else required


def _terms(selector: NodeSelector | None) -> tuple[NodeSelectorTerm, ...]:
    return selector.node_selector_terms if selector is not None else ()


def _labels_of(volume: PersistentVolume) -> tuple[str, str]:
    """The zone and region labels that the volume uses: the stable or the beta ones."""
    keys = {r.key for term in _terms(volume.required) for r in term.match_expressions}
    for found in (keys, volume.metadata.labels):
        for zone, region in ((ZONE, REGION), (BETA_ZONE, BETA_REGION)):
            if zone in found:
                return zone, region
    return ZONE, REGION


def _renamed(selector: NodeSelector | None, old: str, new: str) -> NodeSelector | None:
    if selector is None:
        return None
    return NodeSelector(node_selector_terms=tuple(
        NodeSelectorTerm(match_fields=term.match_fields, match_expressions=tuple(
            LabelSelectorRequirement(key=new if r.key == old else r.key, operator=r.operator, values=r.values)
            for r in term.match_expressions))
        for term in selector.node_selector_terms))  # fmt: skip


def _narrowed(selector: NodeSelector | None, key: str, values: tuple[str, ...]) -> NodeSelector:
    """The selector with an additional requirement in each of its terms."""
    more = LabelSelectorRequirement(key=key, operator="In", values=values)
    return NodeSelector(node_selector_terms=tuple(
        NodeSelectorTerm(match_fields=term.match_fields, match_expressions=(*term.match_expressions, more))
        for term in _terms(selector) or (NodeSelectorTerm(),)))  # fmt: skip
