"""The scheduler's manifests fit together, and the code. That an API server takes them is tested live."""

from __future__ import annotations

import re

import pytest

from fluence_plugins.resources import names
from fluence_plugins.slurm_bridge.names import FINALIZER, JOBID_LABEL
from session_scheduler.binding.binder import LEADER_ANNOTATION
from session_scheduler.config.settings import LeaderElection, Profile, SchedulerConfig, Serving, parse_config
from session_scheduler.framework.bindings import HELD_ANNOTATION
from session_scheduler.model.gang_plan import ATTEMPT_ANNOTATION, PLAN_ANNOTATION
from session_scheduler.model.gpu_shares import GPU, GPU_COUNT, GPU_DEVICE, GPU_FRACTION, GPU_MEMORY
from session_scheduler.model.group_api import GROUP_VERSIONS

from ..tools.deploying import DEPLOY, NAMESPACE, Manifest, manifests, the

ACCOUNT = {"kind": "ServiceAccount", "name": "fluence", "namespace": NAMESPACE}


@pytest.fixture
def pod() -> Manifest:
    spec: Manifest = the("Deployment")["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: Manifest) -> Manifest:
    (found,) = pod["containers"]
    return dict(found)


@pytest.fixture
def config() -> SchedulerConfig:
    return parse_config(the("ConfigMap")["data"]["config.yaml"], "config.yaml")


def test_every_object_is_in_kube_system_or_of_the_whole_cluster() -> None:
    places = {m["kind"]: m["metadata"].get("namespace") for m in manifests("fluence.yaml")}
    cluster_wide = {kind for kind, namespace in places.items() if namespace is None}
    assert cluster_wide == {
        "ClusterRole",
        "ClusterRoleBinding",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    assert {places[kind] for kind in places.keys() - cluster_wide} == {"kube-system"}


def test_what_is_written_into_the_configuration_is_the_default(config: SchedulerConfig) -> None:
    assert config.leader_election == LeaderElection()
    assert config.serving == Serving()
    assert config.model_copy(update={"profiles": (Profile(),)}) == SchedulerConfig()


def test_the_command_reads_the_configuration_that_is_mounted(pod: Manifest, container: Manifest) -> None:
    volumes = {volume["name"]: volume["configMap"] for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert container["command"][:3] == ["fluence", "run", "--config"]
    folder, _, file = container["command"][3].rpartition("/")
    assert mounts[folder] == {"name": the("ConfigMap")["metadata"]["name"]}
    assert list(the("ConfigMap")["data"]) == [file]


def test_the_plugin_reads_the_resources_of_the_environment(config: SchedulerConfig) -> None:
    (profile,) = config.profiles
    (plugin,) = profile.plugins
    assert plugin.name == "fluence"
    assert "resources" not in plugin.args


def test_probes_ask_where_the_scheduler_answers(config: SchedulerConfig, container: Manifest) -> None:
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (("livenessProbe", "/healthz"), ("startupProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"]["path"] == path
        assert ports[container[probe]["httpGet"]["port"]] == config.serving.port
    assert config.serving.enabled


def test_roles_are_bound_to_the_account_that_the_pods_have(pod: Manifest) -> None:
    assert the("ServiceAccount")["metadata"]["name"] == pod["serviceAccountName"] == ACCOUNT["name"]
    for kind in ("ClusterRole", "Role"):
        binding = the(f"{kind}Binding")
        assert binding["subjects"] == [ACCOUNT]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (kind, the(kind)["metadata"]["name"])


def test_the_account_may_write_the_lease_that_the_configuration_names(config: SchedulerConfig) -> None:
    election, role = config.leader_election, the("Role")
    assert role["metadata"]["namespace"] == election.namespace
    by_name = [rule for rule in role["rules"] if rule.get("resourceNames") == [election.name]]
    assert [(rule["resources"], rule["verbs"]) for rule in by_name] == [(["leases"], ["get", "update"])]


def test_no_rule_is_wider_than_it_must_be() -> None:
    rules = [rule for kind in ("ClusterRole", "Role") for rule in the(kind)["rules"]]
    granted = {(group, resource, verb) for rule in rules for group in rule["apiGroups"]
               for resource in rule["resources"] for verb in rule["verbs"]}  # fmt: skip
    assert not any("*" in part for grant in granted for part in grant)
    writable = {resource for _, resource, verb in granted if verb in ("create", "update", "patch", "delete")}
    assert writable == {"pods", "pods/binding", "pods/eviction", "pods/status", "podgroups", "podgroups/status",
                        "events", "configmaps", "leases", "persistentvolumeclaims", "persistentvolumes",
                        "resourceclaims", "resourceclaims/status", "resourceclaims/binding",
                        "queues/status", "tokenreviews", "subjectaccessreviews"}  # fmt: skip
    assert {verb for _, resource, verb in granted if resource == "pods"} == {"get", "list", "watch", "delete"}


@pytest.mark.parametrize("file", sorted(
    path.relative_to(DEPLOY).as_posix() for path in (*DEPLOY.glob("*.yaml"), *DEPLOY.glob("options/*.yaml"))
))  # fmt: skip
def test_no_account_may_read_or_write_config_maps_or_secrets_of_all_namespaces(file: str) -> None:
    roles = [one for one in manifests(file) if one["kind"] == "ClusterRole"]
    covered = {resource for role in roles for rule in role["rules"] for resource in rule.get("resources", ())}
    assert not covered & {"configmaps", "secrets", "*"}


def test_readers_may_read_every_path_that_asks_for_a_right_and_nothing_else() -> None:
    role = the("ClusterRole", called="fluence-reader")
    paths = ["/configz", "/dashboard", "/explain/*", "/plugins/*"]
    assert role["rules"] == [{"nonResourceURLs": paths, "verbs": ["get"]}]
    subjects = [m["roleRef"]["name"] for m in manifests("fluence.yaml") if m["kind"] == "ClusterRoleBinding"]
    assert "fluence-reader" not in subjects


def test_the_container_can_do_nothing_that_a_scheduler_needs_not(pod: Manifest, container: Manifest) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_scheduler_is_not_scheduled_by_itself(pod: Manifest) -> None:
    assert "schedulerName" not in pod


def test_several_replicas_run_only_with_an_election(config: SchedulerConfig) -> None:
    assert the("Deployment")["spec"]["replicas"] == 2
    assert config.leader_election.enabled


def test_the_policy_compares_what_the_leader_writes_with_its_own_lease(config: SchedulerConfig) -> None:
    policy = the("ValidatingAdmissionPolicy", "options/fencing.yaml")
    binding = the("ValidatingAdmissionPolicyBinding", "options/fencing.yaml")
    election = config.leader_election
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert (binding["spec"]["paramRef"]["namespace"], binding["spec"]["paramRef"]["name"]) == (
        election.namespace,
        election.name,
    )
    (condition,) = policy["spec"]["matchConditions"]
    assert f"'system:serviceaccount:{ACCOUNT['namespace']}:{ACCOUNT['name']}'" in condition["expression"]
    assert f"'{LEADER_ANNOTATION}'" in next(
        v["expression"] for v in policy["spec"]["variables"] if v["name"] == "binder"
    )


# ---------------------------------------------------------------------- permissions to write records

RECORDS = "options/annotations.yaml"


def policy(name: str) -> Manifest:
    policies = [m for m in manifests(RECORDS) if m["kind"] == "ValidatingAdmissionPolicy"]
    (spec,) = [m["spec"] for m in policies if m["metadata"]["name"] == name]
    return dict(spec)


def expressions(spec: Manifest) -> str:
    return "\n".join(each["expression"] for each in [*spec.get("variables", []), *spec["validations"]])


def matched(spec: Manifest) -> set[tuple[str, str, str, str]]:
    return {(f"{group}/{version}", resource, operation, spec["failurePolicy"])
            for rule in spec["matchConstraints"]["resourceRules"] for group in rule["apiGroups"]
            for version in rule["apiVersions"] for resource in rule["resources"]
            for operation in rule["operations"]}  # fmt: skip


def test_each_policy_about_records_denies_and_leaves_fluences_account_alone() -> None:
    policies = [m for m in manifests(RECORDS) if m["kind"] == "ValidatingAdmissionPolicy"]
    bindings = [m for m in manifests(RECORDS) if m["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert len(policies) + len(bindings) == len(manifests(RECORDS))
    assert [each["metadata"]["name"] for each in policies] == [each["spec"]["policyName"] for each in bindings]
    assert [each["spec"]["validationActions"] for each in bindings] == [["Deny"]] * len(policies)
    user = f"request.userInfo.username != 'system:serviceaccount:{ACCOUNT['namespace']}:{ACCOUNT['name']}'"
    assert [each["spec"]["matchConditions"][0]["expression"] for each in policies] == [user] * len(policies)


def test_the_policy_about_pods_names_what_is_written_there_and_of_users_what_is_immutable_by_the_binding() -> None:
    spec = policy("fluence-writes-pods")
    written = {
        HELD_ANNOTATION,
        ATTEMPT_ANNOTATION,
        PLAN_ANNOTATION,
        names.BACKEND_ANNOTATION,
        names.JOBID_ANNOTATION,
        GPU,
        GPU_DEVICE,
    }
    immutable = {GPU_FRACTION, GPU_MEMORY, GPU_COUNT}
    found = set(re.findall(r"'([^' ]+/[^' ]*)'", expressions(spec)))
    assert found == written | immutable | {names.ATTRIBUTE_ANNOTATION_PREFIX, names.ANNOTATION_PREFIX}
    assert not names.REQUIRE_ANNOTATION_PREFIX.startswith(names.ATTRIBUTE_ANNOTATION_PREFIX)
    changed = {("/v1", resource, operation, "Fail") for resource in ("pods", "pods/status")
               for operation in ("CREATE", "UPDATE")}  # fmt: skip
    assert matched(spec) == changed | {("/v1", each, "CREATE", "Fail") for each in ("pods/binding", "bindings")}


def test_the_policies_about_plans_name_where_a_plan_lies() -> None:
    groups = policy("fluence-writes-podgroups")
    assert set(re.findall(r"'([^' ]+/[^' ]*)'", expressions(groups))) == {PLAN_ANNOTATION}
    operations = ("CREATE", "UPDATE")
    assert matched(groups) == {(version.api_version, "podgroups", each, "Fail") for version in GROUP_VERSIONS
                               for each in operations}  # fmt: skip
    large = policy("fluence-writes-plans")
    assert matched(large) == {("/v1", "configmaps", each, "Fail") for each in operations}
    assert large["matchConditions"][1]["expression"] == "object.metadata.name.startsWith('fluence-plan-')"


def test_the_policy_about_pod_status_excepts_the_marks_of_the_slurm_bridge_only() -> None:
    spec = the("ValidatingAdmissionPolicy", called="fluence-pod-status")["spec"]
    found = set(re.findall(r"'([^' ]+/[^' ]*)'", expressions(spec)))
    assert found == {JOBID_LABEL, FINALIZER}
    assert matched(spec) == {("/v1", "pods/status", "UPDATE", "Fail")}


def test_the_service_for_metrics_leads_to_programs_that_have_them() -> None:
    service = the("Service", "options/monitoring.yaml")["spec"]
    (scraped,) = service["ports"]
    pods = [
        each["spec"]["template"]
        for file in sorted(DEPLOY.rglob("*.yaml"))
        if "chart" not in file.parts and "kustomize" not in file.parts
        for each in manifests(str(file.relative_to(DEPLOY)))
        if each["kind"] in ("Deployment", "DaemonSet")
    ]
    chosen = [pod for pod in pods if service["selector"].items() <= pod["metadata"]["labels"].items()]
    ports = {
        (container["name"], port["containerPort"])
        for pod in chosen
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
        if port["name"] == scraped["targetPort"]
    }
    assert {number for _, number in ports} == {8080}, ports  # the dashboard has no metrics
    assert len(ports) >= 4
