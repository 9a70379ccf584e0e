"""Workloads of scheduling.k8s.io in manifests: templates from which controllers create PodGroups, and their checks.

Schedulers do not read them. The API server accepts a new PodGroup only if the template that it names exists. With the
gate WorkloadWithJob the Job controller adds the pods of a Job to the PodGroup that it created for the Job.
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
    """scheduling.k8s.io Workload of any version: these fields are the same in all versions."""

    api_version: str = "scheduling.k8s.io/v1alpha2"
    metadata: ObjectMeta = ObjectMeta()
    spec: GroupWorkloadSpec = GroupWorkloadSpec()


def check_group_workload(workload: GroupWorkload) -> None:
    """Check a Workload. Raises FieldError where the API server rejects it."""
    check_metadata(workload.metadata)
    templates = workload.spec.pod_group_templates
    if not 1 <= len(templates) <= _MOST_TEMPLATES:
        raise FieldError("spec.podGroupTemplates", f"has {len(templates)} entries; use 1 to {_MOST_TEMPLATES}")
    names: set[str] = set()
    for number, template in enumerate(templates):
        where = f"spec.podGroupTemplates[{number}]"
        if not is_dns_label(template.name):
            raise FieldError(f"{where}.name", f"{template.name!r} is not a valid name; "
                             "use up to 63 characters of a-z, 0-9 and '-'")  # fmt: skip
        if template.name in names:
            raise FieldError(f"{where}.name", f"{template.name!r} is used twice; rename one")
        names.add(template.name)
        check_group_policy(template.scheduling_policy, template.scheduling_constraints, where)


def check_template(group: PodGroup, workloads: Iterable[GroupWorkload]) -> None:
    """Raise FieldError if a new PodGroup names a missing template. A saved PodGroup passed this check before."""
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
                                 f"{named.pod_group_template_name!r}; use one of its templates")  # fmt: skip
            return
    raise FieldError(f"{where}.workloadName", f"namespace {group.metadata.namespace} has no Workload "
                     f"{named.workload_name!r}; add its manifest, or remove the reference")  # fmt: skip


def is_gang_of_job(spec: JobSpec) -> bool:
    """Whether the Job controller would create a gang for such a Job."""
    whole = spec.parallelism > 1 and spec.completions == spec.parallelism
    return whole and spec.completion_mode == "Indexed" and spec.template.spec.scheduling_group is None
