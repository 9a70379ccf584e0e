"""The manifests of the webhook and the device plugin fit together, the code, and what all three programs share."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from fluence_plugins.device_advertisement.commands import KUBELET_DIR, device_plugin
from fluence_plugins.env_injection.commands import webhook
from fluence_plugins.env_injection.gang import DEPLOYMENT, JOB
from fluence_plugins.env_injection.handlers import HandlerSettings, load_handlers
from fluence_plugins.env_injection.reviews import DEADLINE_SECONDS
from fluence_plugins.resources.config import fluxion_resource_names, load_resources
from fluence_plugins.resources.coordination import COORDINATION, OBSERVE_LABEL, ROLE
from fluence_plugins.resources.file import CAPACITY_ENV, DEFAULT_CAPACITY, RESOURCES_ENV
from fluence_plugins.resources.label_groups import GROUP_LABEL

from ..tools.deploying import DEPLOY, IMAGE, NAMESPACE, Manifest, manifests, the

FILES = {"fluence": "fluence.yaml", "fluence-webhook": "fluence.yaml", "fluence-device-plugin": "device-plugin.yaml"}
KINDS = {"fluence": "Deployment", "fluence-webhook": "Deployment", "fluence-device-plugin": "DaemonSet"}
EVERY = pytest.mark.parametrize("name", FILES)


def workload(name: str) -> Manifest:
    return the(KINDS[name], FILES[name], called=name)


def pod(name: str) -> Manifest:
    spec: Manifest = workload(name)["spec"]["template"]["spec"]
    return spec


def container(name: str) -> Manifest:
    (found,) = pod(name)["containers"]
    return dict(found)


def environment(name: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(name)["env"]}


def default(command: Any, parameter: str) -> Any:
    """What an option of a command is unless it is given."""
    return inspect.signature(command).parameters[parameter].default


# ---------------------------------------------------------------------- common parts


@EVERY
def test_each_follows_the_config_map_of_resources_which_may_be_missing(name: str) -> None:
    resources = the("ConfigMap", "fluence-resources.yaml")
    volumes = {each["name"]: each for each in pod(name)["volumes"]}
    mounts = {each["mountPath"]: each for each in container(name)["volumeMounts"]}
    folder, _, file = environment(name)[RESOURCES_ENV].rpartition("/")
    assert mounts[folder]["readOnly"] is True
    assert "subPath" not in mounts[folder]  # a kubelet does not follow changes there
    assert volumes[mounts[folder]["name"]]["configMap"] == {"name": resources["metadata"]["name"], "optional": True}
    assert list(resources["data"]) == [file]


@EVERY
def test_each_runs_the_same_image_of_which_one_command(name: str) -> None:
    images = {(container(each)["image"], container(each)["imagePullPolicy"]) for each in FILES}
    assert images == {(IMAGE, "IfNotPresent")}
    commands = {"fluence": "run", "fluence-webhook": "webhook", "fluence-device-plugin": "device-plugin"}
    assert container(name)["command"][:2] == ["fluence", commands[name]]


@EVERY
def test_each_is_found_by_its_labels_and_by_no_others(name: str) -> None:
    labels = workload(name)["spec"]["template"]["metadata"]["labels"]
    selector = workload(name)["spec"]["selector"]["matchLabels"]
    assert selector == {"app.kubernetes.io/name": name}
    assert labels == {**selector, "app": name, "app.kubernetes.io/part-of": "fluence"}
    protection = [
        each
        for each in manifests(FILES[name])
        if each["kind"] in ("NetworkPolicy", "PodDisruptionBudget") and each["metadata"]["name"] == name
    ]
    selected = [(each["kind"], each["spec"].get("podSelector", each["spec"].get("selector"))) for each in protection]
    budget = [("PodDisruptionBudget", {"matchLabels": selector})] if KINDS[name] == "Deployment" else []
    assert selected == [*budget, ("NetworkPolicy", {"matchLabels": selector})]


@EVERY
def test_each_is_asked_by_probes_where_it_answers_and_may_be_reached_there(name: str) -> None:
    main = container(name)
    ports = {each["name"]: each["containerPort"] for each in main["ports"]}
    paths = {"livenessProbe": "/healthz", "startupProbe": "/healthz", "readinessProbe": "/readyz"}
    assert {probe: main[probe]["httpGet"] for probe in paths} == {
        probe: {"path": path, "port": "http"} for probe, path in paths.items()
    }
    assert ports["http"] == 8080
    policy = the("NetworkPolicy", FILES[name], called=name)["spec"]
    (rule,) = policy["ingress"]
    assert sorted(each["port"] for each in rule["ports"]) == sorted(ports.values())
    assert policy["policyTypes"] == ["Ingress", "Egress"]


@EVERY
def test_each_container_can_do_nothing_that_it_needs_not(name: str) -> None:
    assert pod(name)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(name)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "schedulerName"} & pod(name).keys()


@EVERY
def test_each_has_room_that_is_bounded_where_bounds_do_not_slow_it(name: str) -> None:
    resources = container(name)["resources"]
    assert set(resources["requests"]) == {"cpu", "memory"}
    assert set(resources["limits"]) == {"memory"}


# ---------------------------------------------------------------------- the webhook


HANDLERS = ("quantum", "gang", "fluxion")
"""In the order in which the API server asks them: what one adds, the last one sees."""


def the_webhook(handler: str = "fluxion") -> Manifest:
    webhooks = the("MutatingWebhookConfiguration", called="fluence-webhook")["webhooks"]
    assert [each["name"].partition(".")[0] for each in webhooks] == list(HANDLERS)
    return dict(webhooks[HANDLERS.index(handler)])


def served_names() -> list[str]:
    command = container("fluence-webhook")["command"]
    return [command[i + 1] for i, word in enumerate(command) if word == "--scheduler-name"]


@pytest.mark.parametrize("handler", HANDLERS)
def test_the_configuration_leads_to_the_webhooks_pods(handler: str) -> None:
    service = the_webhook(handler)["clientConfig"]["service"]
    found = the("Service", called="fluence-webhook")
    assert (service["namespace"], service["name"]) == (found["metadata"]["namespace"], found["metadata"]["name"])
    (port,) = found["spec"]["ports"]
    ports = {each["name"]: each["containerPort"] for each in container("fluence-webhook")["ports"]}
    assert (service["port"], ports[port["targetPort"]]) == (port["port"], default(webhook, "tls_port"))
    assert found["spec"]["selector"] == workload("fluence-webhook")["spec"]["selector"]["matchLabels"]
    assert service["path"] == f"/mutate/{handler}"
    command = container("fluence-webhook")["command"]
    assert handler in command[command.index("--handlers") + 1].split(",")


def test_what_the_webhook_writes_is_not_in_the_manifest() -> None:
    assert not any("caBundle" in the_webhook(handler)["clientConfig"] for handler in HANDLERS)


@pytest.mark.parametrize("handler", ["quantum", "gang"])
def test_a_handler_is_asked_about_what_it_decides_on_and_only_who_asks_waits_for_it(handler: str) -> None:
    asked = the_webhook(handler)
    built = load_handlers([handler], HandlerSettings(frozenset({"fluence"}), None, CollectorRegistry()))[handler]
    kinds = {("", "pods"): ("", "Pod"), ("batch", "jobs"): JOB, ("apps", "deployments"): DEPLOYMENT}
    rules = {kinds[group, resource]: set(rule["operations"]) for rule in asked["rules"]
             for group in rule["apiGroups"] for resource in rule["resources"]}  # fmt: skip
    assert rules.keys() == set(getattr(built, "kinds", ()))
    assert set().union(*rules.values()) == set(built.operations)
    ours, asks = (condition["expression"] for condition in asked["matchConditions"])
    assert f"schedulerName in {served_names()}" in ours
    reported = re.findall(r"fluence.flux-framework.org/[a-z-]+", asks)
    assert set(reported) == ({COORDINATION, ROLE, OBSERVE_LABEL} if handler == "quantum" else {GROUP_LABEL})
    assert asked["failurePolicy"] == "Fail"
    assert asked["sideEffects"] == ("NoneOnDryRun" if handler == "quantum" else "None")
    assert asked["timeoutSeconds"] == DEADLINE_SECONDS
    assert asked["reinvocationPolicy"] == "IfNeeded"


def test_the_scheduler_opens_gates_and_changes_nothing_else_of_a_pod() -> None:
    option = "options/coordination.yaml"
    rules = the("ClusterRole", option)["rules"]
    granted = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert granted == {("pods", "patch"), ("podgroups", "create")}
    account = {"kind": "ServiceAccount", "name": "fluence", "namespace": NAMESPACE}
    assert the("ClusterRoleBinding", option)["subjects"] == [account]
    (condition,) = the("ValidatingAdmissionPolicy", option)["spec"]["matchConditions"]
    assert condition["expression"].endswith(f"'system:serviceaccount:{NAMESPACE}:fluence'")
    assert the("ValidatingAdmissionPolicyBinding", option)["spec"]["validationActions"] == ["Deny"]


def test_the_webhook_is_asked_about_new_pods_of_our_schedulers_alone_and_hinders_nobody() -> None:
    asked = the_webhook()
    assert asked["rules"] == [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                               "resources": ["pods"], "scope": "Namespaced"}]  # fmt: skip
    (condition,) = asked["matchConditions"]
    served = served_names()
    assert condition["expression"].endswith(f"object.spec.schedulerName in {served}")
    config = yaml.safe_load(the("ConfigMap")["data"]["config.yaml"])
    assert served == [profile["schedulerName"] for profile in config["profiles"]]
    assert (asked["failurePolicy"], asked["sideEffects"]) == ("Ignore", "None")
    assert asked["timeoutSeconds"] == DEADLINE_SECONDS == 5
    assert (asked["matchPolicy"], asked["reinvocationPolicy"]) == ("Equivalent", "IfNeeded")
    assert asked["admissionReviewVersions"] == ["v1"]


def test_the_commands_options_are_real_and_say_where_it_is() -> None:
    command = container("fluence-webhook")["command"]
    parameters = {f"--{name.replace('_', '-')}" for name in inspect.signature(webhook).parameters} | {
        "--scheduler-name"
    }
    assert {word for word in command if word.startswith("--")} <= parameters
    assert command[command.index("--namespace") + 1] == workload("fluence-webhook")["metadata"]["namespace"]


def test_the_webhook_may_write_its_own_secret_and_configuration_and_nothing_else() -> None:
    granted = {(resource, verb, *rule.get("resourceNames", []))
               for kind in ("ClusterRole", "Role") for rule in the(kind, called="fluence-webhook")["rules"]
               for resource in rule["resources"] for verb in rule["verbs"]}  # fmt: skip
    configuration = the("MutatingWebhookConfiguration", called="fluence-webhook")["metadata"]["name"]
    assert default(webhook, "configuration") == configuration
    secret = default(webhook, "secret")
    assert granted == {
        ("mutatingwebhookconfigurations", "get", configuration),
        ("mutatingwebhookconfigurations", "patch", configuration),
        ("secrets", "create"),
        ("secrets", "get", secret),
        ("secrets", "update", secret),
    }
    for kind in ("ClusterRole", "Role"):
        binding = the(f"{kind}Binding", called="fluence-webhook")
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "fluence-webhook", "namespace": NAMESPACE}]
        assert binding["roleRef"]["name"] == "fluence-webhook"
    assert the("Role", called="fluence-webhook")["metadata"]["namespace"] == NAMESPACE


def test_a_pod_that_comes_past_the_webhook_is_refused_at_scheduling() -> None:
    (profile,) = yaml.safe_load(the("ConfigMap")["data"]["config.yaml"])["profiles"]
    (plugin,) = profile["plugins"]
    assert plugin["args"]["requireInjectedEnv"] is True


# ---------------------------------------------------------------------- the device plugin


def test_the_device_plugin_has_no_way_to_the_api_server() -> None:
    file = manifests("device-plugin.yaml")
    assert [each["kind"] for each in file] == ["ServiceAccount", "DaemonSet", "NetworkPolicy"]
    account = the("ServiceAccount", "device-plugin.yaml")
    assert account["automountServiceAccountToken"] is False
    assert pod("fluence-device-plugin")["automountServiceAccountToken"] is False
    assert pod("fluence-device-plugin")["serviceAccountName"] == account["metadata"]["name"]
    assert "egress" not in the("NetworkPolicy", "device-plugin.yaml")["spec"]


def test_the_device_plugin_sees_the_kubelets_folder_and_nothing_else_of_its_node() -> None:
    spec = pod("fluence-device-plugin")
    host = [each for each in spec["volumes"] if "hostPath" in each]
    assert [each["hostPath"] for each in host] == [{"path": KUBELET_DIR, "type": "Directory"}]
    (mount,) = [each for each in container("fluence-device-plugin")["volumeMounts"] if each["name"] == host[0]["name"]]
    assert mount["mountPath"] == default(device_plugin, "kubelet_dir")


def test_the_device_plugin_is_on_every_node_and_advertises_what_the_reference_says() -> None:
    assert pod("fluence-device-plugin")["tolerations"] == [{"operator": "Exists"}]
    assert environment("fluence-device-plugin")[CAPACITY_ENV] == str(DEFAULT_CAPACITY)


# ---------------------------------------------------------------------- the resources


def test_the_example_of_resources_has_the_documents_types_and_two_backends() -> None:
    text = the("ConfigMap", "fluence-resources.yaml")["data"]["resources.yaml"]
    config = load_resources(text, "resources.yaml")
    assert len({tree.name for tree in config.resources}) == 2
    offered = {name.rpartition("/")[2] for name in fluxion_resource_names(config)}
    assert offered == {"qdevice", "qpu", "qubit"}
    assert text == (DEPLOY / "kustomize/base/resources/resources.yaml").read_text()
