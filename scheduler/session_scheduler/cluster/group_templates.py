"""Workloads of scheduling.k8s.io, from whose templates controllers make pod groups: what manifests may hold of them.

They are inert: no scheduler reads them. The API server takes a new PodGroup only where the template exists that it
names; the Job controller lets the pods of a Job join the PodGroup that it has made for it (gate WorkloadWithJob).
Source: k8s.io/api scheduling/v1alpha2, plugin/pkg/admission/podgroup, pkg/controller/job (job_scheduling_manager.go).
"""

from __future__ import annotations

from collections.abc import Iterable

from session_scheduler.cluster.object_checks import check_group_policy
from session_scheduler.cluster.workload_types import JobSpec
from session_scheduler.model.field_checks import FieldError, check_metadata, is_dns_label
from session_scheduler.model.meta import ApiStruct, ObjectMeta
from session_scheduler.model.objects import PodGroup, SchedulingConstraints, SchedulingPolicy

_MOST_TEMPLATES = 8


class PodGroupTemplate(ApiStruct, frozen=True):
    """spec.podGroupTemplates[]."""

    name: str = ""
    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints | None = None


class GroupWorkloadSpec(ApiStruct, frozen=True):
    """spec of a Workload."""

    pod_group_templates: tuple[PodGroupTemplate, ...] = ()


class GroupWorkload(ApiStruct, frozen=True, tag_field="kind", tag="Workload"):
    """scheduling.k8s.io Workload, of whatever version: the fields here are the same in all."""

    api_version: str = "scheduling.k8s.io/v1alpha2"
    metadata: ObjectMeta = ObjectMeta()
    spec: GroupWorkloadSpec = GroupWorkloadSpec()


def check_group_workload(workload: GroupWorkload) -> None:
    """Raises FieldError for what the API server refuses of a Workload."""
    check_metadata(workload.metadata)
    templates = workload.spec.pod_group_templates
    if not 1 <= len(templates) <= _MOST_TEMPLATES:
        raise FieldError("spec.podGroupTemplates", f"has {len(templates)} entries: give 1 to {_MOST_TEMPLATES}")
    names: set[str] = set()
    for number, template in enumerate(templates):
        where = f"spec.podGroupTemplates[{number}]"
        if not is_dns_label(template.name):
            raise FieldError(f"{where}.name", f"{template.name!r} is no name: use up to 63 of a-z, 0-9 and '-'")
        if template.name in names:
            raise FieldError(f"{where}.name", f"{template.name!r} is there twice: rename one")
        names.add(template.name)
        check_group_policy(template.scheduling_policy, template.scheduling_constraints, where)


def check_template(group: PodGroup, workloads: Iterable[GroupWorkload]) -> None:
    """Raises FieldError where a new PodGroup names a template that there is not. A saved one was taken already."""
    reference = group.spec.pod_group_template_ref
    named = reference.workload if reference is not None else None
    if named is None or group.metadata.uid:
        return
    where = "spec.podGroupTemplateRef.workload"
    for workload in workloads:
        metadata = workload.metadata
        if (metadata.namespace, metadata.name) == (group.metadata.namespace, named.workload_name):
            if all(one.name != named.pod_group_template_name for one in workload.spec.pod_group_templates):
                raise FieldError(f"{where}.podGroupTemplateName", f"Workload {named.workload_name!r} has no template "
                                 f"{named.pod_group_template_name!r}: name one that it has")  # fmt: skip
            return
    raise FieldError(f"{where}.workloadName", f"there is no Workload {named.workload_name!r} in namespace "
                     f"{group.metadata.namespace}: give its manifest too, or remove the reference")  # fmt: skip


def is_gang_of_job(spec: JobSpec) -> bool:
    """Whether the Job controller would make a gang of such a Job."""
    whole = spec.parallelism > 1 and spec.completions == spec.parallelism
    return whole and spec.completion_mode == "Indexed" and spec.template.spec.scheduling_group is None
