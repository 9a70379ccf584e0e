"""The option slurm-bridge is deploy/fluence.yaml and what Slurm's pods need, and fits the code."""

from __future__ import annotations

import inspect
import re
from urllib.parse import urlsplit

import pytest

from fluence_plugins.env_injection.commands import webhook
from fluence_plugins.env_injection.reviews import DEADLINE_SECONDS
from fluence_plugins.slurm_bridge.admission import SlurmBridgeHandler
from fluence_plugins.slurm_bridge.names import (
    CORES_ANNOTATION,
    FINALIZER,
    GRES_ANNOTATION,
    JOBID_LABEL,
    NODE_ANNOTATION,
    SCHEDULER_NAME,
)
from fluence_plugins.slurm_bridge.workloads.cluster_reader import _KINDS
from session_scheduler.builtin import BUILTIN
from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig, parse_config
from session_scheduler.registry.registry import Registry

from ..tools.deploying import NAMESPACE, Manifest, key, manifests, the

OPTION = "options/slurm-bridge.yaml"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:fluence"


def config(name: str) -> SchedulerConfig:
    return parse_config(the("ConfigMap", name, called="fluence")["data"]["config.yaml"], "config.yaml")


def profile() -> Profile:
    _, found = config(OPTION).profiles
    return found


def plugin() -> PluginConfig:
    (found,) = [each for each in profile().plugins if each.enabled]
    return found


def pod(name: str) -> Manifest:
    spec: Manifest = the("Deployment", OPTION, called=name)["spec"]["template"]["spec"]
    return spec


def options(command: list[str]) -> dict[str, str]:
    return dict(zip(command[2::2], command[3::2], strict=True))


def registered(name: str) -> list[Manifest]:
    found: list[Manifest] = the("MutatingWebhookConfiguration", name, called="fluence-webhook")["webhooks"]
    return found


def webhooks() -> tuple[Manifest, Manifest]:
    *_, bridged, managed = registered(OPTION)
    return bridged, managed


def test_it_is_what_everybody_applies_with_five_objects_changed_and_two_added() -> None:
    base, whole = ({key(each): each for each in manifests(name)} for name in ("fluence.yaml", OPTION))
    added = {f"{kind} /fluence-slurm-bridge" for kind in ("ClusterRole", "ClusterRoleBinding")}
    assert whole.keys() - base.keys() == added
    assert base.keys() <= whole.keys()
    assert {name for name in base if base[name] != whole[name]} == {
        "ConfigMap kube-system/fluence",
        "Deployment kube-system/fluence",
        "Deployment kube-system/fluence-webhook",
        "MutatingWebhookConfiguration /fluence-webhook",
        "NetworkPolicy kube-system/fluence",
    }
    assert registered(OPTION)[:-2] == registered("fluence.yaml")


def test_the_configuration_has_one_profile_more_whose_plugin_is_slurms_alone() -> None:
    base, whole = config("fluence.yaml"), config(OPTION)
    assert whole.model_copy(update={"profiles": whole.profiles[:1]}) == base
    assert (profile().scheduler_name, plugin().name) == (SCHEDULER_NAME, "slurm-bridge")
    assert plugin().args.keys() == {"url", "tokenFile", "partition", "mcsLabel"}


def test_nodes_and_devices_are_slurms_to_choose() -> None:
    assert [each.name for each in profile().plugins if not each.enabled] == ["fluence", "DynamicResources"]


def test_the_configuration_is_one_that_a_scheduler_starts_with() -> None:
    """Both profiles have the plugins that they name: a plugin that may exist only once is not enabled twice."""
    profiles = Registry(BUILTIN).load_profiles(config(OPTION))
    assert SCHEDULER_NAME in profiles


def test_the_token_is_a_file_of_a_secret_which_may_be_missing_and_in_no_environment() -> None:
    spec = pod("fluence")
    (container,) = spec["containers"]
    folder, _, file = plugin().args["tokenFile"].rpartition("/")
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == folder]
    assert mount["readOnly"] is True
    assert "subPath" not in mount  # a kubelet does not follow changes there
    (volume,) = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    assert volume["secret"] == {"secretName": "slurm-bridge-token", "optional": True}
    assert file == "auth-token"  # as slurm-operator writes it
    assert container["env"] == the("Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert "secret" not in str(container["command"]).lower()


def test_the_scheduler_may_reach_slurm() -> None:
    (rule,) = the("NetworkPolicy", OPTION, called="fluence")["spec"]["egress"]
    assert {"protocol": "TCP", "port": urlsplit(plugin().args["url"]).port} in rule["ports"]


def granted(name: str, file: str = OPTION) -> set[tuple[str, str, str]]:
    rules = the("ClusterRole", file, called=name)["rules"]
    return {(group, resource, verb) for rule in rules for group in rule["apiGroups"]
            for resource in rule["resources"] for verb in rule["verbs"]}  # fmt: skip


def test_the_scheduler_gets_no_right_but_to_read_who_made_pods_and_to_change_nodes() -> None:
    read = {(group, plural, "get") for (group, _), (_, plural) in _KINDS.items()}
    others = {("", "nodes", "patch"), ("", "namespaces", "get")}
    assert granted("fluence-slurm-bridge") == (read | others) - granted("fluence")
    binding = the("ClusterRoleBinding", OPTION, called="fluence-slurm-bridge")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "fluence", "namespace": NAMESPACE}]
    assert binding["roleRef"]["name"] == "fluence-slurm-bridge"


def test_the_webhook_serves_the_handler_for_the_profiles_name_and_knows_the_schedulers_account() -> None:
    before, after = (the("Deployment", name, called="fluence-webhook")["spec"]["template"]["spec"]["containers"][0]
                     for name in ("fluence.yaml", OPTION))  # fmt: skip
    assert before | {"command": None} == after | {"command": None}
    given, own = options(before["command"]), options(after["command"])
    assert own == given | {
        "--handlers": given["--handlers"] + ",slurm-bridge",
        "--slurm-scheduler-name": profile().scheduler_name,
        "--scheduler-user": ACCOUNT,
    }
    assert inspect.signature(webhook).parameters["slurm_scheduler_name"].default == SCHEDULER_NAME
    assert ACCOUNT.endswith(f":{pod('fluence')['serviceAccountName']}")


@pytest.mark.parametrize("number", [0, 1], ids=["bridged", "managed"])
def test_pods_wait_for_the_handler_and_are_told_to_it_again(number: int) -> None:
    asked, base = webhooks()[number], registered("fluence.yaml")[0]
    assert asked["clientConfig"]["service"] == base["clientConfig"]["service"] | {"path": "/mutate/slurm-bridge"}
    assert "caBundle" not in asked["clientConfig"]
    assert (asked["failurePolicy"], asked["reinvocationPolicy"], asked["sideEffects"]) == ("Fail", "IfNeeded", "None")
    assert asked["timeoutSeconds"] == DEADLINE_SECONDS


def test_of_pods_that_name_the_scheduler_new_ones_are_sent_and_changes_of_marks_by_others() -> None:
    asked, _ = webhooks()
    sent = {(operation, resource) for rule in asked["rules"] for operation in rule["operations"]
            for resource in rule["resources"]}  # fmt: skip
    assert sent == {("CREATE", "pods"), ("UPDATE", "pods"), ("UPDATE", "pods/status")}
    assert {operation for operation, _ in sent} == SlurmBridgeHandler.operations
    assert {"pods" + each.replace("status", "/status") for each in SlurmBridgeHandler.sub_resources} == {
        resource for _, resource in sent
    }
    named, marked = (each["expression"] for each in asked["matchConditions"])
    assert named.endswith(f"object.spec.schedulerName == '{SCHEDULER_NAME}'")
    assert f"request.userInfo.username != '{ACCOUNT}'" in marked
    marks = {JOBID_LABEL, NODE_ANNOTATION, CORES_ANNOTATION, GRES_ANNOTATION, FINALIZER}
    assert set(re.findall(r"'([^' ]+/[^' ]*)'", marked)) == marks


def test_of_pods_for_the_default_scheduler_new_ones_are_sent_from_labelled_namespaces_but_not_our_own() -> None:
    _, asked = webhooks()
    assert [(rule["operations"], rule["resources"]) for rule in asked["rules"]] == [(["CREATE"], ["pods"])]
    assert asked["namespaceSelector"] == {
        "matchLabels": {"fluence.flux-framework.org/slurm-bridge": "managed"},
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [NAMESPACE]}],
    }
