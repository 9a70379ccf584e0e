"""The Helm chart renders the objects of the flat files, and refuses meaningless values."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from session_scheduler.config.settings import Serving, parse_config

from ...tools.deploying import (
    CHART,
    DEPLOY,
    NAMESPACE,
    RESOURCES,
    Manifest,
    chart,
    key,
    manifests,
    run,
    said,
    without_helm,
)

pytestmark = pytest.mark.programs

ALL = (
    "--set-file",
    f"resourcesFile={RESOURCES}",
    "--set",
    "coordination.enabled=true,fencing.enabled=true,masterQueue.enabled=true,monitoring.enabled=true,"
    "dashboard.enabled=true",
)
SLURM = ("--set", "slurmBridge.enabled=true")
PLAIN = ("queues.yaml", "fluence.yaml", "device-plugin.yaml")


def same(left: list[Manifest], right: list[Manifest]) -> None:
    """Fail unless both lists have the same objects; the message names the objects that differ."""
    left_by_key, right_by_key = ({key(each): without_helm(each) for each in side} for side in (left, right))
    assert len(left_by_key) == len(left)
    assert left_by_key.keys() == right_by_key.keys()
    for name, manifest in left_by_key.items():
        assert manifest == right_by_key[name], name


def find(made: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [each for each in made if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def container(made: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = find(made, kind, name)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def refusal(*arguments: str) -> str:
    ended = run("helm", "template", "fluence", CHART, "--kube-version", "1.36.3", *arguments)
    assert ended.returncode != 0, arguments
    return ended.stdout


def test_by_default_the_chart_renders_the_flat_files() -> None:
    same(chart(), [each for name in PLAIN for each in manifests(name)])


def test_with_every_option_the_chart_renders_all_flat_files() -> None:
    names = [*PLAIN, "fluence-resources.yaml", "options/coordination.yaml", "options/fencing.yaml",
             "options/master-queue.yaml", "options/monitoring.yaml", "options/dashboard.yaml"]  # fmt: skip
    same(chart(*ALL), [each for name in names for each in manifests(name)])


def test_what_the_go_version_did_takes_one_value() -> None:
    image = "registry.example/sidecar:1.0"
    values = (
        f"goCompatible.enabled=true,coordination.enabled=true,webhook.sidecarImage={image},webhook.sidecarAsRoot=true"
    )
    made = chart("--set", values)
    names = {key(each) for each in manifests("options/go-compatible.yaml")}
    assert names <= {key(each) for each in made}
    command = container(made, "Deployment", "fluence-webhook")["command"]
    assert command[4:8] == ["--sidecar-image", image, "--sidecar-as-root", "--go-compatible"]
    config = yaml.safe_load(find(made, "ConfigMap", "fluence")["data"]["config.yaml"])
    assert config["profiles"][0]["plugins"][0]["args"] == {"goCompatible": True, "requireInjectedEnv": True}


def test_whole_and_shared_gpus_on_one_node_take_one_value() -> None:
    made = chart("--set", "reservedGpus.enabled=true,slurmBridge.enabled=true")
    files = [*manifests("options/reserved-gpus.yaml"), *manifests("options/gpu-device-plugin.yaml")]
    names = {key(each) for each in files}
    same([each for each in made if key(each) in names], files)
    config = parse_config(find(made, "ConfigMap", "fluence")["data"]["config.yaml"], "config.yaml")
    gpus = [one.args for profile in config.profiles for one in profile.plugins if one.name == "GpuSharing"]
    assert gpus == [{"wholeGpus": "reserved", "reservations": {"namespace": NAMESPACE}}] * 2


def test_numa_alignment_takes_one_value_and_its_arguments() -> None:
    made = chart(
        "--set", "numa.enabled=true,numa.arguments.scoringStrategy.type=MostAllocated,slurmBridge.enabled=true"
    )
    files = manifests("options/numa.yaml")
    names = {key(each) for each in files}
    same([each for each in made if key(each) in names], files)
    config = parse_config(find(made, "ConfigMap", "fluence")["data"]["config.yaml"], "config.yaml")
    found = [
        one.args for profile in config.profiles for one in profile.plugins if one.name == "NodeResourceTopologyMatch"
    ]
    assert found == [{"scoringStrategy": {"type": "MostAllocated"}}]


def test_whole_and_shared_gpus_on_one_node_need_the_device_plugin_and_the_policies() -> None:
    for part in ("devicePlugin", "policies"):
        assert "reservedGpus.enabled needs devicePlugin.enabled and policies.enabled; set both to true" in refusal(
            "--set", f"reservedGpus.enabled=true,{part}.enabled=false"
        )


def test_what_the_go_version_did_names_the_values_that_it_needs() -> None:
    needs = "goCompatible.enabled also needs webhook.sidecarImage, coordination.enabled: true; add this to the values"
    assert needs in refusal("--set", "goCompatible.enabled=true")
    without_webhook = refusal("--set", "goCompatible.enabled=true,webhook.enabled=false")
    assert needs.replace("webhook.sidecarImage", "webhook.enabled: true, webhook.sidecarImage") in without_webhook


def test_values_of_a_chart_without_a_newer_option_are_enough() -> None:
    same(chart("--set", "goCompatible=null"), chart())


def test_queues_outlive_the_release() -> None:
    """Deleting their CRD would delete the queues with the teams' quotas."""
    kind = find(chart(), "CustomResourceDefinition", "queues.fluence.flux-framework.org")
    assert kind["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_with_slurm_the_chart_renders_the_file_of_that_option() -> None:
    names = ["queues.yaml", "options/slurm-bridge.yaml", "device-plugin.yaml"]
    same(chart(*SLURM), [each for name in names for each in manifests(name)])


@pytest.mark.parametrize("values", [[], list(ALL), list(SLURM)], ids=["defaults", "everything", "slurm"])
def test_helm_lint_accepts_the_chart(values: list[str]) -> None:
    said("helm", "lint", "--strict", CHART, *values)


def test_the_files_that_the_chart_includes_equal_the_rendered_ones() -> None:
    for path in (CHART / "files").iterdir():
        assert path.read_text() == (DEPLOY / "options" / path.name).read_text()


def test_in_another_namespace_no_object_names_kube_system() -> None:
    made = chart(*ALL, *SLURM, namespace="elsewhere")
    assert NAMESPACE not in yaml.safe_dump(made)
    assert {each["metadata"].get("namespace") for each in made} == {None, "elsewhere"}


@pytest.mark.parametrize("part", ["webhook", "devicePlugin", "policies", "networkPolicy", "podDisruptionBudget"])
def test_only_a_disabled_part_is_left_out(part: str) -> None:
    kinds = {"policies": "ValidatingAdmissionPolicy", "networkPolicy": "NetworkPolicy",
             "podDisruptionBudget": "PodDisruptionBudget"}  # fmt: skip
    owners = {"webhook": "fluence-webhook", "devicePlugin": "fluence-device-plugin"}

    def stays(each: Manifest) -> bool:
        if part in kinds:
            return not each["kind"].startswith(kinds[part])
        return bool(each["metadata"]["name"] != owners[part])

    off = "requireInjectedEnv=false"  # it belongs to the webhook
    left = [each for each in chart("--set", off) if stays(each)]
    same(chart("--set", f"{off},{part}.enabled=false"), left)


@pytest.mark.parametrize("handler", ["fluxion", "quantum", "gang"])
def test_the_webhook_is_called_for_its_enabled_handlers(handler: str) -> None:
    made = chart("--set", f"webhook.handlers={{{handler}}},webhook.sidecarImage=registry/sidecar:1")
    command = container(made, "Deployment", "fluence-webhook")["command"]
    assert command[command.index("--handlers") + 1] == handler
    assert command[command.index("--sidecar-image") + 1] == "registry/sidecar:1"
    webhooks = find(made, "MutatingWebhookConfiguration", "fluence-webhook")["webhooks"]
    assert [each["clientConfig"]["service"]["path"] for each in webhooks] == [f"/mutate/{handler}"]


def test_without_the_webhook_no_policy_requires_injected_fields() -> None:
    def required(*arguments: str) -> bool:
        text = find(chart(*arguments), "ConfigMap", "fluence")["data"]["config.yaml"]
        (profile,) = parse_config(text, "config.yaml").profiles
        return bool(profile.plugins[0].args["requireInjectedEnv"])

    assert required()
    assert not required("--set", "webhook.enabled=false")
    assert not required("--set", "requireInjectedEnv=false")


def test_each_scheduler_name_gets_a_profile_and_the_webhook() -> None:
    made = chart("--set", "schedulerNames={fluence,batch}")
    config = parse_config(find(made, "ConfigMap", "fluence")["data"]["config.yaml"], "config.yaml")
    assert [profile.scheduler_name for profile in config.profiles] == ["fluence", "batch"]
    command = container(made, "Deployment", "fluence-webhook")["command"]
    assert command[6:] == ["--scheduler-name", "fluence", "--scheduler-name", "batch"]
    *_, webhook = find(made, "MutatingWebhookConfiguration", "fluence-webhook")["webhooks"]
    assert "schedulerName in ['fluence', 'batch']" in webhook["matchConditions"][0]["expression"]


def test_the_configuration_overrides_the_charts_and_restarts_the_pods() -> None:
    before, after = chart(), chart("--set", "config.backoff.maxSeconds=30,config.leaderElection.retrySeconds=1")
    config = parse_config(find(after, "ConfigMap", "fluence")["data"]["config.yaml"], "config.yaml")
    assert (config.backoff.max_seconds, config.leader_election.retry_seconds) == (30, 1)
    assert config.leader_election.namespace == NAMESPACE
    sums = [find(made, "Deployment", "fluence")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for made in (before, after)]  # fmt: skip
    assert sums[0] != sums[1]


@pytest.mark.parametrize("field", [
    "profiles[0].schedulerName=mine", "serving.port=9090", "leaderElection.enabled=false",
    "leaderElection.name=other", "leaderElection.namespace=other",
])  # fmt: skip
def test_the_configuration_cannot_change_fields_that_other_objects_use(field: str) -> None:
    text = refusal("--set", f"config.{field}")
    assert f"config.{field.partition('=')[0].partition('[')[0]} is not allowed" in text


def test_the_authorization_of_the_endpoints_is_a_value() -> None:
    made = chart("--set", "config.serving.authorization=none,config.serving.requestsPerSecond=10")
    serving = parse_config(find(made, "ConfigMap", "fluence")["data"]["config.yaml"], "config.yaml").serving
    assert serving == Serving(authorization="none", requests_per_second=10.0)


def test_the_peers_that_may_reach_the_endpoints_are_a_value() -> None:
    peer = "namespaceSelector.matchLabels.team=monitoring"
    made = chart("--set", f"networkPolicy.from[0].{peer},masterQueue.enabled=true")
    for name in ("fluence", "fluence-master-queue"):
        (rule,) = find(made, "NetworkPolicy", name)["spec"]["ingress"]
        assert rule == {
            "ports": [{"protocol": "TCP", "port": 8080}],
            "from": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
        }


def test_arguments_of_the_plugin_are_in_every_profile() -> None:
    made = chart("--set", "schedulerNames={fluence,batch},pluginArguments.matchPolicy=lonode")
    config = parse_config(find(made, "ConfigMap", "fluence")["data"]["config.yaml"], "config.yaml")
    assert [profile.plugins[0].args for profile in config.profiles] == [
        {"requireInjectedEnv": True, "matchPolicy": "lonode"}
    ] * 2


def test_the_listen_address_of_the_three_programs_is_a_value() -> None:
    made = chart("--set-string", "host=::")
    config = parse_config(find(made, "ConfigMap", "fluence")["data"]["config.yaml"], "config.yaml")
    assert (config.serving.host, config.serving.port) == ("::", 8080)
    assert container(made, "Deployment", "fluence-webhook")["command"][-2:] == ["--host", "::"]
    assert container(made, "DaemonSet", "fluence-device-plugin")["command"] == [
        "fluence", "device-plugin", "--host", "::"]  # fmt: skip


def test_the_webhooks_own_pods_never_wait_for_the_webhook() -> None:
    fail = ("--set", "webhook.failurePolicy=Fail", "--set")
    for names in ("{default-scheduler}", "{fluence,default-scheduler}"):
        text = refusal(*fail, f"schedulerNames={names}")
        assert "schedulerNames must not include default-scheduler if webhook.failurePolicy is Fail" in text
        assert chart("--set", f"schedulerNames={names}")
        assert chart(*fail, f"schedulerNames={names},webhook.enabled=false")


@pytest.mark.parametrize(
    "text", ["  # indented\nresources: []\n", 'resources:\n- {type: "a\'b"}', "#\t tabs\n\n\nresources: []"]
)
def test_a_resources_file_is_rendered_unchanged(tmp_path: Path, text: str) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text(text)
    made = chart("--set-file", f"resourcesFile={file}")
    assert find(made, "ConfigMap", "fluence-resources")["data"]["resources.yaml"] == text


def test_images_replicas_policy_capacity_and_resources_are_values(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({
        "image": {"repository": "example.com/f", "digest": "sha256:" + "0" * 64, "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "key"}],
        "capacity": 50000,
        "scheduler": {"replicas": 1, "env": [{"name": "FLUENCE_MATCH_POLICY", "value": "lonode"}]},
        "webhook": {"failurePolicy": "Fail", "timeoutSeconds": 3, "replicas": 3, "podAnnotations": {"a": "b"}},
        "devicePlugin": {"resources": {"limits": {"memory": "64Mi"}}, "tolerations": []},
    }))  # fmt: skip
    made = chart("--values", values)
    scheduler = find(made, "Deployment", "fluence")["spec"]
    assert (scheduler["replicas"], scheduler["template"]["spec"]["imagePullSecrets"]) == (1, [{"name": "key"}])
    main = container(made, "Deployment", "fluence")
    assert (main["image"], main["imagePullPolicy"]) == ("example.com/f@sha256:" + "0" * 64, "Always")
    assert main["env"][1] == {"name": "FLUENCE_MATCH_POLICY", "value": "lonode"}
    *_, webhook = find(made, "MutatingWebhookConfiguration", "fluence-webhook")["webhooks"]
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"]) == ("Fail", 3)
    deployment = find(made, "Deployment", "fluence-webhook")["spec"]
    assert (deployment["replicas"], deployment["template"]["metadata"]["annotations"]) == (3, {"a": "b"})
    plugin = container(made, "DaemonSet", "fluence-device-plugin")
    assert plugin["env"][1] == {"name": "FLUENCE_RESOURCE_CAPACITY", "value": "50000"}
    assert plugin["resources"] == {"limits": {"memory": "64Mi"}, "requests": {"cpu": "10m", "memory": "64Mi"}}
    assert "tolerations" not in find(made, "DaemonSet", "fluence-device-plugin")["spec"]["template"]["spec"]


def test_the_api_servers_ports_are_a_value() -> None:
    made = chart("--set", "networkPolicy.apiServerPorts={16443}")
    (rule,) = find(made, "NetworkPolicy", "fluence")["spec"]["egress"]
    assert [each["port"] for each in rule["ports"]] == [16443, 53, 53]


@pytest.mark.parametrize(("value", "field"), [
    ("webhook.failurePolicy=ignore", "failurePolicy"),
    ("webhook.timeoutSeconds=60", "timeoutSeconds"),
    ("schedulerNames={}", "schedulerNames"),
    ("schedulerNames={two words}", "schedulerNames"),
    ("capacity=0", "capacity"),
    ("capacity=50001", "capacity"),
    ("scheduler.replicas=-1", "replicas"),
    ("scheduler.replica=3", "replica"),
    ("webook.enabled=false", "webook"),
    ("image.digest=abc", "digest"),
    ("image.tag=a:b", "tag"),
    ("image.tag=-a", "tag"),
    ("config=text", "config"),
    ("host=here", "host"),
    ("host=", "host"),
    ("fencing.enabled=yes", "enabled"),
    ("coordination.enabled=yes", "enabled"),
    ("webhook.handlers={other}", "handlers"),
    ("webhook.sidecarImage=registry/sidecar:latest", "sidecarImage"),
    ("slurmBridge.url=slurm:6820", "url"),
    ("slurmBridge.tokenSecret=", "tokenSecret"),
    ("slurmBridge.managedNamespaces={Here}", "managedNamespaces"),
    ("slurmBridge.arguments=text", "arguments"),
])  # fmt: skip
def test_wrong_values_are_refused_by_name(value: str, field: str) -> None:
    text = refusal("--set", value)
    assert "values don't meet the specifications of the schema" in text
    assert field in text


def slurm(*values: str, namespace: str = NAMESPACE) -> list[Manifest]:
    return chart(*SLURM, *(word for value in values for word in ("--set", value)), namespace=namespace)


def test_slurms_address_name_secret_and_arguments_are_values() -> None:
    made = slurm("slurmBridge.url=https://slurm.example.com/api", "slurmBridge.schedulerName=hpc",
                 "slurmBridge.tokenSecret=mine", "slurmBridge.arguments.partition=batch",
                 "slurmBridge.arguments.timeoutSeconds=3")  # fmt: skip
    config = parse_config(find(made, "ConfigMap", "fluence")["data"]["config.yaml"], "config.yaml")
    _, profile = config.profiles
    assert profile.scheduler_name == "hpc"
    *left_out, bridge = profile.plugins
    assert [(each.name, each.enabled) for each in left_out] == [("fluence", False), ("DynamicResources", False)]
    assert bridge.args == {
        "url": "https://slurm.example.com/api", "tokenFile": "/etc/fluence/slurm/auth-token", "partition": "batch",
        "mcsLabel": "kubernetes", "schedulerName": "hpc", "timeoutSeconds": 3}  # fmt: skip
    volumes = find(made, "Deployment", "fluence")["spec"]["template"]["spec"]["volumes"]
    assert volumes[-1]["secret"] == {"secretName": "mine", "optional": True}
    command = container(made, "Deployment", "fluence-webhook")["command"]
    assert command[command.index("--slurm-scheduler-name") + 1] == "hpc"
    *_, bridged, _ = find(made, "MutatingWebhookConfiguration", "fluence-webhook")["webhooks"]
    assert bridged["matchConditions"][0]["expression"].endswith("object.spec.schedulerName == 'hpc'")


@pytest.mark.parametrize(("url", "port"), [
    ("http://slurm:6820", 6820), ("https://slurm/api", 443), ("http://slurm", 80), ("http://[fd00::1]:7", 7),
    ("http://[fd00::1]/x", 80),
])  # fmt: skip
def test_the_network_policy_allows_slurms_address(url: str, port: int) -> None:
    (rule,) = find(slurm(f"slurmBridge.url={url}"), "NetworkPolicy", "fluence")["spec"]["egress"]
    assert rule["ports"][-1] == {"protocol": "TCP", "port": port}


def test_managed_namespaces_are_listed_or_selected_but_never_the_charts_own() -> None:
    def selected(*values: str) -> Manifest:
        *_, managed = find(slurm(*values), "MutatingWebhookConfiguration", "fluence-webhook")["webhooks"]
        return dict(managed["namespaceSelector"])

    own = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [NAMESPACE]}
    listed = "slurmBridge.managedNamespaces={a,b}"
    among = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
    assert selected(listed) == {"matchExpressions": [among, own]}
    command = container(slurm(listed), "Deployment", "fluence-webhook")["command"]
    assert [command[i + 1] for i, word in enumerate(command) if word == "--managed-namespace"] == ["a", "b"]
    chosen = "slurmBridge.managedNamespaceSelector."
    team = {"key": "team", "operator": "Exists"}
    assert selected(f"{chosen}matchLabels.hpc=yes") == {"matchLabels": {"hpc": "yes"}, "matchExpressions": [own]}
    expression = f"{chosen}matchExpressions[0]"
    assert selected(f"{expression}.key=team", f"{expression}.operator=Exists") == {"matchExpressions": [team, own]}
    text = refusal(*SLURM, "--set", "slurmBridge.managedNamespaces={default}")
    assert "slurmBridge.managedNamespaces must not include the chart's own namespace" in text


def test_slurm_and_fluence_cannot_share_a_scheduler_name() -> None:
    text = refusal(*SLURM, "--set", "schedulerNames={fluence,slurm-bridge-scheduler}")
    assert "slurmBridge.schedulerName is also one of schedulerNames: slurm-bridge-scheduler; choose another" in text
